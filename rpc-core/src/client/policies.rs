//! The settings that count for the calls of a channel, and may change while it lives.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::config::{Calls, Retry};

/// Those settings. Each call reads some of them, so these are numbers that need no lock.
#[derive(Debug)]
pub(super) struct Policies {
    /// 0: none.
    timeout_ms: AtomicU64,
    /// 0: none.
    progress_timeout_ms: AtomicU64,
    wait_for_ready: AtomicBool,
    wait_for_room: AtomicBool,
    max_attempts: AtomicU32,
    /// 0: no hedging.
    hedging_delay_ms: AtomicU64,
    /// For calls that have failed.
    retry: Mutex<Arc<Retry>>,
}

impl Policies {
    pub(super) fn new(calls: &Calls, retry: &Retry) -> Self {
        let policies = Self {
            timeout_ms: AtomicU64::default(),
            progress_timeout_ms: AtomicU64::default(),
            wait_for_ready: AtomicBool::default(),
            wait_for_room: AtomicBool::default(),
            max_attempts: AtomicU32::default(),
            hedging_delay_ms: AtomicU64::default(),
            retry: Mutex::default(),
        };
        policies.set(calls, retry);
        policies
    }

    /// Sets all of them. A call that begins meanwhile may see some of the old ones.
    pub(super) fn set(&self, calls: &Calls, retry: &Retry) {
        self.timeout_ms.store(calls.timeout_ms, Relaxed);
        self.progress_timeout_ms.store(calls.progress_timeout_ms, Relaxed);
        self.wait_for_ready.store(calls.wait_for_ready, Relaxed);
        self.wait_for_room.store(calls.wait_for_room, Relaxed);
        self.max_attempts.store(retry.max_attempts, Relaxed);
        self.hedging_delay_ms.store(retry.hedging_delay_ms, Relaxed);
        *self.retry.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(retry.clone());
    }

    #[inline]
    pub(super) fn timeout(&self) -> Option<Duration> {
        duration(&self.timeout_ms)
    }

    #[inline]
    pub(super) fn progress_timeout(&self) -> Option<Duration> {
        duration(&self.progress_timeout_ms)
    }

    pub(super) fn waits_for_ready(&self) -> bool {
        self.wait_for_ready.load(Relaxed)
    }

    pub(super) fn waits_for_room(&self) -> bool {
        self.wait_for_room.load(Relaxed)
    }

    #[inline]
    pub(super) fn max_attempts(&self) -> u32 {
        self.max_attempts.load(Relaxed)
    }

    /// Returns the time after which another attempt is made beside those without an answer.
    pub(super) fn hedging_delay(&self) -> Option<Duration> {
        duration(&self.hedging_delay_ms).filter(|_| self.max_attempts() > 1)
    }

    pub(super) fn retry(&self) -> Arc<Retry> {
        Arc::clone(&self.retry.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[inline]
fn duration(ms: &AtomicU64) -> Option<Duration> {
    let ms = ms.load(Relaxed);
    (ms > 0).then(|| Duration::from_millis(ms))
}
