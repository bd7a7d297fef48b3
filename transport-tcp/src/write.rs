//! The way out of a TCP link.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::PREFACE;
use farcall_core::transport::FrameSource;
use tokio::net::TcpStream;

use crate::link::MAX_FRAME;

/// Pieces below this are copied together; longer ones are written from where they are.
const COPY: usize = 4096;

/// How much is taken before it is written.
const BATCH: usize = 256 * 1024;

/// How much of the buffer for what is copied is kept at most for what comes next.
const KEPT: usize = 128 * 1024;

/// The most pieces of one write; the system's own limit is 1024 (writev(2)).
const MAX_PIECES: usize = 64;

/// What was taken to be sent and is not with the kernel yet.
#[derive(Debug)]
pub(crate) struct Writer {
    pieces: VecDeque<Bytes>,
    /// Small pieces that come after `pieces`.
    tail: BytesMut,
    len: usize,
}

impl Writer {
    pub(crate) fn new() -> Self {
        let mut tail = BytesMut::with_capacity(COPY);
        tail.extend_from_slice(PREFACE);
        Self { pieces: VecDeque::new(), len: tail.len(), tail }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len < BATCH && self.pieces.len() < MAX_PIECES
    }

    /// Takes frames that are copied anyway, all at once. False: there is nothing behind them.
    pub(crate) fn take_shorts(&mut self, source: &mut dyn FrameSource) -> bool {
        let before = self.tail.len();
        let more = source.next_shorts(&mut self.tail, BATCH, MAX_FRAME);
        self.len += self.tail.len() - before;
        more
    }

    /// Takes the next frame. False: there is none.
    pub(crate) fn take(&mut self, source: &mut dyn FrameSource) -> bool {
        let frame = source.next(MAX_FRAME);
        frame.inspect(|frame| self.push(frame)).is_some()
    }

    fn push(&mut self, frame: &Frame) {
        self.copy(&frame.header.encode());
        self.copy(frame.pieces.head());
        for piece in frame.pieces.iter() {
            if piece.len() < COPY {
                self.copy(piece);
            } else {
                self.close_tail();
                self.len += piece.len();
                self.pieces.push_back(piece.clone());
            }
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        if self.tail.capacity() - self.tail.len() < bytes.len() {
            // Takes its old allocation back when what was in it has been written.
            self.tail.reserve(bytes.len().max(4 * COPY));
        }
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }

    /// Writes what the kernel takes now; how much that was.
    pub(crate) fn write_to(&mut self, socket: &TcpStream) -> io::Result<usize> {
        if self.pieces.is_empty() {
            // What is short needs no more than this; the buffer is used again at once.
            let written = socket.try_write(&self.tail)?;
            self.len -= written;
            if self.len == 0 {
                self.tail.clear();
                self.let_go();
            } else {
                self.tail.advance(written);
            }
            return Ok(written);
        }
        self.close_tail();
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        let n = self.pieces.len().min(MAX_PIECES);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
        }
        let written = socket.try_write_vectored(&slices[..n])?;
        self.advance(written);
        if self.len == 0 {
            self.let_go();
        }
        Ok(written)
    }

    /// Frees a large buffer in which there is nothing.
    fn let_go(&mut self) {
        if self.tail.try_reclaim(KEPT + 1) {
            self.tail = BytesMut::new();
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.len -= written;
        while written > 0 {
            let Some(piece) = self.pieces.front_mut() else { return };
            if written < piece.len() {
                return piece.advance(written);
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    struct Much;

    impl FrameSource for Much {
        fn next(&mut self, _: usize) -> Option<Frame> {
            None
        }

        fn next_shorts(&mut self, to: &mut BytesMut, _: usize, _: usize) -> bool {
            // As one who has had much waiting does: it gives its own buffer.
            *to = BytesMut::zeroed(2 << 20);
            false
        }
    }

    #[tokio::test]
    async fn a_link_that_has_once_sent_much_keeps_little() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let read = tokio::spawn(async move { peer.read_exact(&mut vec![0; 2 << 20]).await });
        let mut writer = Writer { pieces: VecDeque::new(), tail: BytesMut::new(), len: 0 };
        assert!(!writer.take_shorts(&mut Much));
        while !writer.is_empty() {
            socket.writable().await.unwrap();
            // It may not be after all.
            let _ = writer.write_to(&socket);
        }
        read.await.unwrap().unwrap();
        assert!(!writer.tail.try_reclaim(KEPT + 1));
    }
}
