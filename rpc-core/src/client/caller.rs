//! What calls are made on: a connection that is made when it is needed, and made again when it is lost.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection::{Connection, Settings};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::{BoxFuture, Link};

/// Makes stream links to one peer, or to one of several that are equivalent.
pub trait Connector: Send + Sync + 'static {
    /// Makes a link. The status of a failure says what was tried; it counts as not executed.
    fn connect(&self) -> BoxFuture<Result<Arc<dyn Link>, Status>>;

    /// How many links to try for one connection before that counts as failed: as many as there are peers to choose
    /// from, if [`connect`](Self::connect) takes them in turn.
    fn attempts(&self) -> usize {
        1
    }

    /// Whom it connects to, for messages.
    fn target(&self) -> String;
}

/// What clients make calls on. Cheap to clone; the connection is closed when the last clone and the last call on it
/// are gone.
///
/// The connection is made when the first call needs it, and made again when it is lost. Calls that need one while it is
/// being made wait for it, as long as their deadlines allow. After a failed attempt calls fail at once, for 50 ms at
/// first and twice as long after each further failure, up to 10 s; then the next call begins another attempt.
#[derive(Clone)]
pub struct Caller(Arc<Shared>);

struct Shared {
    connector: Box<dyn Connector>,
    settings: Arc<Settings>,
    state: Mutex<State>,
    /// The first connection, which mostly is the only one: found without a lock.
    first: OnceLock<Weak<Connection>>,
    runtime: tokio::runtime::Handle,
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
        f.debug_struct("Caller").field("target", &self.0.connector.target()).finish_non_exhaustive()
    }
}

impl Caller {
    /// A caller that connects when the first call needs it. Must be called within a tokio runtime, which is the one
    /// that its connections run on.
    pub fn new(connector: impl Connector, settings: Settings) -> Self {
        Self(Arc::new(Shared {
            connector: Box::new(connector),
            settings: Arc::new(settings),
            state: Mutex::new(State::Idle),
            first: OnceLock::new(),
            runtime: tokio::runtime::Handle::current(),
        }))
    }

    /// The connection that calls go by now; makes one if there is none. Cancel safe: an attempt goes on for others.
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
                    self.0.forget(&attempt);
                    return Err(gone());
                }
            }
        }
    }

    /// Whom it connects to, for messages.
    pub(crate) fn target(&self) -> String {
        self.0.connector.target()
    }

    /// The connection, if there is one.
    pub(crate) fn connected(&self) -> Option<Arc<Connection>> {
        let first = self.0.first.get().and_then(Weak::upgrade);
        if let Some(connection) = first.filter(|first| first.is_open()) {
            return Some(connection);
        }
        match &*self.0.state() {
            State::Connected { connection, .. } if connection.is_open() => Some(connection.clone()),
            _ => None,
        }
    }

    fn look(&self) -> Look {
        let mut state = self.0.state();
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
        self.0.runtime.spawn(connect(Arc::downgrade(&self.0), pause, sender));
        Look::Connecting(attempt)
    }
}

/// Makes a connection. `pause`: how long to wait before the next attempt if it ends early.
async fn connect(shared: Weak<Shared>, pause: Duration, sender: watch::Sender<Outcome>) {
    let attempts = shared.upgrade().map_or(0, |s| s.connector.attempts());
    let mut outcome = Err(gone());
    for _ in 0..attempts.max(1) {
        let Some((link, settings)) = shared.upgrade().map(|s| (s.connector.connect(), s.settings.clone()))
        else {
            return;
        };
        outcome = match link.await {
            Ok(link) => Connection::connect(link, settings).await,
            Err(status) => Err(status),
        };
        if outcome.is_ok() {
            break;
        }
    }
    // However it went wrong, no call had been sent.
    let outcome = outcome.map_err(|status| status.with_executed(Executed::No));
    let Some(shared) = shared.upgrade() else {
        return close(outcome.ok());
    };
    if let Ok(connection) = &outcome {
        shared.first.get_or_init(|| Arc::downgrade(connection));
    }
    let now = Instant::now();
    *shared.state() = match &outcome {
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
        if let State::Connected { connection, .. } = std::mem::replace(&mut *self.state(), State::Idle) {
            close(Some(connection));
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
