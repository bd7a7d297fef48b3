//! Who sends what several callers have queued, in one go.

use std::sync::Arc;

#[cfg(not(all(test, farcall_loom)))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(all(test, farcall_loom))]
use loom::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::Connection;

#[derive(Debug, Default)]
pub(super) struct Flusher {
    /// It has been told, and has not begun. Only ever exchanged: who finds it told has queued before the task begins, and
    /// the task finds that.
    told: AtomicBool,
    wake: Notify,
}

impl Flusher {
    /// There is something in the queue.
    pub(super) fn tell(&self) {
        if self.is_first_told() {
            self.wake.notify_one();
        }
    }

    /// Lets its task end, if its connection has.
    pub(super) fn end(&self) {
        self.wake.notify_one();
    }

    pub(super) fn is_first_told(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    /// Who queues from now on must tell.
    pub(super) fn begin(&self) {
        self.told.swap(false, Ordering::AcqRel);
    }
}

/// The task of a [`Flusher`], which ends with its connection.
pub(super) async fn flush_when_told(connection: Arc<Connection>) {
    while !connection.is_closed() {
        connection.flusher.wake.notified().await;
        // Who is about to run may have something for the same write.
        tokio::task::yield_now().await;
        connection.flusher.begin();
        connection.flush();
    }
}
