//! The meaning of a failed completion, whose fault it is, and what to do about it.

use std::fmt;

use farcall_core::explain::{Explanation, sentence};

use crate::errno::Blame;

/// `enum ibv_wc_status` as a number, because a later device may report one that has no name here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

/// Whose fault a failed completion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WcClass {
    /// A bug or a configuration on this side: report, don't retry.
    Local,
    /// The peer broke the protocol: close.
    Peer,
    /// Network or hardware: another queue pair, or TCP, may work.
    Transport,
    /// Follows from an earlier failure, which is the one to report.
    Flush,
}

struct Meaning {
    name: &'static str,
    text: &'static str,
    remedy: &'static str,
    class: WcClass,
}

/// The statuses that code tells from others, by libibverbs' names without `IBV_WC_`.
impl WcStatus {
    /// `IBV_WC_SUCCESS`.
    pub const SUCCESS: Self = Self(0);
    /// `IBV_WC_LOC_LEN_ERR`.
    pub const LOC_LEN_ERR: Self = Self(1);
    /// `IBV_WC_LOC_QP_OP_ERR`.
    pub const LOC_QP_OP_ERR: Self = Self(2);
    /// `IBV_WC_LOC_PROT_ERR`.
    pub const LOC_PROT_ERR: Self = Self(4);
    /// `IBV_WC_WR_FLUSH_ERR`.
    pub const WR_FLUSH_ERR: Self = Self(5);
    /// `IBV_WC_REM_ACCESS_ERR`.
    pub const REM_ACCESS_ERR: Self = Self(10);
    /// `IBV_WC_REM_OP_ERR`.
    pub const REM_OP_ERR: Self = Self(11);
    /// `IBV_WC_RETRY_EXC_ERR`.
    pub const RETRY_EXC_ERR: Self = Self(12);
    /// `IBV_WC_RNR_RETRY_EXC_ERR`.
    pub const RNR_RETRY_EXC_ERR: Self = Self(13);
    /// `IBV_WC_FATAL_ERR`.
    pub const FATAL_ERR: Self = Self(19);
    /// None of libibverbs': a message has come with immediate data, or with a key to invalidate.
    pub const FOREIGN_REQUEST: Self = Self(1 << 16);

    /// C's name without the prefix: `RETRY_EXC_ERR`.
    pub fn name(self) -> &'static str {
        self.lookup().name
    }

    /// Returns what has happened, for a person who does not know verbs.
    pub fn meaning(self) -> &'static str {
        self.lookup().text
    }

    /// Where to look, or what to change.
    pub fn remedy(self) -> &'static str {
        self.lookup().remedy
    }

    /// Whose fault it is.
    pub fn class(self) -> WcClass {
        self.lookup().class
    }

    /// Whose fault it is, in the terms that other errors use.
    pub fn blame(self) -> Blame {
        match self.class() {
            WcClass::Local => Blame::Bug,
            WcClass::Peer => Blame::Peer,
            WcClass::Transport | WcClass::Flush => Blame::Environment,
        }
    }

    fn lookup(self) -> &'static Meaning {
        match self {
            Self::FOREIGN_REQUEST => &FOREIGN,
            Self(number) => usize::try_from(number).ok().and_then(|i| TABLE.get(i)).unwrap_or(&UNKNOWN),
        }
    }
}

/// Returns the explanations of all statuses.
pub(super) fn explanations() -> impl Iterator<Item = Explanation> {
    let statuses = (1..).map(WcStatus).take(TABLE.len() - 1).chain([WcStatus::FOREIGN_REQUEST]);
    statuses.map(|status| {
        let (cause, remedy) = (sentence(status.meaning()), sentence(status.remedy()));
        let explanation = Explanation::new("completion status", status.name(), &cause, &remedy);
        explanation.numbered(status.0).blaming(status.blame().into())
    })
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, status {})", self.meaning(), self.name(), self.0)
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// A completion that failed: the only fields that are valid then, beside which request it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WcError {
    /// The status of the completion.
    pub status: WcStatus,
    /// The device's own code, for its manufacturer.
    pub vendor: u32,
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, vendor error {:#x}", self.status, self.vendor)
    }
}

const fn row(name: &'static str, class: WcClass, text: &'static str, remedy: &'static str) -> Meaning {
    Meaning { name, text, remedy, class }
}

const BUG: &str = "report this as a bug";
const SAME_VERSION: &str = "check that both ends run compatible versions with the same limits";
const LOGS: &str = "check the device's counters and the kernel's log";
const NOT_RC: &str = "the device reported an error that reliable connections do not have";

const UNKNOWN: Meaning =
    row("UNKNOWN", WcClass::Transport, "the device reported an error this program does not know", LOGS);

