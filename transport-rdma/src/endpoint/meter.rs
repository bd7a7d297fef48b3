//! Metrics of drivers for the `metrics` facade. Its names are listed in the documentation of `farcall::metrics`.

#[cfg(feature = "metrics")]
pub(super) use self::counting::Meter;
#[cfg(not(feature = "metrics"))]
pub(super) use self::silent::Meter;

#[cfg(feature = "metrics")]
mod counting {
    use std::sync::{Arc, Mutex, PoisonError};

    use farcall_core::sampler::{Sampled, Sampler};

    use crate::endpoint::Shard;
    use crate::stats::DeviceStats;

    /// The numbers already told of an endpoint.
    #[derive(Debug, Default)]
    pub(crate) struct Meter {
        told: Mutex<DeviceStats>,
        sampler: Sampler,
    }

    impl Meter {
        /// Its endpoint does something.
        #[inline]
        pub(crate) fn tell_soon(&self, shard: &Arc<Shard>) {
            self.sampler.wake(&shard.runtime, || Arc::downgrade(shard));
        }
    }

    impl Sampled for Shard {
        fn sampler(&self) -> &Sampler {
            &self.meter.sampler
        }

        fn sample(&self) -> bool {
            let mut told = self.meter.told.lock().unwrap_or_else(PoisonError::into_inner);
            let mut now = DeviceStats::default();
            self.resources.counts.add_to(&mut now);
            let before = std::mem::replace(&mut *told, now.clone());
            drop(told);
            for (name, more) in [
                ("farcall_rdma_polls_total", now.polls - before.polls),
                ("farcall_rdma_spins_total", now.spins - before.spins),
                ("farcall_rdma_sleeps_total", now.sleeps - before.sleeps),
                ("farcall_rdma_credit_waits_total", now.credit_waits - before.credit_waits),
                ("farcall_rdma_direct_accesses_total", now.direct_accesses - before.direct_accesses),
            ] {
                metrics::counter!(name, "device" => self.device.device.name().to_owned()).increment(more);
            }
            now != before
        }
    }

    impl Drop for Shard {
        /// Reports the rest, even if the runtime ends first.
        fn drop(&mut self) {
            self.sample();
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod silent {
    use std::sync::Arc;

    use crate::endpoint::Shard;

    /// Stands in for what is told, without the feature `metrics`.
    #[derive(Debug, Default)]
    pub(crate) struct Meter {}

    impl Meter {
        #[inline]
        pub(crate) fn tell_soon(&self, _: &Arc<Shard>) {}
    }
}
