//! Taking connections.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use farcall_core::origin::{Origin, OriginQueue};
use tokio::net::{TcpListener, TcpStream};

use crate::listener::{Listener, Listening};
use crate::stream::Stream;
use crate::tls::Session;
#[cfg(feature = "tls")]
use crate::tls::TlsServer;
use crate::{TcpConfig, TcpLink};

/// Connections that are taken from the kernel at each turn, of which one is served. The kernel's queue must not overflow: a client whose
/// attempt it drops tries again after a second.
const AT_ONCE: usize = 64;

/// How many sockets wait at most.
const MOST_WAITING: usize = 1024;

/// Takes the connections of a [`Listener`].
#[derive(Debug)]
pub struct Acceptor {
    listening: Listening,
    /// Sockets that were taken from the kernel.
    waiting: Mutex<OriginQueue<TcpStream>>,
    config: TcpConfig,
    #[cfg(feature = "tls")]
    tls: Option<TlsServer>,
}

impl Acceptor {
    /// Begins to listen. If a name has several addresses, the first that works is used. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The system's, with the address.
    pub async fn bind(listener: impl Into<Listener>, config: TcpConfig) -> io::Result<Self> {
        let listener = listener.into();
        Ok(Self {
            #[cfg(feature = "tls")]
            tls: listener.tls.clone(),
            listening: listener.listen(&config).await?,
            waiting: Mutex::default(),
            config,
        })
    }

    /// Encrypts the connections that are accepted from now on, unless the listener has [TLS of its own](Listener::tls), or this listens
    /// on a Unix-domain socket. Connections that the application accepts are encrypted, whatever their kind.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: TlsServer) -> Self {
        self.tls.get_or_insert(tls);
        self
    }

    /// Begins the TLS session of a connection, if it is to have one.
    async fn session(&self) -> io::Result<Option<Session>> {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.as_ref().filter(|_| !self.listening.is_unix()) {
            tls.refresh().await;
            return tls.session().map(Some).map_err(io::Error::other);
        }
        Ok(None)
    }

    /// Returns the address that it listens on, with the port that was chosen.
    ///
    /// # Errors
    ///
    /// `Unsupported` if it listens on no port: it has a Unix-domain socket, or the application's connections.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.listening {
            Listening::Tcp(listener) => listener.local_addr(),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes the next connection. Errors that concern one connection are passed over; when the process has no more file
    /// descriptors it waits for some, and says so in the log. When the application's connections end, it waits for ever.
    ///
    /// For one task at a time. Cancel safe, but for one case: a connection is closed if it was accepted and waits for the files of TLS to
    /// be read again.
    pub async fn accept(&self) -> Arc<TcpLink> {
        loop {
            // After the others' turn. Where many connect, the runtime would serve 128 of them first, which takes 10 ms.
            tokio::task::yield_now().await;
            match self.next().await {
                Ok(stream) => {
                    let (_, peer) = stream.addresses();
                    let link = self.session().await.and_then(|tls| TcpLink::new(stream, &self.config, tls));
                    match link {
                        Ok(link) => return link,
                        Err(error) => {
                            tracing::debug!(?peer, %error, "a connection ended before it was set up");
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

    /// Takes the connections that have come, and returns the one whose turn it is.
    fn poll_next(&self, listener: &TcpListener, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = None;
        for _ in 0..AT_ONCE {
            match listener.poll_accept(cx) {
                Poll::Ready(Ok((socket, peer))) => {
                    let origin = Origin::of(Some(peer.ip()));
                    let is_full = waiting.len() == MOST_WAITING;
                    if is_full {
                        tracing::debug!(
                            ?peer,
                            "too many connections wait; one of the address that has most is dropped"
                        );
                    }
                    if !is_full || waiting.make_room_for(origin).is_some() {
                        waiting.push(origin, socket);
                    }
                }
                Poll::Ready(Err(error)) => {
                    failed = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        match waiting.pop() {
            Some(socket) => Poll::Ready(Ok(Stream::Tcp(socket))),
            None => failed.map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
        }
    }

    async fn next(&self) -> io::Result<Stream> {
        match &self.listening {
            Listening::Tcp(listener) => poll_fn(|cx| self.poll_next(listener, cx)).await,
            Listening::Unix(listening) => listening.accept().await,
            Listening::Incoming(incoming) => {
                poll_fn(|cx| {
                    let mut incoming = incoming.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some(connections) = incoming.as_mut() else { return Poll::Pending };
                    let next = ready!(connections.as_mut().poll_next(cx));
                    if next.is_none() {
                        // A stream that has ended may not be polled again.
                        *incoming = None;
                    }
                    next.map_or(Poll::Pending, Poll::Ready)
                })
                .await
            }
        }
    }
}

fn concerns_one(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
