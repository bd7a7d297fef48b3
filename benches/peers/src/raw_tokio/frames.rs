//! Frames as bytes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

const HEADER: usize = 16;

/// A payload of at most this length is copied behind its header: cheaper than a piece of its own in the write.
const COPIED: usize = 8 << 10;

/// How many pieces one write takes.
const PIECES: usize = 32;

/// Frames that will be written together.
#[derive(Default)]
pub(super) struct Batch {
    /// The pieces before `tail`.
    pieces: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl Batch {
    pub(super) fn push(&mut self, number: u64, payload: &Bytes) {
        let is_copied = payload.len() <= COPIED;
        let needed = HEADER + if is_copied { payload.len() } else { 0 };
        if self.tail.capacity() - self.tail.len() < needed {
            self.tail.reserve(needed.max(16 << 10));
        }
        self.tail.put_u64_le(payload.len() as u64);
        self.tail.put_u64_le(number);
        self.len += HEADER + payload.len();
        if is_copied {
            self.tail.extend_from_slice(payload);
        } else {
            self.pieces.push_back(self.tail.split().freeze());
            self.pieces.push_back(payload.clone());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `later` behind what is here.
    pub(super) fn append(&mut self, later: Self) {
        self.pieces.push_back(self.tail.split().freeze());
        self.pieces.extend(later.pieces);
        self.tail = later.tail;
        self.len += later.len;
        self.pieces.retain(|piece| !piece.is_empty());
    }

    /// Writes what the socket takes; whether that was all.
    pub(super) fn write(&mut self, socket: &OwnedWriteHalf) -> io::Result<bool> {
        while !self.is_empty() {
            let written = if self.pieces.is_empty() {
                socket.try_write(&self.tail)
            } else {
                let mut pieces = [IoSlice::new(&[]); PIECES];
                let all = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[..]]);
                let count =
                    pieces.iter_mut().zip(all).map(|(slot, piece)| *slot = IoSlice::new(piece)).count();
                socket.try_write_vectored(&pieces[..count])
            };
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(piece) = self.pieces.front_mut() {
            if count < piece.len() {
                return piece.advance(count);
            }
            count -= piece.len();
            self.pieces.pop_front();
        }
        // Clearing keeps the memory that advancing would leave behind.
        if count == self.tail.len() { self.tail.clear() } else { self.tail.advance(count) }
    }
}

/// Longer frames are read to their end and no further, so that no part of the next one has to be moved.
const LONG: usize = 16 << 10;

/// Frames that arrive.
pub(super) struct Reader {
    socket: OwnedReadHalf,
    buffer: BytesMut,
    /// The length of the last frame, if it was long; the next one may be as long.
    expected: usize,
}

impl Reader {
    pub(super) fn new(socket: OwnedReadHalf) -> Self {
        Self { socket, buffer: BytesMut::with_capacity(64 << 10), expected: 0 }
    }

    /// Reads once; false at the end of the stream.
    pub(super) async fn read(&mut self) -> io::Result<bool> {
        let frame = if self.buffer.len() >= HEADER { self.frame() } else { self.expected };
        if frame > LONG {
            let missing = frame - self.buffer.len();
            self.buffer.reserve(missing);
            return Ok(self.socket.read_buf(&mut (&mut self.buffer).limit(missing)).await? > 0);
        }
        if self.buffer.capacity() - self.buffer.len() < frame.max(4 << 10) {
            self.buffer.reserve(64 << 10);
        }
        Ok(self.socket.read_buf(&mut self.buffer).await? > 0)
    }

    /// The next frame that is there in whole.
    pub(super) fn next(&mut self) -> Option<(u64, Bytes)> {
        if self.buffer.len() < HEADER || self.buffer.len() < self.frame() {
            return None;
        }
        let frame = self.frame();
        self.expected = if frame > LONG { frame } else { 0 };
        let mut frame = self.buffer.split_to(frame);
        let payload = frame.split_off(HEADER).freeze();
        Some((frame.get_u64_le_at(8), payload))
    }

    /// The length of the frame whose header stands first.
    fn frame(&self) -> usize {
        HEADER + self.buffer.get_u64_le_at(0) as usize
    }
}

trait NumberAt {
    fn get_u64_le_at(&self, at: usize) -> u64;
}

impl NumberAt for BytesMut {
    fn get_u64_le_at(&self, at: usize) -> u64 {
        (&self[at..]).get_u64_le()
    }
}
