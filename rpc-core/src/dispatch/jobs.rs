//! Requests that were taken in together.

use std::sync::Arc;

use tokio::time::Instant;

use super::registry::FoundMethod;
use crate::call_streams::Streams;
use crate::context::Shared;
use crate::payload::Payload;
use crate::proto::small_frames::SmallFrames;
use crate::status::Status;

/// How many frames are taken in together at most. What a thread keeps for batches is bounded by it, and so is how long answers
/// that are ready wait for others.
pub(crate) const ENOUGH: usize = 64;

/// Requests that were taken in together: decided on under the lock of receiving, and run outside of it.
#[derive(Default)]
pub(crate) struct Jobs {
    pub(super) jobs: Vec<Job>,
    /// How many of them have [begun](super::Dispatch::begin).
    pub(super) begun: usize,
    /// When the first of them was looked at: the time of all of them counts from then on.
    pub(super) now: Option<Instant>,
    /// The answers of handlers that were done at their first poll.
    pub(super) results: SmallFrames,
}

impl Jobs {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Makes room for others: no request was looked at.
    pub(crate) fn reset(&mut self) {
        (self.begun, self.now) = (0, None);
    }

    /// Returns whether they have memory for no more than this, which is worth being kept.
    pub(crate) fn is_short(&self, most: usize) -> bool {
        self.jobs.capacity() <= most
    }
}

/// A request that has been understood.
pub(super) struct Job {
    pub(super) call: u64,
    /// What it calls, or why it is refused.
    pub(super) found: Result<FoundMethod, Status>,
    pub(super) payload: Payload,
    pub(super) deadline: Option<Instant>,
    pub(super) attempt: u8,
    /// The state that its contexts share, if it has metadata or streams, or is compressed.
    pub(super) shared: Option<Arc<Shared>>,
    pub(super) streams: Option<Streams>,
}
