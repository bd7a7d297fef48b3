//! Admission of calls to a server that may be overloaded: how many it takes at once, and which are refused first.

mod limit;
mod meter;
mod shortest;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::limit::{Average, Limit};
pub(crate) use self::meter::{Refusal, Refused, count_refusal};
use self::shortest::Shortest;
use crate::class::TrafficClass;
use crate::config::{self, Priority};
use crate::interface::{Kind, ServiceInfo};
use crate::metadata::Metadata;
use crate::refusal::refusal;
use crate::reply::Reply;
use crate::service::HandlerFuture;
use crate::status::{Blame, Code, RETRY_AFTER, Status};
use crate::sync::{Mutex, rank};

/// By how much sooner a connection is refused that has more than its share, as a part of the limit. It is less than priorities differ.
const FOR_OTHERS: f64 = 0.1;

/// The shortest time after which callers are told to try again.
const SOONEST: Duration = Duration::from_millis(1);

/// The longest time after which callers are told to try again.
const LATEST: Duration = Duration::from_secs(10);

/// The calls that a server takes, all connections together.
pub(crate) struct Admission {
    /// The priorities of methods, by service and method. `None`: that of the connection.
    priorities: Vec<Vec<Option<Priority>>>,
    state: Mutex<rank::Leaf, State>,
}

/// How many calls a server takes at once, and how many it has refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdmissionStats {
    /// How many calls may be in progress now. It follows how long calls take.
    pub limit: u64,
    /// How many are in progress.
    pub running: u64,
    /// How many calls were refused because too many were in progress.
    pub refused: u64,
    /// How many calls were refused because their deadlines came sooner than any call of their methods had ended lately.
    pub too_late: u64,
}

struct State {
    limit: Limit,
    running: usize,
    /// The number of connections that have calls in progress.
    connections: usize,
    /// How long calls take at present.
    at_present: Average,
    /// How long calls take, by service and method.
    times: Vec<Vec<Times>>,
    refused: u64,
    too_late: u64,
}

/// How long calls of one method take.
struct Times {
    alone: Average,
    shortest: Shortest,
}

/// The calls of one connection that were admitted and are in progress. The count is written under the lock of the state.
#[derive(Debug, Default)]
pub(crate) struct Share(AtomicUsize);

/// A call that was admitted. It counts as in progress until this is dropped.
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    share: Arc<Share>,
    service: usize,
    method: usize,
    began: Instant,
    was_alone: bool,
    /// It waited before its handler began.
    has_waited: bool,
    outcome: Outcome,
}

/// The end of a call, which decides whether its time says something of others.
#[derive(Clone, Copy)]
enum Outcome {
    Answered,
    /// It would have taken longer.
    GivenUp,
    /// A status often comes sooner than a result.
    Status,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").finish_non_exhaustive()
    }
}

impl Admission {
    /// Returns the admission of a server with these services. `None`: it takes all calls.
    ///
    /// # Errors
    ///
    /// If the configuration contradicts itself, or names a method that is not there. The message says which.
    pub(crate) fn new<'a>(
        config: &config::Admission,
        services: impl Iterator<Item = &'a ServiceInfo>,
    ) -> Result<Option<Arc<Self>>, String> {
        config.check()?;
        if config.max_calls == 0 {
            return Ok(None);
        }
        let (mut unknown, mut priorities, mut times) = (config.methods.clone(), Vec::new(), Vec::new());
        let now = Instant::now();
        let unmeasured = || Times { alone: Average::default(), shortest: Shortest::new(now) };
        for info in services {
            let is_own = info.name.starts_with("farcall.");
            let mut of_methods = Vec::new();
            for method in &info.methods {
                let set = unknown.remove(&format!("{}/{}", info.name, method.name));
                let is_exempt = is_own || method.kind != Kind::Unary;
                of_methods.push(if is_exempt { Some(Priority::Always) } else { set });
            }
            times.push(of_methods.iter().map(|_| unmeasured()).collect());
            priorities.push(of_methods);
        }
        if let Some(path) = unknown.keys().next() {
            return Err(format!("admission.methods names `{path}`, which is no method of this server"));
        }
        let limit = Limit::new(config.min_calls, config.max_calls, now);
        let at_present = Average::default();
        let state = State { limit, running: 0, connections: 0, at_present, times, refused: 0, too_late: 0 };
        Ok(Some(Arc::new(Self { priorities, state: Mutex::new(state) })))
    }

    /// Returns what the limit allows, and what it has refused so far.
    pub(crate) fn stats(&self) -> AdmissionStats {
        let state = self.state.lock();
        AdmissionStats {
            limit: state.limit.calls() as u64,
            running: state.running as u64,
            refused: state.refused,
            too_late: state.too_late,
        }
    }

    /// Admits a call of a connection, or refuses it: the server is overloaded, or the call can't be done before its deadline. `None`: the
    /// call does not count.
    pub(crate) fn admit(
        self: &Arc<Self>,
        share: &Arc<Share>,
        class: TrafficClass,
        (service, method): (usize, usize),
        deadline: Option<Instant>,
    ) -> Result<Option<Admitted>, Refused> {
        let priority = self.priorities[service][method].unwrap_or(match class {
            TrafficClass::Urgent => Priority::Urgent,
            TrafficClass::Normal => Priority::Normal,
            TrafficClass::Bulk => Priority::Bulk,
        });
        let part = match priority {
            Priority::Always => return Ok(None),
            Priority::Urgent => 1.0,
            Priority::Normal => 0.8,
            Priority::Bulk => 0.6,
        };
        let began = Instant::now();
        let was_alone = {
            let mut state = self.state.lock();
            if let Err(status) = state.allow((service, method), deadline, began) {
                return Err(Refused::new(Refusal::Deadline, status));
            }
            if let Err(why) = state.may_begin(part, share.calls()) {
                state.limit.refused();
                state.refused += 1;
                let (running, after) = (state.running, state.retry_after());
                drop(state);
                return Err(Refused::new(why, overloaded(running, why, after)));
            }
            state.begin(share);
            let running = state.running;
            state.limit.began(running)
        };
        let (admission, share) = (self.clone(), share.clone());
        let (has_waited, outcome) = (false, Outcome::GivenUp);
        Ok(Some(Admitted { admission, share, service, method, began, was_alone, has_waited, outcome }))
    }
}

