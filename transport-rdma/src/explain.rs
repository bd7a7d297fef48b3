//! The codes of devices and of looks at machines, with cause, blame and remedy.

use farcall_core::explain::{Explanation, sentence};
use farcall_core::status::Blame;

use crate::errno;
use crate::probe::KINDS;

/// Returns the findings about machines, the statuses of completions, the errors of verbs, the events of devices, and their counters.
pub fn explanations() -> Vec<Explanation> {
    let kinds = KINDS.iter().copied().flatten();
    let findings = kinds.map(|kind| {
        Explanation::new("finding", kind.code, kind.means, &sentence(kind.remedy)).blaming(Blame::Environment)
    });
    let errors = errno::meanings().map(|(name, meaning)| {
        let (cause, remedy) = (sentence(meaning.text), sentence(meaning.remedy));
        Explanation::new("verbs error", &name, &cause, &remedy)
            .numbered(meaning.errno.unsigned_abs())
            .blaming(meaning.blame.into())
    });
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    let of_devices = [crate::device::explanations(), crate::probe::explanations_of_counters()].concat();
    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    let of_devices = Vec::new();
    findings.chain(errors).chain(of_devices).collect()
}
