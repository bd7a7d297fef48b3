//! A place among the peer's concurrent calls.

use std::sync::Arc;
use std::task::Waker;

use super::CallSlots;

/// A place for a call. Dropping it frees it, and wakes the next in line.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<CallSlots>>);

impl Place {
    /// Returns the place of a call that [keeps](super::Slots::poll) it, or that was [waited
    /// for](super::Slots::wait_in_line).
    pub(crate) fn new(slots: &Arc<CallSlots>) -> Self {
        Self(Some(slots.clone()))
    }

    /// Passes the place to a call, which holds it until it ends.
    pub(crate) fn pass_on(mut self) {
        self.0 = None;
    }

    /// Frees the place. Returns the waker of the next in line.
    pub(crate) fn leave(mut self) -> Option<Waker> {
        self.0.take().and_then(|slots| slots.give_back().into_waker())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(slots) = &self.0 {
            slots.give_back().wake();
        }
    }
}
