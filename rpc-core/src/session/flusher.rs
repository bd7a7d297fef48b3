//! The task that sends what several callers have queued, with one system call for all.

use std::sync::Arc;

#[cfg(not(all(test, farcall_loom)))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(all(test, farcall_loom))]
use loom::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::sender::Sender;

/// The signal that wakes the flushing task.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    /// Whether the task was notified and has not begun. Every access is one read-modify-write. So a thread that finds
    /// this set has queued its item before the task begins, and the task sees the item.
    told: AtomicBool,
    wake: Notify,
}

impl Flusher {
    /// Notifies the task that there is something in the queue.
    pub(super) fn tell(&self) {
        if self.is_first_told() {
            self.wake.notify_one();
        }
    }

    /// Wakes the task so that it ends, if its sender has ended.
    pub(super) fn end(&self) {
        self.wake.notify_one();
    }

    pub(super) fn is_first_told(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// Marks the task as begun. A thread that queues from now on must notify it.
    pub(super) fn begin(&self) {
        self.told.swap(false, Ordering::AcqRel);
    }
}

/// Flushes when told, until the sender has ended.
pub(super) async fn flush_when_told(sender: Arc<Sender>) {
    while !sender.has_ended() {
        sender.flusher.wake.notified().await;
        // Tasks that are about to run may queue more for the same write.
        tokio::task::yield_now().await;
        sender.flusher.begin();
        sender.flush();
    }
}
