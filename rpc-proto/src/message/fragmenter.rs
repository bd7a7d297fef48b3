//! A message that goes in several frames, or whose end is described.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Bulk, Expose, Exposing, Frame, InlineHead, MAX_DESCRIPTOR, Message, Pieces};
use crate::wire::{FrameType, Header, flags};

/// The first frame of a message in fragments carries at most this much of it, so that the receiver knows the total
/// before the bulk arrives and can read that straight to where it belongs.
const FIRST_FRAGMENT: usize = 4096;

/// A message that is being sent in fragments.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Fragmenter {
    kind: FrameType,
    pub(crate) call: u64,
    total: usize,
    left: usize,
    pieces: VecDeque<Bytes>,
    /// The last pieces, as a link may expose them.
    bulk: Bulk,
    abandoned: bool,
    is_amid_call: bool,
    holds_back: bool,
}

impl Fragmenter {
    pub(crate) fn new(message: Message) -> Self {
        let (total, is_amid_call) = (message.len(), message.is_amid_call());
        let holds_back = message.holds_back();
        let Message { kind, call, head, payload, bulk, .. } = message;
        let mut pieces = VecDeque::from_iter([head.into_bytes()]);
        pieces.extend(payload.into_pieces());
        pieces.push_back(bulk.clone().into_piece());
        Self { kind, call, total, left: total, pieces, bulk, abandoned: false, is_amid_call, holds_back }
    }

    /// Whether one frame of this length can describe where the end of the message is to be read.
    pub(crate) fn can_be_described(&self, max: usize) -> bool {
        !self.bulk.is_empty() && !self.has_begun() && self.total - self.bulk.len() + 6 + MAX_DESCRIPTOR <= max
    }

    /// The frame that describes where the end of the message is to be read, if it [can be](Self::can_be_described) and
    /// is exposed. Afterwards the message holds the exposed bytes only: should the peer not read it, it is cut like any
    /// other.
    pub(crate) fn describe(&mut self, seq: u32, to: &mut dyn Expose) -> Result<Frame, Exposing> {
        let begins_with = self.total - self.bulk.len();
        let descriptor = match to.expose(seq, &self.bulk) {
            Exposing::Described(descriptor) => descriptor,
            not => return Err(not),
        };
        debug_assert!(descriptor.len() <= MAX_DESCRIPTOR);
        let mut header = Header::new(self.kind, self.call);
        header.flags = flags::FRAGMENTED | flags::DESCRIBED;
        let mut second = BytesMut::with_capacity(2 + descriptor.len());
        second.put_u16_le(descriptor.len() as u16);
        second.put_slice(&descriptor);
        header.len = (4 + second.len() + begins_with) as u32;
        let mut pieces = Pieces { head: self.total_length(), first: second.freeze(), rest: Vec::new() };
        self.take_front(begins_with, |piece| pieces.rest.push(piece));
        self.left = self.bulk.len();
        Ok(Frame { header, pieces })
    }

    /// Takes up to `len` bytes from the front, piece by piece. None of the pieces is empty.
    fn take_front(&mut self, mut len: usize, mut take: impl FnMut(Bytes)) {
        while len > 0
            && let Some(piece) = self.pieces.front_mut()
        {
            let cut = piece.split_to(piece.len().min(len));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            if !cut.is_empty() {
                len -= cut.len();
                take(cut);
            }
        }
    }

    /// Cuts the next frame, with a payload of at most `max` bytes.
    pub(crate) fn next(&mut self, max: usize) -> Frame {
        let mut pieces = Pieces::default();
        let mut header = Header::new(FrameType::FRAGMENT, self.call);
        if self.abandoned {
            header.flags = flags::ABANDONED;
            return Frame { header, pieces };
        }
        // Nothing of it is exposed any more.
        self.bulk = Bulk::None;
        let (mut room, mut cut) = (max, 0);
        if self.left == self.total && self.total <= max {
            // It was too long for the link it was to go by; for this one it is not.
            header.kind = self.kind;
        } else if self.left == self.total {
            header.kind = self.kind;
            header.flags = flags::FRAGMENTED;
            pieces.head = self.total_length();
            header.len = 4;
            room = FIRST_FRAGMENT.min(max - 4);
        }
        self.take_front(room, |piece| {
            header.len += piece.len() as u32;
            cut += piece.len();
            pieces.push(piece);
        });
        self.left -= cut;
        Frame { header, pieces }
    }

    /// Returns the bytes that the first frame begins with.
    fn total_length(&self) -> InlineHead {
        InlineHead::new(&(self.total as u32).to_le_bytes()).unwrap_or_default()
    }

    pub(crate) fn is_of(&self, kind: FrameType) -> bool {
        self.kind == kind
    }

    pub(crate) fn kind(&self) -> FrameType {
        self.kind
    }

    pub(crate) fn is_amid_call(&self) -> bool {
        self.is_amid_call
    }

    pub(crate) fn holds_back(&self) -> bool {
        self.holds_back
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.left < self.total
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// The rest of the message will not be sent; one more frame tells the peer. True: that is news, and the
    /// message begins or ends its call.
    pub(crate) fn abandon(&mut self) -> bool {
        self.left = 0;
        self.pieces.clear();
        !std::mem::replace(&mut self.abandoned, true) && !self.is_amid_call
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Returns how many bytes have left.
    pub(crate) fn sent(&self) -> u64 {
        (self.total - self.left) as u64
    }

    pub(crate) fn total(&self) -> u64 {
        self.total as u64
    }
}
