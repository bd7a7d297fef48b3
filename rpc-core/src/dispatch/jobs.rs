//! Requests that were received together.

use std::sync::Arc;

use tokio::time::Instant;

use super::registry::FoundMethod;
use crate::admission::{Admitted, Refused};
use crate::call_streams::Streams;
use crate::context::Shared;
use crate::payload::Payload;
use crate::proto::small_frames::SmallFrames;

/// The most frames that are handled together. It bounds the memory that a thread keeps for batches, and how long
/// finished answers wait for others.
pub(crate) const ENOUGH: usize = 64;

/// Requests that were received together. They are admitted under the lock of receiving, and run outside of it.
#[derive(Default)]
pub(crate) struct Jobs {
    pub(super) jobs: Vec<Job>,
    /// How many of them have [begun](super::Dispatch::begin).
    pub(super) begun: usize,
    /// The time at which the first one was decoded, from which all their timeouts count.
    pub(super) now: Option<Instant>,
    /// The answers of handlers that were done at their first poll.
    pub(super) results: SmallFrames,
}

impl Jobs {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Prepares the batch for new requests.
    pub(crate) fn reset(&mut self) {
        (self.begun, self.now) = (0, None);
    }

    /// Whether the batch has room for at most this many jobs, so that its memory is worth keeping.
    pub(crate) fn is_short(&self, most: usize) -> bool {
        self.jobs.capacity() <= most
    }
}

/// A request that was decoded.
pub(super) struct Job {
    pub(super) call: u64,
    /// The method that it calls, or why it is refused.
    pub(super) found: Result<FoundMethod, Refused>,
    pub(super) payload: Payload,
    pub(super) deadline: Option<Instant>,
    pub(super) attempt: u8,
    /// The state that its contexts share, if it has metadata or streams, or is compressed.
    pub(super) shared: Option<Arc<Shared>>,
    pub(super) streams: Option<Streams>,
    /// Counts the call as in progress on the server, if that is limited.
    pub(super) admitted: Option<Box<Admitted>>,
}

impl Job {
    /// Whether nobody waits for its answer any more.
    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}
