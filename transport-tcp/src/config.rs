use std::io;
#[cfg(target_os = "linux")]
use std::net::IpAddr;
use std::net::SocketAddr;
use std::time::Duration;

use farcall_core::class::ByClass;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};

/// Options of every socket, besides `TCP_NODELAY`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TcpConfig {
    /// An idle connection is probed after so many seconds, and every five from then on. Default 15; 0: never.
    pub keepalive_s: u64,
    /// The connection is given up when sent data stays unacknowledged for so long, in milliseconds (Linux's
    /// `TCP_USER_TIMEOUT`, see tcp(7)). Default 20000; 0: the system's own limit, many minutes.
    pub user_timeout_ms: u64,
    /// Size of the kernel's receive buffer of each connection (`SO_RCVBUF`, see socket(7)), in bytes; at most
    /// `net.core.rmem_max`. Default 0: up to what the system allows (`net.ipv4.tcp_rmem`). A sender fills it once each round
    /// trip, so it bounds the throughput over long ways.
    pub receive_buffer: u32,
    /// Size of the kernel's send buffer of each connection (`SO_SNDBUF`), in bytes; at most `net.core.wmem_max`. Default 0:
    /// up to what the system allows (`net.ipv4.tcp_wmem`).
    pub send_buffer: u32,
    /// How what a peer sends is noticed. Default `adaptive`.
    pub completion: Completion,
    /// The DSCP of what this side sends by the connections of each class, 0 to 63; on Linux. It is set when the class is
    /// known, so the packets that connect are unmarked, and the server's first. Default 0: nothing is marked. Switches may
    /// well treat a DSCP that they do not expect worse than none, so ask who runs the network.
    pub dscp: ByClass,
}

/// Sizes that a buffer of the kernel's may be given, in bytes.
const BUFFERS: std::ops::RangeInclusive<u32> = 4096..=1 << 30;

/// How many connections the kernel keeps for us before they are accepted.
pub(crate) const BACKLOG: u32 = 1024;

/// How a wait for the peer ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Completion {
    /// Looks before it sleeps, for 25 us at most, where calls come one by one and that makes waits shorter by a tenth: halves
    /// the latency of short calls on a fast network. As long as it looks, which one connection of a process does at a time,
    /// other tasks of that thread wait. Never on one CPU, nor elsewhere than on Linux.
    #[default]
    Adaptive,
    /// Sleeps whenever there is nothing to do: least work, more latency.
    Event,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            keepalive_s: 15,
            user_timeout_ms: 20_000,
            receive_buffer: 0,
            send_buffer: 0,
            completion: Completion::default(),
            dscp: ByClass::default(),
        }
    }
}

impl TcpConfig {
    /// Whether anything can be done with it.
    ///
    /// # Errors
    ///
    /// The first setting that is wrong, by its name in a configuration, with what it may be.
    pub fn check(&self) -> Result<(), String> {
        if self.keepalive_s > 32_767 {
            return Err("tcp.keepalive_s must be at most 32767 seconds".into());
        }
        for (name, size) in [("receive", self.receive_buffer), ("send", self.send_buffer)] {
            if size > 0 && !BUFFERS.contains(&size) {
                return Err(format!("tcp.{name}_buffer must be 0, or 4096 bytes to 1 GiB"));
            }
        }
        self.dscp.check("tcp.dscp", 63)
    }

    /// Makes a socket with the buffers that are configured: the window that TCP agrees on depends on them (tcp(7)). Connections that
    /// it accepts have them, too.
    pub(crate) fn new_socket(&self, address: SocketAddr) -> io::Result<TcpSocket> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if self.receive_buffer > 0 {
            socket.set_recv_buffer_size(self.receive_buffer)?;
        }
        if self.send_buffer > 0 {
            socket.set_send_buffer_size(self.send_buffer)?;
        }
        Ok(socket)
    }

    /// Sets up a connected socket.
    pub(crate) fn apply(&self, socket: &TcpStream) -> io::Result<()> {
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

/// Marks what a connected socket sends from now on.
pub(crate) fn mark(socket: &TcpStream, dscp: u8) -> io::Result<()> {
    // The two bits below are ECN's, which the kernel sets for TCP.
    if dscp > 0 { set_tos(socket, u32::from(dscp) << 2) } else { Ok(()) }
}

#[cfg(target_os = "linux")]
fn set_tos(socket: &TcpStream, tos: u32) -> io::Result<()> {
    // A socket that was accepted on an IPv6 address may send by IPv4.
    match socket.peer_addr()?.ip().to_canonical() {
        IpAddr::V4(_) => SockRef::from(socket).set_tos_v4(tos),
        IpAddr::V6(_) => SockRef::from(socket).set_tclass_v6(tos),
    }
}

#[cfg(not(target_os = "linux"))]
fn set_tos(_: &TcpStream, _: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
