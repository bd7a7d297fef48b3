//! Whether a server's services can do their work, for load balancers, orchestrators and people.
//!
//! A [`Reporter`] is the server's side: the application sets what it knows. A server that is built with it says that nothing is served
//! when it is told to stop. The empty name is the server as a whole. `farcall health HOST` asks, and so does a channel that balances, with
//! [`Balance::health_service`](crate::Balance::health_service).
//!
//! ```
//! use farcall::Server;
//! use farcall::health::{HealthClient, Reporter, Serving};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let health = Reporter::new();
//! let server = Server::builder().with_health(&health).bind("127.0.0.1:0").await?;
//! let address = format!("farcall://{}", server.local_addr());
//! tokio::spawn(server.serve());
//!
//! let channel = farcall::Channel::connect(&address).await?;
//! let client = HealthClient::new(&channel);
//! assert_eq!(client.check("").await?, Serving::Serving);
//! health.set("shop.v1.Kv", Serving::NotServing);
//! assert_eq!(client.check("shop.v1.Kv").await?, Serving::NotServing);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "tcp")]
pub(crate) mod progress;
#[cfg(feature = "tcp")]
mod watching;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

#[cfg(feature = "tcp")]
pub(crate) use self::watching::Watching;
use crate::{Context, Result, Status, Stream};

/// Says whether services can do their work.
#[crate::service(package = "farcall.health.v1", crate = "crate")]
pub trait Health {
    /// Returns the state of a service. NOT_FOUND: the server knows nothing of it. The empty name is the server as a whole.
    async fn check(&self, service: String) -> Result<Serving>;
    /// Returns the state now, and then each time that it changes. `Unknown` while the server knows nothing of it.
    /// It ends when the server drains.
    fn watch(&self, cx: &Context, service: String) -> impl Stream<Item = Result<Serving>>;
    /// Returns the state of all services that the server knows of.
    async fn list(&self) -> Result<Vec<(String, Serving)>>;
}

/// The state of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Serving {
    /// It is not known.
    Unknown,
    /// It does its work.
    Serving,
    /// It does not, for the time being: callers should go elsewhere.
    NotServing,
}

/// The states of a server's services. Clones share them.
#[derive(Clone, Debug)]
pub struct Reporter(watch::Sender<States>);

/// The states that the application has set, and the reasons why others see another one.
#[derive(Debug)]
struct States {
    /// By service.
    set: BTreeMap<String, Serving>,
    /// Services whose handlers make no progress.
    stuck: BTreeSet<String>,
    /// Paths of methods whose calls may take long.
    take_long: BTreeSet<String>,
    is_stopping: bool,
}

impl States {
    /// Returns the state of a service that was set, as callers see it.
    fn seen(&self, service: &str, set: Serving) -> Serving {
        let is_stuck = if service.is_empty() { !self.stuck.is_empty() } else { self.stuck.contains(service) };
        if self.is_stopping || is_stuck { Serving::NotServing } else { set }
    }

    fn of(&self, service: &str) -> Option<Serving> {
        self.set.get(service).map(|set| self.seen(service, *set))
    }
}

impl Default for Reporter {
    fn default() -> Self {
        Self::new()
    }
}

impl Reporter {
    /// Returns a reporter of a server that does its work, and knows of no service.
    pub fn new() -> Self {
        let set = BTreeMap::from([(String::new(), Serving::Serving)]);
        let (stuck, take_long) = Default::default();
        Self(watch::Sender::new(States { set, stuck, take_long, is_stopping: false }))
    }

    /// Sets the state of a service. The empty name is the server as a whole.
    pub fn set(&self, service: impl Into<String>, state: Serving) {
        let service = service.into();
        self.0.send_if_modified(|states| states.set.insert(service, state) != Some(state));
    }

    /// Sets the state of the server and of all services that it knows of.
    pub fn set_all(&self, state: Serving) {
        self.0.send_modify(|states| states.set.values_mut().for_each(|known| *known = state));
    }

    /// Says from now on that nothing is served, whatever is set later. A server that was built
    /// [`with_health`](crate::ServerBuilder::with_health) does this when it is told to stop.
    pub fn stop(&self) {
        self.0.send_modify(|states| states.is_stopping = true);
    }

    /// Excludes a unary method from what [`server.stuck_ms`](crate::ServerConfig::stuck_ms) watches, by its path as in
    /// `shop.v1.Kv/next_change`: one that waits for an event, say.
    pub fn takes_long(&self, path: impl Into<String>) {
        let path = path.into();
        self.0.send_if_modified(|states| {
            states.take_long.insert(path);
            false
        });
    }

    #[cfg(feature = "tcp")]
    fn may_take_long(&self, path: &str) -> bool {
        self.0.borrow().take_long.contains(path)
    }

    #[cfg(feature = "tcp")]
    fn set_stuck(&self, stuck: BTreeSet<String>) {
        let is_new = self.0.send_if_modified(|states| {
            let is_new = states.stuck != stuck;
            if is_new {
                states.stuck.clone_from(&stuck);
            }
            is_new
        });
        match is_new {
            true if stuck.is_empty() => tracing::info!("calls of all services get answers again"),
            true => tracing::warn!(?stuck, "calls of some services get no answers (server.stuck_ms)"),
            false => {}
        }
    }

    /// Returns the service that tells the states, for [`ServerBuilder::add`](crate::ServerBuilder::add) of servers that are not built
    /// [`with_health`](crate::ServerBuilder::with_health).
    pub fn service(&self) -> HealthServer<Self> {
        HealthServer::new(self.clone())
    }
}

impl Health for Reporter {
    async fn check(&self, service: String) -> Result<Serving> {
        let state = self.0.borrow().of(&service);
        state.ok_or_else(|| Status::not_found(format!("nothing is known of a service `{service}`")))
    }

    fn watch(&self, cx: &Context, service: String) -> impl Stream<Item = Result<Serving>> {
        let (mut states, cx) = (self.0.subscribe(), cx.clone());
        crate::stream::generate(async move |items| {
            let mut last = None;
            loop {
                let state = states.borrow_and_update().of(&service).unwrap_or(Serving::Unknown);
                if last.replace(state) != Some(state) {
                    items.send(state).await;
                }
                tokio::select! {
                    // The last state before the server drains is told, too.
                    biased;
                    changed = states.changed() => if changed.is_err() {
                        return Ok(());
                    },
                    () = cx.draining() => return Ok(()),
                }
            }
        })
    }

    async fn list(&self) -> Result<Vec<(String, Serving)>> {
        let states = self.0.borrow();
        Ok(states.set.iter().map(|(name, set)| (name.clone(), states.seen(name, *set))).collect())
    }
}
