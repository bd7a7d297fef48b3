//! The options of a server, and how it is made of them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use farcall_core::compress::Compression;
#[cfg(feature = "tower")]
use farcall_core::middleware::Middleware;
use farcall_core::middleware::{Next, Request, Response, Stack};
use farcall_core::server::ServerCore;
use farcall_core::service::Service;
use farcall_core::status::Status;
#[cfg(feature = "tls")]
use farcall_tcp::tls::TlsServer;
use farcall_tcp::{Acceptor, Listener};
use tokio::sync::watch;

use super::listen::check_all;
use super::{BindError, Handle, Server};
#[cfg(feature = "tls")]
use crate::ConfigError;
use crate::admin::Operator;
use crate::health::Reporter;
use crate::health::progress::Progress;
use crate::reflection::Services;
use crate::{Config, Policy};

/// Options of a [`Server`].
#[derive(Default)]
#[must_use = "a builder does nothing until it is bound"]
pub struct ServerBuilder {
    services: Vec<Arc<dyn Service>>,
    listeners: Vec<Listener>,
    stack: Option<Stack>,
    config: Config,
    transport: Option<Policy>,
    with_env: bool,
    compress: Option<Compression>,
    spawn_handlers: Option<bool>,
    health: Option<Reporter>,
    reflection: bool,
    descriptors: Vec<Bytes>,
    admin: bool,
    capture: bool,
    #[cfg(feature = "systemd")]
    systemd: bool,
    #[cfg(feature = "tls")]
    tls: Option<TlsServer>,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.services.iter().map(|s| &s.info().name).collect();
        f.debug_struct("ServerBuilder").field("services", &names).field("config", &self.config).finish()
    }
}

