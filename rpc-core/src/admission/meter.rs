//! Reports of servers to the `metrics` facade. The documentation of `farcall::metrics` lists the names.

use crate::status::Status;

/// The reason why a server has refused a call before its handler began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As many calls are in progress as the server can do in time.
    Overload,
    /// Nearly so many are, and the client has more than its share of them.
    Share,
    /// The deadline has passed, or comes sooner than any call of the method has ended lately.
    Deadline,
    /// The connection has `limits.concurrent_calls` in progress.
    ConcurrentCalls,
    /// The server takes no new calls.
    Draining,
    /// The client holds more than its share of `limits.memory`.
    Memory,
    /// The server requires RDMA, which the connection does not have.
    NoRdma,
}

/// A refusal that is counted when it is answered: a program's recorder of metrics must not run under a lock.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// The reason, if the server's state is one.
    pub(crate) why: Option<Refusal>,
    pub(crate) status: Status,
}

impl Refused {
    pub(crate) fn new(why: Refusal, status: Status) -> Self {
        Self { why: Some(why), status }
    }

    /// Counts it, and returns the answer.
    pub(crate) fn count(self) -> Status {
        self.why.into_iter().for_each(count_refusal);
        self.status
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self { why: None, status }
    }
}

/// Counts a refusal.
#[cfg(feature = "metrics")]
pub(crate) fn count_refusal(why: Refusal) {
    let why = match why {
        Refusal::Overload => "overload",
        Refusal::Share => "share",
        Refusal::Deadline => "deadline",
        Refusal::ConcurrentCalls => "concurrent_calls",
        Refusal::Draining => "draining",
        Refusal::Memory => "memory",
        Refusal::NoRdma => "no_rdma",
    };
    metrics::counter!("farcall_server_refusals_total", "why" => why).increment(1);
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn count_refusal(_: Refusal) {}
