use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// What is set on every socket, besides `TCP_NODELAY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TcpConfig {
    /// An idle connection is probed after so many seconds, and every five from then on. Default 15; 0: never.
    pub keepalive_s: u64,
    /// The connection is given up when sent data stays unacknowledged for so long, in milliseconds (Linux's
    /// `TCP_USER_TIMEOUT`, see tcp(7)). Default 20000; 0: the system's own limit, many minutes.
    pub user_timeout_ms: u64,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self { keepalive_s: 15, user_timeout_ms: 20_000 }
    }
}

impl TcpConfig {
    /// Sets up a connected socket.
    pub(crate) fn apply(&self, socket: &TcpStream) -> std::io::Result<()> {
        socket.set_nodelay(true)?;
        let socket = SockRef::from(socket);
        if self.keepalive_s > 0 {
            let keepalive = TcpKeepalive::new()
                .with_time(Duration::from_secs(self.keepalive_s))
                .with_interval(Duration::from_secs(5));
            socket.set_tcp_keepalive(&keepalive)?;
        }
        #[cfg(target_os = "linux")]
        if self.user_timeout_ms > 0 {
            socket.set_tcp_user_timeout(Some(Duration::from_millis(self.user_timeout_ms)))?;
        }
        Ok(())
    }
}
