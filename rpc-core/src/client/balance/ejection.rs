//! Servers that are connected and fail their calls.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff;
use crate::status::{Code, Status};

/// The longest time for which a server gets no calls.
const LONGEST: Duration = Duration::from_secs(300);

/// Whether a server is ejected: it has failed so many calls in a row that it gets none for a while.
#[derive(Debug, Default)]
pub(super) struct Ejection {
    /// How many failures in a row eject the server. 0: none do.
    after: AtomicU32,
    failures: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_ejected: bool,
    /// How often in a row it was ejected, soon after it had been readmitted.
    count: u32,
    /// The time of its last readmission.
    readmitted: Option<Instant>,
}

impl Ejection {
    /// Sets how many failures in a row eject the server. 0: none do.
    pub(super) fn set_after(&self, after: u32) {
        self.after.store(after, Ordering::Relaxed);
    }

    /// Notes a call that has ended at the server. Returns whether so many in a row have failed that it is to be ejected.
    pub(super) fn note(&self, failure: Option<&Status>) -> bool {
        if failure.is_some_and(|status| status.code() == Code::Cancelled) {
            // The caller's side gave it up, which says nothing of the server.
            return false;
        }
        if !failure.is_some_and(is_its_fault) {
            // Not written by each call, because many threads may end calls of one server.
            if self.failures.load(Ordering::Relaxed) > 0 {
                self.failures.store(0, Ordering::Relaxed);
            }
            return false;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let after = self.after.load(Ordering::Relaxed);
        after > 0 && failures >= after
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

    /// Lets the server have calls again. The first that fails ejects it.
    pub(super) fn readmit(&self) {
        let after = self.after.load(Ordering::Relaxed);
        self.failures.store(after.saturating_sub(1), Ordering::Relaxed);
        let mut state = self.state();
        (state.is_ejected, state.readmitted) = (false, Some(Instant::now()));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a status says that the server, or the way there, does not work. Others say that it does.
fn is_its_fault(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Internal | Code::Unknown | Code::DataLoss
    )
}
