//! The client's end.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
#[cfg(feature = "tower")]
use std::task::{Context as TaskContext, Poll};

use farcall_core::class::TrafficClass;
use farcall_core::client::{Caller, Connector};
use farcall_core::compress::Compression;
use farcall_core::config::Policy;
use farcall_core::connection::{Connection, Transport};
#[cfg(feature = "tower")]
use farcall_core::middleware::Middleware;
use farcall_core::middleware::{Next, Request, Response};
use farcall_core::status::{Blame, Code, Executed, Status};
use farcall_core::transport::{BoxFuture, Link};
use farcall_tcp::TcpConfig;

use crate::{Address, Config, ConfigError};

/// Connections to a server, made again when they are lost: one, and one more for each other [`TrafficClass`] that calls
/// are made of. Cheap to clone; all clones and all clients made of it share them. They are closed when the last of these is
/// gone.
#[derive(Clone, Debug)]
pub struct Channel {
    caller: Caller,
}

impl Channel {
    /// Connects to an [`Address`] with the default configuration, as [`ChannelBuilder::connect`] does.
    ///
    /// # Errors
    ///
    /// See [`ChannelBuilder::connect`].
    pub async fn connect(address: &str) -> Result<Self, Status> {
        Self::builder().connect(address).await
    }

    /// Returns a channel that connects when the first call needs it, with the default configuration. Must be called within a
    /// tokio runtime, which its connections run on; else every call fails with a status that says so.
    ///
    /// # Errors
    ///
    /// If the address, or `FARCALL_TRANSPORT`, is wrong.
    pub fn connect_lazy(address: &str) -> Result<Self, ConfigError> {
        Self::builder().connect_lazy(address)
    }

    /// Sets options first.
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder::default()
    }

    /// The same channel for calls of this class, which go by a connection of their own: there they do not wait behind what
    /// other calls move. It is made when the first of them needs it; of several servers, to the one that other calls go to,
    /// if that can be reached.
    ///
    /// ```
    /// # use farcall::{Bytes, Channel, Server};
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
    /// # let server = Server::builder().add(PagesServer::new(Node)).bind("127.0.0.1:0").await?;
    /// # let channel = Channel::connect_lazy(&format!("farcall://{}", server.local_addr()))?;
    /// # tokio::spawn(server.serve());
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
    pub fn class(&self, class: TrafficClass) -> Self {
        Self { caller: self.caller.class(class) }
    }

    /// The same channel, whose calls go through an interceptor, and their answers on their way back: an async function that
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
    /// # let server = farcall::Server::builder().add(GreeterServer::new(Polite)).bind("127.0.0.1:0").await?;
    /// # let address = format!("farcall://{}", server.local_addr());
    /// # tokio::spawn(server.serve());
    /// let channel = farcall::Channel::connect(&address).await?.intercept(with_token);
    /// assert!(GreeterClient::new(&channel).hello().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn intercept<F, R>(&self, by: F) -> Self
    where
        F: Fn(Request, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Status>> + Send + 'static,
    {
        Self { caller: self.caller.intercept(by) }
    }

    /// The same with a layer of `tower`, as in `channel.layer(ServiceBuilder::new().rate_limit(100, second).timeout(second))`.
    /// All clones of the new channel share the layer's service, which need not be `Clone`; while it is not ready, calls wait in
    /// line for it, as long as their deadlines allow.
    ///
    /// A layer's error that is a [`Status`], or was caused by one, ends the call with that; the errors of tower's timeout and
    /// load shedding do so with DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED, others with UNKNOWN. A stream has left the layer when
    /// it has begun.
    #[cfg(feature = "tower")]
    pub fn layer<L>(&self, layer: L) -> Self
    where
        L: tower_layer::Layer<Next>,
        L::Service: Middleware,
    {
        Self { caller: self.caller.layer(layer) }
    }

    /// The connection that calls of its class go by now; connects if there is none.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, if it can't.
    pub async fn connection(&self) -> Result<Arc<Connection>, Status> {
        self.caller.connection().await
    }

    /// Connects now if it is not connected, however recent a failed attempt is. After a failure calls fail at once for a while,
    /// which [`Liveness::reconnect_ms`](crate::Liveness::reconnect_ms) sets; this ends such a pause, for calls of all classes.
    /// Cancel safe: an attempt goes on for others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, if it can't.
    pub async fn reconnect(&self) -> Result<(), Status> {
        self.caller.reconnect().await
    }

    /// What calls of its class travel by now, and for TCP under `auto`, why not by RDMA; connects if there is no connection.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, if it can't.
    pub async fn transport(&self) -> Result<Transport, Status> {
        Ok(self.connection().await?.transport())
    }
}

