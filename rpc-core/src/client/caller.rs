//! What calls are made on: a connection that is made when it is needed, and made again when it is lost.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::direct::Direct;
use crate::class::TrafficClass;
use crate::connection::{Connection, Settings};
#[cfg(feature = "tower")]
use crate::middleware::Middleware;
use crate::middleware::{Next, Request, Response};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::{BoxFuture, Link};

/// Makes stream links to one peer, or to one of several that are equivalent.
pub trait Connector: Send + Sync + 'static {
    /// Makes a link. The status of a failure says what was tried; it counts as not executed.
    fn connect(&self) -> BoxFuture<Result<Arc<dyn Link>, Status>>;

    /// The same to this peer, where the caller's calls of another class go; [`connect`](Self::connect) follows if it fails.
    fn connect_beside(&self, peer: SocketAddr) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let _ = peer;
        self.connect()
    }

    /// How many links to try for one connection before that counts as failed: as many as there are peers to choose
    /// from, if [`connect`](Self::connect) takes them in turn.
    fn attempts(&self) -> usize {
        1
    }

    /// Whom it connects to, for messages.
    fn target(&self) -> String;
}

/// What clients make calls on: a connection for each [`TrafficClass`]. Cheap to clone; the connections are closed when the
/// last clone, of whatever class, and the last call on it are gone.
///
/// A connection is made when the first call of its class needs it, and made again when it is lost. Calls that need one
/// while it is being made wait for it, as long as their deadlines allow. After a failed attempt calls of that class fail at
/// once, for 50 ms at first and twice as long after each further failure, up to 10 s; then the next call begins another
/// attempt. Calls that [wait](super::Call::wait_for_ready) for the server begin it by themselves. Of several peers it goes
/// to the one that another class is connected to, if it can.
#[derive(Clone)]
pub struct Caller {
    shared: Arc<Shared>,
    /// The one of `shared` that its calls go by, here as well so that they need not look for it.
    lane: Arc<Lane>,
    /// What its calls go through.
    stack: Option<Next>,
}

struct Shared {
    connector: Box<dyn Connector>,
    settings: Arc<Settings>,
    lanes: [Arc<Lane>; TrafficClass::ALL.len()],
    runtime: tokio::runtime::Handle,
}

/// The connection of a class.
struct Lane {
    class: TrafficClass,
    state: Mutex<State>,
    /// The first connection, which mostly is the only one: found without a lock.
    first: OnceLock<Weak<Connection>>,
}

type Outcome = Option<Result<Arc<Connection>, Status>>;
type Connecting = watch::Receiver<Outcome>;

enum State {
    /// Not connected, and nobody needs it.
    Idle,
    Connecting(Connecting),
    Connected {
        connection: Arc<Connection>,
        since: Instant,
        /// How long to wait before the next attempt if this connection ends early.
        pause: Duration,
    },
    /// The last attempt failed; until then calls fail at once, with the same reason.
    Failed {
        until: Instant,
        pause: Duration,
        status: Status,
    },
}

/// The pause after a first failed attempt; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A connection that ends sooner than this and has answered no call counts as a failed attempt, but for the first one,
/// of a server that was about to go: a server that takes connections and closes them must not be tried without a pause.
const EARLY: Duration = Duration::from_secs(1);

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("target", &self.shared.connector.target())
            .field("class", &self.lane.class)
            .finish_non_exhaustive()
    }
}

impl Caller {
    /// A caller that connects when the first call needs it. Must be called within a tokio runtime, which is the one
    /// that its connections run on.
    pub fn new(connector: impl Connector, settings: Settings) -> Self {
        let lanes = TrafficClass::ALL.map(|class| Arc::new(Lane::new(class)));
        let lane = lanes[TrafficClass::default() as usize].clone();
        let shared = Shared {
            connector: Box::new(connector),
            settings: Arc::new(settings),
            lanes,
            runtime: tokio::runtime::Handle::current(),
        };
        Self { shared: Arc::new(shared), lane, stack: None }
    }

