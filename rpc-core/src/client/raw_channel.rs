//! The channel that calls are made on. It connects when needed, and again when a connection is lost.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::class_connection::{ClassConnection, Lookup};
use super::connector::{Connector, Shared, gone};
use super::direct::SendService;
use super::request_memory::RequestMemory;
use crate::class::TrafficClass;
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
#[derive(Clone)]
pub struct RawChannel {
    shared: Arc<Shared>,
    /// The entry of `shared` for its calls' class, kept here to save the lookup.
    of_class: Arc<ClassConnection>,
    /// The middleware of its calls.
    stack: Option<Next>,
}

impl fmt::Debug for RawChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawChannel")
            .field("target", &self.shared.connector.target())
            .field("class", &self.of_class.class)
            .finish_non_exhaustive()
    }
}

impl RawChannel {
    /// Returns a channel that connects when the first call needs it. Must be called within a tokio runtime, which runs
    /// its connections. Otherwise every call fails with a status that says so.
    ///
    /// For authors of transports: the types of both arguments are those of the crate `farcall-core`.
    pub fn new(connector: impl Connector, settings: Settings) -> Self {
        let classes = TrafficClass::ALL.map(|class| Arc::new(ClassConnection::new(class, &settings.limits)));
        let of_class = classes[TrafficClass::default() as usize].clone();
        let shared = Shared {
            connector: Box::new(connector),
            settings: Arc::new(settings),
            classes,
            runtime: tokio::runtime::Handle::try_current().ok(),
        };
        Self { shared: Arc::new(shared), of_class, stack: None }
    }

    /// Returns this channel for calls of another class. Both share their connections.
    #[must_use = "the channel stays as it is; use the one that is returned"]
    pub fn class(&self, class: TrafficClass) -> Self {
        let of_class = self.shared.classes[class as usize].clone();
        Self { shared: self.shared.clone(), of_class, stack: self.stack.clone() }
    }

    pub(super) fn traffic_class(&self) -> TrafficClass {
        self.of_class.class
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

    /// Returns the current connection for calls of its class, and makes one if there is none. Cancel safe: an attempt
    /// goes on for others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, not executed, with the reason. Returned at once while a failed attempt is recent.
    pub async fn connection(&self) -> Result<Arc<Connection>, Status> {
        loop {
            let mut attempt = match self.of_class.find(&self.shared) {
                Lookup::Connected(connection) => return Ok(connection),
                Lookup::Failed(status) => return Err(status),
                Lookup::Connecting(attempt) => attempt,
            };
            // An error means that the attempt's task is gone, with its runtime or by a panic of the connector.
            let outcome = attempt.wait_for(Option::is_some).await.map(|o| o.clone());
            match outcome {
                Ok(Some(Ok(connection))) if connection.is_open() => return Ok(connection),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(status))) => return Err(status),
                _ => {
                    self.of_class.forget(&attempt);
                    return Err(gone());
                }
            }
        }
    }

    /// Whether calls wait for a connection by default.
    pub(crate) fn waits_for_ready(&self) -> bool {
        self.shared.settings.calls.wait_for_ready
    }

    /// Whether calls wait for room by default.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.shared.settings.calls.wait_for_room
    }

    /// Returns the bound on the arguments of its class's calls in progress.
    pub(super) fn memory(&self) -> &RequestMemory {
        &self.of_class.memory
    }

    /// Returns the timeout of calls that set none.
    #[inline]
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let timeout_ms = self.shared.settings.calls.timeout_ms;
        (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms))
    }

    /// Connects now if it is not connected, however recent a failed attempt is. Calls of all classes start new
    /// attempts, too. Cancel safe: an attempt goes on for others.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE, not executed, with the reason.
    pub async fn reconnect(&self) -> Result<(), Status> {
        self.shared.classes.iter().for_each(|of_class| of_class.end_pause());
        self.connection().await.map(drop)
    }

    /// Returns the current connection, like [`connection`](Self::connection), for a call that waits for one.
    /// `impatient` means that the call has not waited yet.
    pub(crate) async fn connection_after_pause(self, impatient: bool) -> Result<Arc<Connection>, Status> {
        self.of_class.pause(impatient, &self.shared).await;
        self.connection().await
    }

    /// Returns the peer's name for messages, with the class unless that is the default.
    pub(crate) fn target(&self) -> String {
        let target = self.shared.connector.target();
        match self.of_class.class {
            TrafficClass::Normal => target,
            class => format!("{target} ({class})"),
        }
    }

    /// Returns the connection, if there is one that takes calls.
    #[inline]
    pub(crate) fn connected(&self) -> Option<Arc<Connection>> {
        self.of_class.connected()
    }
}