/// Always ready: what a call waits for, a connection or a place, it waits for in the future, where its deadline counts.
#[cfg(feature = "tower")]
impl tower_service::Service<Request> for Channel {
    type Response = Response;
    type Error = Status;
    type Future = BoxFuture<Result<Response, Status>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Status>> {
        tower_service::Service::poll_ready(&mut self.caller, cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        tower_service::Service::call(&mut self.caller, request)
    }
}

impl From<Channel> for Caller {
    fn from(channel: Channel) -> Self {
        channel.caller
    }
}

impl From<&Channel> for Caller {
    fn from(channel: &Channel) -> Self {
        channel.caller.clone()
    }
}

/// Options of a [`Channel`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct ChannelBuilder {
    config: Config,
}

impl ChannelBuilder {
    /// Sets everything.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Chooses the transport; `FARCALL_TRANSPORT` and the address's scheme go before it.
    pub fn transport(mut self, policy: Policy) -> Self {
        self.config.transport = policy;
        self
    }

    /// Whether calls that set nothing else [wait](crate::Call::wait_for_ready) for the server while it can't be reached, in
    /// place of failing. [`connect`](Self::connect) itself does not wait; [`connect_lazy`](Self::connect_lazy) need not.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.config.calls.wait_for_ready = wait;
        self
    }

    /// What calls, and the streams that they take along, are compressed by that [say](crate::Call::compress) nothing else. If this
    /// build lacks it, it does not connect.
    pub fn compress(mut self, by: Compression) -> Self {
        self.config.calls.compress = by;
        self
    }

    /// Connects. Returns when it is known what calls travel by: [`Channel::transport`] then says it. Must be called
    /// within a tokio runtime, which the channel's connections run on. Dropping the future gives the attempt up.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if address or configuration are wrong. UNAVAILABLE if no server could be reached, or if RDMA
    /// is required and can't be had; the message says what was tried and seen.
    pub async fn connect(self, address: &str) -> Result<Channel, Status> {
        let channel = self.connect_lazy(address).map_err(|error| invalid(&error))?;
        channel.connection().await?;
        Ok(channel)
    }

    /// Returns a channel that connects when the first call needs it. Must be called within a tokio runtime, which its
    /// connections run on; else every call fails with a status that says so.
    ///
    /// # Errors
    ///
    /// If the address or the configuration is wrong.
    pub fn connect_lazy(self, address: &str) -> Result<Channel, ConfigError> {
        let address: Address = address.parse()?;
        let config = self.config.resolve(Some(&address))?;
        let settings = config.settings();
        let connector = Dial { address, config };
        Ok(Channel { caller: Caller::new(connector, settings) })
    }
}

pub(crate) fn invalid(error: &ConfigError) -> Status {
    // Not as a source, whose text would be told twice.
    let status = Status::new(Code::InvalidArgument, error.to_string());
    status.with_executed(Executed::No).with_blame(Blame::Caller)
}

/// Dials the hosts of an address.
struct Dial {
    address: Address,
    config: Config,
}

impl Connector for Dial {
    fn connect(&self, peer: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let hosts = self.address.hosts();
        let host = hosts[peer % hosts.len()].clone();
        let (tcp, patience): (TcpConfig, _) = (self.config.tcp.clone(), self.config.liveness.connect());
        Box::pin(async move { Ok(farcall_tcp::connect(&host, &tcp, patience).await? as _) })
    }

    fn connect_beside(&self, peer: SocketAddr) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let (tcp, patience) = (self.config.tcp.clone(), self.config.liveness.connect());
        Box::pin(async move { Ok(farcall_tcp::connect(&peer.to_string(), &tcp, patience).await? as _) })
    }

    fn peers(&self) -> usize {
        self.address.hosts().len()
    }

    fn target(&self) -> String {
        self.address.to_string()
    }
}
