//! Connecting a channel over a network.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::client::{RawChannel, WatchHealth};
use farcall_core::compress::Compression;
use farcall_core::config::{BalancePolicy, Policy, ResolveBy};
use farcall_core::status::{Blame, Code, Executed, Status};
#[cfg(feature = "tls")]
use farcall_tcp::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Channel;
use super::dial::{Dialer, OwnDial};
use super::endpoints::{Endpoint, follow};
use super::first::First;
use super::names::{Name, Names};
use super::reconfigure::Origin;
use super::unused::warn_of_unused;
use crate::health::Watching;
use crate::{Address, Config, ConfigError, ConfigErrorKind, Stream};

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

    /// Returns a builder, which takes options and connects.
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder::default()
    }
}

/// Options of a [`Channel`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct ChannelBuilder {
    config: Config,
    transport: Option<Policy>,
    with_env: bool,
    timeout: Option<Duration>,
    wait_for_ready: Option<bool>,
    wait_for_room: Option<bool>,
    compress: Option<Compression>,
    balance: Option<BalancePolicy>,
    resolve_by: Option<ResolveBy>,
    name_servers: Option<Vec<SocketAddr>>,
    health_service: Option<String>,
    dial: Option<OwnDial>,
    #[cfg(feature = "tls")]
    tls: Option<TlsClient>,
}

impl ChannelBuilder {
    /// Sets everything that the builder's other methods do not set. Those count more, before this or after it.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Chooses the transport. Only the scheme of the address counts more, and the environment [if asked](Self::with_env):
    /// [`Config`] has the whole order.
    pub fn transport(mut self, policy: Policy) -> Self {
        self.transport = Some(policy);
        self
    }

    /// Lets the environment variable `FARCALL_TRANSPORT` override the transport that code or configuration choose. Without
    /// this it counts only where they choose none. A scheme such as `rdma://` counts more in any case.
    pub fn with_env(mut self) -> Self {
        self.with_env = true;
        self
    }

