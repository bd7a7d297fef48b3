//! Further attempts to upgrade, after one failed or after the upgraded link was lost.

use std::time::Duration;

use tokio::time::Instant;

use super::{Connection, Phase, Role, Upgrading};
use crate::backoff;
use crate::proto::wire;
use crate::sync::{Mutex, rank};

/// The pause before the first further attempt. Each later one is twice as long, up to `liveness.retry_ms`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The lifetime from which a link does not count as failing again and again.
const PROVEN: Duration = Duration::from_secs(60);

/// The recent failures of the upgraded link.
#[derive(Debug, Default)]
pub(super) struct Retry(Mutex<rank::Leaf, Failures>);

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    up_since: Option<Instant>,
}

impl Retry {
    /// Records that the session has moved to the upgraded link.
    pub(super) fn note_up(&self) {
        self.0.lock().up_since = Some(Instant::now());
    }

    /// Records a failure, and returns the pause before the next attempt.
    fn pause(&self, longest: Duration) -> Duration {
        let mut failures = self.0.lock();
        if failures.up_since.take().is_some_and(|since| since.elapsed() >= PROVEN) {
            failures.count = 0;
        }
        let pause = backoff::pause(failures.count, FIRST_PAUSE, longest);
        failures.count += 1;
        pause
    }
}

impl Connection {
    /// Client: schedules another attempt, when there is no upgraded link and no attempt in progress.
    pub(super) fn move_up_later(&self) {
        let longest = self.settings().liveness.retry();
        if self.role() != Role::Client || longest.is_zero() || self.is_closed() {
            return;
        }
        let pause = self.retry.pause(longest);
        let connection = self.me.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(pause).await;
            if let Some(this) = connection.upgrade() {
                this.move_up_again();
            }
        });
    }

    fn move_up_again(&self) {
        let is_wanted = matches!(*self.phase.borrow(), Phase::Open)
            && matches!(*self.upgrading.borrow(), Upgrading::Stream { .. });
        if is_wanted {
            self.move_up();
        }
    }

    /// Client: starts an attempt.
    pub(super) fn move_up(&self) {
        let (Ok(upgrade), Some(hello)) = (&self.settings().upgrade, self.sender.terms().peer()) else {
            return;
        };
        let theirs = hello.upgrades.iter().find(|theirs: &&wire::Upgrade| theirs.name == upgrade.name());
        if let (Some(theirs), Some(connection)) = (theirs, self.me()) {
            self.attempt(connection.offer(upgrade.clone(), theirs.data.clone()));
        }
    }
}
