//! How much a server has to do, as its client sees it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The scale on which a latency is forgotten while there are no calls: a server that took twice as long as others is tried again after 6 s,
/// one that took a hundred times as long after a minute.
const MEMORY: Duration = Duration::from_secs(30);

/// The calls of one server: how many are in progress, streams among them, and how long the latest answers took.
///
/// The latency is a peak that decays, as Finagle's `peakEwma` has it: it rises to the longest call at once, and falls slowly. So a server
/// that becomes slow is avoided with its first slow call.
#[derive(Debug)]
pub(super) struct Load {
    in_flight: AtomicUsize,
    /// In nanoseconds, at the time of `measured`.
    latency: AtomicU64,
    /// In nanoseconds since `epoch`.
    measured: AtomicU64,
    epoch: Instant,
}

impl Load {
    pub(super) fn new() -> Self {
        let (in_flight, latency, measured) = Default::default();
        Self { in_flight, latency, measured, epoch: Instant::now() }
    }

    /// Counts a call in.
    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call out.
    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records the time from the beginning of a call to its answer, or to its end without one. A call that was not answered has taken its time
    /// at least, so a server that is given up on does not seem fast. It may have failed at once, so it does not make the latency less.
    pub(super) fn measure(&self, began: Instant, is_answered: bool) {
        let now = Instant::now();
        let at = self.since_epoch(now);
        let (before, took) = (self.latency(at), nanos(now.duration_since(began)) as f64);
        let latency = match is_answered {
            _ if took > before => took,
            // A faster one counts a little, beside the decay, so that the average of many counts in the end.
            true => before + (took - before) / 16.0,
            false => return,
        };
        // Another call's end between these two writes costs one measurement.
        self.latency.store(latency as u64, Ordering::Relaxed);
        self.measured.store(at, Ordering::Relaxed);
    }

    /// Returns the latency in nanoseconds, which decays while there are no calls. `at`: the time since `epoch`.
    fn latency(&self, at: u64) -> f64 {
        let age = at.saturating_sub(self.measured.load(Ordering::Relaxed));
        let latency = self.latency.load(Ordering::Relaxed) as f64;
        // The fourth power is like an exponential function here, and much cheaper.
        let memory = nanos(MEMORY) as f64;
        let root = memory / (memory + age as f64);
        latency * (root * root) * (root * root)
    }

    /// Returns a number that is larger the longer another call would take.
    pub(super) fn cost(&self, now: Instant) -> f64 {
        // A server that was not called yet is tried.
        (self.in_flight.load(Ordering::Relaxed) + 1) as f64 * self.latency(self.since_epoch(now)).max(1.0)
    }

    fn since_epoch(&self, now: Instant) -> u64 {
        nanos(now.duration_since(self.epoch))
    }
}

/// Returns a time of up to 584 years in nanoseconds. Converting 128 bits to a floating point number takes fifty instructions.
fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
