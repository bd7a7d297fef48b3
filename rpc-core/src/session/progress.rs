//! A wait for a condition of a connection, which costs nothing while nobody waits.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Tells those who wait for a condition that something has left, arrived or finished.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    watched: AtomicBool,
    made: Notify,
}

impl Progress {
    /// Wakes those who wait. They set `watched` before they look at what has changed now, under the lock that it was changed
    /// under: so one of the two sees the other.
    #[inline]
    pub(crate) fn note(&self) {
        if self.watched.load(Ordering::Relaxed) {
            self.made.notify_waiters();
        }
    }

    /// Resolves when `condition` holds, which it checks whenever there is progress.
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
