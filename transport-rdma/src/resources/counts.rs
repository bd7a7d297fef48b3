//! Counts of drivers: how often they find something, poll in vain or sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::stats::DeviceStats;

/// The work of one endpoint's driver, and the waits of its links.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    polls: Count,
    spins: Count,
    sleeps: Count,
    credit_waits: AtomicU64,
    direct_accesses: AtomicU64,
}

/// Written by the driver alone: so it needs no locked instruction, of which each turn would feel several.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn one_more(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Counts {
    pub(crate) fn polled(&self) {
        self.polls.one_more();
    }

    pub(crate) fn spun(&self) {
        self.spins.one_more();
    }

    pub(crate) fn slept(&self) {
        self.sleeps.one_more();
    }

    /// By whoever sends on any of the links.
    pub(crate) fn lacked_credits(&self) {
        self.credit_waits.fetch_add(1, Ordering::Relaxed);
    }

    /// By the driver.
    pub(crate) fn used_directly(&self) {
        self.direct_accesses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, stats: &mut DeviceStats) {
        stats.polls += self.polls.0.load(Ordering::Relaxed);
        stats.spins += self.spins.0.load(Ordering::Relaxed);
        stats.sleeps += self.sleeps.0.load(Ordering::Relaxed);
        stats.credit_waits += self.credit_waits.load(Ordering::Relaxed);
        stats.direct_accesses += self.direct_accesses.load(Ordering::Relaxed);
    }
}

/// All that were ever on a device: what those did that are gone, and those that may do more.
#[derive(Debug)]
pub(crate) struct DeviceCounts {
    gone: DeviceStats,
    running: Vec<Arc<Counts>>,
}

impl DeviceCounts {
    pub(crate) fn new(device: &str) -> Self {
        let gone = DeviceStats { device: device.to_owned(), ..DeviceStats::default() };
        Self { gone, running: Vec::new() }
    }

    pub(crate) fn begin(&mut self, counts: &Arc<Counts>) {
        self.settle();
        self.running.push(Arc::clone(counts));
    }

    pub(crate) fn stats(&mut self) -> DeviceStats {
        self.settle();
        let mut stats = self.gone.clone();
        self.running.iter().for_each(|counts| counts.add_to(&mut stats));
        stats
    }

    /// Keeps only the sum of those that nobody else has any more, or every endpoint of a long life would leave something.
    fn settle(&mut self) {
        let Self { gone, running } = self;
        running.retain_mut(|counts| Arc::get_mut(counts).map(|counts| counts.add_to(gone)).is_none());
    }
}
