//! The stop of a server: what tells it to, and the phases that it goes through.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::signal;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind};
use tokio::sync::oneshot;

use super::Server;

/// How long a server that ends at once waits for peers to read that it does.
const FAREWELL: Duration = Duration::from_secs(1);

/// The signals of the system that tell a process to stop: SIGTERM and Ctrl-C.
///
/// From [`new`](Self::new) on they no longer end the process by themselves.
#[derive(Debug)]
#[cfg_attr(not(unix), non_exhaustive)]
pub struct StopSignals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
}

impl StopSignals {
    /// Begins to listen. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The system's, if it does not let the process listen.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            terminate: signal::unix::signal(SignalKind::terminate())?,
            #[cfg(unix)]
            interrupt: signal::unix::signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Signals that come together may count as one. Cancel safe.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            Some(()) = self.terminate.recv() => {}
            Some(()) = self.interrupt.recv() => {}
            else => pending().await,
        }
        #[cfg(not(unix))]
        if signal::ctrl_c().await.is_err() {
            pending().await
        }
    }
}

impl Server {
    /// Serves until the process gets SIGTERM or Ctrl-C, then stops in the phases of [`ServerConfig`](crate::ServerConfig). A second
    /// signal ends every session at once, and returns within a second.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use farcall::{Config, Server, health::Reporter};
    ///
    /// let health = Reporter::new();
    /// let config = Config::from_toml("server.drain_delay_ms = 5000")?;
    /// let server = Server::builder().with_health(&health).config(config).bind("0.0.0.0:7400").await?;
    /// server.serve_until_stopped().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The system's, if it does not let the process listen for signals. Then nothing was served.
    pub async fn serve_until_stopped(self) -> io::Result<()> {
        let (mut signals, handle) = (StopSignals::new()?, self.handle());
        let (tell, told) = oneshot::channel::<()>();
        let listen = async move {
            signals.next().await;
            drop(tell);
            signals.next().await;
            tracing::warn!("a second signal ends the server at once");
            handle.close();
            tokio::time::sleep(FAREWELL).await;
        };
        tokio::select! {
            () = self.serve_until(told) => {}
            () = listen => {}
        }
        Ok(())
    }
}