    /// Sets the [timeout](crate::Call::timeout) of calls that set none. It covers their streams, too. A call without a limit
    /// sets `Duration::MAX`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets whether calls [wait](crate::Call::wait_for_ready) for the server while it can't be reached, or fail, if they do not say
    /// it themselves. [`connect`](Self::connect) itself does not wait. [`connect_lazy`](Self::connect_lazy) has nothing to wait for.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.wait_for_ready = Some(wait);
        self
    }

    /// Sets whether calls [wait](crate::Call::wait_for_room) while too many are in progress, or fail, if they do not say it
    /// themselves.
    pub fn wait_for_room(mut self, wait: bool) -> Self {
        self.wait_for_room = Some(wait);
        self
    }

    /// Compresses the arguments of calls and the streams that they take along, unless they [say](crate::Call::compress) something
    /// else. In a build that lacks `by`, connecting fails.
    pub fn compress(mut self, by: Compression) -> Self {
        self.compress = Some(by);
        self
    }

    /// Sets how calls are shared among the servers of an address. Names are looked up for that: each address that one of them stands for is
    /// a server. [`Balance`](crate::Balance) has the other settings. The address of a Unix-domain socket stands for one server.
    pub fn balance(mut self, policy: BalancePolicy) -> Self {
        self.balance = Some(policy);
        self
    }

    /// Sets how names are looked up for that. A build that lacks the feature `dns` can't connect with [`ResolveBy::Dns`].
    pub fn resolve_by(mut self, by: ResolveBy) -> Self {
        self.resolve_by = Some(by);
        self
    }

    /// Sets the name servers for what is looked up by DNS, instead of the system's: those of a registry such as Consul, for example. See
    /// [`Balance::name_servers`](crate::Balance::name_servers).
    pub fn name_servers(mut self, servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.name_servers = Some(servers.into_iter().collect());
        self
    }

    /// Asks each server by its [health service](crate::health) whether it serves `service`, as in `shop.v1.Kv`. The empty name stands for the
    /// server as a whole. A server that says no gets no calls while another is ready. With the policy `first` this has no effect.
    /// [`Balance::health_service`](crate::Balance::health_service) tells the rest.
    pub fn health_service(mut self, service: impl Into<String>) -> Self {
        self.health_service = Some(service.into());
        self
    }

    /// Makes connections by `dial`, instead of by TCP: through a proxy or a tunnel, by vsock, to a simulated host, or from a certain
    /// address. It is given the server as the address names it, and returns anything that tokio reads and writes. Names are not
    /// looked up. A connection from `dial` is encrypted where a TCP connection would be. Sockets of tokio's serve as well as those that
    /// the channel makes itself; others cost more work for each call.
    ///
    /// A connection is also needed when an earlier one is lost, and for each other [`TrafficClass`](crate::TrafficClass). So `dial` is
    /// called again and again. It has as long as [`Liveness::connect_ms`](crate::Liveness::connect_ms) says, and its future is
    /// dropped then. RDMA is used where both ends have it, unless [`transport`](Self::transport) or the scheme says TCP.
    ///
    /// ```
    /// # use farcall::{Channel, Listener, Result, Server, stream};
    /// # #[farcall::service]
    /// # trait Greeter { async fn hello(&self) -> Result<String>; }
    /// # struct Polite;
    /// # impl Greeter for Polite { async fn hello(&self) -> Result<String> { Ok("hello".into()) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// // The two ends of a pipe in memory stand for a network of your own.
    /// let (near, far) = tokio::io::duplex(64 << 10);
    /// let accepted = stream::iter([Ok(far)]);
    /// let server = Server::builder().add(GreeterServer::new(Polite)).listen(Listener::incoming(accepted)).build().await?;
    /// tokio::spawn(server.serve());
    ///
    /// let near = std::sync::Mutex::new(Some(near));
    /// let channel = Channel::builder()
    ///     .dial_with(move |server: String| {
    ///         let dialled = near.lock().unwrap().take();
    ///         async move { dialled.ok_or_else(|| std::io::Error::other(format!("no way to {server}"))) }
    ///     })
    ///     .connect("farcall://greeter:1")
    ///     .await?;
    /// assert_eq!(GreeterClient::new(&channel).hello().await?, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn dial_with<D, F, S>(mut self, dial: D) -> Self
    where
        D: Fn(String) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        self.dial = Some(OwnDial::new(dial));
        self
    }

    /// Encrypts all connections except those by Unix-domain sockets. Without this, the configuration's section `[tls]` counts.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: TlsClient) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects. When it returns, the transport is chosen, and [`Channel::transport`] says which it is. Must be called within a tokio
    /// runtime, which the channel's connections run on. Dropping the future gives the attempt up.
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
        let config = self.configuration(Some(&address))?;
        let dialer = self.dialer(&config, Some(&address))?;
        let origin = Some(Origin::new(self, Some(address.clone()), config.clone()));
        let settings = config.settings();
        if config.balance.policy == BalancePolicy::First {
            warn_of_unused(&address, &config.balance);
            let dial = First::new(address, dialer);
            return Ok(Channel { raw: RawChannel::new(dial, settings), origin });
        }
        let (raw, endpoints) = RawChannel::balanced(&address.to_string(), settings);
        if address.is_unix() || dialer.own.is_some() {
            // There is nothing to look up.
            let given = address.hosts().iter().map(|host| Endpoint::new(host).dialled_by(&dialer));
            endpoints.set(given.collect());
            return Ok(Channel { raw, origin });
        }
        let every = (config.balance.resolve_s > 0).then(|| Duration::from_secs(config.balance.resolve_s));
        let names = address.hosts().iter().map(|host| Name::new(host, &config.balance)).collect();
        let names = Names { names, every, dialer };
        spawn(names.follow(raw.clone(), endpoints));
        Ok(Channel { raw, origin })
    }

    /// Returns a channel that balances its calls over the servers that a stream names: each item has all servers from then on.
    /// A server that stays keeps its connections, with another weight or locality, too. One that is gone gets no new calls, and its
    /// calls in progress finish there. After the stream's end the last servers stay. An error is why there are no servers: calls fail
    /// with it until there are some. `name` stands for the servers in messages.
    ///
    /// The policy is that of the configuration or of [`balance`](Self::balance), or [`BalancePolicy::RoundRobin`] if that is `first`. Must be
    /// called within a tokio runtime, which the channel's connections run on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use farcall::{Channel, Endpoint, stream};
    ///
    /// // A program would ask its own registry, again and again.
    /// let servers = stream::generate(async |servers| {
    ///     servers.send(vec![Endpoint::new("db1:7400").weight(2), Endpoint::new("db2:7400")]).await;
    ///     Ok(())
    /// });
    /// let channel = Channel::builder().discover("orders", servers)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the configuration, or `FARCALL_TRANSPORT`, is wrong.
    pub fn discover<S>(self, name: &str, updates: S) -> Result<Channel, ConfigError>
    where
        S: Stream<Item = Result<Vec<Endpoint>, Status>> + Send + 'static,
    {
        let config = self.configuration(None)?;
        let dialer = self.dialer(&config, None)?;
        let (raw, endpoints) = RawChannel::balanced(name, config.settings());
        spawn(follow(updates, endpoints, dialer));
        Ok(Channel { raw, origin: Some(Origin::new(self, None, config)) })
    }

    /// Returns the configuration that counts for a channel to this address, or to servers that are not from an address.
    pub(super) fn configuration(&self, address: Option<&Address>) -> Result<Config, ConfigError> {
        let mut config = self.config.clone();
        config.transport = self.transport.or(config.transport);
        let balance = &mut config.balance;
        balance.policy = self.balance.unwrap_or(balance.policy);
        balance.resolve_by = self.resolve_by.unwrap_or(balance.resolve_by);
        if let Some(name_servers) = &self.name_servers {
            balance.name_servers.clone_from(name_servers);
        }
        if let Some(service) = &self.health_service {
            balance.health_service = Some(service.clone());
        }
        let calls = &mut config.calls;
        calls.timeout_ms = self.timeout.map_or(calls.timeout_ms, whole_ms);
        calls.wait_for_ready = self.wait_for_ready.unwrap_or(calls.wait_for_ready);
        calls.wait_for_room = self.wait_for_room.unwrap_or(calls.wait_for_room);
        calls.compress = self.compress.unwrap_or(calls.compress);
        let mut config = config.resolve(address, self.with_env)?;
        if config.balance.policy == BalancePolicy::First && address.is_none_or(Address::has_service) {
            config.balance.policy = BalancePolicy::RoundRobin;
        }
        if config.balance.resolve_by == ResolveBy::Dns && cfg!(not(feature = "dns")) {
            let why =
                "configuration: balance.resolve_by is `dns`, and farcall was built without the feature `dns`";
            return Err(ConfigError::new(ConfigErrorKind::Setting, why));
        }
        Ok(config)
    }

    fn dialer(&self, config: &Config, address: Option<&Address>) -> Result<Dialer, ConfigError> {
        #[cfg(feature = "tls")]
        let tls = match (self.tls.clone(), &config.tls) {
            (None, Some(files)) => Some(TlsClient::from_files(files).map_err(ConfigError::tls)?),
            (None, None) if address.is_some_and(Address::is_tls) => {
                let address = address.map(Address::to_string).unwrap_or_default();
                let why = format!(
                    "address `{address}`: TLS needs the section [tls], or a channel that is built with it"
                );
                return Err(ConfigError::new(ConfigErrorKind::Tls, why));
            }
            (tls, _) => tls,
        };
        #[cfg(not(feature = "tls"))]
        let _ = address;
        let health = config.balance.health_service.clone();
        Ok(Dialer {
            own: self.dial.clone(),
            health: health.map(|service| Arc::new(Watching(service)) as Arc<dyn WatchHealth>),
            tcp: config.tcp.clone(),
            patience: config.liveness.connect(),
            #[cfg(feature = "tls")]
            tls,
        })
    }
}

