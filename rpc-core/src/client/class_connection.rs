//! The connection of one class of a channel: made, found, lost, and made again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::connector::{Shared, gone, no_runtime};
use crate::class::TrafficClass;
use crate::connection::Connection;
use crate::status::{Executed, Status};

/// A connection that ends sooner than this and has answered no call counts as a failed attempt, but for the first one: a
/// server that takes connections and closes them must not be tried without a pause, and one that was about to go may be.
const EARLY: Duration = Duration::from_secs(1);

/// Calls that wait for the server end the pause after a failed attempt, but not so soon after it: each of them would make an
/// attempt of its own.
const JUST_NOW: Duration = Duration::from_millis(50);

/// The connection of a class of calls.
pub(super) struct ClassConnection {
    pub(super) class: TrafficClass,
    /// The connection, which may have ended. Calls share this lock, and it is written only for another connection, with that of
    /// `state` held.
    current: RwLock<Option<Arc<Connection>>>,
    state: Mutex<State>,
}

type Outcome = Option<Result<Arc<Connection>, Status>>;
pub(super) type Connecting = watch::Receiver<Outcome>;

enum State {
    /// Not connected, and no call needs it.
    Idle,
    Connecting(Connecting),
    /// There is a `current` one.
    Connected {
        since: Instant,
        /// How many attempts in a row have failed before this one, or were of no use.
        failures: u32,
    },
    /// The last attempt failed; until then calls fail at once, with its reason.
    Failed {
        at: Instant,
        until: Instant,
        failures: u32,
        status: Status,
    },
}

/// What a call finds.
pub(super) enum Lookup {
    Connected(Arc<Connection>),
    Connecting(Connecting),
    Failed(Status),
}

impl ClassConnection {
    pub(super) fn new(class: TrafficClass) -> Self {
        Self { class, current: RwLock::default(), state: Mutex::new(State::Idle) }
    }

    /// The connection, if there is one that takes calls.
    #[inline]
    pub(super) fn connected(&self) -> Option<Arc<Connection>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|connection| connection.is_open()).cloned()
    }

    /// The connection, or the attempt to make one, which begins unless the last has just failed.
    pub(super) fn find(self: &Arc<Self>, shared: &Arc<Shared>) -> Lookup {
        let Some(runtime) = &shared.runtime else { return Lookup::Failed(no_runtime()) };
        let mut state = self.state();
        // Under the lock: another call's attempt may just have succeeded.
        if let Some(connection) = self.connected() {
            return Lookup::Connected(connection);
        }
        self.note_early_end(&mut state, shared);
        let failures = match &*state {
            State::Connecting(attempt) => return Lookup::Connecting(attempt.clone()),
            State::Failed { until, status, .. } if Instant::now() < *until => {
                return Lookup::Failed(status.clone());
            }
            State::Failed { failures, .. } => *failures,
            State::Idle | State::Connected { .. } => 0,
        };
        let (sender, attempt) = watch::channel(None);
        *state = State::Connecting(attempt.clone());
        // A task of its own, so that the attempt outlives the call that began it.
        runtime.spawn(attempt_to_connect(Arc::downgrade(shared), self.clone(), failures, sender));
        Lookup::Connecting(attempt)
    }

    /// A connection that was of no use to anybody counts as a failed attempt.
    fn note_early_end(&self, state: &mut State, shared: &Shared) {
        let State::Connected { since, failures } = *state else { return };
        let ended = self.current().take();
        let Some(ended) = ended.filter(|ended| since.elapsed() < EARLY && !ended.was_of_use()) else {
            return;
        };
        // After the first one there is no pause.
        let pause = failures.checked_sub(1).map_or(Duration::ZERO, |failures| shared.pause(failures));
        let status = ended.why_not_open();
        *state = State::Failed { at: since, until: since + pause, failures: failures + 1, status };
    }

    /// Ends the pause after a failed attempt, if there is one: the next call begins another.
    pub(super) fn end_pause(&self) {
        if let State::Failed { until, .. } = &mut *self.state() {
            *until = Instant::now();
        }
    }

    /// When a call that waits for a connection should ask for it again. `impatient`: the call has not waited yet, and
    /// ends a pause that has begun before it, unless an attempt has failed just now.
    pub(super) async fn pause(&self, impatient: bool, shared: &Shared) {
        let first = shared.settings.liveness.reconnect();
        let (failed_at, until) = match &*self.state() {
            State::Failed { at, until, .. } if impatient => (Some(*at), (*at + JUST_NOW).min(*until)),
            State::Failed { until, .. } => (None, *until),
            // It takes no calls, or not this one.
            State::Connected { .. } => (None, Instant::now() + first),
            State::Idle | State::Connecting(_) => return,
        };
        tokio::time::sleep_until(until).await;
        if let Some(failed_at) = failed_at
            && let State::Failed { at, until, .. } = &mut *self.state()
            && *at == failed_at
        {
            *until = Instant::now();
        }
    }

    /// Takes a connection into use.
    fn use_connection(&self, connection: &Arc<Connection>, failures: u32) {
        let mut state = self.state();
        *state = State::Connected { since: Instant::now(), failures };
        *self.current() = Some(connection.clone());
    }

    /// Replaces a connection by another to a better peer. False: it is not the current one any more.
    pub(super) fn replace(&self, old: &Arc<Connection>, new: &Arc<Connection>) -> bool {
        let mut state = self.state();
        let mut current = self.current();
        let is_current = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, old));
        if is_current {
            *state = State::Connected { since: Instant::now(), failures: 0 };
            *current = Some(new.clone());
        }
        is_current
    }

    /// An attempt has died with its task: the next call begins another.
    pub(super) fn forget(&self, attempt: &Connecting) {
        let mut state = self.state();
        if matches!(&*state, State::Connecting(current) if current.same_channel(attempt)) {
            *state = State::Idle;
        }
    }

    /// Ends it for good; gives the connection, to be closed.
    pub(super) fn take(&self) -> Option<Arc<Connection>> {
        *self.state() = State::Idle;
        self.current().take()
    }

    fn current(&self) -> RwLockWriteGuard<'_, Option<Arc<Connection>>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a connection, after this many attempts in a row that failed.
async fn attempt_to_connect(
    shared: Weak<Shared>,
    of_class: Arc<ClassConnection>,
    failures: u32,
    sender: watch::Sender<Outcome>,
) {
    let made = Shared::connect(&shared, of_class.class).await;
    // However it went wrong, no call had been sent.
    let made = made.map_err(|status| status.with_executed(Executed::No));
    // Until the connection is where it is closed with the others.
    let Some(shared) = shared.upgrade() else {
        if let Ok((connection, _)) = made {
            connection.close_for_want_of_callers();
        }
        return drop(sender.send_replace(Some(Err(gone()))));
    };
    let outcome = match made {
        Ok((connection, peer)) => {
            of_class.use_connection(&connection, failures);
            if peer > 0 {
                shared.return_to_first(&of_class, &connection, peer);
            }
            Ok(connection)
        }
        Err(status) => {
            let (at, failed) = (Instant::now(), status.clone());
            let until = at + shared.pause(failures);
            *of_class.state() = State::Failed { at, until, failures: failures + 1, status: failed };
            Err(status)
        }
    };
    sender.send_replace(Some(outcome));
}