    /// The same caller for calls of this class.
    pub fn class(&self, class: TrafficClass) -> Self {
        let lane = self.shared.lanes[class as usize].clone();
        Self { shared: self.shared.clone(), lane, stack: self.stack.clone() }
    }

    pub(super) fn lane_class(&self) -> TrafficClass {
        self.lane.class
    }

    /// The same caller, whose calls go through `by`, and their answers on their way back. The last one added is the first
    /// that a call comes to. This one stays as it is, and shares its connections with the other.
    pub fn intercept<F, R>(&self, by: F) -> Self
    where
        F: Fn(Request, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Status>> + Send + 'static,
    {
        Self { stack: Some(self.next().intercepted(by)), ..self.clone() }
    }

    /// The same with a layer of `tower`, whose service all clones of the new caller share.
    #[cfg(feature = "tower")]
    pub fn layer<L>(&self, layer: L) -> Self
    where
        L: tower_layer::Layer<Next>,
        L::Service: Middleware,
    {
        Self { stack: Some(self.next().layered(layer)), ..self.clone() }
    }

    /// What its calls go through, if there is anything.
    pub(super) fn stack(&self) -> Option<&Next> {
        self.stack.as_ref()
    }

    /// What a request goes to.
    pub(crate) fn next(&self) -> Next {
        self.stack.clone().unwrap_or_else(|| Next::new(Direct(self.clone())))
    }

    /// The connection that calls of its class go by now; makes one if there is none. Cancel safe: an attempt goes on for
    /// others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, not executed, with what went wrong. While a failed attempt is recent, at once.
    pub async fn connection(&self) -> Result<Arc<Connection>, Status> {
        loop {
            let mut attempt = match self.look() {
                Look::Connected(connection) => return Ok(connection),
                Look::Failed(status) => return Err(status),
                Look::Connecting(attempt) => attempt,
            };
            // An error means that the attempt's task is gone, with its runtime or by a panic of the connector.
            let outcome = attempt.wait_for(Option::is_some).await.map(|o| o.clone());
            match outcome {
                Ok(Some(Ok(connection))) if connection.is_open() => return Ok(connection),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(status))) => return Err(status),
                _ => {
                    self.lane.forget(&attempt);
                    return Err(gone());
                }
            }
        }
    }

    /// Whether calls that do not say so themselves wait for a connection.
    pub(crate) fn waits_for_ready(&self) -> bool {
        self.shared.settings.calls.wait_for_ready
    }

    /// Like [`connection`](Self::connection), after the pause that there is when that has just failed.
    pub(crate) async fn connection_after_pause(self) -> Result<Arc<Connection>, Status> {
        let until = match &*self.lane.state() {
            State::Failed { until, .. } => Some(*until),
            // It takes no calls, or not this one.
            State::Connected { .. } => Some(Instant::now() + FIRST_PAUSE),
            State::Idle | State::Connecting(_) => None,
        };
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
        self.connection().await
    }

    /// Whom it connects to, and what for unless that is nothing special, for messages.
    pub(crate) fn target(&self) -> String {
        let target = self.shared.connector.target();
        match self.lane.class {
            TrafficClass::Normal => target,
            class => format!("{target} ({class})"),
        }
    }

    /// The connection, if there is one.
    pub(crate) fn connected(&self) -> Option<Arc<Connection>> {
        let first = self.lane.first.get().and_then(Weak::upgrade);
        if let Some(connection) = first.filter(|first| first.is_open()) {
            return Some(connection);
        }
        self.lane.connected()
    }

    fn look(&self) -> Look {
        let mut state = self.lane.state();
        if let State::Connected { connection, since, pause } = &*state {
            if connection.is_open() {
                return Look::Connected(connection.clone());
            }
            if since.elapsed() < EARLY && !connection.was_of_use() {
                let (until, pause, status) = (*since + *pause, *pause, connection.why_not_open());
                *state = State::Failed { until, pause, status };
            }
        }
        let pause = match &*state {
            State::Connecting(attempt) => return Look::Connecting(attempt.clone()),
            State::Failed { until, status, .. } if Instant::now() < *until => {
                return Look::Failed(status.clone());
            }
            State::Failed { pause, .. } => (*pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE),
            State::Idle | State::Connected { .. } => Duration::ZERO,
        };
        let (sender, attempt) = watch::channel(None);
        *state = State::Connecting(attempt.clone());
        // A task of its own, so that the attempt outlives the call that began it.
        let shared = Arc::downgrade(&self.shared);
        self.shared.runtime.spawn(connect(shared, self.lane.clone(), pause, sender));
        Look::Connecting(attempt)
    }
}