impl Share {
    fn calls(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, calls: usize) {
        self.0.store(calls, Ordering::Relaxed);
    }
}

impl State {
    /// Checks that a call may begin whose priority has this part of the limit, and whose connection has so many calls in progress. `Err`
    /// says why not.
    fn may_begin(&self, part: f64, own: usize) -> Result<(), Refusal> {
        let limit = self.limit.calls();
        // One call is always possible.
        let has_room = |part: f64| (self.running as f64) < (limit * part).max(1.0);
        let connections = self.connections + usize::from(own == 0);
        let has_more_than_its_share = own as f64 >= limit / connections as f64;
        if !has_room(part) {
            Err(Refusal::Overload)
        } else if has_more_than_its_share && !has_room(part - FOR_OTHERS) {
            Err(Refusal::Share)
        } else {
            Ok(())
        }
    }

    /// Refuses a call of a method that can't be done before its deadline.
    fn allow(
        &mut self,
        (service, method): (usize, usize),
        deadline: Option<Instant>,
        now: Instant,
    ) -> Result<(), Status> {
        let allowed = self.times[service][method].allow(deadline, now);
        if allowed.is_err() {
            self.too_late += 1;
        }
        allowed
    }

    fn begin(&mut self, share: &Share) {
        let own = share.calls();
        share.set(own + 1);
        self.running += 1;
        self.connections += usize::from(own == 0);
    }

    fn end(&mut self, share: &Share) {
        let own = share.calls() - 1;
        share.set(own);
        self.running -= 1;
        self.connections -= usize::from(own == 0);
    }

    /// Returns when a caller that was refused may try again: when those in progress now are done.
    fn retry_after(&self) -> Duration {
        (self.at_present.time() + SOONEST).min(LATEST)
    }
}

impl Times {
    /// Refuses a call that can't be done before its deadline.
    fn allow(&mut self, deadline: Option<Instant>, now: Instant) -> Result<(), Status> {
        let Some(deadline) = deadline else { return Ok(()) };
        let left = deadline.saturating_duration_since(now);
        match self.shortest.time(now) {
            Some(shortest) if left < shortest => Err(too_short(left, shortest)),
            _ => Ok(()),
        }
    }
}

impl Admitted {
    /// Notes that the call has waited for its handler. Refuses it if it can't be done before its deadline any more.
    pub(crate) fn after_waiting(&mut self, deadline: Option<Instant>) -> Result<(), Status> {
        self.has_waited = true;
        let method = (self.service, self.method);
        let allowed = self.admission.state.lock().allow(method, deadline, Instant::now());
        if allowed.is_err() {
            // Without the lock: the program's own recorder is called.
            count_refusal(Refusal::Deadline);
        }
        allowed
    }

    /// Returns a handler during which the call counts as in progress.
    pub(crate) fn during(mut self, handler: HandlerFuture) -> HandlerFuture {
        Box::pin(async move {
            let reply = handler.await;
            let is_status = matches!(reply, Reply::Status(_) | Reply::Refused(_));
            self.outcome = if is_status { Outcome::Status } else { Outcome::Answered };
            drop(self);
            reply
        })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let now = Instant::now();
        let took = now - self.began;
        let mut state = self.admission.state.lock();
        state.end(&self.share);
        let State { limit, at_present, times, .. } = &mut *state;
        let Times { alone, shortest } = &mut times[self.service][self.method];
        if !self.has_waited && !matches!(self.outcome, Outcome::GivenUp) {
            shortest.note(took, now);
        }
        match self.outcome {
            Outcome::Answered => {
                at_present.note(took);
                limit.answered(took, self.was_alone, alone, now);
            }
            Outcome::GivenUp => limit.given_up(took, alone, now),
            Outcome::Status => {}
        }
    }
}

#[cold]
fn overloaded(running: usize, why: Refusal, after: Duration) -> Status {
    let why = match why {
        Refusal::Share => "and this client has more than its share of them",
        _ => "which is all that it can do in time",
    };
    let after = after.as_millis();
    let message = format!(
        "the server is overloaded: {running} calls are in progress, {why} (admission); try again after {after} ms"
    );
    let mut metadata = Metadata::new();
    // It can't fail: key and value are ASCII.
    let _ = metadata.insert(RETRY_AFTER, after.to_string());
    refusal(Code::ResourceExhausted, message).with_blame(Blame::Environment).with_metadata(metadata)
}

/// Returns the refusal of a call that has less time left than any of its method took lately.
#[cold]
fn too_short(left: Duration, shortest: Duration) -> Status {
    let message = format!(
        "the call has {left:.1?} left, and none of its method took less than {shortest:.1?} lately (admission); give it more time"
    );
    refusal(Code::DeadlineExceeded, message)
}
