//! Counters that are reported once a second, for code that is too busy to report each change.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

/// The interval of the reports.
const EVERY: Duration = Duration::from_secs(1);

/// A set of counters that is reported once a second.
pub trait Sampled: Send + Sync + 'static {
    /// Returns the sampler of these counters, the same one each time.
    fn sampler(&self) -> &Sampler;

    /// Reports what was counted since the last time. Returns false if there was nothing.
    fn sample(&self) -> bool;
}

/// A task that samples counters while they change, and ends while they are idle.
#[derive(Debug, Default)]
pub struct Sampler {
    runs: AtomicBool,
}

impl Sampler {
    /// Starts the task if it does not run. Call it when something is counted, or is about to be. It costs one load
    /// otherwise, so it may be called for each message.
    pub fn wake<S: Sampled>(&self, runtime: &Handle, sampled: impl FnOnce() -> Weak<S>) {
        if !self.runs.load(Ordering::Relaxed) && !self.runs.swap(true, Ordering::AcqRel) {
            runtime.spawn(sample(Running { sampled: sampled(), is_over: false }));
        }
    }
}

/// The right to sample. It is given back when the task is dropped with its runtime.
struct Running<S: Sampled> {
    sampled: Weak<S>,
    /// Whether the task has ended by itself, and another may run.
    is_over: bool,
}

impl<S: Sampled> Drop for Running<S> {
    fn drop(&mut self) {
        if !self.is_over
            && let Some(sampled) = self.sampled.upgrade()
        {
            sampled.sampler().runs.store(false, Ordering::Release);
        }
    }
}

async fn sample<S: Sampled>(mut running: Running<S>) {
    sample_until_idle(&running.sampled).await;
    running.is_over = true;
}

async fn sample_until_idle(sampled: &Weak<impl Sampled>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(sampled) = sampled.upgrade() else { return };
        if sampled.sample() {
            continue;
        }
        let runs = &sampled.sampler().runs;
        runs.swap(false, Ordering::AcqRel);
        // A counter that changed just before was left to this task. One that changes from now on starts another.
        if !sampled.sample() || runs.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Count {
        sampler: Sampler,
        left: AtomicU32,
        samples: AtomicU32,
    }

    impl Count {
        fn wake(self: &Arc<Self>) {
            self.sampler.wake(&Handle::current(), || Arc::downgrade(self));
        }
    }

    impl Sampled for Count {
        fn sampler(&self) -> &Sampler {
            &self.sampler
        }

        fn sample(&self) -> bool {
            self.samples.fetch_add(1, Ordering::Relaxed);
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sampling_is_once_a_second_until_nothing_changes_and_begins_again_later() {
        let count = Arc::new(Count::default());
        for (left, samples) in [(3, 3 + 2), (0, 7), (1, 10)] {
            count.left.store(left, Ordering::Relaxed);
            count.wake();
            count.wake();
            tokio::time::sleep(100 * EVERY).await;
            assert_eq!(count.samples.load(Ordering::Relaxed), samples);
        }
        count.wake();
        drop(count);
    }

    #[test]
    fn sampling_goes_on_in_another_runtime_after_the_first_is_gone() {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
        };
        let count = Arc::new(Count::default());
        runtime().block_on(async { count.wake() });
        count.left.store(1, Ordering::Relaxed);
        runtime().block_on(async {
            count.wake();
            tokio::time::sleep(10 * EVERY).await;
        });
        assert_eq!(count.left.load(Ordering::Relaxed), 0);
    }

    /// A counter changes between the last sample and the task's end.
    #[tokio::test(start_paused = true)]
    async fn a_count_as_the_task_ends_is_not_left() {
        let count = Arc::new(Count::default());
        count.wake();
        tokio::time::sleep(EVERY / 2).await;
        count.left.store(1, Ordering::Relaxed);
        count.wake();
        tokio::time::sleep(EVERY).await;
        assert_eq!(count.left.load(Ordering::Relaxed), 0);
    }
}
