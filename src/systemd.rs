//! A server as a service of systemd: the sockets that it is given, and what it tells.
//!
//! [`listeners`] takes the sockets of socket activation, and [`ServerBuilder::with_systemd`](crate::ServerBuilder::with_systemd) tells
//! systemd when the server is ready and when it is told to stop, which is before the drain delay, and keeps the watchdog quiet. Where the
//! program was not started by systemd, neither does anything.
//!
//! ```no_run
//! use farcall::{Server, systemd};
//! # #[farcall::service]
//! # trait Greeter { async fn hello(&self) -> farcall::Result<String>; }
//! # struct Polite;
//! # impl Greeter for Polite { async fn hello(&self) -> farcall::Result<String> { Ok("hello".into()) } }
//! # async fn terminated() {}
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // Before the runtime has threads: it changes the environment.
//!     let sockets = systemd::listeners()?;
//!     tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
//!         let mut server = Server::builder().add(GreeterServer::new(Polite)).with_systemd();
//!         if sockets.is_empty() {
//!             server = server.listen("[::]:7400");
//!         }
//!         for socket in sockets {
//!             server = server.listen(socket);
//!         }
//!         server.build().await?.serve_until(terminated()).await;
//!         Ok(())
//!     })
//! }
//! ```

use std::io;
use std::sync::mpsc::{self, TrySendError};
use std::thread;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::Listener;

/// Returns the listening sockets that systemd has passed to this process, TCP and Unix-domain, in the order of the unit's `Listen…`
/// lines. None if it has passed none, or if they were taken before.
///
/// It removes `LISTEN_FDS` and `LISTEN_PID` from the environment, so that child processes do not take the sockets for theirs. Call it
/// while the program has one thread: others may read the environment meanwhile.
///
/// # Errors
///
/// `InvalidInput` if one is neither, such as a datagram socket. The text has its number.
pub fn listeners() -> io::Result<Vec<Listener>> {
    system::listeners()
}

/// A server that systemd is told of. Dropping it ends the watchdog's messages.
pub(crate) struct Serving(Option<AbortHandle>);

impl Serving {
    /// Tells systemd that the server is ready, and from now on that it lives. A runtime whose threads are all stuck tells that no more.
    pub(crate) fn begin() -> Self {
        system::tell(system::READY);
        Self(system::watchdog().and_then(watch))
    }

    /// Tells systemd that the server is told to stop.
    pub(crate) fn stopping(&self) {
        system::tell(system::STOPPING);
    }
}

/// Tells systemd in half of this time that the runtime lives, as sd_watchdog_enabled(3) recommends. Returns the handle of the task that
/// says so.
fn watch(limit: Duration) -> Option<AbortHandle> {
    let (lives, signs) = mpsc::sync_channel(1);
    // A thread of its own: it waits while systemd has not read earlier messages, and the runtime's threads for that may all be taken.
    let thread = thread::Builder::new().name("farcall-watchdog".to_owned());
    let thread = thread.spawn(move || signs.iter().for_each(|()| system::tell(system::WATCHDOG)));
    if let Err(error) = thread {
        tracing::warn!(%error, "no thread could be started to feed systemd's watchdog; systemd will take the service for stuck");
        return None;
    }
    let task = async move {
        // If there is a sign that systemd has not been told of, it needs no other.
        while !matches!(lives.try_send(()), Err(TrySendError::Disconnected(()))) {
            tokio::time::sleep(limit / 2).await;
        }
    };
    Some(tokio::spawn(task).abort_handle())
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(watchdog) = &self.0 {
            watchdog.abort();
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::time::Duration;

    use listenfd::ListenFd;
    use sd_notify::NotifyState;

    use crate::Listener;

    pub(super) const READY: NotifyState<'_> = NotifyState::Ready;
    pub(super) const STOPPING: NotifyState<'_> = NotifyState::Stopping;
    pub(super) const WATCHDOG: NotifyState<'_> = NotifyState::Watchdog;

    pub(super) fn tell(state: NotifyState<'_>) {
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::warn!(%error, "systemd can't be told of the server's state by NOTIFY_SOCKET");
        }
    }

    /// Returns how long systemd waits for a sign of life.
    pub(super) fn watchdog() -> Option<Duration> {
        sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero())
    }

    pub(super) fn listeners() -> io::Result<Vec<Listener>> {
        let mut sockets = ListenFd::from_env();
        let count = sockets.len();
        let take = |at| match sockets.take_unix_listener(at) {
            Ok(socket) => Ok(socket.map(Listener::from)),
            // Not one of these.
            Err(_) => sockets.take_tcp_listener(at).map(|socket| socket.map(Listener::from)),
        };
        (0..count).map(take).filter_map(io::Result::transpose).collect()
    }
}

/// There is no systemd elsewhere.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::time::Duration;

    use crate::Listener;

    pub(super) const READY: () = ();
    pub(super) const STOPPING: () = ();
    pub(super) const WATCHDOG: () = ();

    pub(super) fn tell(_: ()) {}

    pub(super) fn watchdog() -> Option<Duration> {
        None
    }

    pub(super) fn listeners() -> io::Result<Vec<Listener>> {
        Ok(Vec::new())
    }
}
