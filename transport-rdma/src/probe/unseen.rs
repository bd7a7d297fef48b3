//! Programs that gave no answer, and what is therefore not known about the machine.

use std::collections::BTreeSet;

use super::Finding;
use super::finding::kinds;
use super::report::BEGINNING;
use crate::machine::NoOutput;

kinds! { KINDS:
    NOT_LOOKED_AT = "not-looked-at", Note, Software,
        "Programs of the system tell a part of the set-up. Some gave no answer, so this report says nothing about their part.",
        "install the programs that are missing, and run `farcall doctor` once as root";
}

/// A program that farcall asks.
struct Program {
    name: &'static str,
    /// The package of Debian and Ubuntu that has it.
    package: &'static str,
    /// The part of the set-up that it tells about.
    tells: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program { name: "nft", package: "nftables", tells: "the firewall's rules about RoCE" },
    Program { name: "iptables-save", package: "iptables", tells: "iptables' rules about RoCE" },
    Program { name: "ip6tables-save", package: "iptables", tells: "ip6tables' rules about RoCE" },
    Program { name: "iptables-legacy-save", package: "iptables", tells: "legacy iptables' rules about RoCE" },
    Program {
        name: "ip6tables-legacy-save",
        package: "iptables",
        tells: "legacy ip6tables' rules about RoCE",
    },
    Program { name: "dcb", package: "iproute2", tells: "PFC, ETS and the priorities of DSCPs" },
    Program {
        name: "ethtool",
        package: "ethtool",
        tells: "global pause, receive rings and the card's counters",
    },
    Program {
        name: "ibv_devinfo",
        package: "ibverbs-utils",
        tells: "the port's active MTU, unless the device is tried",
    },
    Program { name: "lldpctl", package: "lldpd", tells: "the switch's name" },
    Program { name: "rdma", package: "iproute2", tells: "the device's objects that are in use" },
];

/// A question that a program has not answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unseen {
    why: NoOutput,
    /// The program and its arguments.
    command: String,
}

impl Unseen {
    /// Returns the question. `None`: nothing is left open by it.
    pub(super) fn new(program: &[&str], why: NoOutput) -> Option<Self> {
        (why != NoOutput::Unsupported).then(|| Self { why, command: program.join(" ") })
    }

    fn program(&self) -> Option<&'static Program> {
        let name = self.command.split(' ').next()?;
        PROGRAMS.iter().find(|program| program.name == name)
    }
}

/// Returns the finding about all questions that were not answered. `None`: there are none.
pub(super) fn finding(unseen: &BTreeSet<Unseen>) -> Option<Finding> {
    let (mut seen, mut fixes) = (Vec::new(), Vec::new());
    for question in unseen {
        let Some(Program { name, tells, .. }) = question.program() else { continue };
        let why = match question.why {
            NoOutput::NotInstalled => format!("{name} is not installed"),
            NoOutput::Refused => format!("{name} needs root"),
            NoOutput::TimedOut => format!("{name} did not end in time"),
            NoOutput::NotRun => format!("{name} does not run for a directory"),
            NoOutput::NotRecorded => format!("the record has no answer of {name}"),
            NoOutput::Failed | NoOutput::Unsupported => format!("{name} failed"),
        };
        // A program has several questions.
        push(&mut seen, format!("{why}: {tells}"));
        push(&mut fixes, remedy(unseen, question));
    }
    let is_any = !seen.is_empty();
    is_any.then(|| Finding::new(&NOT_LOOKED_AT, format!("{BEGINNING}{}", seen.join("; ")), fixes.join("; ")))
}

fn push(list: &mut Vec<String>, item: String) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn remedy(unseen: &BTreeSet<Unseen>, question: &Unseen) -> String {
    match question.why {
        NoOutput::NotInstalled => {
            let absent = unseen.iter().filter(|other| other.why == NoOutput::NotInstalled);
            let packages = absent.filter_map(|other| Some(other.program()?.package));
            let packages: Vec<_> = packages.collect::<BTreeSet<_>>().into_iter().collect();
            format!("`apt install {}`", packages.join(" "))
        }
        NoOutput::Refused => "run it once as root: `sudo farcall doctor`".to_owned(),
        NoOutput::NotRun => "run `farcall doctor` on the host itself, without `--root`".to_owned(),
        NoOutput::NotRecorded => "record it anew: `farcall doctor --record FILE`".to_owned(),
        NoOutput::TimedOut | NoOutput::Failed | NoOutput::Unsupported => {
            format!("see why: `{}`", question.command)
        }
    }
}
