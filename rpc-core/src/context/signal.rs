//! A one-time signal, for tasks that wait for it and for those that only check it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct Signal {
    given: AtomicBool,
    told: Notify,
}

impl Signal {
    pub(super) fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    pub(super) fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    /// Resolves once the signal has been given.
    pub(super) async fn wait(&self) {
        // Registers before the check, so that no signal is missed between the two.
        let told = self.told.notified();
        if !self.is_given() {
            told.await;
        }
    }
}
