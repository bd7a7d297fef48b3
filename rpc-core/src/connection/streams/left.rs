//! What was to be told of and has left, on its way to who waits for it.

use std::sync::PoisonError;

#[cfg(not(all(test, farcall_loom)))]
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

#[cfg(all(test, farcall_loom))]
use loom::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// The calls of which a message has left that nothing may follow before: noted under the lock of `sending`, told when no lock
/// is held.
#[derive(Debug, Default)]
pub(in crate::connection) struct Left {
    calls: Mutex<Vec<u64>>,
    any: AtomicBool,
}

impl Left {
    pub(in crate::connection) fn note(&self, calls: Vec<u64>) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).extend(calls);
        self.any.store(true, Ordering::Release);
    }

    /// To be asked by who has noted some, when it has unlocked, if by nobody else before.
    pub(in crate::connection) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<u64> {
        // First: what is noted after this is found by who notes it.
        self.any.swap(false, Ordering::Acquire);
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
