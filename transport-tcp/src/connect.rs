//! Making connections, and taking them.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::status::{Blame, Code, Executed, Status};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

use crate::tls::Session;
#[cfg(feature = "tls")]
use crate::tls::{TlsClient, TlsServer};
use crate::{TcpConfig, TcpLink};

/// Connects to `host:port`, trying each address that the name has, for at most `patience` in all: each gets an equal
/// share of what is left, so that one that does not answer is passed over.
///
/// # Errors
///
/// UNAVAILABLE, not executed, naming every address that was tried and what it said.
pub async fn connect(target: &str, config: &TcpConfig, patience: Duration) -> Result<Arc<TcpLink>, Status> {
    dial(target, config, patience, &|| Ok(None)).await
}

/// Connects like [`connect`], and encrypts what goes by the link. The server's certificate must be for `name`, unless the
/// configuration has another name. The handshake happens when the link is in use.
///
/// # Errors
///
/// Those of `connect`. The name must be one that a certificate can have, or an address.
#[cfg(feature = "tls")]
pub async fn connect_tls(
    target: &str,
    name: &str,
    config: &TcpConfig,
    tls: &TlsClient,
    patience: Duration,
) -> Result<Arc<TcpLink>, Status> {
    dial(target, config, patience, &|| tls.session(name).map(Some).map_err(|error| error.to_string())).await
}

async fn dial(
    target: &str,
    config: &TcpConfig,
    patience: Duration,
    session: &(dyn Fn() -> Result<Option<Session>, String> + Sync),
) -> Result<Arc<TcpLink>, Status> {
    let until = Instant::now() + patience;
    let silent = || format!("no answer within {patience:?} (liveness.connect_ms): host down, or a firewall");
    let addresses: Vec<SocketAddr> = match timeout_at(until, lookup_host(target)).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return Err(unavailable(target, &format!("the name: {error}"))),
        Err(_) => return Err(unavailable(target, "the name: nobody could be asked in time")),
    };
    let mut tried = Vec::new();
    for (i, address) in addresses.iter().enumerate() {
        let share = until.saturating_duration_since(Instant::now()) / (addresses.len() - i) as u32;
        let connecting = async { new_socket(*address, config)?.connect(*address).await };
        let why = match timeout(share, connecting).await {
            Ok(Ok(socket)) => {
                let link = session().map(|session| TcpLink::new(socket, config, session));
                match link {
                    Ok(Ok(link)) => return Ok(link),
                    Ok(Err(error)) => error.to_string(),
                    Err(why) => why,
                }
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => silent(),
        };
        tried.push(if address.to_string() == target { why } else { format!("{address}: {why}") });
    }
    if tried.is_empty() {
        tried.push("the name has no address".into());
    }
    Err(unavailable(target, &tried.join("; ")))
}

fn unavailable(target: &str, why: &str) -> Status {
    Status::new(Code::Unavailable, format!("can't connect to {target}: {why}"))
        .with_executed(Executed::No)
        .with_blame(Blame::Environment)
}

fn cannot_listen(at: impl Display, why: &io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("can't listen on {at}: {why}"))
}

/// A listening port.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    config: TcpConfig,
    #[cfg(feature = "tls")]
    tls: Option<TlsServer>,
}

/// How many connections the kernel keeps for us before they are accepted.
const BACKLOG: u32 = 1024;

impl Acceptor {
    /// Listens on `host:port`; port 0 chooses a free one. If a name has several addresses, the first that works is
    /// used.
    ///
    /// # Errors
    ///
    /// The system's, with the address.
    pub async fn bind(target: &str, config: TcpConfig) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, format!("`{target}` has no address"));
        for address in lookup_host(target).await.map_err(|e| cannot_listen(target, &e))? {
            match listen(address, &config) {
                Ok(listener) => {
                    return Ok(Self {
                        listener,
                        config,
                        #[cfg(feature = "tls")]
                        tls: None,
                    });
                }
                Err(e) => last = cannot_listen(address, &e),
            }
        }
        Err(last)
    }

    /// Encrypts the connections that are accepted from now on.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: TlsServer) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Begins the TLS session of a connection, if there is to be one.
    fn session(&self) -> io::Result<Option<Session>> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.session().map(Some).map_err(io::Error::other);
        }
        Ok(None)
    }

    /// The address it listens on, with the port that was chosen.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection. Cancel safe. Errors that concern one connection are passed over; when the process has
    /// no more file descriptors it waits for some, and says so in the log.
    pub async fn accept(&self) -> Arc<TcpLink> {
        loop {
            // After the others' turn. Where many connect, the runtime would let 128 of them in first, which takes 10 ms.
            tokio::task::yield_now().await;
            match self.listener.accept().await {
                Ok((socket, peer)) => {
                    let link = self.session().and_then(|tls| TcpLink::new(socket, &self.config, tls));
                    match link {
                        Ok(link) => return link,
                        Err(error) => {
                            tracing::debug!(%peer, %error, "a connection ended before it was set up");
                        }
                    }
                }
                Err(error) if concerns_one(&error) => {
                    tracing::debug!(%error, "a connection ended before it was accepted");
                }
                Err(error) => {
                    tracing::warn!(%error, "can't accept connections now; trying again in 100 ms");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

fn concerns_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Makes a socket with the buffers that are configured: the window that TCP agrees on depends on them (tcp(7)). Connections that it
/// accepts have them, too.
fn new_socket(address: SocketAddr, config: &TcpConfig) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if config.receive_buffer > 0 {
        socket.set_recv_buffer_size(config.receive_buffer)?;
    }
    if config.send_buffer > 0 {
        socket.set_send_buffer_size(config.send_buffer)?;
    }
    Ok(socket)
}

fn listen(address: SocketAddr, config: &TcpConfig) -> io::Result<TcpListener> {
    let socket = new_socket(address, config)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
