//! A connected stream, encrypted or not.

use std::io::{self, IoSlice};

use bytes::BufMut;

use crate::stream::Stream;
use crate::tls::Session;

/// The most pieces of one write; the system's own limit is 1024 (writev(2)).
pub(crate) const MAX_PIECES: usize = 64;

/// A connected socket, or a stream of the application's. Reading and writing never block.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) stream: Stream,
    /// `None`: bytes go unencrypted. Boxed, because a session is several times as large as the rest of a link.
    tls: Option<Box<Session>>,
}

impl Socket {
    pub(crate) fn new(stream: Stream, tls: Option<Session>) -> Self {
        Self { stream, tls: tls.map(Box::new) }
    }

    pub(crate) fn tls(&self) -> Option<&Session> {
        self.tls.as_deref()
    }

    /// Reads once, `room` bytes at most, and says whether there is nothing more to read now.
    pub(crate) fn read(&self, buffer: &mut impl BufMut, room: usize) -> (io::Result<usize>, bool) {
        match &self.tls {
            None => self.stream.read(&mut buffer.limit(room), room),
            Some(tls) => tls.read(&self.stream, buffer, room),
        }
    }

    /// Writes what is taken now; how much that was.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.stream.write(bytes),
            Some(tls) => tls.write(&self.stream, &[IoSlice::new(bytes)]),
        }
    }

    /// Writes what is taken now of these pieces; how much that was.
    pub(crate) fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.tls {
            None => self.stream.write_vectored(pieces),
            Some(tls) => tls.write(&self.stream, pieces),
        }
    }

    /// Whether bytes that were taken still wait for the kernel.
    #[inline]
    pub(crate) fn has_unflushed(&self) -> bool {
        self.tls.as_deref().is_some_and(Session::has_unflushed) || self.stream.has_unflushed()
    }

    /// Writes bytes that were taken before.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.tls.as_deref().map_or(Ok(()), |tls| tls.flush(&self.stream))?;
        self.stream.flush()
    }

    /// Queues the message that nothing more comes, where there is one. [`flush`](Self::flush) must follow.
    pub(crate) fn end(&self) {
        if let Some(tls) = &self.tls {
            tls.end();
        }
    }
}