const FOREIGN: Meaning = row(
    "FOREIGN_REQUEST",
    WcClass::Peer,
    "the peer broke the protocol: it sent immediate data, or a key to invalidate",
    "find out which program the peer is: farcall sends neither",
);

/// Indexed by the status.
#[rustfmt::skip]
const TABLE: [Meaning; 24] = {
    use WcClass::{Flush, Local, Peer, Transport};
    [
        row("SUCCESS", Flush, "success", "nothing to do"),
        row("LOC_LEN_ERR", Peer, "a message is larger than the receive buffer", SAME_VERSION),
        row("LOC_QP_OP_ERR", Transport, "the device refused to send, or a malformed or unsupported work request",
            "bring its port and network interface up if they are down (Soft-RoCE says so then); else report this as a bug"),
        row("LOC_EEC_OP_ERR", Local, NOT_RC, BUG),
        row("LOC_PROT_ERR", Local, "a buffer is not registered with the device, or no longer", BUG),
        row("WR_FLUSH_ERR", Flush, "the queue pair had failed before", "look for the first error of this queue pair"),
        row("MW_BIND_ERR", Local, "the device refused a memory window", "work without memory windows"),
        row("BAD_RESP_ERR", Transport, "the peer's device or the network answered with an invalid packet", LOGS),
        row("LOC_ACCESS_ERR", Local, "the device may not write to a receive buffer", BUG),
        row("REM_INV_REQ_ERR", Peer, "the peer's device refused the operation or its length", SAME_VERSION),
        row("REM_ACCESS_ERR", Peer, "the peer has revoked this memory or never granted it",
            "expected if the call was cancelled; else report this as a bug"),
        row("REM_OP_ERR", Transport, "the peer's device could not complete the operation",
            "look at the peer's log for its own error"),
        row("RETRY_EXC_ERR", Transport, "the peer's device did not answer, seven times in half a second",
            "check that the peer is up and still has this queue pair, cables and switches, that the MTU is the same all the \
             way, and RoCE's flow control (`rdma statistic`, `ethtool -S`)"),
        row("RNR_RETRY_EXC_ERR", Peer, "the peer had no receive buffer: flow control is broken, or its process stalls",
            "report this as a bug if the peer's process was running"),
        row("LOC_RDD_VIOL_ERR", Local, NOT_RC, BUG),
        row("REM_INV_RD_REQ_ERR", Local, NOT_RC, BUG),
        row("REM_ABORT_ERR", Transport, "the peer's device aborted the operation",
            "look at the peer's log for its own error"),
        row("INV_EECN_ERR", Local, NOT_RC, BUG),
        row("INV_EEC_STATE_ERR", Local, NOT_RC, BUG),
        row("FATAL_ERR", Transport, "the device has failed", LOGS),
        row("RESP_TIMEOUT_ERR", Transport, "the device did not get a response in time", LOGS),
        row("GENERAL_ERR", Transport, "the device reported an error without a kind", LOGS),
        row("TM_ERR", Local, "the device reported a tag-matching error, which is not used here", BUG),
        row("TM_RNDV_INCOMPLETE", Local, "the device reported a tag-matching error, which is not used here", BUG),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_the_header_stands_at_its_number() {
        let header = "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR \
                      LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR \
                      LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR \
                      RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE";
        let names: Vec<_> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names, header.split_whitespace().collect::<Vec<_>>());
        assert_eq!(WcStatus::RNR_RETRY_EXC_ERR.name(), "RNR_RETRY_EXC_ERR");
        assert_eq!(WcStatus::FATAL_ERR.name(), "FATAL_ERR");
    }

    #[test]
    fn classes_decide_what_is_retried() {
        assert_eq!(WcStatus::WR_FLUSH_ERR.class(), WcClass::Flush);
        assert_eq!(WcStatus::RETRY_EXC_ERR.class(), WcClass::Transport);
        assert_eq!(WcStatus::RNR_RETRY_EXC_ERR.class(), WcClass::Peer);
        assert_eq!(WcStatus::LOC_PROT_ERR.class(), WcClass::Local);
        assert_eq!(WcStatus::LOC_PROT_ERR.blame(), Blame::Bug);
        assert_eq!(WcStatus::RETRY_EXC_ERR.blame(), Blame::Environment);
    }

    #[test]
    fn unknown_status_is_reported_by_number() {
        let status = WcStatus(77);
        assert_eq!(status.class(), WcClass::Transport);
        assert!(status.to_string().contains("status 77"));
        assert_eq!(WcStatus(u32::MAX).name(), "UNKNOWN");
    }

    #[test]
    fn every_text_says_something() {
        for number in 0..30 {
            let status = WcStatus(number);
            assert!(!status.meaning().is_empty() && !status.remedy().is_empty());
        }
    }
}
