//! The way out of a TCP link.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use farcall_core::buffer_pool;
use farcall_core::proto::message::Frame;
use farcall_core::proto::small_frames::CHUNK;
use farcall_core::proto::wire::PREFACE;
use farcall_core::transport::FrameSource;

use crate::read::MAX_FRAME;
use crate::socket::{MAX_PIECES, Socket};

/// Pieces below this are copied together; longer ones are written from where they are.
const COPY: usize = 4096;

/// The room for the preface and HELLO. A connection that says little needs no more.
const FIRST: usize = 512;

/// How much is taken before it is written.
const BATCH: usize = 256 * 1024;

/// Bytes that were taken to be sent and are not with the kernel yet.
pub(crate) struct Writer {
    pieces: VecDeque<Bytes>,
    /// Small pieces that come after `pieces`.
    tail: BytesMut,
    /// Empty: what is given for short messages.
    empty: BytesMut,
    len: usize,
}

impl Writer {
    pub(crate) fn new() -> Self {
        let mut tail = BytesMut::with_capacity(FIRST);
        tail.extend_from_slice(PREFACE);
        Self { pieces: VecDeque::new(), len: tail.len(), tail, empty: BytesMut::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes what is next while there is room. False: there is nothing more.
    pub(crate) fn take(&mut self, source: &mut dyn FrameSource) -> bool {
        while self.len < BATCH && self.pieces.len() < MAX_PIECES {
            let more = source.next_small_frames(&mut self.empty, MAX_FRAME);
            if !self.empty.is_empty() {
                // In one piece, which is no other's.
                self.close_tail();
                self.len += self.empty.len();
                std::mem::swap(&mut self.tail, &mut self.empty);
                if !more {
                    return false;
                }
            } else if more && let Some(frame) = source.next(MAX_FRAME) {
                self.push(&frame);
            } else {
                return false;
            }
        }
        true
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
            self.close_tail();
            self.tail.reserve(bytes.len().max(4 * COPY));
        }
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    fn close_tail(&mut self) {
        if self.tail.capacity() == CHUNK {
            // A chunk of short messages; its memory is used again for others.
            self.pieces.push_back(buffer_pool::share(std::mem::take(&mut self.tail), CHUNK));
        } else if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }

    /// Writes what the kernel takes now; how much that was.
    pub(crate) fn write_to(&mut self, socket: &Socket) -> io::Result<usize> {
        if self.pieces.is_empty() {
            // Short messages need no more than this; the buffer is used again at once.
            let written = socket.write(&self.tail)?;
            self.len -= written;
            if self.len == 0 {
                self.tail.clear();
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
        let written = socket.write_vectored(&slices[..n])?;
        self.advance(written);
        Ok(written)
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
