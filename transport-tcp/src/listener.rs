//! The sources of a server's connections.

use std::fmt::{self, Display};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use farcall_core::stream::Stream as Items;
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::net::{TcpListener, lookup_host};

use crate::config::BACKLOG;
use crate::stream::Stream;
#[cfg(feature = "tls")]
use crate::tls::TlsServer;
use crate::{TcpConfig, unix};

/// A source of a server's connections: an address to listen on, a listener that the application has made, or its connections.
///
/// An address is `HOST:PORT`, or `unix:PATH` for a Unix-domain socket. A listener is one of [`std`] or of tokio, by `into`.
///
/// A Unix-domain socket that the server listens on is never encrypted, even if TLS is configured: the permissions of its file decide who
/// may connect, and the kernel says who has. `unix:/run/app.sock?mode=660` sets these permissions, in octal; otherwise the process's
/// umask does. A file that a dead server has left is replaced. The file is removed when the server stops listening.
#[derive(Debug)]
pub struct Listener {
    source: Source,
    /// Its own TLS.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsServer>,
}

#[derive(Debug)]
enum Source {
    Address(String),
    Tcp(std::net::TcpListener),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
    Listening(Listening),
}

/// A source that is ready to be asked for connections.
#[derive(Debug)]
pub(crate) enum Listening {
    Tcp(TcpListener),
    Unix(unix::Listening),
    /// `None` once they have ended.
    Incoming(Mutex<Option<Incoming>>),
}

/// The application's connections.
type Incoming = Pin<Box<dyn IncomingItems>>;

pub(crate) trait IncomingItems: Items<Item = io::Result<Stream>> + Send {}

impl<I: Items<Item = io::Result<Stream>> + Send> IncomingItems for I {}

impl fmt::Debug for dyn IncomingItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Incoming")
    }
}

/// Connections of the application, as streams of bytes.
struct Streams<I>(Pin<Box<I>>);

impl<S, I> Items for Streams<I>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
    I: Items<Item = io::Result<S>>,
{
    type Item = io::Result<Stream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx).map(|next| next.map(|accepted| accepted.map(Stream::of)))
    }
}

impl Listener {
    /// Takes the connections that the application accepts: anything that tokio reads and writes. They are encrypted if TLS is
    /// configured. Sockets of tokio's serve as well as those that the server accepts itself; others cost more work for each call,
    /// and have no address by which limits could count them.
    ///
    /// An error is logged and passed over. After the end of `incoming` the server goes on with the connections that it has.
    pub fn incoming<S, I>(incoming: I) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
        I: Items<Item = io::Result<S>> + Send + 'static,
    {
        let incoming: Incoming = Box::pin(Streams(Box::pin(incoming)));
        Source::Listening(Listening::Incoming(Mutex::new(Some(incoming)))).into()
    }

    /// Encrypts the connections of this source as `tls` says, and not as the server's other connections: with the certificate that this
    /// address has, for example. A Unix-domain socket that the server listens on is never encrypted.
    ///
    /// ```
    /// # fn listeners(inside: farcall_tcp::tls::TlsServer, outside: farcall_tcp::tls::TlsServer) -> [farcall_tcp::Listener; 2] {
    /// # use farcall_tcp::Listener;
    /// // For two calls of `ServerBuilder::listen`.
    /// [Listener::from("10.0.0.7:7400").tls(inside), Listener::from("192.0.2.7:7400").tls(outside)]
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: TlsServer) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Returns the address, if it is one.
    pub fn address(&self) -> Option<&str> {
        match &self.source {
            Source::Address(address) => Some(address),
            _ => None,
        }
    }

    pub(crate) async fn listen(self, config: &TcpConfig) -> io::Result<Listening> {
        match self.source {
            Source::Address(address) => match unix::path(&address) {
                Some(path) => {
                    unix::listen(path).map(Listening::Unix).map_err(|error| cannot_listen(&address, &error))
                }
                None => listen_on(&address, config).await.map(Listening::Tcp),
            },
            Source::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Listening::Tcp)
            }
            #[cfg(unix)]
            Source::Unix(listener) => {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(|listener| Listening::Unix(listener.into()))
            }
            Source::Listening(listening) => Ok(listening),
        }
    }
}

impl Listening {
    /// Whether it is a Unix-domain socket.
    #[cfg(feature = "tls")]
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl From<Source> for Listener {
    fn from(source: Source) -> Self {
        Self {
            source,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl From<&str> for Listener {
    fn from(address: &str) -> Self {
        Source::Address(address.to_owned()).into()
    }
}

impl From<&String> for Listener {
    fn from(address: &String) -> Self {
        Source::Address(address.clone()).into()
    }
}

impl From<String> for Listener {
    fn from(address: String) -> Self {
        Source::Address(address).into()
    }
}

impl From<SocketAddr> for Listener {
    fn from(address: SocketAddr) -> Self {
        Source::Address(address.to_string()).into()
    }
}

impl From<std::net::TcpListener> for Listener {
    fn from(listener: std::net::TcpListener) -> Self {
        Source::Tcp(listener).into()
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Source::Listening(Listening::Tcp(listener)).into()
    }
}

#[cfg(unix)]
impl From<std::os::unix::net::UnixListener> for Listener {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Source::Unix(listener).into()
    }
}

#[cfg(unix)]
impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Source::Listening(Listening::Unix(listener.into())).into()
    }
}

fn cannot_listen(at: impl Display, why: &io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("can't listen on {at}: {why}"))
}

async fn listen_on(target: &str, config: &TcpConfig) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, format!("`{target}` has no address"));
    for address in lookup_host(target).await.map_err(|error| cannot_listen(target, &error))? {
        match listen(address, config) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = cannot_listen(address, &error),
        }
    }
    Err(last)
}

fn listen(address: SocketAddr, config: &TcpConfig) -> io::Result<TcpListener> {
    let socket = config.new_socket(address)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
