//! The client's end.

use std::future::Future;
use std::sync::Arc;
#[cfg(feature = "tower")]
use std::task::{Context as TaskContext, Poll};

use farcall_core::class::TrafficClass;
use farcall_core::client::{EndpointState, RawChannel};
use farcall_core::connection::{Connection, Transport};
#[cfg(feature = "tower")]
use farcall_core::middleware::Middleware;
use farcall_core::middleware::{Next, Request, Response};
use farcall_core::service::Service;
use farcall_core::status::Status;
#[cfg(feature = "tower")]
use farcall_core::transport::BoxFuture;
use tokio::sync::watch;

#[cfg(all(feature = "tcp", feature = "tower"))]
mod changes;
#[cfg(feature = "tcp")]
mod connect;
#[cfg(feature = "tcp")]
mod dial;
#[cfg(feature = "dns")]
mod dns;
mod endpoint_changes;
#[cfg(feature = "tcp")]
mod endpoints;
#[cfg(feature = "tcp")]
mod first;
#[cfg(feature = "tcp")]
mod names;
#[cfg(feature = "tcp")]
mod reconfigure;
#[cfg(feature = "tcp")]
mod unused;
#[cfg(feature = "tcp")]
pub use connect::ChannelBuilder;
pub use endpoint_changes::EndpointChange;
#[cfg(feature = "tcp")]
pub use endpoints::Endpoint;

/// A connection to a server on which clients make calls, made when it is needed and made again when it is lost. Calls of
/// each other [`TrafficClass`] have a connection of their own.
///
/// A channel is cheap to clone. All clones, and all clients made of them, share its connections. These are closed when the last
/// clone, client and call are gone.
#[derive(Clone, Debug)]
pub struct Channel {
    raw: RawChannel,
    /// `None`: the channel leads to a service in this process.
    #[cfg(feature = "tcp")]
    origin: Option<Arc<reconfigure::Origin>>,
}

impl Channel {
    /// Returns this channel for calls of another class. These go by a connection of their own: there they do not wait behind what
    /// other calls move. It is made when the first of them needs it; of several servers, to the one that other calls go to,
    /// if that can be reached.
    ///
    /// ```
    /// # use farcall::Bytes;
    /// use farcall::TrafficClass;
    ///
    /// # #[farcall::service]
    /// # pub trait Pages {
    /// #     async fn put(&self, page: Bytes) -> farcall::Result<()>;
    /// #     async fn renew_lease(&self) -> farcall::Result<()>;
    /// # }
    /// # struct Node;
    /// # impl Pages for Node {
    /// #     async fn put(&self, _: Bytes) -> farcall::Result<()> { Ok(()) }
    /// #     async fn renew_lease(&self) -> farcall::Result<()> { Ok(()) }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let channel = farcall::in_process(PagesServer::new(Node));
    /// let pages = PagesClient::new(&channel);
    /// let leases = PagesClient::new(channel.class(TrafficClass::Urgent));
    ///
    /// let page = pages.put(Bytes::from(vec![0; 1 << 20]));
    /// let (put, renewed) = tokio::join!(page, leases.renew_lease());
    /// # put?;
    /// # renewed?;
    ///
    /// // Or for a single call:
    /// pages.renew_lease().class(TrafficClass::Urgent).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the channel stays as it is; use the one that is returned"]
    pub fn class(&self, class: TrafficClass) -> Self {
        self.with(self.raw.class(class))
    }

