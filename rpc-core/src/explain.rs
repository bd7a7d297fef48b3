//! The codes that farcall reports, each with cause, blame and remedy, for programs that explain them.

use farcall_proto::status::{Blame, Code};
use farcall_proto::wire::CloseCode;

use crate::stream::EndReason;
use crate::transport::Reason;

/// The meaning of one code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The kind of code: `status`, `reason`, `close`, `stream end`, and those that transports and the facade add.
    pub group: &'static str,
    /// The code's name, as messages and logs have it.
    pub name: String,
    /// The code's number, where it has one.
    pub number: Option<u32>,
    /// The cause.
    pub cause: String,
    /// The party whose fault it is. `None`: it depends, and the message says so.
    pub blame: Option<Blame>,
    /// The remedy.
    pub remedy: String,
}

impl Explanation {
    /// Returns an explanation without a number, and without blame.
    pub fn new(group: &'static str, name: &str, cause: &str, remedy: &str) -> Self {
        let (name, cause, remedy) = (name.to_owned(), cause.to_owned(), remedy.to_owned());
        Self { group, name, number: None, cause, blame: None, remedy }
    }

    /// Returns the explanation with a number.
    #[must_use]
    pub fn numbered(self, number: u32) -> Self {
        Self { number: Some(number), ..self }
    }

    /// Returns the explanation with blame.
    #[must_use]
    pub fn blaming(self, blame: Blame) -> Self {
        Self { blame: Some(blame), ..self }
    }
}

/// Returns words as a sentence, with a capital letter and a full stop.
pub fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}

/// Returns the statuses of calls, the reasons why a session does not use RDMA, and the ends of connections and streams.
pub fn explanations() -> Vec<Explanation> {
    let statuses = (1..=16).map(|number| status(Code::from_wire(number)).numbered(number.into()));
    let reasons = (1..=u8::MAX).filter_map(|number| Some((number, Reason::from_wire(number)?)));
    let reasons = reasons.filter(|(number, reason)| *reason as u8 == *number);
    let reasons = reasons.map(|(number, of)| reason(of).numbered(number.into()));
    let closes = [
        CloseCode::Done,
        CloseCode::Protocol,
        CloseCode::Version,
        CloseCode::Overloaded,
        CloseCode::Required,
        CloseCode::Silent,
        CloseCode::Internal,
    ];
    let closes = closes.into_iter().map(|code| close(code).numbered(code as u32));
    let streams = [
        EndReason::Completed,
        EndReason::Cancelled,
        EndReason::Deadline,
        EndReason::ConnectionLost,
        EndReason::Status,
    ];
    statuses.chain(reasons).chain(closes).chain(streams.map(stream_end)).collect()
}

fn status(code: Code) -> Explanation {
    let (cause, remedy) = match code {
        Code::Cancelled => (
            "The caller gave the call up, or the call that it was part of has ended.",
            "Nothing, if that was meant. Otherwise see why the caller's future was dropped.",
        ),
        Code::InvalidArgument => (
            "The arguments are wrong whatever the state of the system, or could not be decoded.",
            "Change the arguments. If they could not be decoded, compare both sides' service definitions (docs/EVOLUTION.md).",
        ),
        Code::DeadlineExceeded => (
            "The deadline passed before the answer came. The handler may have run.",
            "See what the time went for: a slow handler, a full queue, a network that loses packets. Else give more time.",
        ),
        Code::NotFound => ("The requested thing does not exist.", "Ask for something that exists."),
        Code::AlreadyExists => ("The thing to be made exists already.", "Use it, or make another."),
        Code::PermissionDenied => {
            ("The caller may not do this.", "Use credentials that may, or change the server's rules.")
        }
        Code::ResourceExhausted => (
            "A limit or a quota is used up: memory, calls in flight, the length of a message. The message names the limit.",
            "Wait and repeat if the call was not executed. Otherwise raise the limit that the message names, or send less.",
        ),
        Code::FailedPrecondition => (
            "The system is not in the state that the call needs.",
            "Bring it into that state first. A repetition alone does not help.",
        ),
        Code::Aborted => ("Two operations were in conflict.", "Repeat the whole sequence of calls."),
        Code::OutOfRange => ("A position is past the valid range.", "Stay within the range."),
        Code::Unimplemented => (
            "The server has no such service or method, or none with this signature.",
            "See what the server has, and whether both sides are built from compatible definitions (docs/EVOLUTION.md).",
        ),
        Code::Internal => (
            "An invariant is broken: a bug of the handler's, of the peer's, or of farcall. A handler that panics is one.",
            "Read the server's log. If the blame is on farcall, report it.",
        ),
        Code::Unavailable => (
            "The peer can't be reached now, or the connection was lost during the call.",
            "Repeat the call if the status says that it was not executed, or if it does no harm twice. See whether the server runs, and \
             `farcall connect ADDRESS`.",
        ),
        Code::DataLoss => (
            "Data is lost or damaged.",
            "Restore it from a copy. Look for damaged packets: `farcall doctor`.",
        ),
        Code::Unauthenticated => (
            "The caller did not say, or prove, who it is.",
            "Give a valid token or certificate. The message says what was wrong with it.",
        ),
        // `Unknown`. The enumeration may have more in a later version, each of which a test asks for.
        _ => (
            "A handler or a peer reported an error that says no more, or one with a code that this version does not know.",
            "Read the message, and the server's log at that time.",
        ),
    };
    Explanation::new("status", code.name(), cause, remedy)
}

