//! Whether a server's services can do their work, for load balancers, orchestrators and people.
//!
//! A [`Reporter`] is the server's side: the application sets what it knows, and adds its service to the server. The empty name is the
//! server as a whole. `farcall health HOST` asks.
//!
//! ```
//! use farcall::Server;
//! use farcall::health::{HealthClient, Reporter, Serving};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let health = Reporter::new();
//! let server = Server::builder().add(health.service()).bind("127.0.0.1:0").await?;
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

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

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
pub struct Reporter(watch::Sender<BTreeMap<String, Serving>>);

impl Default for Reporter {
    fn default() -> Self {
        Self::new()
    }
}

impl Reporter {
    /// Returns a reporter of a server that does its work, and knows of no service.
    pub fn new() -> Self {
        Self(watch::Sender::new(BTreeMap::from([(String::new(), Serving::Serving)])))
    }

    /// Sets the state of a service. The empty name is the server as a whole.
    pub fn set(&self, service: impl Into<String>, state: Serving) {
        let service = service.into();
        self.0.send_if_modified(|states| states.insert(service, state) != Some(state));
    }

    /// Sets the state of the server and of all services that it knows of, as before a shutdown.
    pub fn set_all(&self, state: Serving) {
        self.0.send_modify(|states| states.values_mut().for_each(|known| *known = state));
    }

    /// Returns the service that tells the states, for [`ServerBuilder::add`](crate::ServerBuilder::add).
    pub fn service(&self) -> HealthServer<Self> {
        HealthServer::new(self.clone())
    }
}

impl Health for Reporter {
    async fn check(&self, service: String) -> Result<Serving> {
        let state = self.0.borrow().get(&service).copied();
        state.ok_or_else(|| Status::not_found(format!("nothing is known of a service `{service}`")))
    }

    fn watch(&self, cx: &Context, service: String) -> impl Stream<Item = Result<Serving>> {
        let (mut states, cx) = (self.0.subscribe(), cx.clone());
        crate::stream::generate(async move |items| {
            let mut last = None;
            loop {
                let state = states.borrow_and_update().get(&service).copied().unwrap_or(Serving::Unknown);
                if last.replace(state) != Some(state) {
                    items.send(state).await;
                }
                tokio::select! {
                    changed = states.changed() => if changed.is_err() {
                        return Ok(());
                    },
                    () = cx.draining() => return Ok(()),
                }
            }
        })
    }

    async fn list(&self) -> Result<Vec<(String, Serving)>> {
        Ok(self.0.borrow().iter().map(|(name, state)| (name.clone(), *state)).collect())
    }
}
