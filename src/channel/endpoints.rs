//! The servers of a channel that balances.

use std::pin::pin;
use std::sync::Arc;

use farcall_core::client::{Connector, Endpoints};
use farcall_core::status::{Code, Status};
use farcall_core::transport::{BoxFuture, Link};
#[cfg(feature = "tls")]
use farcall_tcp::tls::TlsClient;

use super::dial::Dialer;
use crate::Stream;

/// A server that a channel may call. See [`ChannelBuilder::discover`](crate::ChannelBuilder::discover).
#[derive(Clone, Debug)]
#[must_use = "an endpoint does nothing until a channel has it"]
pub struct Endpoint {
    address: String,
    weight: u32,
    tier: u32,
    locality: String,
    #[cfg(feature = "tls")]
    tls: Option<TlsClient>,
}

impl Endpoint {
    /// Returns the server at `HOST:PORT`, or at the Unix-domain socket `unix:PATH`.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            weight: 1,
            tier: 0,
            locality: String::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets how many calls the server gets, compared with others. Default 1. 0 counts as 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the server's tier. Calls go to the lowest tier of which a server is connected, so that higher ones are a reserve. Default 0.
    pub fn tier(mut self, tier: u32) -> Self {
        self.tier = tier;
        self
    }

    /// Sets where the server is, for [`Balance::locality`](crate::Balance::locality).
    pub fn locality(mut self, locality: impl Into<String>) -> Self {
        self.locality = locality.into();
        self
    }

    /// Encrypts connections to this server as `tls` says, and not as the channel's other connections. A Unix-domain socket is never
    /// encrypted. A server that [stays](crate::ChannelBuilder::discover) keeps the `tls` with which it first came.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: TlsClient) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Returns the core's endpoint for this server.
    pub(super) fn dialled_by(self, dialer: &Dialer) -> farcall_core::client::Endpoint {
        let dialer = dialer.clone();
        #[cfg(feature = "tls")]
        let dialer = self.tls.map_or_else(|| dialer.clone(), |tls| dialer.clone().with_tls(tls));
        let one = One { target: self.address.clone(), host: self.address.clone(), dialer };
        one.endpoint().weight(self.weight).tier(self.tier).locality(&self.locality)
    }
}

/// One server.
pub(super) struct One {
    /// The address, or the name to look up.
    pub(super) target: String,
    /// The host that has led to it, as the address names it. It decides the name that the server's certificate must have.
    pub(super) host: String,
    pub(super) dialer: Dialer,
}

impl One {
    /// Returns the core's endpoint for this server.
    pub(super) fn endpoint(self) -> farcall_core::client::Endpoint {
        let (name, health) = (self.target.clone(), self.dialer.health.clone());
        farcall_core::client::Endpoint::new(&name, Arc::new(self)).health(health)
    }
}

impl Connector for One {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        self.dialer.dial(self.target.clone(), self.host.clone())
    }

    fn target(&self) -> String {
        self.target.clone()
    }
}

/// Has a channel follow the servers that a stream names, until one of both ends.
pub(super) async fn follow(
    updates: impl Stream<Item = Result<Vec<Endpoint>, Status>>,
    endpoints: Endpoints,
    dialer: Dialer,
) {
    let mut updates = pin!(updates);
    let ended = || Status::new(Code::Unavailable, "the stream of servers has ended without naming one");
    let mut why = ended();
    loop {
        let next = tokio::select! {
            next = std::future::poll_fn(|cx| updates.as_mut().poll_next(cx)) => next,
            () = endpoints.closed() => return,
        };
        match next {
            Some(Ok(all)) => {
                endpoints.set(all.into_iter().map(|endpoint| endpoint.dialled_by(&dialer)).collect());
                why = ended();
            }
            Some(Err(status)) => {
                endpoints.failed(status.clone());
                why = status;
            }
            None => {
                // Counts only where there are no servers.
                endpoints.failed(why);
                return;
            }
        }
    }
}
