//! Servers that are connected and fail their calls.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff;
use crate::config::Balance;
use crate::status::Code;

/// The longest time for which a server gets no calls.
const LONGEST: Duration = Duration::from_secs(300);

/// The time for which the calls of a server are counted, from a failure on.
const COUNTED: Duration = Duration::from_secs(10);

/// The calls that must be counted before their failures eject the server. Fewer say little.
const LEAST: u32 = 20;

/// The calls that are counted at most. A part of these that is large enough would have been noticed.
const MOST: u32 = 1000;

/// Whether a server is ejected: it has failed so many calls in a row, or so large a part of them, that it gets none for a while.
#[derive(Debug, Default)]
pub(super) struct Ejection {
    /// How many failures in a row eject the server. 0: none do.
    after: AtomicU32,
    /// The part of the calls, in percent, whose failures eject the server. 0: none does.
    percent: AtomicU32,
    /// The failures in a row.
    failures: AtomicU32,
    /// Whether calls are counted, because one has failed lately.
    is_counting: AtomicBool,
    /// The calls that were counted.
    calls: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_ejected: bool,
    /// How often in a row it was ejected, soon after it had been readmitted.
    count: u32,
    /// The time of its last readmission.
    readmitted: Option<Instant>,
    /// The time since when calls are counted.
    counted: Option<Instant>,
    /// How many of them have failed.
    failed: u32,
}

impl Ejection {
    /// Sets which failures eject the server.
    pub(super) fn configure(&self, balance: &Balance) {
        self.after.store(balance.eject_after, Ordering::Relaxed);
        self.percent.store(balance.eject_percent, Ordering::Relaxed);
    }

    /// Notes a call that has ended at the server. Returns whether it is to be ejected, because so many in a row have failed, or so large
    /// a part of them.
    pub(super) fn note(&self, failure: Option<Code>) -> bool {
        if failure == Some(Code::Cancelled) {
            // The caller's side gave it up, which says nothing of the server.
            return false;
        }
        if !failure.is_some_and(is_its_fault) {
            // Written only after a failure, because many threads may end calls of one server.
            if self.failures.load(Ordering::Relaxed) > 0 {
                self.failures.store(0, Ordering::Relaxed);
            }
            if self.is_counting.load(Ordering::Relaxed) && self.calls.fetch_add(1, Ordering::Relaxed) >= MOST
            {
                self.is_counting.store(false, Ordering::Relaxed);
            }
            return false;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let after = self.after.load(Ordering::Relaxed);
        self.fails_a_large_part() || after > 0 && failures >= after
    }

    /// Counts a failure. Returns whether too large a part of the calls that were counted has failed.
    fn fails_a_large_part(&self) -> bool {
        let percent = u64::from(self.percent.load(Ordering::Relaxed));
        if percent == 0 {
            return false;
        }
        let (mut state, now) = (self.state(), Instant::now());
        let is_counting = self.is_counting.load(Ordering::Relaxed);
        if !is_counting || state.counted.is_none_or(|counted| now - counted >= COUNTED) {
            (state.counted, state.failed) = (Some(now), 0);
            self.calls.store(0, Ordering::Relaxed);
            self.is_counting.store(true, Ordering::Relaxed);
        }
        state.failed += 1;
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let is_large = calls >= LEAST && u64::from(state.failed) * 100 >= u64::from(calls) * percent;
        if is_large {
            // Whether or not the server can be ejected now, as many calls count before that is asked again.
            self.is_counting.store(false, Ordering::Relaxed);
        }
        is_large
    }

    pub(super) fn is_ejected(&self) -> bool {
        self.state().is_ejected
    }

    /// Ejects the server. Returns for how long, or `None` if it is ejected already.
    pub(super) fn eject(&self, first: Duration) -> Option<Duration> {
        let mut state = self.state();
        if state.is_ejected {
            return None;
        }
        let well = state.readmitted.map(|readmitted| readmitted.elapsed());
        if well.is_none_or(|well| well > LONGEST) {
            state.count = 0;
        }
        let pause = backoff::pause(state.count, first, LONGEST.max(first));
        state.count += 1;
        state.is_ejected = true;
        Some(pause)
    }

    /// Lets the server have calls again. The first that fails ejects it, if failures in a row do.
    pub(super) fn readmit(&self) {
        let after = self.after.load(Ordering::Relaxed);
        self.failures.store(after.saturating_sub(1), Ordering::Relaxed);
        let mut state = self.state();
        (state.is_ejected, state.readmitted) = (false, Some(Instant::now()));
        // Earlier calls say nothing of the server as it is now.
        self.is_counting.store(false, Ordering::Relaxed);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a failure says that the server, or the way there, does not work. Others say that it does.
fn is_its_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::DeadlineExceeded | Code::Internal | Code::Unknown | Code::DataLoss
    )
}
