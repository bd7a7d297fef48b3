//! The server's end.

mod builder;
mod error;
mod handle;
mod listen;
mod stop;

use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use farcall_core::server::ServerCore;
use farcall_tcp::Acceptor;
use tokio::sync::watch;

pub use self::builder::ServerBuilder;
pub use self::error::BindError;
pub(crate) use self::error::explanations;
pub use self::handle::{Handle, ServerStats};
use self::listen::accept_all;
pub use self::stop::StopSignals;
use crate::ServerConfig;
use crate::health::progress::Progress;

/// A server that listens and has not begun to serve.
#[derive(Debug)]
#[must_use = "a server does nothing until it serves"]
pub struct Server {
    acceptors: Vec<Acceptor>,
    config: ServerConfig,
    /// The watch over handlers that may be stuck, if there is one.
    progress: Option<Arc<Progress>>,
    handle: Handle,
    stopped: watch::Receiver<bool>,
    #[cfg(feature = "systemd")]
    systemd: bool,
}

impl Server {
    /// Returns a builder, which takes services and options.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns the address that it listens on, or the first one.
    ///
    /// # Panics
    ///
    /// If it listens on no port, but only on Unix-domain sockets or to the application's connections.
    pub fn local_addr(&self) -> SocketAddr {
        *self.local_addrs().first().expect("the server listens on a port")
    }

    /// Returns the addresses of all ports that it listens on: that of [`bind`](ServerBuilder::bind) first, then those of
    /// [`listen`](ServerBuilder::listen) in their order. Unix-domain sockets and the application's connections have none.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.acceptors.iter().filter_map(|acceptor| acceptor.local_addr().ok()).collect()
    }

    /// Returns what the server holds for its clients now. See [`Handle::stats`].
    pub fn stats(&self) -> ServerStats {
        self.handle.stats()
    }

    /// Returns a handle, which stops the server and looks at it from elsewhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until its [`Handle`] stops it. Dropping the future stops listening and closes every session.
    pub async fn serve(self) {
        self.serve_until(pending::<()>()).await;
    }

    /// Serves until `signal` resolves, then stops in the phases of [`ServerConfig`]. Without a configuration, calls in progress finish
    /// for at most 30 seconds. Those that would not finish by themselves can [learn of it](crate::Context::draining).
    /// [`serve_until_stopped`](Self::serve_until_stopped) listens for signals of the system. Dropping the future stops listening and
    /// closes every session.
    pub async fn serve_until<S: Future>(mut self, signal: S) {
        let (config, handle, progress) = (self.config, self.handle, self.progress);
        let _close = CloseOnDrop(handle.host.clone());
        #[cfg(feature = "systemd")]
        let systemd = self.systemd.then(crate::systemd::Serving::begin);
        let say_stopping = || {
            handle.say_not_serving();
            #[cfg(feature = "systemd")]
            systemd.as_ref().inspect(|systemd| systemd.stopping());
        };
        let accept = accept_all(&self.acceptors, &handle.host);
        let watch_progress = async {
            match progress {
                Some(progress) => progress.watch().await,
                None => pending().await,
            }
        };
        let (delay, grace) = (config.drain_delay(), config.drain_grace());
        let mut stop = pin!(async {
            signal.await;
            say_stopping();
            tracing::info!(?delay, ?grace, "the server was told to stop");
            tokio::time::sleep(delay).await;
        });
        let by_handle = tokio::select! {
            () = accept => false,
            () = handle.host.watch() => false,
            () = watch_progress => false,
            () = &mut stop => false,
            _ = self.stopped.wait_for(|stopped| *stopped) => true,
        };
        drop(self.acceptors);
        if by_handle {
            say_stopping();
            tokio::select! {
                () = handle.host.finished() => return,
                // The signal has come, too: the configuration's grace counts if it ends before the handle's.
                () = stop => {}
            }
        }
        handle.host.drain(grace).await;
    }
}

struct CloseOnDrop(Arc<ServerCore>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
