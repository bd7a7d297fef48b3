//! A server of a channel that calls several, as its owner names it.

use std::fmt;
use std::sync::Arc;

use super::WatchHealth;
use crate::client::connector::Connector;

/// A server that a channel may call.
#[derive(Clone)]
pub struct Endpoint {
    pub(in crate::client) name: Arc<str>,
    pub(in crate::client) weight: u32,
    pub(in crate::client) tier: u32,
    pub(in crate::client) locality: Arc<str>,
    pub(in crate::client) connector: Arc<dyn Connector>,
    pub(in crate::client) health: Option<Arc<dyn WatchHealth>>,
}

impl Endpoint {
    /// Returns a server of this name, which no other of the channel has. `connector` connects to it; its first peer counts.
    pub fn new(name: &str, connector: Arc<dyn Connector>) -> Self {
        Self { name: name.into(), weight: 1, tier: 0, locality: "".into(), connector, health: None }
    }

    /// Sets how many calls the server gets, compared with others. Default 1. 0 counts as 1.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight.max(1);
        self
    }

    /// Sets the server's tier. Calls go to the lowest tier of which a server is connected. Default 0.
    #[must_use]
    pub fn tier(mut self, tier: u32) -> Self {
        self.tier = tier;
        self
    }

    /// Sets where the server is, for [`Balance::locality`](crate::config::Balance::locality).
    #[must_use]
    pub fn locality(mut self, locality: &str) -> Self {
        self.locality = locality.into();
        self
    }

    /// Sets how the server is asked whether it serves, for as long as it is connected. Default `None`: it is not asked. A server that says
    /// no gets calls only while no other is ready. A server that [stays](crate::client::Endpoints::set) is asked as it was at first.
    #[must_use]
    pub fn health(mut self, by: Option<Arc<dyn WatchHealth>>) -> Self {
        self.health = by;
        self
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("weight", &self.weight)
            .finish_non_exhaustive()
    }
}
