//! Tracked messages that were sent, to be reported to the streams that wait for them.

#[cfg(not(all(test, farcall_loom)))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(all(test, farcall_loom))]
use loom::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Mutex, rank};

/// The calls whose tracked message was sent. They are recorded under the sending lock, and reported when no lock is
/// held.
#[derive(Debug, Default)]
pub(crate) struct SentCalls {
    calls: Mutex<rank::Leaf, Vec<u64>>,
    any: AtomicBool,
}

impl SentCalls {
    pub(crate) fn note(&self, calls: Vec<u64>) {
        self.calls.lock().extend(calls);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there are any. A thread that has recorded some must check after unlocking, unless another checks first.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Vec<u64> {
        // Cleared first, so that a call that is recorded after this sets it again.
        self.any.swap(false, Ordering::Acquire);
        std::mem::take(&mut *self.calls.lock())
    }
}
