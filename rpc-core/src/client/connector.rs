//! The maker of a channel's connections, and the order in which it tries peers.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::class_connection::{ClassConnection, Lookup};
use crate::backoff;
use crate::class::TrafficClass;
use crate::connection::Connection;
use crate::settings::Settings;
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::{BoxFuture, Link};

/// Makes stream links to one peer, or to one of several that are equivalent.
pub trait Connector: Send + Sync + 'static {
    /// Makes a link to the peer with this index. Peers are numbered from 0 in the order of preference, below
    /// [`peers`](Self::peers). The status of a failure says what was tried, and counts as not executed.
    fn connect(&self, peer: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>>;

    /// Makes a link to the peer at this address, which the channel's calls of another class go to. If it fails, the
    /// other peers are tried. The default tries the first peer.
    fn connect_beside(&self, peer: SocketAddr) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let _ = peer;
        self.connect(0)
    }

    /// Returns the number of peers.
    fn peers(&self) -> usize {
        1
    }

    /// Returns the name of the peer or peers, for messages.
    fn target(&self) -> String;
}

/// The connections to one peer, or to one of several: one for each class. A channel that balances has one or more of these for each
/// server.
pub(super) struct Shared {
    pub(super) connector: Arc<dyn Connector>,
    pub(super) settings: Arc<Settings>,
    pub(super) classes: [Arc<ClassConnection>; TrafficClass::ALL.len()],
    /// `None` if the channel was made outside of a runtime; then every call fails.
    pub(super) runtime: Option<Handle>,
}

impl Shared {
    pub(super) fn new(
        connector: Arc<dyn Connector>,
        settings: Arc<Settings>,
        runtime: Option<Handle>,
    ) -> Arc<Self> {
        let classes = TrafficClass::ALL.map(|class| Arc::new(ClassConnection::new(class)));
        Arc::new(Self { connector, settings, classes, runtime })
    }

    /// Returns the current connection for calls of a class, and makes one if there is none. Cancel safe: an attempt goes on for
    /// others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, not executed, with the reason. Returned at once while a failed attempt is recent.
    pub(super) async fn connection(self: &Arc<Self>, class: TrafficClass) -> Result<Arc<Connection>, Status> {
        let of_class = &self.classes[class as usize];
        loop {
            let mut attempt = match of_class.find(self) {
                Lookup::Connected(connection) => return Ok(connection),
                Lookup::Failed(status) => return Err(status),
                Lookup::Connecting(attempt) => attempt,
            };
            // An error means that the attempt's task is gone, with its runtime or by a panic of the connector.
            let outcome = attempt.wait_for(Option::is_some).await.map(|o| o.clone());
            match outcome {
                Ok(Some(Ok(connection))) if connection.is_open() => return Ok(connection),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(status))) => return Err(status),
                _ => {
                    of_class.forget(&attempt, self);
                    return Err(gone());
                }
            }
        }
    }

    /// Ends the pauses after failed attempts, of all classes.
    pub(super) fn end_pauses(&self) {
        self.classes.iter().for_each(|of_class| of_class.end_pause());
    }

    /// Returns the pause after `failures` earlier failed attempts in a row and one more.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        let liveness = &self.settings.liveness;
        backoff::pause(failures, liveness.reconnect(), liveness.reconnect_max())
    }

    /// Makes a connection to the peer that another class is connected to, else to the first peer that accepts one.
    /// Returns the index of the peer. A peer that was found through another class has none, because that class already
    /// looks for a better one.
    pub(super) async fn connect(
        this: &Weak<Self>,
        class: TrafficClass,
    ) -> Result<(Arc<Connection>, Option<usize>), Status> {
        let Some(shared) = this.upgrade() else { return Err(gone()) };
        let (peers, beside) = (shared.connector.peers().max(1), shared.connected_to());
        let mut failures = Vec::new();
        if let Some(peer) = beside {
            let link = shared.connector.connect_beside(peer);
            drop(shared);
            // If that peer can't be reached, the status of the attempts below says why.
            if let Ok(connection) = Self::greet(this, class, link).await {
                return Ok((connection, None));
            }
        }
        for peer in 0..peers {
            let Some(shared) = this.upgrade() else { return Err(gone()) };
            let link = shared.connector.connect(peer);
            drop(shared);
            match Self::greet(this, class, link).await {
                Ok(connection) => return Ok((connection, Some(peer))),
                Err(status) => failures.push(status),
            }
        }
        Err(all_of(failures))
    }

    /// Makes a connection from a link.
    pub(super) async fn greet(
        this: &Weak<Self>,
        class: TrafficClass,
        link: BoxFuture<Result<Arc<dyn Link>, Status>>,
    ) -> Result<Arc<Connection>, Status> {
        let link = link.await?;
        let Some(settings) = this.upgrade().map(|shared| shared.settings.clone()) else {
            link.close();
            return Err(gone());
        };
        Connection::connect(link, class, settings).await
    }

    /// Returns the peer that calls of some class go to.
    fn connected_to(&self) -> Option<SocketAddr> {
        self.classes.iter().find_map(|of_class| of_class.connected()?.peer())
    }

    /// Tries the peers before this one at intervals, for as long as the connection is in use. New calls move to the
    /// first of them that accepts a connection. Calls in progress end where they are.
    pub(super) fn return_to_first(
        self: &Arc<Self>,
        of_class: &Arc<ClassConnection>,
        connection: &Arc<Connection>,
        peer: usize,
    ) {
        let (shared, of_class, connection) =
            (Arc::downgrade(self), of_class.clone(), Arc::downgrade(connection));
        if let Some(runtime) = self.runtime.as_ref().filter(|_| peer > 0) {
            runtime.spawn(return_to_first(shared, of_class, connection, peer));
        }
    }

    /// Moves new calls of a class from one connection to another, to the peer with this index. Calls in progress end where they are.
    /// Returns false if the old connection is not in use any more; the new one is closed then.
    pub(super) fn move_calls(
        &self,
        of_class: &ClassConnection,
        old: &Arc<Connection>,
        new: &Arc<Connection>,
        peer: usize,
    ) -> bool {
        if !of_class.replace(old, new, peer) {
            new.close_for_want_of_callers();
            return false;
        }
        tracing::debug!(from = ?old.peer(), to = ?new.peer(), "calls move to another address");
        // Connections of other classes follow when their next calls need one.
        let others = self.classes.iter().filter_map(|of_class| of_class.connected());
        let is_beside = |other: &Arc<Connection>| old.peer().is_some() && other.peer() == old.peer();
        others.filter(is_beside).for_each(|other| other.retire());
        old.retire();
        true
    }
}