impl ServerBuilder {
    /// Adds a service, as in `.add(KvServer::new(store))`.
    #[expect(clippy::should_implement_trait, reason = "it adds a service, not a number")]
    pub fn add(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Tells load balancers, orchestrators and people whether the services do their work, by the service
    /// [`Health`](crate::health::Health) of `reporter`. When the server is told to stop, the reporter says that nothing is served, before
    /// the server does anything else. Interceptors are around it as around the others.
    pub fn with_health(mut self, reporter: &Reporter) -> Self {
        self.health = Some(reporter.clone());
        self
    }

    /// Tells callers which services there are, with their methods and types, by the service [`Reflection`](crate::reflection::Reflection).
    /// Interceptors are around it as around the others.
    pub fn with_reflection(mut self) -> Self {
        self.reflection = true;
        self
    }

    /// Describes the services to callers, like [`with_reflection`](Self::with_reflection), and their protobuf messages, too. `set` is a
    /// `FileDescriptorSet`, which prost-build writes to its `file_descriptor_set_path`, and protoc to its `--descriptor_set_out` (with
    /// `--include_imports`). It is copied. Several calls add several sets.
    ///
    /// A message is found by the path of its Rust type, whose end prost-build derives from the message's name: `get_request::Filter`
    /// is `GetRequest.Filter`. Where several packages have messages of one name, the modules tell which it is:
    /// `shop::v1::GetRequest` is `shop.v1.GetRequest`. prost-build's `include_file` makes such modules. Where they do not tell, it is
    /// the message in the package of the service.
    ///
    /// ```ignore
    /// let server = farcall::Server::builder()
    ///     .add(KvServer::new(store))
    ///     .with_descriptors(include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin")));
    /// ```
    ///
    /// [`bind`](Self::bind) fails if `set` is no `FileDescriptorSet`.
    #[cfg(feature = "prost")]
    pub fn with_descriptors(mut self, set: &[u8]) -> Self {
        self.descriptors.push(Bytes::copy_from_slice(set));
        self.with_reflection()
    }

    /// Tells operators what the server does, by the service [`Admin`](crate::admin::Admin), and counts all calls for that. Interceptors
    /// are around it as around the others.
    pub fn with_admin(mut self) -> Self {
        self.admin = true;
        self
    }

    /// As [`with_admin`](Self::with_admin), and lets operators record calls with what they say: arguments, answers, metadata.
    pub fn with_capture(mut self) -> Self {
        self.capture = true;
        self.with_admin()
    }

    /// Puts an interceptor around all services: calls go through it, and answers on their way back. A call comes to the last one
    /// added first. [`ServiceExt`] puts one around a single service.
    ///
    /// ```
    /// use farcall::middleware::{Next, Request, Response};
    /// use farcall::Status;
    ///
    /// #[derive(Clone)]
    /// struct User(String); // for handlers: `cx.extension::<User>()`
    ///
    /// async fn check_token(mut request: Request, next: Next) -> farcall::Result<Response> {
    ///     match request.metadata().get("token") {
    ///         Some("let me in") => request.extensions_mut().insert(User("ann".into())),
    ///         _ => return Err(Status::unauthenticated("no token, or a wrong one")),
    ///     }
    ///     next.run(request).await
    /// }
    ///
    /// let server = farcall::Server::builder().intercept(check_token);
    /// ```
    ///
    /// [`ServiceExt`]: crate::middleware::ServiceExt
    pub fn intercept<F, R>(mut self, by: F) -> Self
    where
        F: Fn(Request, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Status>> + Send + 'static,
    {
        self.stack = Some(self.stack.unwrap_or_default().intercept(by));
        self
    }

    /// Puts a layer of tower around all services. One service of the layer serves all calls.
    #[cfg(feature = "tower")]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: tower_layer::Layer<Next>,
        L::Service: Middleware,
    {
        self.stack = Some(self.stack.unwrap_or_default().layer(layer));
        self
    }

    /// Compresses the answers of all services, streams included, where neither
    /// [service](crate::middleware::ServiceExt::compress) nor [handler](crate::Context::compress) says otherwise. In a build that
    /// lacks `by`, [`bind`](Self::bind) fails.
    pub fn compress(mut self, by: Compression) -> Self {
        self.compress = Some(by);
        self
    }

    /// Begins the handlers of all services in tasks of their own, as
    /// [`ServiceExt::spawn_handlers`](crate::middleware::ServiceExt::spawn_handlers) does for one service.
    pub fn spawn_handlers(mut self, spawn: bool) -> Self {
        self.spawn_handlers = Some(spawn);
        self
    }

    /// Chooses the transport. The environment counts more [if asked](Self::with_env): [`Config`] has the whole order.
    pub fn transport(mut self, policy: Policy) -> Self {
        self.transport = Some(policy);
        self
    }

    /// Tells systemd that the service is ready when the server serves, and that it stops when the server is told to stop, before the
    /// [delay](crate::ServerConfig::drain_delay_ms). If the unit has `WatchdogSec=`, also tells it that the program lives, as long as the
    /// runtime's tasks have their turn. Does nothing in a program that systemd has not started with `NotifyAccess=` or `Type=notify`. See
    /// [`systemd`](crate::systemd).
    #[cfg(feature = "systemd")]
    pub fn with_systemd(mut self) -> Self {
        self.systemd = true;
        self
    }

    /// Encrypts all connections, except those of Unix-domain sockets that the server listens on. [Connections](Listener::incoming) that
    /// the application accepts are encrypted, whatever their kind. Without this, the configuration's section `[tls]` counts. A source of
    /// connections may have [TLS of its own](Listener::tls).
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: TlsServer) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Lets the environment variable `FARCALL_TRANSPORT` override the transport that code or configuration choose. Without
    /// this it counts only where they choose none.
    pub fn with_env(mut self) -> Self {
        self.with_env = true;
        self
    }

    /// Sets everything that the builder's other methods do not set. Those count more, before this or after it.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Adds a source of connections: another [address](Listener), a listener that the application has made, or
    /// [connections](Listener::incoming) that the application accepts. [`build`](Self::build) or [`bind`](Self::bind) must follow.
    ///
    /// ```
    /// # use farcall::{Result, Server};
    /// # #[farcall::service]
    /// # trait Greeter { async fn hello(&self) -> Result<String>; }
    /// # struct Polite;
    /// # impl Greeter for Polite { async fn hello(&self) -> Result<String> { Ok("hello".into()) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let own = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let server = Server::builder().add(GreeterServer::new(Polite)).listen(own).listen("127.0.0.1:0").build().await?;
    /// for address in server.local_addrs() {
    ///     println!("farcall://{address}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen(mut self, on: impl Into<Listener>) -> Self {
        self.listeners.push(on.into());
        self
    }

    /// Listens on `HOST:PORT`, for example `0.0.0.0:7400` or `[::]:7400`, or on the Unix-domain socket `unix:PATH`. Port 0 chooses a
    /// free port, which [`Server::local_addr`] returns. The system queues connections from now on. They are served once
    /// [`Server::serve`] runs.
    ///
    /// # Errors
    ///
    /// [`BindError`] says what is wrong: the address or the configuration, two services of one name, bytes that are no descriptors, no
    /// RDMA where it is required, no tokio runtime, or the system's refusal.
    pub async fn bind(mut self, address: &str) -> Result<Server, BindError> {
        self.listeners.insert(0, address.into());
        self.build().await
    }

