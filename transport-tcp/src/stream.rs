//! The bytes under a link: a socket of the system, or a stream of the application's.

mod own;

use std::any::Any;
use std::future::poll_fn;
use std::io::{self, IoSlice, Read as _};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BufMut;
use farcall_core::transport::Identity;
#[cfg(unix)]
use farcall_core::transport::PeerProcess;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use self::own::Own;

/// A connected stream of bytes. Reading and writing never block.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    /// Anything else that the application has connected.
    Own(Own),
}

/// Does something with a socket of the system, of whichever kind, or with a stream of the application's.
macro_rules! match_stream {
    ($stream:expr, $socket:pat => $for_socket:expr, $own:pat => $for_own:expr) => {
        match $stream {
            Stream::Tcp($socket) => $for_socket,
            #[cfg(unix)]
            Stream::Unix($socket) => $for_socket,
            Stream::Own($own) => $for_own,
        }
    };
}

impl Stream {
    /// Takes a stream of the application's. A socket of tokio's is used as one that this crate has connected.
    pub(crate) fn of<S: AsyncRead + AsyncWrite + Send + 'static>(stream: S) -> Self {
        let mut stream = Some(stream);
        let any: &mut dyn Any = &mut stream;
        if let Some(tcp) = any.downcast_mut::<Option<TcpStream>>().and_then(Option::take) {
            return Self::Tcp(tcp);
        }
        #[cfg(unix)]
        if let Some(unix) = any.downcast_mut::<Option<UnixStream>>().and_then(Option::take) {
            return Self::Unix(unix);
        }
        Self::Own(Own::new(stream))
    }

    /// Returns the transport's name, for people.
    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            #[cfg(unix)]
            Self::Unix(_) => "unix",
            Self::Own(_) => "stream",
        }
    }

    /// Returns the addresses of this side and of the peer, where there are such.
    pub(crate) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        match self {
            Self::Tcp(tcp) => (tcp.local_addr().ok(), tcp.peer_addr().ok()),
            _ => (None, None),
        }
    }

    /// Returns who the kernel says that the peer is.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        match self {
            #[cfg(unix)]
            Self::Unix(unix) => {
                let peer = unix.peer_cred().ok()?;
                let process = PeerProcess { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() };
                Some(Arc::new(Identity::of_process(process)))
            }
            _ => None,
        }
    }

    /// Whether it can be [read past the runtime](Self::read_now).
    pub(crate) fn can_look(&self) -> bool {
        !matches!(self, Self::Own(_))
    }

    /// Reads once, and says whether there is nothing more to read now. `room` is how much the buffer takes.
    #[inline]
    pub(crate) fn read(&self, buffer: &mut impl BufMut, room: usize) -> (io::Result<usize>, bool) {
        match_stream!(self, socket => {
            let mut read = Err(io::ErrorKind::WouldBlock.into());
            let result = socket.try_io(Interest::READABLE, || {
                read = socket.try_read_buf(buffer);
                match read {
                    // Reading on would only say that there is nothing, at the cost of a system call. Said so from in here, it
                    // counts unless the runtime has heard of more since before the read.
                    Ok(n) if n < room => Err(io::ErrorKind::WouldBlock.into()),
                    _ => Ok(()),
                }
            });
            (read, result.is_err())
        }, own => {
            let read = own.read(buffer);
            let has_none = read.is_err();
            (read, has_none)
        })
    }

    /// Reads from the system's socket, without asking the runtime whether there is anything.
    pub(crate) fn read_now(&self, room: &mut [u8]) -> io::Result<usize> {
        match_stream!(self, socket => (&*SockRef::from(socket)).read(room), _ => Err(io::ErrorKind::WouldBlock.into()))
    }

    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match_stream!(self, socket => socket.try_write(bytes), own => own.write(&[IoSlice::new(bytes)]))
    }

    #[inline]
    pub(crate) fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match_stream!(self, socket => socket.try_write_vectored(pieces), own => own.write(pieces))
    }

    /// Whether the stream keeps bytes that were written.
    #[inline]
    pub(crate) fn has_unflushed(&self) -> bool {
        match_stream!(self, _ => false, own => own.has_unflushed())
    }

    /// Has the stream send the bytes that it keeps.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match_stream!(self, _ => Ok(()), own => own.flush())
    }

    /// Resolves when reading may bring something, or an error. For one task at a time.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match_stream!(self, socket => socket.poll_read_ready(cx), own => own.poll_read_ready(cx))
    }

    /// Resolves when writing may take something, or bring an error. For one task at a time.
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match_stream!(self, socket => socket.poll_write_ready(cx), own => own.poll_write_ready(cx))
    }

    /// Waits until reading may bring something.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits until writing may take something.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_write_ready(cx)).await
    }

    /// Says to the peer that nothing more comes. An error means that the peer is gone.
    pub(crate) async fn end(&self) -> io::Result<()> {
        match_stream!(self,
            socket => SockRef::from(socket).shutdown(Shutdown::Write),
            own => poll_fn(|cx| own.poll_shutdown(cx)).await)
    }

    /// Ends the stream in both directions at once. Nothing is read or written from now on.
    pub(crate) fn end_now(&self) {
        match_stream!(self, socket => {
            // An error says that it has ended already.
            let _ = SockRef::from(socket).shutdown(Shutdown::Both);
        }, own => own.end());
    }
}