/// Makes a connection. `pause`: how long to wait before the next attempt if it ends early.
async fn connect(shared: Weak<Shared>, lane: Arc<Lane>, pause: Duration, sender: watch::Sender<Outcome>) {
    let (attempts, mut beside) =
        shared.upgrade().map_or((0, None), |s| (s.connector.attempts().max(1), s.connected_to()));
    let mut outcome = Err(gone());
    for _ in 0..attempts + usize::from(beside.is_some()) {
        let Some(shared) = shared.upgrade() else { return };
        let link = match beside.take() {
            Some(peer) => shared.connector.connect_beside(peer),
            None => shared.connector.connect(),
        };
        let settings = shared.settings.clone();
        drop(shared);
        outcome = match link.await {
            Ok(link) => Connection::connect(link, lane.class, settings).await,
            Err(status) => Err(status),
        };
        if outcome.is_ok() {
            break;
        }
    }
    // However it went wrong, no call had been sent.
    let outcome = outcome.map_err(|status| status.with_executed(Executed::No));
    // Until the connection is where it is closed with the others.
    let Some(_shared) = shared.upgrade() else {
        return close(outcome.ok());
    };
    if let Ok(connection) = &outcome {
        lane.first.get_or_init(|| Arc::downgrade(connection));
    }
    let now = Instant::now();
    *lane.state() = match &outcome {
        Ok(connection) => State::Connected { connection: connection.clone(), since: now, pause },
        Err(status) => {
            let pause = pause.max(FIRST_PAUSE);
            State::Failed { until: now + pause, pause, status: status.clone() }
        }
    };
    sender.send_replace(Some(outcome));
}

enum Look {
    Connected(Arc<Connection>),
    Connecting(Connecting),
    Failed(Status),
}

impl Shared {
    /// Where calls of some class go.
    fn connected_to(&self) -> Option<SocketAddr> {
        self.lanes.iter().find_map(|lane| lane.connected()?.peer())
    }
}

impl Lane {
    fn new(class: TrafficClass) -> Self {
        Self { class, state: Mutex::new(State::Idle), first: OnceLock::new() }
    }

    fn connected(&self) -> Option<Arc<Connection>> {
        match &*self.state() {
            State::Connected { connection, .. } if connection.is_open() => Some(connection.clone()),
            _ => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt has died: the next call begins another.
    fn forget(&self, attempt: &Connecting) {
        let mut state = self.state();
        if matches!(&*state, State::Connecting(current) if current.same_channel(attempt)) {
            *state = State::Idle;
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for lane in &self.lanes {
            if let State::Connected { connection, .. } = std::mem::replace(&mut *lane.state(), State::Idle) {
                close(Some(connection));
            }
        }
    }
}

fn close(connection: Option<Arc<Connection>>) {
    if let Some(connection) = connection {
        connection.close_for_want_of_callers();
    }
}

fn gone() -> Status {
    Status::new(
        Code::Unavailable,
        "connecting was cut off: the runtime that this channel was made on has ended",
    )
    .with_executed(Executed::No)
    .with_blame(Blame::Caller)
}
