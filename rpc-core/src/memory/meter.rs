//! Reports of a budget to the `metrics` facade. The documentation of `farcall::metrics` lists the names.

#[cfg(feature = "metrics")]
pub(super) use self::counting::Meter;
#[cfg(not(feature = "metrics"))]
pub(super) use self::silent::Meter;

#[cfg(feature = "metrics")]
mod counting {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    use tokio::runtime::Handle;

    use crate::memory::{Budget, USES};
    use crate::sampler::{Sampled, Sampler};

    /// The state of a budget's reports.
    #[derive(Debug, Default)]
    pub(in crate::memory) struct Meter {
        held_back: AtomicU64,
        closed: AtomicU64,
        told: Mutex<Told>,
        sampler: Sampler,
    }

    /// The labels of [uses](crate::memory::Use), in their order. They name no peer, so that there are no more than these.
    const LABELS: [&str; USES] = ["session", "partial", "arguments", "items", "unsent"];

    /// The numbers that were reported last.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Told {
        used: usize,
        held: [usize; USES],
        held_back: u64,
        closed: u64,
    }

    impl Meter {
        pub(in crate::memory) fn new() -> Self {
            Self::default()
        }

        /// Schedules a report, because more or less is used. Calls no recorder, so it may be called under locks.
        pub(in crate::memory) fn tell_soon(&self, budget: &Arc<Budget>) {
            // An unlimited budget is a client's. Outside of a runtime there is none to report.
            if budget.limit() < usize::MAX
                && let Ok(runtime) = Handle::try_current()
            {
                self.sampler.wake(&runtime, || Arc::downgrade(budget));
            }
        }

        /// Reports now, because the budget is over.
        pub(in crate::memory) fn tell_now(budget: &Budget) {
            budget.sample();
        }

        pub(in crate::memory) fn note_held_back(&self) {
            self.held_back.fetch_add(1, Ordering::Relaxed);
        }

        pub(in crate::memory) fn note_closed(&self) {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Sampled for Budget {
        fn sampler(&self) -> &Sampler {
            &self.meter.sampler
        }

        fn sample(&self) -> bool {
            let Meter { held_back, closed, told, .. } = &self.meter;
            let [held_back, closed] = [held_back, closed].map(|count| count.load(Ordering::Relaxed));
            let now = Told { used: self.used(), held: self.held(), held_back, closed };
            let before = std::mem::replace(&mut *told.lock().unwrap_or_else(PoisonError::into_inner), now);
            if now == before {
                return false;
            }
            metrics::gauge!("farcall_memory_used_bytes").increment(now.used as f64 - before.used as f64);
            for (of, label) in LABELS.into_iter().enumerate() {
                let change = now.held[of] as f64 - before.held[of] as f64;
                metrics::gauge!("farcall_memory_held_bytes", "use" => label).increment(change);
            }
            metrics::counter!("farcall_memory_held_back_total").increment(now.held_back - before.held_back);
            metrics::counter!("farcall_memory_closed_total").increment(now.closed - before.closed);
            true
        }
    }
}

/// A meter that does nothing, for builds without the feature `metrics`.
#[cfg(not(feature = "metrics"))]
mod silent {
    use std::sync::Arc;

    use crate::memory::Budget;

    #[derive(Debug)]
    pub(in crate::memory) struct Meter;

    impl Meter {
        pub(in crate::memory) fn new() -> Self {
            Self
        }

        pub(in crate::memory) fn tell_soon(&self, _: &Arc<Budget>) {}

        pub(in crate::memory) fn tell_now(_: &Budget) {}

        pub(in crate::memory) fn note_held_back(&self) {}

        pub(in crate::memory) fn note_closed(&self) {}
    }
}
