//! The servers of a channel that does not balance.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_core::client::Connector;
use farcall_core::status::Status;
use farcall_core::transport::{BoxFuture, Link};

use super::dial::Dialer;
use crate::Address;

/// The hosts of an address, of which the first that can be reached counts.
pub(super) struct First {
    address: Address,
    dialer: Dialer,
    /// The host of the address that led to a peer.
    hosts: Arc<Mutex<HashMap<SocketAddr, String>>>,
}

impl First {
    pub(super) fn new(address: Address, dialer: Dialer) -> Self {
        Self { address, dialer, hosts: Arc::default() }
    }

    /// Connects to a target that `host` has led to, and notes the host of the peer that is found.
    fn dial(&self, target: String, host: String) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let (dialed, hosts) = (self.dialer.dial(target, host.clone()), self.hosts.clone());
        Box::pin(async move {
            let link = dialed.await?;
            if let Some(peer) = link.description().peer {
                hosts.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, host);
            }
            Ok(link)
        })
    }
}

impl Connector for First {
    fn connect(&self, peer: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let hosts = self.address.hosts();
        let host = hosts[peer % hosts.len()].clone();
        self.dial(host.clone(), host)
    }

    fn connect_beside(&self, peer: SocketAddr) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let host = self.hosts.lock().unwrap_or_else(PoisonError::into_inner).get(&peer).cloned();
        let host = host.unwrap_or_else(|| peer.to_string());
        // Where the application dials, the peer may be a proxy.
        let target = if self.dialer.own.is_some() { host.clone() } else { peer.to_string() };
        self.dial(target, host)
    }

    fn peers(&self) -> usize {
        self.address.hosts().len()
    }

    fn target(&self) -> String {
        self.address.to_string()
    }
}
