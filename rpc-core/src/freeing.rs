//! The freeing of what a connection leaves behind: bit by bit, with turns of other tasks between the steps.
//!
//! The system needs a millisecond to take 10 MiB back, and all other connections of the runtime would wait for that. Beyond the limit of
//! the budget all is freed in the next turn: there memory counts more than latency.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::memory::{Account, Gauge};
use crate::proto::leftovers::Leftovers;
use crate::turns::{Turn, Turns};

/// Messages that take more bytes than this together are freed bit by bit.
const MUCH: usize = 1 << 20;

/// The pace of the freeing: the less memory is left, the faster.
pub(crate) struct Pace {
    account: Arc<Account>,
    turns: Turns,
    /// The last turn, until the next one is waited for.
    turn: Option<Turn>,
    last: Instant,
}

impl Pace {
    /// Returns the pace of a task of the current runtime.
    pub(crate) fn new(account: &Arc<Account>) -> Self {
        let turns = Turns::of_runtime(account.origin());
        Self { account: account.clone(), turns, turn: None, last: Instant::now() }
    }

    /// Lets other tasks have their turn. Returns how many of so many things to free in this turn: one, or more if the last turn was long
    /// ago.
    pub(crate) async fn turn(&mut self, things: usize) -> usize {
        self.turn = None;
        match self.account.time_to_free() {
            Duration::ZERO => yield_now().await,
            // Without a turn of its own, all is freed by then: its host may have many other turns.
            time => self.turn = timeout(time, self.turns.next()).await.ok(),
        }
        let now = Instant::now();
        let passed = now - std::mem::replace(&mut self.last, now);
        let part = passed.as_secs_f64() / self.account.time_to_free().as_secs_f64();
        ((things as f64 * part) as usize).saturating_add(1).min(things)
    }
}

/// Frees messages bit by bit if they are long together, else at once. `gauge` counts their memory.
pub(crate) fn free_in_steps(mut leftovers: impl Leftovers + Send + 'static, mut gauge: Gauge) {
    if leftovers.memory() > MUCH
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn(async move {
            let mut pace = Pace::new(gauge.account());
            while !leftovers.is_empty() {
                for _ in 0..pace.turn(leftovers.len()).await {
                    leftovers.drop_one();
                }
                gauge.set(leftovers.memory());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Budget, Use};

    #[tokio::test]
    async fn everything_is_freed_at_once_beyond_the_limit() {
        const MANY: usize = 1000;
        let budget = Budget::new(1 << 20);
        let account = Account::open(budget, None);
        let _held = Gauge::holding(&account, Use::Arguments, 2 << 20);
        assert_eq!(Pace::new(&account).turn(MANY).await, MANY);
    }
}
