//! The channel that calls are made on. It connects when needed, and again when a connection is lost.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::balance::{Balancer, Chosen, Endpoint, EndpointState, Picked};
use super::connector::{Connector, Shared};
use super::direct::SendService;
use super::policies::ChannelPolicies;
use super::request_memory::RequestMemory;
use super::retry_budget::RetryBudget;
use crate::class::TrafficClass;
use crate::config::{Balance, Calls, MethodPolicy, Retry};
use crate::connection::Connection;
#[cfg(feature = "tower")]
use crate::middleware::Middleware;
use crate::middleware::{Next, Request, Response};
use crate::settings::Settings;
use crate::status::Status;

/// A channel, with one connection for each [`TrafficClass`]; the facade's `Channel` wraps one. Cheap to clone. The
/// connections are closed when the last clone, of whatever class, and the last call on it are gone.
///
/// A connection is made when the first call of its class needs it, and made again when it is lost. Calls that need one
/// meanwhile wait for it, as long as their deadlines allow.
///
/// After a failed attempt, calls of that class fail at once for a pause. The pause is
/// [`Liveness::reconnect_ms`](crate::config::Liveness::reconnect_ms) at first, and twice as long after each further
/// failure. Then the next call starts another attempt. A call that [waits](super::Call::wait_for_ready) for the server
/// ends the pause, and so does [`reconnect`](Self::reconnect).
///
/// With several peers, the channel uses the first that it can connect to. If that is not the first of all, it looks for
/// the earlier ones at intervals, and new calls go there when one is back. Connections of another class go to the peer
/// that the channel is already connected to, if it can be reached.
///
/// A channel that [balances](Self::balanced) keeps connections to all of its servers instead, and chooses one for each call. There,
/// calls fail at once only while no server can be reached, and only [`reconnect`](Self::reconnect) ends pauses early.
#[derive(Clone)]
pub struct RawChannel {
    way: Way,
    class: TrafficClass,
    common: Arc<Common>,
    /// The middleware of its calls.
    stack: Option<Next>,
}

/// The way of a channel to its servers.
#[derive(Clone)]
enum Way {
    /// By one connection for each class.
    One(Arc<Shared>),
    /// By a connection to a server that is chosen for each call.
    Balanced(Arc<Balancer>),
}

/// The state that all clones and classes of a channel share.
struct Common {
    policies: ChannelPolicies,
    /// The bound on the arguments of calls in progress, for each class.
    memory: [RequestMemory; TrafficClass::ALL.len()],
    retry_budget: RetryBudget,
}

impl fmt::Debug for RawChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawChannel")
            .field("target", &self.name())
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}

impl RawChannel {
    /// Returns a channel that connects when the first call needs it. Must be called within a tokio runtime, which runs
    /// its connections. Otherwise every call fails with a status that says so.
    ///
    /// For authors of transports: the types of both arguments are those of the crate `farcall-core`.
    pub fn new(connector: impl Connector, settings: Settings) -> Self {
        let (settings, runtime) = (Arc::new(settings), Handle::try_current().ok());
        let way = Way::One(Shared::new(Arc::new(connector), Arc::clone(&settings), runtime));
        Self::by(way, &settings)
    }

    /// Returns a channel that balances its calls over servers as [`Settings::balance`] says, and the handle that sets these servers. The
    /// channel connects to them as soon as it knows them. Must be called within a tokio runtime, like [`new`](Self::new).
    pub fn balanced(name: &str, settings: Settings) -> (Self, Endpoints) {
        let (settings, runtime) = (Arc::new(settings), Handle::try_current().ok());
        let balancer = Balancer::new(name.to_owned(), Arc::clone(&settings), runtime);
        let endpoints = Endpoints(Arc::downgrade(&balancer));
        (Self::by(Way::Balanced(balancer), &settings), endpoints)
    }

    /// Returns a channel to one of the servers that another channel balances over, by the connections of this lane. Its calls have the
    /// default settings.
    pub(super) fn by_lane(lane: Arc<Shared>) -> Self {
        let mut settings = Settings::clone(&lane.settings);
        (settings.calls, settings.retry, settings.methods) = Default::default();
        Self::by(Way::One(lane), &settings)
    }

