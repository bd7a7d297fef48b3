//! Tracked messages that have left, on their way to the streams that wait for that.

#[cfg(not(all(test, farcall_loom)))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(all(test, farcall_loom))]
use loom::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Mutex, rank};

/// The calls whose tracked message has left: noted under the sending lock, reported when no lock is held.
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

    /// Whether there are any. A thread that has noted some must check after it has unlocked, if no other does before.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Vec<u64> {
        // First: the thread that notes one after this finds it.
        self.any.swap(false, Ordering::Acquire);
        std::mem::take(&mut *self.calls.lock())
    }
}
