//! The server without a listener: its services, its connections, and its shutdown.

mod age;
mod arrivals;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch as watched};

use self::arrivals::{Arrival, Arrivals};
use crate::admission::AdmissionStats;
use crate::connection::Connection;
use crate::dispatch::Registry;
use crate::memory::{Account, Budget};
use crate::middleware::Spawned;
use crate::proto::wire::CloseCode;
use crate::service::Service;
use crate::settings::Settings;
use crate::status::Status;
use crate::transport::Link;

/// A server for the sessions that a listener accepts.
pub struct ServerCore {
    registry: Arc<Registry>,
    settings: Arc<Settings>,
    memory: Arc<Budget>,
    arrivals: Arc<Arrivals>,
    /// A permit for each client that is being told that it is not served.
    refusals: Arc<Semaphore>,
    open: Mutex<Open>,
    /// A summary of `open`, for tasks that wait.
    told: watched::Sender<Told>,
}

#[derive(Default)]
struct Told {
    /// The number of sessions, with those that are not established yet.
    sessions: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Open {
    connections: Vec<Arc<Connection>>,
    /// How many sessions are not established yet. Their clients may send calls before they are listed.
    greeting: usize,
    /// How to end a session that is established from now on.
    ending: Option<Ending>,
}

#[derive(Clone, Copy)]
enum Ending {
    Drain,
    Close,
}

/// How many clients are told at once that they are not served. A further one only sees its connection end.
const REFUSALS: usize = 64;

/// How long calls may go on of a connection whose place another one got.
const LEAVE: Duration = Duration::from_secs(1);

/// The message to clients of a server that drains.
const DRAINING: &str = "the server is shutting down";

impl fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCore").field("services", &self.registry).finish_non_exhaustive()
    }
}

impl ServerCore {
    /// Returns a server for these services.
    ///
    /// # Errors
    ///
    /// If two services have the same name, if one has names or methods that do not fit on the wire, or if the settings
    /// contradict each other.
    pub fn new(services: Vec<Arc<dyn Service>>, settings: Settings) -> Result<Arc<Self>, String> {
        settings.limits.check()?;
        let mut registry = Registry::default();
        for service in services {
            let spawns = settings.calls.spawn_handlers;
            registry.add(if spawns { Arc::new(Spawned::new(service)) } else { service })?;
        }
        registry.limit(&settings.admission)?;
        Ok(Arc::new(Self {
            registry: Arc::new(registry),
            memory: Budget::of(settings.limits.memory),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            arrivals: Arrivals::new(settings.limits.clone()),
            settings: Arc::new(settings),
            open: Mutex::default(),
            told: watched::Sender::new(Told::default()),
        }))
    }

    /// Serves one session in its own tasks. Must be called within a tokio runtime.
    pub fn serve(self: &Arc<Self>, link: Arc<dyn Link>) {
        let peer = link.description().peer;
        let address = peer.map(|peer| peer.ip());
        let arrival = match self.memory.admit(address).and_then(|()| self.arrivals.admit(address)) {
            Ok(arrival) => arrival,
            Err(why) => return self.refuse(link, why),
        };
        let host = self.clone();
        let account = Account::open(self.memory.clone(), address);
        let greeting = Greeting::begin(&host);
        let connection = Connection::accept(link, host.settings.clone(), account, host.registry.clone());
        tokio::spawn(async move {
            let leaves = async {
                tokio::select! {
                    why = arrival.handshake_displaced() => (CloseCode::Overloaded, why),
                    why = connection.evicted() => (CloseCode::Overloaded, why),
                    () = host.closed() => (CloseCode::Done, "the server was closed".to_owned()),
                }
            };
            let greeted = connection.greeted_unless(leaves).await;
            arrival.greeted();
            match greeted {
                Ok(()) => host.keep(connection, &arrival, greeting).await,
                Err(status) => {
                    tracing::debug!(?peer, %status, "a session was not established");
                    // Its socket is there until then, so it has a place.
                    connection.gone().await;
                    drop(greeting);
                }
            }
        });
    }