    fn by(way: Way, settings: &Settings) -> Self {
        let memory = TrafficClass::ALL.map(|_| RequestMemory::new(settings.limits.request_memory));
        let retry_budget = RetryBudget::new(&settings.retry);
        let policies = ChannelPolicies::new(&settings.calls, &settings.retry, &settings.methods);
        let common = Arc::new(Common { policies, memory, retry_budget });
        Self { way, class: TrafficClass::default(), common, stack: None }
    }

    /// Returns this channel for calls of another class. Both share their connections.
    #[must_use = "the channel stays as it is; use the one that is returned"]
    pub fn class(&self, class: TrafficClass) -> Self {
        Self { class, ..self.clone() }
    }

    pub(super) fn traffic_class(&self) -> TrafficClass {
        self.class
    }

    /// Returns this channel with an interceptor: calls go through `by`, and answers on their way back. The interceptor
    /// that was added last sees a call first. The original channel stays as it is, and shares its connections with the
    /// new one.
    #[must_use = "the channel stays as it is; use the one that is returned"]
    pub fn intercept<F, R>(&self, by: F) -> Self
    where
        F: Fn(Request, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Status>> + Send + 'static,
    {
        Self { stack: Some(self.next().intercepted(by)), ..self.clone() }
    }

    /// Returns this channel with a layer of tower. All clones of the new channel share the layer's service.
    #[must_use = "the channel stays as it is; use the one that is returned"]
    #[cfg(feature = "tower")]
    pub fn layer<L>(&self, layer: L) -> Self
    where
        L: tower_layer::Layer<Next>,
        L::Service: Middleware,
    {
        Self { stack: Some(self.next().layered(layer)), ..self.clone() }
    }

    /// Returns the middleware of its calls, if there is any.
    pub(super) fn stack(&self) -> Option<&Next> {
        self.stack.as_ref()
    }

    /// Returns what a request is passed to: the middleware, or the channel itself.
    pub(crate) fn next(&self) -> Next {
        self.stack.clone().unwrap_or_else(|| Next::new(SendService(self.clone())))
    }

    /// Returns the current connection for calls of its class, and makes one if there is none. Of several servers, it is one that a
    /// call could go to. Cancel safe: an attempt goes on for others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, not executed, with the reason. Returned at once while a failed attempt is recent.
    pub async fn connection(&self) -> Result<Arc<Connection>, Status> {
        if let Some(connection) = self.choose(None, &mut None) {
            return Ok(connection);
        }
        // Boxed, so that the future of a caller that need not wait is short.
        Box::pin(self.connect(None, None)).await.map(|chosen| chosen.connection)
    }

    /// Returns a connection for a call with this key, and makes one if there is none. `at`: the server that was chosen for it.
    pub(super) async fn connect(&self, key: Option<u64>, at: Option<Picked>) -> Result<Chosen, Status> {
        match &self.way {
            Way::One(shared) => {
                let connection = shared.connection(self.class).await?;
                Ok(Chosen { connection, picked: None })
            }
            Way::Balanced(balancer) => balancer.connection(self.class, key, at).await,
        }
    }

    /// Returns the states of the servers that it balances over, and of each change. A channel that does not balance has one state: that of
    /// its class's connection, under the name of all of its peers. `None`: such a channel was made outside of a runtime.
    pub fn endpoints(&self) -> Option<watch::Receiver<Arc<[EndpointState]>>> {
        match &self.way {
            Way::One(shared) => shared.states(self.class),
            Way::Balanced(balancer) => Some(balancer.states()),
        }
    }

    /// Returns the settings of its calls.
    #[inline]
    pub(super) fn policies(&self) -> &ChannelPolicies {
        &self.common.policies
    }

    /// Returns the bound on the arguments of its class's calls in progress.
    pub(super) fn memory(&self) -> &RequestMemory {
        &self.common.memory[self.class as usize]
    }

    /// Returns the bound on further attempts.
    pub(super) fn retry_budget(&self) -> &RetryBudget {
        &self.common.retry_budget
    }

    /// Applies other settings to calls that begin from now on, on all clones of this channel. They are the timeouts and the waiting of
    /// `calls`, all of `retry` and `methods`, and the policy, the locality and the ejection of `balance`. [`Balance::subset`] counts when
    /// the servers are set again. A channel that does not [balance](Self::balanced) heeds none of `balance`. All other settings stay as
    /// they were when the channel was made.
    pub fn reconfigure(&self, calls: &Calls, retry: &Retry, methods: &[MethodPolicy], balance: &Balance) {
        self.common.policies.set(calls, retry, methods);
        self.common.retry_budget.limit(retry);
        if let Way::Balanced(balancer) = &self.way {
            balancer.reconfigure(balance);
        }
    }

    /// Connects now if it is not connected, however recent a failed attempt is. Calls of all classes start new
    /// attempts, too. Pauses after those are as short as at first. Cancel safe: an attempt goes on for others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, not executed, with the reason.
    pub async fn reconnect(&self) -> Result<(), Status> {
        match &self.way {
            Way::One(shared) => shared.end_pauses(),
            Way::Balanced(balancer) => balancer.end_pauses(),
        }
        self.connection().await.map(drop)
    }

    /// Returns a connection, like [`connect`](Self::connect), for a call that waits for one.
    /// `impatient` means that the call has not waited yet.
    pub(super) async fn connect_after_pause(
        self,
        impatient: bool,
        key: Option<u64>,
    ) -> Result<Chosen, Status> {
        match &self.way {
            Way::One(shared) => shared.classes[self.class as usize].pause(impatient, shared).await,
            Way::Balanced(balancer) => balancer.pause().await,
        }
        self.connect(key, None).await
    }

    fn name(&self) -> String {
        match &self.way {
            Way::One(shared) => shared.connector.target(),
            Way::Balanced(balancer) => balancer.name().to_owned(),
        }
    }

    /// Returns the peer's name for messages, with the class unless that is the default.
    pub(crate) fn target(&self) -> String {
        let target = self.name();
        match self.class {
            TrafficClass::Normal => target,
            class => format!("{target} ({class})"),
        }
    }

    /// Suspects the server of a connection, because a call there has ended at its deadline, and nothing was received since it was sent.
    /// `picked`: the server, if it is one of several. Calls avoid it until it answers a PING.
    #[cold]
    pub(super) fn suspect(&self, picked: Option<&Picked>, connection: &Arc<Connection>) {
        match (&self.way, picked) {
            (Way::One(shared), _) => shared.suspect(connection),
            (Way::Balanced(_), picked) => picked.into_iter().for_each(Picked::suspect),
        }
    }

    /// Returns a connection that takes a call with this key. `picked`: of several servers, the one where the call was last, and failed, and
    /// then the one that was chosen. `None`: there is none yet.
    #[inline]
    pub(super) fn choose(&self, key: Option<u64>, picked: &mut Option<Picked>) -> Option<Arc<Connection>> {
        match &self.way {
            Way::One(shared) => shared.classes[self.class as usize].connected(),
            Way::Balanced(balancer) => balancer.choose(self.class, key, picked),
        }
    }
}

/// The handle by which a channel learns which servers it balances over.
#[derive(Clone, Debug)]
pub struct Endpoints(Weak<Balancer>);

impl Endpoints {
    /// Sets the servers. A server that stays keeps its connections, and its connector. One that is gone gets no new calls, and its
    /// calls in progress finish there. Returns false if the channel is gone.
    pub fn set(&self, endpoints: Vec<Endpoint>) -> bool {
        self.0.upgrade().map(|balancer| balancer.set(endpoints)).is_some()
    }

    /// Resolves when the channel is gone.
    pub async fn closed(&self) {
        let states = self.0.upgrade().map(|balancer| balancer.states());
        if let Some(mut states) = states {
            while states.changed().await.is_ok() {}
        }
    }

    /// Sets the status with which calls fail while there are no servers.
    pub fn failed(&self, why: Status) {
        if let Some(balancer) = self.0.upgrade() {
            balancer.failed(why);
        }
    }
}
