//! Short messages on their way out: each in its frame already, so that all of them leave in one piece.

use bytes::{Buf, Bytes, BytesMut};

use super::message::{Frame, Head, Message};
use super::wire::{FrameType, HEADER_LEN, Header};

/// A message of a call that is no longer than this is copied rather than sent by reference.
pub const MAX_SHORT: usize = 8192;

/// Frames one behind the other, each a message; what is stamped when a frame leaves is missing in their headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shorts {
    frames: BytesMut,
    count: usize,
    /// How many bytes of `frames` are frames that were taken out.
    gaps: usize,
    /// The allocation is larger than what is kept.
    large: bool,
}

/// In place of the type of a frame that was taken out.
const GAP: FrameType = FrameType(0);

/// How much is allocated at least.
const LEAST: usize = 8 * 1024;

/// How much is kept at most for what comes next: many have to wait at times, and then mostly none.
const KEPT: usize = 128 * 1024;

impl Shorts {
    /// Puts a message at the end.
    pub fn push(&mut self, kind: FrameType, call: u64, head: &[u8], body: &[u8]) {
        let mut header = Header::new(kind, call);
        header.len = (head.len() + body.len()) as u32;
        let len = HEADER_LEN + header.len as usize;
        if self.frames.capacity() - self.frames.len() < len {
            // Takes back what has left of the old allocation.
            self.frames.reserve(len.max(LEAST));
            self.large |= self.frames.capacity() > KEPT;
        }
        self.frames.extend_from_slice(&header.encode());
        self.frames.extend_from_slice(head);
        self.frames.extend_from_slice(body);
        self.count += 1;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Moves all of `other` to the end of these.
    pub fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            std::mem::swap(self, other);
        } else {
            self.frames.extend_from_slice(&other.frames);
            self.large |= self.frames.capacity() > KEPT;
            self.count += other.count;
            self.gaps += other.gaps;
        }
        other.clear();
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.count = 0;
        self.gaps = 0;
        self.let_go();
    }

    /// Frees a large allocation in which there is nothing.
    fn let_go(&mut self) {
        if std::mem::take(&mut self.large) {
            self.frames = BytesMut::new();
        }
    }

    /// Takes the first one.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.close_gaps();
        let header = self.frames.first_chunk().map(Header::read)?;
        self.frames.advance(HEADER_LEN);
        self.count -= 1;
        let payload = self.frames.split_to(header.len as usize).freeze();
        if self.is_empty() {
            self.let_go();
        }
        Some(Frame { header, pieces: payload.into() })
    }

    /// Moves frames to the end of `to` while it is shorter than `max`, numbered from `seq` on; gives how many. Takes over what
    /// is allocated for `to`, of which its owner keeps little, if it is empty.
    pub(super) fn move_to(&mut self, to: &mut BytesMut, max: usize, seq: u32, rx_seq: u32) -> u32 {
        self.close_gaps();
        let (mut end, mut moved) = (0, 0);
        while to.len() + end < max
            && let Some(header) = self.frames[end..].first_chunk_mut::<HEADER_LEN>()
        {
            Header::stamp(header, seq.wrapping_add(moved), rx_seq);
            end += HEADER_LEN + Header::payload_len(header);
            moved += 1;
        }
        self.count -= moved as usize;
        if self.count == 0 && to.is_empty() {
            std::mem::swap(&mut self.frames, to);
            self.large = false;
        } else {
            to.extend_from_slice(&self.frames[..end]);
            self.frames.advance(end);
            if self.is_empty() {
                self.let_go();
            }
        }
        moved
    }

    /// Takes those out that are such, by their headers; gives how many.
    pub(crate) fn take_out(&mut self, mut is_such: impl FnMut(&Header) -> bool) -> usize {
        let (mut at, mut taken) = (0, 0);
        while let Some(b) = self.frames[at..].first_chunk_mut::<HEADER_LEN>() {
            let header = Header::read(b);
            if header.kind != GAP && is_such(&header) {
                b[0] = GAP.0;
                self.gaps += HEADER_LEN + header.len as usize;
                taken += 1;
            }
            at += HEADER_LEN + header.len as usize;
        }
        self.count -= taken;
        if self.gaps > self.frames.len() / 2 {
            // Those who call and give up while nothing leaves must not fill memory.
            self.close_gaps();
        }
        taken
    }

    /// Before frames leave, and not as often as they are taken out: that may be thousands of times.
    fn close_gaps(&mut self) {
        let gaps = std::mem::take(&mut self.gaps);
        if gaps == 0 {
            return;
        }
        let left = BytesMut::with_capacity(self.frames.len() - gaps);
        let all = std::mem::replace(&mut self.frames, left);
        let mut rest = &all[..];
        while let Some(header) = rest.first_chunk().map(Header::read) {
            let (frame, behind) = rest.split_at(HEADER_LEN + header.len as usize);
            if header.kind != GAP {
                self.frames.extend_from_slice(frame);
            }
            rest = behind;
        }
    }
}

impl Message {
    /// Its head and body, if it is so short that it is copied.
    pub(crate) fn as_short(&self) -> Option<(&[u8], &[u8])> {
        let Head::Short(head) = &self.head else { return None };
        let plain = self.call != 0 && self.payload.is_one_piece() && self.bulk.is_empty();
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
