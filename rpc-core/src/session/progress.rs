//! A wait for a condition of a connection. It costs nothing while nobody waits.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A notifier for tasks that wait until something has been sent, has arrived or has finished.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    watched: AtomicBool,
    made: Notify,
}

impl Progress {
    /// Wakes waiting tasks. A waiter sets `watched` before it checks its condition, under the lock under which the
    /// condition changes. So either the waiter sees the change, or this function sees the waiter.
    #[inline]
    pub(crate) fn note(&self) {
        if self.watched.load(Ordering::Relaxed) {
            self.made.notify_waiters();
        }
    }

    /// Resolves when `condition` holds. It is checked whenever there is progress.
    pub(crate) async fn until(&self, condition: impl Fn() -> bool) {
        self.watched.store(true, Ordering::Relaxed);
        loop {
            let made = self.made.notified();
            tokio::pin!(made);
            made.as_mut().enable();
            if condition() {
                return;
            }
            made.await;
        }
    }
}