fn reason(reason: Reason) -> Explanation {
    use Blame::{Bug, Environment, Peer};
    const DOCTOR: &str = "Run `farcall doctor` on that side: its first line names the cause and the fix.";
    let (blame, remedy) = match reason {
        Reason::Disabled => (
            Environment,
            "Nothing, if TCP is meant. Otherwise set `transport` to `auto` or `rdma` on both sides.",
        ),
        Reason::LibraryAbsent
        | Reason::LibraryTooOld
        | Reason::NoDevice
        | Reason::NoPermission
        | Reason::PortDown
        | Reason::NoGid
        | Reason::Memlock
        | Reason::Device => (Environment, DOCTOR),
        Reason::PeerWithout => {
            (Environment, "Run `farcall doctor` on the peer's machine, and see its `transport` setting.")
        }
        Reason::ProbeLost => (
            Environment,
            "The devices don't reach each other: see route, VLAN, MTU and firewall (UDP port 4791) between their addresses.",
        ),
        Reason::Encrypted => (
            Environment,
            "Use TLS 1.3 with AES-256-GCM or ChaCha20-Poly1305 on both sides, or set `rdma.plaintext = \"trusted-fabric\"` on both.",
        ),
        Reason::UnsupportedPlatform => {
            (Environment, "Use TCP there, or run on 64-bit Linux with the feature `rdma`.")
        }
        Reason::NoCredit => {
            (Environment, "Raise `rdma.memory` or `rdma.connections` on the side that has no buffers left.")
        }
        Reason::QueuePair => (
            Environment,
            "Nothing, if it is rare: calls went on over TCP, and a new queue pair follows. Otherwise see the completion status that the \
             message names (`farcall explain STATUS`).",
        ),
        Reason::ShuttingDown => (Peer, "Nothing: the server is going away, and its clients find another."),
        Reason::TimedOut => (
            Environment,
            "See whether both machines have time to run. Set `liveness.connect_ms` higher if they are slow.",
        ),
        Reason::Setting => (Environment, "Change the setting that the message names."),
        Reason::Other => (Bug, "Read the message: the peer is of a later version, which has a name for it."),
    };
    let cause = format!("RDMA is not used: {}.", reason.summary());
    Explanation::new("reason", reason.name(), &cause, remedy).blaming(blame)
}

fn close(code: CloseCode) -> Explanation {
    use Blame::{Bug, Environment, Peer};
    let (name, blame, cause, remedy) = match code {
        CloseCode::Done => {
            ("done", None, "The sender is done with the connection.", "Nothing: nothing is wrong.")
        }
        CloseCode::Protocol => (
            "protocol",
            Some(Peer),
            "The peer broke the protocol.",
            "See which program it is. If it is farcall on both sides, report it with the message.",
        ),
        CloseCode::Version => (
            "version",
            Some(Environment),
            "The two sides have no version of the protocol in common.",
            "Bring both sides to versions that have one (CHANGELOG.md).",
        ),
        CloseCode::Overloaded => (
            "overloaded",
            Some(Environment),
            "The server takes no more connections, or this one held too much of its memory.",
            "Wait and connect again. Raise the limit that the message names, or spread the load.",
        ),
        CloseCode::Required => (
            "required",
            Some(Environment),
            "The configuration requires RDMA, and it could not be had.",
            "Run `farcall doctor` on both sides, or set `transport = \"auto\"`.",
        ),
        CloseCode::Silent => (
            "silent",
            Some(Peer),
            "The peer gave no sign of life in time.",
            "See whether the peer's process runs, and the network between both. Raise `liveness` settings if pauses are normal.",
        ),
        CloseCode::Internal => (
            "internal",
            Some(Bug),
            "Something is wrong with the sender itself.",
            "Read its log, and report it.",
        ),
    };
    Explanation { blame, ..Explanation::new("close", name, cause, remedy) }
}

fn stream_end(reason: EndReason) -> Explanation {
    use Blame::{Application, Caller, Environment};
    let (name, blame, cause, remedy) = match reason {
        EndReason::Completed => {
            ("Completed", None, "The sender has sent the whole stream.", "Nothing: nothing is wrong.")
        }
        EndReason::Cancelled => (
            "Cancelled",
            None,
            "The sender or the receiver gave the stream up: it dropped its end, or the call.",
            "Nothing, if that was meant. Otherwise see why that end was dropped.",
        ),
        EndReason::Deadline => (
            "Deadline",
            Some(Caller),
            "The deadline of the stream's call passed before its last item.",
            "See which end was slow. Give long streams more time, or no deadline.",
        ),
        EndReason::ConnectionLost => (
            "ConnectionLost",
            Some(Environment),
            "The connection was lost before the stream's end.",
            "Start the stream again. Check that the peer runs, and the network between both.",
        ),
        EndReason::Status => (
            "Status",
            Some(Application),
            "The sender failed: the last item was its error.",
            "Read that error. If it is a status, run `farcall explain` with its name.",
        ),
    };
    Explanation { blame, ..Explanation::new("stream end", name, cause, remedy) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_code_is_explained_once() {
        let all = explanations();
        for (group, count) in [("status", 16), ("reason", 19), ("close", 7), ("stream end", 5)] {
            assert_eq!(all.iter().filter(|explanation| explanation.group == group).count(), count, "{group}");
        }
        let names: HashSet<_> =
            all.iter().map(|explanation| (explanation.group, &explanation.name)).collect();
        assert_eq!(names.len(), all.len());
        // A code that has no explanation of its own would share that of `Unknown`.
        let causes: HashSet<_> = all.iter().map(|explanation| &explanation.cause).collect();
        assert_eq!(causes.len(), all.len());
        for Explanation { name, cause, remedy, .. } in &all {
            assert!(cause.ends_with('.') && remedy.ends_with('.'), "{name}: {cause} {remedy}");
        }
    }
}
