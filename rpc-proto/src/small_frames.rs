//! Short messages on their way out: each in its frame already, so that all of them leave in one piece.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use super::message::{Frame, Head, Message};
use super::wire::{FrameType, HEADER_LEN, Header};
use crate::payload::MAX_SHORT;

/// Frames one behind the other, each a message; what is stamped when a frame leaves is missing in their headers.
///
/// They lie in chunks, so that many change hands without being copied, and leave no large allocation behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SmallFrames {
    /// Before `last`; none is empty.
    full: VecDeque<BytesMut>,
    last: BytesMut,
    count: usize,
    /// How many bytes of them are frames that were taken out.
    gaps: usize,
}

/// In place of the type of a frame that was taken out.
const GAP: FrameType = FrameType(0);

/// The sizes of an allocation before it is a chunk. Idle connections keep several, each of the size that it once needed.
const SMALL: [usize; 2] = [1024, 8 * 1024];

/// The size of a chunk.
pub const CHUNK: usize = 64 * 1024;

/// The most that is copied to join what others have queued: two chunks that are nearly empty take more than one.
const JOINED: usize = 16 * 1024;

impl SmallFrames {
    /// Puts a message at the end.
    pub fn push(&mut self, kind: FrameType, call: u64, head: &[u8], body: &[u8]) {
        let mut header = Header::new(kind, call);
        header.len = (head.len() + body.len()) as u32;
        let len = HEADER_LEN + header.len as usize;
        if self.last.capacity() - self.last.len() < len {
            self.make_room(len);
        }
        self.last.extend_from_slice(&header.encode());
        self.last.extend_from_slice(head);
        self.last.extend_from_slice(body);
        self.count += 1;
    }

    /// Makes room behind the last frame.
    fn make_room(&mut self, len: usize) {
        // The part of the allocation that has left is room.
        if self.last.try_reclaim(len) {
            return;
        }
        let needed = self.last.len() + len;
        if let Some(size) = SMALL.into_iter().find(|size| needed <= *size) {
            return self.last.reserve(size);
        }
        let old = std::mem::replace(&mut self.last, BytesMut::with_capacity(CHUNK));
        if needed > CHUNK {
            self.full.push_back(old);
        } else {
            self.last.extend_from_slice(&old);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns how many bytes they take, at most a chunk less than what is allocated.
    #[inline]
    pub fn memory(&self) -> usize {
        self.full.len() * CHUNK + self.last.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Moves all of `other` to the end of these.
    pub fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            self.clear();
            std::mem::swap(self, other);
            return;
        }
        if other.full.is_empty() && other.last.len() <= JOINED {
            self.make_room(other.last.len());
            self.last.extend_from_slice(&other.last);
        } else {
            self.full.push_back(std::mem::take(&mut self.last));
            self.full.append(&mut other.full);
            std::mem::swap(&mut self.last, &mut other.last);
        }
        self.count += other.count;
        self.gaps += other.gaps;
        other.clear();
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.full.clear();
        self.last.clear();
        self.count = 0;
        self.gaps = 0;
    }

    /// Takes the first one.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.close_gaps();
        let first = self.full.front_mut().unwrap_or(&mut self.last);
        let header = first.first_chunk().map(Header::read)?;
        first.advance(HEADER_LEN);
        self.count -= 1;
        let payload = first.split_to(header.len as usize).freeze();
        if first.is_empty() {
            self.full.pop_front();
        }
        Some(Frame { header, pieces: payload.into() })
    }

    /// Exchanges `empty` for the frames of the first chunk, numbered from `seq` on. Returns how many they are.
    pub(super) fn pop_chunk(&mut self, empty: &mut BytesMut, seq: u32, rx_seq: u32) -> u32 {
        self.close_gaps();
        std::mem::swap(self.full.front_mut().unwrap_or(&mut self.last), empty);
        self.full.pop_front();
        let (mut at, mut frames) = (0, 0);
        while let Some(header) = empty[at..].first_chunk_mut::<HEADER_LEN>() {
            Header::stamp(header, seq.wrapping_add(frames), rx_seq);
            at += HEADER_LEN + Header::payload_len(header);
            frames += 1;
        }
        self.count -= frames as usize;
        frames
    }

    /// Takes those out that are such, by their headers; gives how many.
    pub fn take_out(&mut self, mut is_such: impl FnMut(&Header) -> bool) -> usize {
        let (mut taken, mut len) = (0, 0);
        for chunk in self.full.iter_mut().chain([&mut self.last]) {
            let mut at = 0;
            while let Some(b) = chunk[at..].first_chunk_mut::<HEADER_LEN>() {
                let header = Header::read(b);
                if header.kind != GAP && is_such(&header) {
                    b[0] = GAP.0;
                    self.gaps += HEADER_LEN + header.len as usize;
                    taken += 1;
                }
                at += HEADER_LEN + header.len as usize;
            }
            len += chunk.len();
        }
        self.count -= taken;
        if self.gaps > len / 2 {
            // Those who call and give up while nothing leaves must not fill memory.
            self.close_gaps();
        }
        taken
    }

    /// Before frames leave, and not as often as they are taken out: that may be thousands of times.
    fn close_gaps(&mut self) {
        if self.gaps == 0 {
            return;
        }
        let mut all = std::mem::take(self);
        self.count = all.count;
        all.full.push_back(all.last);
        for chunk in all.full {
            let mut rest = &chunk[..];
            while let Some(header) = rest.first_chunk().map(Header::read) {
                let (frame, behind) = rest.split_at(HEADER_LEN + header.len as usize);
                if header.kind != GAP {
                    self.make_room(frame.len());
                    self.last.extend_from_slice(frame);
                }
                rest = behind;
            }
        }
    }
}

impl Message {
    /// Its head and body, if it is so short that it is copied.
    pub fn as_small_frame(&self) -> Option<(&[u8], &[u8])> {
        let Head::Inline(head) = &self.head else { return None };
        let is_of_call = !self.kind.is_of_stream() && !self.kind.is_of_access();
        let is_free = !self.is_own() && self.is_free() && is_of_call;
        let plain = is_free && self.payload.is_one_piece() && self.bulk.is_empty();
        (plain && head.as_slice().len() + self.payload.body.len() <= MAX_SHORT)
            .then(|| (head.as_slice(), &self.payload.body[..]))
    }

    /// The message that a frame was.
    pub(super) fn from_frame(frame: Frame) -> Self {
        let payload: Bytes = frame.pieces.iter().next().cloned().unwrap_or_default();
        Self::new(frame.header.kind, frame.header.call, payload)
    }
}

#[cfg(test)]
mod tests;
