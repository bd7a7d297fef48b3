//! The freeing of what a connection leaves behind: bit by bit, with turns of other tasks between the steps.
//!
//! The system needs a millisecond to take 10 MiB back, and all other connections of the runtime would wait for that.

use tokio::runtime::Handle;
use tokio::task::yield_now;

use crate::memory::Gauge;
use crate::proto::inbox::Inbox;
use crate::proto::outbox::Unsent;

/// What takes more bytes than this is freed in steps.
const MUCH: usize = 1 << 20;

/// Messages of a connection that has ended.
pub(crate) trait Leftovers: Send + 'static {
    /// Returns how much memory they take, in bytes.
    fn memory(&self) -> usize;

    /// Drops one of them. False: there is none.
    fn drop_one(&mut self) -> bool;
}

impl Leftovers for Inbox {
    fn memory(&self) -> usize {
        self.memory()
    }

    fn drop_one(&mut self) -> bool {
        self.drop_one()
    }
}

impl Leftovers for Unsent {
    fn memory(&self) -> usize {
        self.memory()
    }

    fn drop_one(&mut self) -> bool {
        self.drop_one()
    }
}

/// Frees messages one at a time if they are long together, else at once. `gauge` counts their memory.
pub(crate) fn free_in_steps(mut leftovers: impl Leftovers, mut gauge: Gauge) {
    if leftovers.memory() > MUCH
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn(async move {
            while leftovers.drop_one() {
                gauge.set(leftovers.memory());
                yield_now().await;
            }
        });
    }
}
