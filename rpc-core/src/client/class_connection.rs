//! The connection of one class of a channel, and how it is made, lost and made again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::balance::Readiness;
use super::connector::{Shared, gone, no_runtime};
use crate::class::TrafficClass;
use crate::connection::Connection;
use crate::status::{Executed, Status};

/// The age below which an ended connection counts as a failed attempt, if it has answered no call. So a server that
/// accepts connections and closes them is not tried without a pause. The first such connection is exempt, because its
/// server may have been about to shut down.
const EARLY: Duration = Duration::from_secs(1);

/// How soon after a failed attempt a call that waits for the server may end the pause. Without this delay each waiting
/// call would make its own attempt.
const JUST_NOW: Duration = Duration::from_millis(50);

/// The connection that a class of calls goes by.
pub(super) struct ClassConnection {
    pub(super) class: TrafficClass,
    /// The connection, which may have ended. Calls take this lock for reading. It is written only to exchange the
    /// connection, under the lock of `state`.
    current: RwLock<Option<Arc<Connection>>>,
    state: Mutex<State>,
    pause_ended: Notify,
    /// Notified when `state` has changed.
    changed: Notify,
}

type Outcome = Option<Result<Arc<Connection>, Status>>;
pub(super) type Connecting = watch::Receiver<Outcome>;

enum State {
    /// Not connected, and no call needs a connection.
    Idle,
    Connecting(Connecting),
    /// `current` holds the connection.
    Connected {
        since: Instant,
        /// How many attempts in a row failed or were useless before this one.
        failures: u32,
        /// The index of the peer. `None`: it is the peer of another class's connection.
        peer: Option<usize>,
    },
    /// The last attempt failed. Calls fail at once with its status until the pause ends.
    Failed {
        at: Instant,
        until: Instant,
        failures: u32,
        status: Status,
    },
}

/// The state of the connection, as a call finds it.
pub(super) enum Lookup {
    Connected(Arc<Connection>),
    Connecting(Connecting),
    Failed(Status),
}

impl ClassConnection {
    pub(super) fn new(class: TrafficClass) -> Self {
        let (current, state) = (RwLock::default(), Mutex::new(State::Idle));
        Self { class, current, state, pause_ended: Notify::new(), changed: Notify::new() }
    }