async fn return_to_first(
    shared: Weak<Shared>,
    of_class: Arc<ClassConnection>,
    connection: Weak<Connection>,
    peer: usize,
) {
    let mut now = (connection, peer);
    while now.1 > 0 {
        let Some(pause) = shared.upgrade().map(|shared| shared.pause(u32::MAX)) else { return };
        tokio::time::sleep(pause).await;
        for better in 0..now.1 {
            match try_better(&shared, &of_class, &now.0, better).await {
                Tried::Moved(connection) => {
                    now = (connection, better);
                    break;
                }
                Tried::Failed => {}
                Tried::Over => return,
            }
        }
    }
}

/// The outcome of an attempt to return to an earlier peer.
enum Tried {
    Moved(Weak<Connection>),
    Failed,
    /// The connection is no longer in use, or the channel is gone.
    Over,
}

async fn try_better(
    shared: &Weak<Shared>,
    of_class: &ClassConnection,
    old: &Weak<Connection>,
    peer: usize,
) -> Tried {
    let is_in_use = old.upgrade().is_some_and(|old| old.is_open());
    let Some(this) = shared.upgrade().filter(|_| is_in_use) else { return Tried::Over };
    let link = this.connector.connect(peer);
    drop(this);
    let Ok(found) = Shared::greet(shared, of_class.class, link).await else { return Tried::Failed };
    let (Some(this), Some(old)) = (shared.upgrade(), old.upgrade()) else {
        found.close_for_want_of_callers();
        return Tried::Over;
    };
    match this.move_calls(of_class, &old, &found, peer) {
        true => Tried::Moved(Arc::downgrade(&found)),
        false => Tried::Over,
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for connection in self.classes.iter().filter_map(|of_class| of_class.take()) {
            connection.close_for_want_of_callers();
        }
    }
}

/// Combines the statuses of all attempts into one.
fn all_of(mut failures: Vec<Status>) -> Status {
    let Some(last) = failures.pop() else { return gone() };
    if failures.is_empty() {
        return last;
    }
    let said: Vec<&str> = failures.iter().chain([&last]).map(Status::message).collect();
    let said = said.join("; ");
    last.map_message(|_| said)
}

/// Returns the status for an attempt whose task has died, with the channel's runtime or by a panic of the connector.
pub(super) fn gone() -> Status {
    let message = "connecting was cut off: the runtime that made this channel has ended, or the channel's connector \
                   has panicked";
    Status::new(Code::Unavailable, message).with_executed(Executed::No).with_blame(Blame::Caller)
}

/// Returns the status for a channel that was made without a runtime.
pub(super) fn no_runtime() -> Status {
    let message = "the channel was made outside of a tokio runtime, which its connections need: make it in an async \
                   function that tokio runs, or after `Runtime::enter`";
    Status::new(Code::Unavailable, message).with_executed(Executed::No).with_blame(Blame::Caller)
}