    /// Listens where [`listen`](Self::listen) says, as [`bind`](Self::bind) does.
    ///
    /// # Errors
    ///
    /// Those of `bind`. If one of several addresses can't be listened on, the server listens on none, and the error names that address.
    pub async fn build(mut self) -> Result<Server, BindError> {
        check_all(&self.listeners)?;
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(BindError::NoRuntime);
        }
        let config = self.resolve()?;
        let settings = config.settings();
        if config.policy() == Policy::Rdma {
            let able = match &settings.upgrade {
                Ok(upgrade) => upgrade.announce().await.map(drop),
                Err(why) => Err(why.clone()),
            };
            able.map_err(BindError::Rdma)?;
        }
        let watched = self.health.as_ref().zip(config.server.stuck());
        let progress = watched.map(|(health, limit)| Progress::new(health, limit));
        let operator = self.admin.then(|| Operator::new(self.capture));
        let services = self.assemble(progress.as_ref(), operator.as_ref())?;
        let host = ServerCore::new(services, settings).map_err(BindError::Services)?;
        if let Some(operator) = &operator {
            operator.is_of(&host);
        }
        let acceptors = self.acceptors(&config).await?;
        let (stop, stopped) = watch::channel(false);
        let handle = Handle { host, health: self.health, stop: Arc::new(stop) };
        Ok(Server {
            acceptors,
            config: config.server,
            progress,
            handle,
            stopped,
            #[cfg(feature = "systemd")]
            systemd: self.systemd,
        })
    }

    /// Returns the configuration, with what the builder's methods and the environment say.
    fn resolve(&mut self) -> Result<Config, BindError> {
        let mut config = std::mem::take(&mut self.config);
        config.transport = self.transport.or(config.transport);
        config.calls.compress = self.compress.unwrap_or(config.calls.compress);
        config.calls.spawn_handlers = self.spawn_handlers.unwrap_or(config.calls.spawn_handlers);
        Ok(config.resolve(None, self.with_env)?)
    }

    /// Returns the application's services and farcall's own, behind all middleware.
    fn assemble(
        &mut self,
        progress: Option<&Arc<Progress>>,
        operator: Option<&Arc<Operator>>,
    ) -> Result<Vec<Arc<dyn Service>>, BindError> {
        let (mut all, mut stack) = (std::mem::take(&mut self.services), self.stack.take());
        if let Some(progress) = progress {
            // Behind all other middleware, whose refusals are no progress of a handler.
            all = all.into_iter().map(|service| Progress::around(progress, service)).collect();
        }
        all.extend(self.health.as_ref().map(|health| Arc::new(health.service()) as Arc<dyn Service>));
        if let Some(operator) = operator.cloned() {
            all.push(Arc::new(operator.service()));
            let count = move |request, next| Arc::clone(&operator).count(request, next);
            stack = Some(stack.unwrap_or_default().intercept(count));
        }
        if self.reflection {
            let (infos, descriptors) = (all.iter().map(|s| s.info()), std::mem::take(&mut self.descriptors));
            let described = Services::of(infos, descriptors).map_err(BindError::Descriptors)?;
            all.push(Arc::new(described));
        }
        Ok(match &stack {
            Some(stack) => all.into_iter().map(|s| Arc::new(stack.around(s)) as _).collect(),
            None => all,
        })
    }

    /// Begins to listen.
    async fn acceptors(&mut self, config: &Config) -> Result<Vec<Acceptor>, BindError> {
        #[cfg(feature = "tls")]
        let tls = match (self.tls.take(), &config.tls) {
            (None, Some(files)) => Some(TlsServer::from_files(files).map_err(ConfigError::tls)?),
            (tls, _) => tls,
        };
        let mut acceptors = Vec::new();
        for listener in std::mem::take(&mut self.listeners) {
            let acceptor = Acceptor::bind(listener, config.tcp.clone()).await?;
            #[cfg(feature = "tls")]
            let acceptor = match &tls {
                Some(tls) => acceptor.with_tls(tls.clone()),
                None => acceptor,
            };
            acceptors.push(acceptor);
        }
        Ok(acceptors)
    }
}
