//! The settings that count for the calls of a channel, and may change while it lives.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::config::{Calls, MethodPolicy, Retry, parts};
use crate::service::ServiceInfo;

/// The settings of a channel: those of most calls, and those of some methods.
#[derive(Debug)]
pub(super) struct ChannelPolicies {
    common: Policies,
    /// Whether some methods have others. Most channels have none such, and their calls take no lock.
    has_others: AtomicBool,
    others: RwLock<HashMap<String, OfService>>,
}

/// The settings of a service's methods.
#[derive(Debug, Default)]
struct OfService {
    all: Option<Arc<Policies>>,
    some: HashMap<String, Arc<Policies>>,
}

impl ChannelPolicies {
    pub(super) fn new(calls: &Calls, retry: &Retry, methods: &[MethodPolicy]) -> Self {
        let (has_others, others) = (AtomicBool::default(), RwLock::default());
        let policies = Self { common: Policies::new(calls, retry), has_others, others };
        policies.set_others(calls, retry, methods);
        policies
    }

    /// Sets all of them. A call that begins meanwhile may see some of the old ones.
    pub(super) fn set(&self, calls: &Calls, retry: &Retry, methods: &[MethodPolicy]) {
        self.common.set(calls, retry);
        self.set_others(calls, retry, methods);
    }

    fn set_others(&self, calls: &Calls, retry: &Retry, methods: &[MethodPolicy]) {
        let mut others: HashMap<String, OfService> = HashMap::new();
        for entry in methods {
            let (calls, retry) = entry.applied(calls, retry);
            let policies = Arc::new(Policies::new(&calls, &retry));
            for name in &entry.name {
                let (service, method) = parts(name);
                let of_service = others.entry(service.to_owned()).or_default();
                match method {
                    Some(method) => drop(of_service.some.insert(method.to_owned(), Arc::clone(&policies))),
                    None => of_service.all = Some(Arc::clone(&policies)),
                }
            }
        }
        let mut now = self.others.write().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that the two agree when several set them.
        self.has_others.store(!others.is_empty(), Relaxed);
        *now = others;
    }

    /// Reads what counts for calls of the method with this index.
    #[inline]
    pub(super) fn read<R>(
        &self,
        service: &ServiceInfo,
        method: usize,
        setting: impl FnOnce(&Policies) -> R,
    ) -> R {
        match self.has_others.load(Relaxed) {
            false => setting(&self.common),
            true => self.read_of_method(service, method, setting),
        }
    }

    #[cold]
    fn read_of_method<R>(
        &self,
        service: &ServiceInfo,
        method: usize,
        setting: impl FnOnce(&Policies) -> R,
    ) -> R {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        let of_method = others.get(&*service.name).and_then(|of_service| {
            let name = service.methods.get(method).map_or("", |method| &*method.name);
            of_service.some.get(name).or(of_service.all.as_ref())
        });
        setting(of_method.map_or(&self.common, |policies| policies))
    }
}

/// Settings of calls. Each call reads some of them, so these are numbers that need no lock.
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

    /// Returns the timeout of calls that set none.
    #[inline]
    pub(super) fn timeout(&self) -> Option<Duration> {
        duration(&self.timeout_ms)
    }

    /// Returns the progress timeout of calls that set none.
    #[inline]
    pub(super) fn progress_timeout(&self) -> Option<Duration> {
        duration(&self.progress_timeout_ms)
    }

    /// Whether calls wait for a connection by default.
    pub(super) fn waits_for_ready(&self) -> bool {
        self.wait_for_ready.load(Relaxed)
    }

    /// Whether calls wait for room by default.
    pub(super) fn waits_for_room(&self) -> bool {
        self.wait_for_room.load(Relaxed)
    }

    /// Whether calls may be made more than once.
    #[inline]
    pub(super) fn retries(&self) -> bool {
        self.max_attempts() > 1
    }

    /// Returns how often a call is made at most.
    #[inline]
    pub(super) fn max_attempts(&self) -> u32 {
        self.max_attempts.load(Relaxed)
    }

    /// Returns the time after which another attempt is made beside those without an answer.
    pub(super) fn hedging_delay(&self) -> Option<Duration> {
        duration(&self.hedging_delay_ms).filter(|_| self.retries())
    }

    /// Returns whether and how calls are made again.
    pub(super) fn retry(&self) -> Arc<Retry> {
        Arc::clone(&self.retry.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[inline]
fn duration(ms: &AtomicU64) -> Option<Duration> {
    let ms = ms.load(Relaxed);
    (ms > 0).then(|| Duration::from_millis(ms))
}
