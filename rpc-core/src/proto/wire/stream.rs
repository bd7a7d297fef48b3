//! The frames of streams: ITEM, END, WINDOW, STOP (WIRE.md section 5.4).

use std::vec;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::content::{Content, reserved};
use super::read::{Reader, WireError};
use super::write::{TooLong, len16};
use crate::payload::Payload;

/// What an ITEM says besides its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemHead {
    /// How many items there are beside the first.
    pub more: u16,
}

impl ItemHead {
    /// How many bytes go before the body.
    pub fn len(&self, content: &Content) -> usize {
        4 + content.lengths_len()
    }

    /// Appends all that goes before the body, unless the content has more attachments than there is room for or a part of
    /// 4 GiB.
    pub fn encode(&self, content: &Content, out: &mut impl BufMut) -> Result<(), TooLong> {
        out.put_u16_le(self.more);
        out.put_u16_le(len16(content.payload.attachments().len(), "item.attachments")?);
        content.encode_lengths(out)
    }

    /// Reads a whole ITEM.
    pub fn decode(message: Bytes) -> Result<(Self, Content), WireError> {
        let mut r = Reader::new(message);
        let more = r.u16("item.more")?;
        let attachments = r.u16("item.attachments")?;
        let content = Content::decode(r, attachments)?;
        if more > 0 && !content.metadata.is_empty() {
            return Err(WireError::new("item.metadata", "are of several items"));
        }
        Ok((Self { more }, content))
    }

    /// How many items a whole ITEM brings, before anything else of it is read.
    pub fn count(message: &[u8]) -> Result<u64, WireError> {
        match message.first_chunk() {
            Some(&more) => Ok(u64::from(u16::from_le_bytes(more)) + 1),
            None => Err(WireError::new("item.more", "the frame ends before it")),
        }
    }
}

/// Puts several items into the content of one ITEM.
#[derive(Debug, Default)]
pub struct Batch {
    body: BytesMut,
    attachments: Vec<Bytes>,
    count: u32,
}

/// What stands before each item of several.
pub(crate) const ENTRY: usize = 6;

impl Batch {
    /// How many items there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of all of them.
    pub fn len(&self) -> usize {
        self.body.len() + self.attachments.iter().map(Bytes::len).sum::<usize>()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is room for another item with so many attachments.
    pub fn has_room(&self, attachments: usize) -> bool {
        self.count <= u16::MAX.into() && self.attachments.len() + attachments <= u16::MAX.into()
    }

    /// Puts an item behind the others, in a copy but for its attachments. There is [room](Self::has_room), and it has less than
    /// 4 GiB.
    pub fn put(&mut self, item: &Payload) {
        self.body.reserve(ENTRY + item.body_len());
        self.body.put_u32_le(item.body_len() as u32);
        self.body.put_u16_le(item.attachments().len() as u16);
        self.body.put_slice(item.body());
        item.more().iter().for_each(|piece| self.body.put_slice(piece));
        self.attachments.extend_from_slice(item.attachments());
        self.count += 1;
    }

    /// The ITEM's head and payload, of which there is at least one item.
    pub fn finish(mut self) -> (ItemHead, Payload) {
        let more = self.count.saturating_sub(1) as u16;
        if more == 0 {
            self.body.advance(ENTRY.min(self.body.len()));
        }
        (ItemHead { more }, Payload::new(self.body.freeze(), self.attachments))
    }
}

/// The items of an ITEM, one after the other.
#[derive(Debug)]
pub struct Items {
    /// If there are several.
    left: u32,
    body: Reader,
    attachments: vec::IntoIter<Bytes>,
    alone: Option<Payload>,
}

impl Items {
    /// Those of a whole ITEM.
    pub fn new(head: ItemHead, content: Content) -> Self {
        let mut items = Self {
            left: 0,
            body: Reader::new(Bytes::new()),
            attachments: Vec::new().into_iter(),
            alone: None,
        };
        if head.more == 0 {
            items.alone = Some(content.payload);
        } else {
            let (body, attachments) = content.payload.into_parts();
            items.left = u32::from(head.more) + 1;
            items.body = Reader::new(body);
            items.attachments = attachments.into_iter();
        }
        items
    }

    fn entry(&mut self) -> Result<Payload, WireError> {
        let len = self.body.u32("item.length")? as usize;
        let count = usize::from(self.body.u16("item.attachments")?);
        let body = self.body.bytes(len, "item.body")?;
        if count > self.attachments.len() {
            return Err(WireError::new("item.attachments", "are more than the message has"));
        }
        let attachments: Vec<Bytes> = self.attachments.by_ref().take(count).collect();
        let has_more = self.body.remaining() > 0 || self.attachments.len() > 0;
        if self.left == 0 && has_more {
            return Err(WireError::new("item", "has bytes after its end"));
        }
        Ok(Payload::new(body, attachments))
    }
}

/// An error is the last.
impl Iterator for Items {
    type Item = Result<Payload, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return self.alone.take().map(Ok);
        }
        self.left -= 1;
        let item = self.entry();
        if item.is_err() {
            self.left = 0;
        }
        Some(item)
    }
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// Every item was sent.
    Completed = 0,
    /// The sender gave up, or was asked to stop.
    Cancelled = 1,
    /// The deadline passed.
    Deadline = 2,
    /// A status says why.
    Status = 3,
    /// The application's error says why.
    Error = 4,
}

/// What an END says besides its content, which is a status, the application's error or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndHead {
    /// Why.
    pub reason: EndReason,
    /// How many items were sent before it.
    pub items: u64,
}

impl EndHead {
    /// How many bytes go before the body.
    pub fn len(&self, content: &Content) -> usize {
        12 + content.lengths_len()
    }

    /// Appends all that goes before the body, unless the content has more attachments than there is room for or a part of
    /// 4 GiB.
    pub fn encode(&self, content: &Content, out: &mut impl BufMut) -> Result<(), TooLong> {
        out.put_slice(&[self.reason as u8, 0]);
        out.put_u16_le(len16(content.payload.attachments().len(), "end.attachments")?);
        out.put_u64_le(self.items);
        content.encode_lengths(out)
    }

    /// Reads a whole END.
    pub fn decode(message: Bytes) -> Result<(Self, Content), WireError> {
        let mut r = Reader::new(message);
        let reason = match r.u8("end.reason")? {
            0 => EndReason::Completed,
            1 => EndReason::Cancelled,
            2 => EndReason::Deadline,
            3 => EndReason::Status,
            4 => EndReason::Error,
            _ => return Err(WireError::new("end.reason", "is unknown")),
        };
        reserved(&mut r, "end.reserved")?;
        let attachments = r.u16("end.attachments")?;
        let items = r.u64("end.items")?;
        let content = Content::decode(r, attachments)?;
        let says_why = matches!(reason, EndReason::Status | EndReason::Error);
        if !says_why && !content.payload.is_empty() {
            return Err(WireError::new("end.body", "is of no use"));
        }
        Ok((Self { reason, items }, content))
    }
}

/// WINDOW: how much of a stream the receiver takes, in all since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Items.
    pub items: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Window {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.items);
        out.put_u64_le(self.bytes);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let window = Self { items: r.u64("window.items")?, bytes: r.u64("window.bytes")? };
        r.finish("window")?;
        Ok(window)
    }
}

/// STOP: the receiver of a stream wants no more of it. The call is in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// As in a [`Cancel`](super::Cancel).
    pub reason: u8,
}

impl Stop {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.reason);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let stop = Self { reason: r.u8("stop.reason")? };
        r.finish("stop")?;
        Ok(stop)
    }
}
