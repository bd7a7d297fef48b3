//! The time in which messages wait for room.

use std::time::Duration;

use tokio::time::Instant;

/// The time in which messages have waited to be sent: the peer, the socket's buffer or the device's queue had no room.
#[derive(Debug, Default)]
pub(super) struct WaitTime {
    since: Option<Instant>,
    before: Duration,
}

impl WaitTime {
    /// Notes whether messages wait now.
    #[inline]
    pub(super) fn note(&mut self, wait: bool) {
        if wait != self.since.is_some() {
            self.change(wait);
        }
    }

    #[cold]
    fn change(&mut self, wait: bool) {
        self.before = self.total();
        self.since = wait.then(Instant::now);
    }

    /// Returns the time so far.
    pub(super) fn total(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
