//! The codes of devices and of looks at machines, with cause, blame and remedy.

use farcall_core::explain::Explanation;
use farcall_core::status::Blame as Fault;

use crate::probe::KINDS;
use crate::{Blame, errno};

/// Returns the findings about machines, the statuses of completions, the errors of verbs, and the events of devices.
pub fn explanations() -> Vec<Explanation> {
    let kinds = KINDS.iter().copied().flatten();
    let findings = kinds.map(|kind| {
        let remedy = "`farcall doctor` says what was seen on this machine, and what to do.";
        Explanation::new("finding", kind.code, kind.means, remedy).blaming(Fault::Environment)
    });
    let errors = errno::meanings().map(|(name, meaning)| {
        let (cause, remedy) = (sentence(meaning.text), sentence(meaning.remedy));
        Explanation::new("verbs error", &name, &cause, &remedy)
            .numbered(meaning.errno.unsigned_abs())
            .blaming(fault(meaning.blame))
    });
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    let of_devices = crate::device::explanations();
    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    let of_devices = Vec::new();
    findings.chain(errors).chain(of_devices).collect()
}

/// Returns the words with a capital letter and a full stop.
pub(crate) fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}

/// Returns the blame in the terms of statuses.
pub(crate) fn fault(blame: Blame) -> Fault {
    match blame {
        Blame::Bug => Fault::Bug,
        Blame::Peer => Fault::Peer,
        Blame::Environment => Fault::Environment,
    }
}
