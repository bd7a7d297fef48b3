//! The task that sends what several callers have queued, with one system call for all.

use std::sync::Arc;

#[cfg(not(all(test, farcall_loom)))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(all(test, farcall_loom))]
use loom::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::sender::Sender;

/// Wakes the task that flushes.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    /// The task has been told and has not begun. Every access reads and writes in one step: a thread that finds it told has
    /// queued before the task begins, and the task finds that.
    told: AtomicBool,
    wake: Notify,
}

impl Flusher {
    /// Has the task flush, because there is something in the queue.
    pub(super) fn tell(&self) {
        if self.is_first_told() {
            self.wake.notify_one();
        }
    }

    /// Lets the task end, if its sender has.
    pub(super) fn end(&self) {
        self.wake.notify_one();
    }

    pub(super) fn is_first_told(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// A thread that queues from now on must tell.
    pub(super) fn begin(&self) {
        self.told.swap(false, Ordering::AcqRel);
    }
}

/// Flushes when told, until the sender has ended.
pub(super) async fn flush_when_told(sender: Arc<Sender>) {
    while !sender.has_ended() {
        sender.flusher.wake.notified().await;
        // Tasks that are about to run may have something for the same write.
        tokio::task::yield_now().await;
        sender.flusher.begin();
        sender.flush();
    }
}