    /// Tells a client why it is not served, unless too many are being told now.
    fn refuse(self: &Arc<Self>, link: Arc<dyn Link>, why: String) {
        let Ok(turn) = self.refusals.clone().try_acquire_owned() else { return };
        let settings = self.settings.clone();
        tokio::spawn(async move {
            Connection::refuse(link, &settings, &why).await;
            drop(turn);
        });
    }

    /// Lists a connection until it has ended and its last bytes have been sent.
    async fn keep(self: Arc<Self>, connection: Arc<Connection>, arrival: &Arrival, greeting: Greeting) {
        let ending = self.change(|open| {
            open.connections.push(connection.clone());
            open.ending
        });
        drop(greeting);
        match ending {
            None => {}
            Some(Ending::Drain) => connection.begin_draining(DRAINING),
            Some(Ending::Close) => connection.close_by_server(),
        }
        let status = tokio::select! {
            status = connection.closed() => status,
            why = connection.evicted() => connection.close_to_make_room(why).await,
            status = leave_when_displaced(&connection, arrival) => status,
            status = self.retire_when_old(&connection) => status,
        };
        tracing::debug!(peer = ?connection.peer(), class = %connection.class(), %status, "a session ended");
        connection.gone().await;
        self.change(|open| open.connections.retain(|c| !Arc::ptr_eq(c, &connection)));
    }

    /// Changes which sessions there are, or how they end, and tells of that.
    fn change<R>(&self, change: impl FnOnce(&mut Open) -> R) -> R {
        let mut open = self.open();
        let changed = change(&mut open);
        let sessions = open.connections.len() + open.greeting;
        self.told.send_replace(Told { sessions, is_closed: matches!(open.ending, Some(Ending::Close)) });
        changed
    }

    /// Returns the memory that is held for clients, and its limit.
    pub fn memory(&self) -> &Arc<Budget> {
        &self.memory
    }

    /// Returns how many calls the server takes at once, and how many it has refused, if its [`Admission`](crate::config::Admission) bounds
    /// them.
    pub fn admission(&self) -> Option<AdmissionStats> {
        self.registry.admission()
    }

    /// Returns the sessions that are open now.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.open().connections.clone()
    }

    /// Takes no more calls, lets those in progress finish for at most `grace`, then closes. Returns when every session
    /// has ended, and its last bytes have been sent or its link has given up sending them. Cancel safe: draining goes
    /// on.
    pub async fn drain(&self, grace: Duration) {
        let connections = {
            let mut open = self.open();
            open.ending.get_or_insert(Ending::Drain);
            open.connections.clone()
        };
        self.registry.drain().begin();
        for connection in connections {
            connection.begin_draining(DRAINING);
        }
        if tokio::time::timeout(grace, self.finished()).await.is_err() {
            self.close();
            self.finished().await;
        }
    }

    /// Resolves when the server has been closed.
    async fn closed(&self) {
        // Can't fail, because `self` holds the sender.
        let _ = self.told.subscribe().wait_for(|told| told.is_closed).await;
    }

    /// Resolves when no session is open, nor about to be.
    pub async fn finished(&self) {
        // Can't fail, because `self` holds the sender.
        let _ = self.told.subscribe().wait_for(|told| told.sessions == 0).await;
    }

    /// Ends every session now, and each that is established later. Handlers are dropped; their callers learn that they
    /// may have been executed.
    pub fn close(&self) {
        let connections = self.change(|open| {
            open.ending = Some(Ending::Close);
            open.connections.clone()
        });
        for connection in connections {
            connection.close_by_server();
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that is not established yet. It counts until this is dropped.
struct Greeting(Arc<ServerCore>);

impl Greeting {
    fn begin(server: &Arc<ServerCore>) -> Self {
        server.change(|open| open.greeting += 1);
        Self(Arc::clone(server))
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.0.change(|open| open.greeting -= 1);
    }
}

/// Waits until another connection has the place of this one, and drains it. Returns its status when it has ended.
async fn leave_when_displaced(connection: &Connection, arrival: &Arrival) -> Status {
    let why = arrival.displaced().await;
    connection.drain_within(&why, Some(LEAVE)).await
}