    /// Whether there is a connection that takes calls.
    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().is_some_and(|connection| connection.is_open())
    }

    /// Returns the connection, if there is one that takes calls.
    #[inline]
    pub(super) fn connected(&self) -> Option<Arc<Connection>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|connection| connection.is_open()).cloned()
    }

    /// Returns the connection, even if it takes no more calls.
    pub(super) fn current(&self) -> Option<Arc<Connection>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the connection, or the attempt to make one. Starts an attempt unless the last has just failed.
    pub(super) fn find(self: &Arc<Self>, shared: &Arc<Shared>) -> Lookup {
        let Some(runtime) = &shared.runtime else { return Lookup::Failed(no_runtime()) };
        let mut state = self.state();
        // Checked again under the lock, because another call's attempt may just have succeeded.
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
        self.enter(&mut state, State::Connecting(attempt.clone()));
        // A task of its own, so that the attempt outlives the call that started it.
        runtime.spawn(attempt_to_connect(Arc::downgrade(shared), self.clone(), failures, sender));
        Lookup::Connecting(attempt)
    }

    /// Counts a connection that ended early and unused as a failed attempt.
    fn note_early_end(&self, state: &mut State, shared: &Shared) {
        let State::Connected { since, failures, .. } = *state else { return };
        let ended = self.current_mut().take();
        let Some(ended) = ended.filter(|ended| since.elapsed() < EARLY && !ended.was_of_use()) else {
            return;
        };
        // No pause after the first one.
        let pause = failures.checked_sub(1).map_or(Duration::ZERO, |failures| shared.pause(failures));
        let status = ended.why_not_open();
        self.enter(state, State::Failed { at: since, until: since + pause, failures: failures + 1, status });
    }

    /// Ends the pause after a failed attempt, if there is one. The next call then starts an attempt, and pauses are as short as at first. An
    /// attempt that is under way counts as before.
    pub(super) fn end_pause(&self) {
        if let State::Failed { until, failures, .. } = &mut *self.state() {
            (*until, *failures) = (Instant::now(), 0);
            self.pause_ended.notify_waiters();
            self.tell();
        }
    }

    /// Waits until a call that waits for a connection should ask for it again. `impatient` means that the call has not
    /// waited yet. Such a call ends a pause that began before it, unless an attempt has failed just now.
    pub(super) async fn pause(&self, impatient: bool, shared: &Shared) {
        let first = shared.settings.liveness.reconnect();
        let ended = self.pause_ended.notified();
        let (failed_at, until) = match &*self.state() {
            State::Failed { at, until, .. } if impatient => (Some(*at), (*at + JUST_NOW).min(*until)),
            State::Failed { until, .. } => (None, *until),
            // The connection takes no calls, or not this one.
            State::Connected { .. } => (None, Instant::now() + first),
            State::Idle | State::Connecting(_) => return,
        };
        // An error means that the time has come.
        drop(tokio::time::timeout_at(until, ended).await);
        if let Some(failed_at) = failed_at
            && let State::Failed { at, until, .. } = &mut *self.state()
            && *at == failed_at
        {
            *until = Instant::now();
            self.tell();
        }
    }

    /// Makes this the current connection.
    fn use_connection(&self, connection: &Arc<Connection>, failures: u32, peer: Option<usize>) {
        let mut state = self.state();
        *self.current_mut() = Some(connection.clone());
        self.enter(&mut state, State::Connected { since: Instant::now(), failures, peer });
    }

    /// Returns the index of the peer, if it is known.
    pub(super) fn peer(&self) -> Option<usize> {
        match *self.state() {
            State::Connected { peer, .. } => peer,
            _ => None,
        }
    }

    /// Replaces a connection by one to a better peer, which has this index. Returns false if `old` is not current any more.
    pub(super) fn replace(&self, old: &Arc<Connection>, new: &Arc<Connection>, peer: usize) -> bool {
        let mut state = self.state();
        let mut current = self.current_mut();
        let is_current = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, old));
        if is_current {
            *current = Some(new.clone());
            self.enter(&mut state, State::Connected { since: Instant::now(), failures: 0, peer: Some(peer) });
        }
        is_current
    }

    /// Counts an attempt whose task has died as one that failed.
    pub(super) fn forget(&self, attempt: &Connecting, shared: &Shared) {
        let mut state = self.state();
        if matches!(&*state, State::Connecting(current) if current.same_channel(attempt)) {
            self.fail(&mut state, shared.pause(0), 1, gone());
        }
    }

    /// Removes the connection for good and returns it, to be closed.
    pub(super) fn take(&self) -> Option<Arc<Connection>> {
        self.enter(&mut self.state(), State::Idle);
        self.current_mut().take()
    }

    /// Returns a future that resolves when the state may have changed since this was called.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Tells those who watch the state that it has changed.
    pub(super) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Returns the state, for its watchers.
    pub(super) fn readiness(&self) -> Readiness {
        match &*self.state() {
            State::Connecting(_) => Readiness::Connecting,
            State::Failed { status, .. } => Readiness::Failing(status.clone()),
            State::Idle | State::Connected { .. } => match self.connected() {
                None => Readiness::Idle,
                Some(connection) if connection.is_suspected() => Readiness::Suspected,
                Some(_) => Readiness::Ready,
            },
        }
    }

    /// Returns the time of the next attempt, if the last one has failed.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        match *self.state() {
            State::Failed { until, .. } => Some(until),
            _ => None,
        }
    }

    fn enter(&self, state: &mut State, next: State) {
        *state = next;
        self.tell();
    }

    fn fail(&self, state: &mut State, pause: Duration, failures: u32, status: Status) {
        let at = Instant::now();
        self.enter(state, State::Failed { at, until: at + pause, failures, status });
    }

    fn current_mut(&self) -> RwLockWriteGuard<'_, Option<Arc<Connection>>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a connection after `failures` failed attempts in a row.
async fn attempt_to_connect(
    shared: Weak<Shared>,
    of_class: Arc<ClassConnection>,
    failures: u32,
    sender: watch::Sender<Outcome>,
) {
    let made = Shared::connect(&shared, of_class.class).await;
    // No call had been sent, however the attempt failed.
    let made = made.map_err(|status| status.with_executed(Executed::No));
    // Taken only now. If the channel is gone, its `Drop` does not know of this connection yet, so it is closed here.
    let Some(shared) = shared.upgrade() else {
        if let Ok((connection, _)) = made {
            connection.close_for_want_of_callers();
        }
        return drop(sender.send_replace(Some(Err(gone()))));
    };
    let outcome = match made {
        Ok((connection, peer)) => {
            of_class.use_connection(&connection, failures, peer);
            if let Some(peer) = peer {
                shared.return_to_first(&of_class, &connection, peer);
            }
            Ok(connection)
        }
        Err(status) => {
            of_class.fail(&mut of_class.state(), shared.pause(failures), failures + 1, status.clone());
            Err(status)
        }
    };
    sender.send_replace(Some(outcome));
}
