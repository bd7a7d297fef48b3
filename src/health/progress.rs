//! Whether handlers make progress, by the ends of their calls.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use farcall_core::middleware::Stack;
use farcall_core::service::Service;
use tokio::time::{Instant, sleep};

use super::Reporter;
use crate::Executed;
use crate::Result;
use crate::dynamic::Kind;
use crate::middleware::{Next, Request, Response};

/// The progress of a server's methods.
#[derive(Debug)]
pub(crate) struct Progress {
    reporter: Reporter,
    limit: Duration,
    methods: RwLock<HashMap<String, Arc<Method>>>,
}

#[derive(Debug)]
struct Method {
    service: String,
    waits: Mutex<Waits>,
}

/// How long calls of a method have been in progress, all in all, since one of them was answered.
#[derive(Debug)]
struct Waits {
    running: usize,
    /// The time up to `since`.
    before: Duration,
    /// When the time began to count that calls are in progress, if any is.
    since: Instant,
}

impl Waits {
    fn new(now: Instant) -> Self {
        Self { running: 0, before: Duration::ZERO, since: now }
    }

    fn begin(&mut self, now: Instant) {
        if self.running == 0 {
            self.since = now;
        }
        self.running += 1;
    }

    fn answered(&mut self, now: Instant) {
        (self.running, self.before, self.since) = (self.running - 1, Duration::ZERO, now);
    }

    /// A call was given up. This is no progress: callers of a handler that is stuck give up, too.
    fn given_up(&mut self, now: Instant) {
        self.running -= 1;
        if self.running == 0 {
            self.before += now - self.since;
        }
    }

    fn are_longer_than(&self, limit: Duration, now: Instant) -> bool {
        self.running > 0 && self.before + (now - self.since) >= limit
    }
}

impl Method {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in progress.
struct Running {
    method: Arc<Method>,
    is_answered: bool,
}

impl Running {
    fn begin(method: Arc<Method>) -> Self {
        method.waits().begin(Instant::now());
        Self { method, is_answered: false }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (mut waits, now) = (self.method.waits(), Instant::now());
        if self.is_answered { waits.answered(now) } else { waits.given_up(now) }
    }
}

impl Progress {
    pub(crate) fn new(reporter: &Reporter, limit: Duration) -> Arc<Self> {
        Arc::new(Self { reporter: reporter.clone(), limit, methods: RwLock::default() })
    }

    /// Returns a service whose calls it notes.
    pub(crate) fn around(progress: &Arc<Self>, service: Arc<dyn Service>) -> Arc<dyn Service> {
        let progress = Arc::clone(progress);
        let note = move |request, next| Arc::clone(&progress).note(request, next);
        Arc::new(Stack::default().intercept(note).around(service))
    }

    /// Notes a call while it runs.
    async fn note(self: Arc<Self>, request: Request, next: Next) -> Result<Response> {
        let path = request.path();
        if request.kind() != Kind::Unary || self.reporter.may_take_long(&path) {
            return next.run(request).await;
        }
        let mut running = Running::begin(self.of(path, request.service()));
        let answered = next.run(request).await;
        // Middleware of the service itself may have refused it, or it can't be decoded.
        running.is_answered = !answered.as_ref().is_err_and(|status| status.executed() == Executed::No);
        answered
    }

    fn of(&self, path: String, service: &str) -> Arc<Method> {
        if let Some(method) = self.methods.read().unwrap_or_else(PoisonError::into_inner).get(&path) {
            return Arc::clone(method);
        }
        let mut methods = self.methods.write().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let waits = Mutex::new(Waits::new(Instant::now()));
            Arc::new(Method { service: service.to_owned(), waits })
        };
        // Only methods that the server has come here, so there are no more entries than those.
        Arc::clone(methods.entry(path).or_insert_with(new))
    }

    /// Tells the reporter which services are stuck, each time that this changes. Never ends.
    pub(crate) async fn watch(&self) {
        loop {
            sleep(self.limit / 4).await;
            self.reporter.set_stuck(self.stuck());
        }
    }

    fn stuck(&self) -> BTreeSet<String> {
        let now = Instant::now();
        let methods = self.methods.read().unwrap_or_else(PoisonError::into_inner);
        let are_stuck = methods.values().filter(|method| method.waits().are_longer_than(self.limit, now));
        are_stuck.map(|method| method.service.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    struct At {
        began: Instant,
        waits: Waits,
    }

    impl At {
        fn second(&self, n: u64) -> Instant {
            self.began + Duration::from_secs(n)
        }

        fn is_stuck(&self, second: u64) -> bool {
            self.waits.are_longer_than(LIMIT, self.second(second))
        }
    }

    fn at() -> At {
        let began = Instant::now();
        At { began, waits: Waits::new(began) }
    }

    #[test]
    fn calls_without_an_answer_are_stuck_after_the_limit() {
        let mut at = at();
        at.waits.begin(at.second(100));
        assert!(!at.is_stuck(109) && at.is_stuck(110));
        at.waits.begin(at.second(111));
        at.waits.answered(at.second(112));
        assert!(!at.is_stuck(121), "an answer is progress for the other call");
        assert!(at.is_stuck(122));
    }

    #[test]
    fn callers_that_give_up_do_not_hide_a_handler_that_is_stuck() {
        let mut at = at();
        for second in [0, 5, 20] {
            at.waits.begin(at.second(second));
            assert!(!at.is_stuck(second + 1));
            at.waits.given_up(at.second(second + 4));
        }
        assert!(!at.is_stuck(30), "nothing is in progress");
        at.waits.begin(at.second(30));
        assert!(at.is_stuck(30), "it has had 12 s");
        at.waits.answered(at.second(31));
        at.waits.begin(at.second(32));
        assert!(!at.is_stuck(41));
    }
}