    /// Returns this channel with an interceptor, through which calls go, and answers on their way back: an async function that
    /// is given the [`Request`] and what comes [`Next`]. The last one added is the first that a call comes to. This channel
    /// stays as it is; both share their connections.
    ///
    /// ```
    /// use farcall::middleware::{Next, Request, Response};
    ///
    /// async fn with_token(mut request: Request, next: Next) -> farcall::Result<Response> {
    ///     request.metadata_mut().insert("token", "let me in")?;
    ///     next.run(request).await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[farcall::service]
    /// # trait Greeter { async fn hello(&self, cx: &farcall::Context) -> farcall::Result<bool>; }
    /// # struct Polite;
    /// # impl Greeter for Polite {
    /// #     async fn hello(&self, cx: &farcall::Context) -> farcall::Result<bool> {
    /// #         Ok(cx.metadata().get("token") == Some("let me in"))
    /// #     }
    /// # }
    /// let channel = farcall::in_process(GreeterServer::new(Polite)).intercept(with_token);
    /// assert!(GreeterClient::new(&channel).hello().await?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the channel stays as it is; use the one that is returned"]
    pub fn intercept<F, R>(&self, by: F) -> Self
    where
        F: Fn(Request, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Status>> + Send + 'static,
    {
        self.with(self.raw.intercept(by))
    }

    /// Returns this channel with a layer of tower, as in `channel.layer(ServiceBuilder::new().rate_limit(100, second).timeout(second))`.
    /// All clones of the new channel share the layer's service, which need not be `Clone`; while it is not ready, calls wait in
    /// line for it, as long as their deadlines allow.
    ///
    /// A layer's error that is a [`Status`], or was caused by one, ends the call with that; the errors of tower's timeout and
    /// load shedding do so with DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED, others with UNKNOWN. A stream has left the layer when
    /// it has begun.
    #[must_use = "the channel stays as it is; use the one that is returned"]
    #[cfg(feature = "tower")]
    pub fn layer<L>(&self, layer: L) -> Self
    where
        L: tower_layer::Layer<Next>,
        L::Service: Middleware,
    {
        self.with(self.raw.layer(layer))
    }

    fn with(&self, raw: RawChannel) -> Self {
        let mut channel = self.clone();
        channel.raw = raw;
        channel
    }

    /// Returns the connection that calls of its class go by now. Connects if there is none. Cancel safe: an attempt goes on for
    /// others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, if it can't.
    pub async fn connection(&self) -> Result<Arc<Connection>, Status> {
        self.raw.connection().await
    }

    /// Returns the states of the servers that it [balances](crate::ChannelBuilder::balance) over, and of each change. With the policy `first`
    /// there is one state: that of its class's connection, under the name of the whole address. [`connection`](Self::connection) says which
    /// server that leads to. `None`: a channel with this policy was made outside of a runtime.
    pub fn endpoints(&self) -> Option<watch::Receiver<Arc<[EndpointState]>>> {
        self.raw.endpoints()
    }

    /// Connects now if it is not connected, however recent a failed attempt is. After a failure calls fail at once for a while,
    /// which [`Liveness::reconnect_ms`](crate::Liveness::reconnect_ms) sets; this ends such a pause, for calls of all classes.
    /// Cancel safe: an attempt goes on for others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, if it can't.
    pub async fn reconnect(&self) -> Result<(), Status> {
        self.raw.reconnect().await
    }

    /// Returns what calls of its class travel by now, and for TCP under `auto` why not by RDMA. Connects if there is no connection.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, if it can't.
    pub async fn transport(&self) -> Result<Transport, Status> {
        Ok(self.connection().await?.transport())
    }
}

/// Always ready. A call waits for a connection or a place in its future, where its deadline counts.
#[cfg(feature = "tower")]
impl tower_service::Service<Request> for Channel {
    type Response = Response;
    type Error = Status;
    type Future = BoxFuture<Result<Response, Status>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Status>> {
        tower_service::Service::poll_ready(&mut self.raw, cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        tower_service::Service::call(&mut self.raw, request)
    }
}

impl From<Channel> for RawChannel {
    fn from(channel: Channel) -> Self {
        channel.raw
    }
}

impl From<&Channel> for RawChannel {
    fn from(channel: &Channel) -> Self {
        channel.raw.clone()
    }
}

/// Returns a channel to a service in this process, for tests without a network. Calls go through the whole protocol with its
/// real limits, over memory. Must be called within a tokio runtime, or calls fail; works under paused time.
pub fn in_process(service: impl Service) -> Channel {
    let raw = farcall_core::in_process::in_process(service);
    Channel {
        raw,
        #[cfg(feature = "tcp")]
        origin: None,
    }
}
