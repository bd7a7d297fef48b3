//! The part of an endpoint's resources that one link gets.

use crate::device::{QpSize, QueuePair, Unavailable};

use super::control::DropOnControlThread;
use super::memory::CreditLease;

/// Sends of a link that are kept for control frames, one each for a CREDIT, PING, PONG and CLOSE.
const CONTROL_SENDS: usize = 4;

/// A queue pair in state INIT, and the receives that are promised to its peer.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) qp: DropOnControlThread<dyn QueuePair>,
    pub(crate) lease: CreditLease,
    pub(crate) shares: Shares,
}

/// The resource that there is too little of for another link.
#[derive(Debug)]
pub(crate) enum NoRoom {
    /// Receives: all are promised, and there may be no more memory, or for this reason there is none.
    Receives(Option<Unavailable>),
    /// Completions of sends: there are as many links as there may be.
    Completions,
}

/// How many of what a link can have outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Sends of frames, but for those of the link's own.
    pub(crate) data: usize,
    /// READs.
    pub(crate) reads: usize,
    /// Bytes of READs and WRITEs.
    pub(crate) bulk_window: usize,
    /// Memory windows, each with a bind and an invalidation.
    pub(crate) windows: usize,
}

impl Shares {
    pub(crate) fn of(size: QpSize, bulk_window: u32) -> Self {
        let rest = usize::from(size.sends) - CONTROL_SENDS;
        let bulk = (rest / 11).min(MAX_BULK);
        Self { data: rest - 3 * bulk, reads: bulk, bulk_window: bulk_window as usize, windows: bulk }
    }
}

/// Memory windows of a link at most, and READs.
const MAX_BULK: usize = 8;