/// Spawns a task, if there is a runtime. Without one the channel's calls fail, and say why.
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(task);
    }
}

/// Returns a timeout in milliseconds, as the configuration has it: rounded up, and 0 for none.
fn whole_ms(timeout: Duration) -> u64 {
    if timeout == Duration::MAX {
        return 0;
    }
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

fn invalid(error: &ConfigError) -> Status {
    // Not as a source, whose text would be told twice.
    let status = Status::new(Code::InvalidArgument, error.to_string());
    status.with_executed(Executed::No).with_blame(Blame::Caller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn settings_of_the_builder_count_before_and_after_its_configuration() {
        let mut config = Config::default();
        (config.transport, config.calls.timeout_ms) = (Some(Policy::Rdma), 7);
        let address = "farcall://a:1".parse().unwrap();
        let resolved = |builder: ChannelBuilder| builder.configuration(Some(&address)).unwrap();
        let builder = || Channel::builder().transport(Policy::Tcp).timeout(Duration::from_micros(1500));
        let before = resolved(builder().config(config.clone()));
        assert_eq!((before.policy(), before.calls.timeout_ms), (Policy::Tcp, 2));
        let unlimited = Channel::builder().config(config.clone()).timeout(Duration::MAX);
        assert_eq!(resolved(unlimited).calls.timeout_ms, 0);
        let untouched = resolved(Channel::builder().config(config));
        assert_eq!((untouched.policy(), untouched.calls.timeout_ms), (Policy::Rdma, 7));
    }

    #[cfg(not(feature = "dns"))]
    #[tokio::test]
    async fn dns_needs_its_feature() {
        let error = Channel::builder().resolve_by(ResolveBy::Dns).connect_lazy("tcp://a:1").unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Setting);
        assert!(error.to_string().contains("without the feature `dns`"), "{error}");
    }

    #[tokio::test]
    async fn a_wrong_address_is_told_once() {
        let error = Channel::connect("x").await.unwrap_err();
        let text = format!("{error:#}");
        assert_eq!(text.matches("address `x`").count(), 1, "{text}");
        assert!(text.starts_with("INVALID_ARGUMENT: "), "{text}");
        assert!(text.ends_with(" (not executed)"), "{text}");
    }
}
