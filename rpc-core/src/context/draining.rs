//! The signal that a server or connection is draining, for handlers that would otherwise run for ever.

use std::any::Any;
use std::future::{Future, pending};
use std::sync::{Arc, OnceLock, Weak};

use super::Context;
use super::signal::Signal;
use crate::access::Accesses;
use crate::memory::Account;
use crate::transport::Identity;

/// The drain signal, as the server holds it. Dropping it begins draining, since a server that is gone takes no calls
/// either.
#[derive(Debug, Default)]
pub(crate) struct Drain(Arc<Signal>);

/// State that the calls of one connection share. Each connection has its own, because each call counts a reference. With one for
/// all connections, threads would contend for its count.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    server: Arc<Signal>,
    /// Given when this connection drains, even if its server does not.
    own: Signal,
    /// The account of what the connection makes this process hold. Contexts that outlive the connection do not keep it.
    pub(super) account: Weak<Account>,
    /// The memory that the connection's peer lends.
    pub(super) accesses: Weak<Accesses>,
    /// The connection, which this room does not know.
    connection: Weak<dyn Any + Send + Sync>,
    /// Set when the peer's HELLO has arrived, if the peer has one.
    pub(super) identity: OnceLock<Arc<Identity>>,
}

impl ConnectionContext {
    pub(crate) fn set_identity(&self, identity: Arc<Identity>) {
        // Set once: there is one HELLO.
        let _ = self.identity.set(identity);
    }

    pub(crate) fn begin_draining(&self) {
        self.own.give();
    }

    fn is_draining(&self) -> bool {
        self.own.is_given() || self.server.is_given()
    }

    async fn draining(&self) {
        tokio::select! {
            () = self.own.wait() => {}
            () = self.server.wait() => {}
        }
    }
}

impl Drain {
    pub(crate) fn begin(&self) {
        self.0.give();
    }

    /// Returns the context of one connection.
    pub(crate) fn of_connection(
        &self,
        account: &Arc<Account>,
        accesses: Weak<Accesses>,
        connection: Weak<dyn Any + Send + Sync>,
    ) -> Arc<ConnectionContext> {
        Arc::new(ConnectionContext {
            server: self.0.clone(),
            own: Signal::default(),
            account: Arc::downgrade(account),
            accesses,
            connection,
            identity: OnceLock::new(),
        })
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.begin();
    }
}

impl Context {
    /// Resolves when the server begins to drain: it accepts no more calls, and waits for the running ones. A server may also
    /// drain only the connection of this call: by [`Connection::drain`](crate::connection::Connection::drain), or because
    /// the connection is [too old](crate::config::Limits::max_connection_age_ms) or was
    /// [idle](crate::config::Limits::idle_ms). A handler whose stream never ends, or that waits for an event, should then
    /// end as if nothing more were to come: its client comes again. Otherwise it is cut off when the grace of the server, or
    /// of the old connection, ends. A drained or idle connection has no limit of time.
    ///
    /// ```
    /// # use farcall_core::context::Context;
    /// # async fn next_change() -> u64 { 7 }
    /// # async fn send(_: u64) {}
    /// async fn watch(cx: &Context) {
    ///     let mut draining = std::pin::pin!(cx.draining());
    ///     loop {
    ///         tokio::select! {
    ///             change = next_change() => send(change).await,
    ///             () = &mut draining => break, // what was sent arrives, and then the stream's end
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// In a context of no call it never resolves. In process it resolves when the service is gone.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        let connection = self.connection.clone();
        async move {
            match connection {
                Some(connection) => connection.draining().await,
                None => pending().await,
            }
        }
    }

    /// Returns the connection that the call came by, as its room knows it.
    pub(crate) fn of_connection(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.connection.as_ref()?.connection.upgrade()
    }

    /// Whether [`draining`](Self::draining) has resolved, for code that does not wait.
    pub fn is_draining(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_draining())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(drain: &Drain) -> Context {
        Context {
            connection: Some(drain.of_connection(&Account::unlimited(None), Weak::new(), Weak::<()>::new())),
            ..Context::background()
        }
    }

    #[tokio::test]
    async fn a_context_learns_that_its_server_drains_and_no_other() {
        let (drain, other) = (Drain::default(), Drain::default());
        let (cx, others) = (context(&drain), context(&other));
        let waits = tokio::spawn(cx.draining());
        tokio::task::yield_now().await;
        assert!(!waits.is_finished() && !cx.is_draining());
        drain.begin();
        waits.await.unwrap();
        cx.draining().await;
        assert!(cx.is_draining() && !others.is_draining() && !Context::background().is_draining());
    }

    #[tokio::test]
    async fn a_connection_drains_without_its_server() {
        let drain = Drain::default();
        let (cx, others) = (context(&drain), context(&drain));
        let waits = tokio::spawn(cx.draining());
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        cx.connection.as_ref().unwrap().begin_draining();
        waits.await.unwrap();
        assert!(cx.is_draining() && !others.is_draining());
    }

    #[tokio::test]
    async fn a_server_that_is_gone_takes_no_calls_either() {
        let drain = Drain::default();
        let cx = context(&drain);
        let waits = tokio::spawn(cx.draining());
        tokio::task::yield_now().await;
        drop(drain);
        waits.await.unwrap();
        cx.draining().await;
        assert!(cx.is_draining());
    }
}
