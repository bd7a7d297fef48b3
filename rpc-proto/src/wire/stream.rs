//! The frames of streams: ITEM, END, WINDOW, STOP (WIRE.md section 5.4).

use std::vec;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::content::{Content, reserved};
use super::read::{Reader, WireError, list_of};
use super::write::{TooLong, len16};
use crate::compression::Compression;
use crate::payload::{BY_REFERENCE, Decoder, Encoder, MemoryGrant, Payload};

/// The fields of an ITEM besides its content.
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
        out.put_u16_le(len16(content.payload.attachment_count(), "item.attachments")?);
        content.encode_lengths(out)
    }

    /// Reads a whole ITEM.
    pub fn decode(message: Bytes) -> Result<(Self, Content), WireError> {
        let mut r = Reader::new(message);
        let more = r.u16("item.more")?;
        let attachments = r.u16("item.attachments")?;
        Ok((Self { more }, Content::decode(r, attachments, None)?))
    }

    /// How many items a whole ITEM brings, before anything else of it is read.
    pub fn count(message: &[u8]) -> Result<u64, WireError> {
        match message.first_chunk() {
            Some(&more) => Ok(u64::from(u16::from_le_bytes(more)) + 1),
            None => Err(WireError::new("item.more", "the frame ends before it")),
        }
    }
}

/// The length of the entry before each item of several.
const ENTRY: usize = 6;

/// Puts several items into the content of one ITEM.
#[derive(Debug)]
pub struct Batch {
    body: Encoder,
    /// How much of it is items that are kept.
    kept: usize,
    attachments: Vec<Bytes>,
    attached: usize,
    count: u32,
}

impl Batch {
    /// Returns an empty batch whose items are written to this encoder, to which nothing has been written yet.
    pub fn new(body: Encoder) -> Self {
        Self { body, kept: 0, attachments: Vec::new(), attached: 0, count: 0 }
    }

    /// How many items there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of all of them, with what stands before each.
    pub fn len(&self) -> usize {
        self.kept + self.attached
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How much this item would [add](Self::put).
    pub fn needs(item: &Payload) -> usize {
        ENTRY + item.len() + 4 * item.attachments().len()
    }

    /// The most items that there are in one.
    pub const MOST: u32 = u16::MAX as u32 + 1;

    /// Whether there is room for so many attachments.
    pub fn has_room(&self, attachments: usize) -> bool {
        self.attachments.len() + attachments <= u16::MAX.into()
    }

    /// Where the next item is written to. Then that is [kept](Self::keep), [taken off](Self::take_off) or
    /// [dropped](Self::undo), before anything else is done. There are not yet [as many as can be](Self::MOST).
    #[inline]
    pub fn write(&mut self) -> &mut Encoder {
        self.body.put_slice(&[0; ENTRY]);
        &mut self.body
    }

    /// Keeps the item that was written, if there is no more of it than was copied and all together are no longer than this.
    #[inline]
    pub fn keep(&mut self, most: usize) -> bool {
        let is_one_piece = self.body.is_one_piece();
        let body = self.body.buffer();
        let len = body.len();
        if !is_one_piece || len + self.attached > most {
            return false;
        }
        let Some((before, item)) = body[self.kept..].split_first_chunk_mut::<ENTRY>() else { return false };
        let [a, b, c, d] = (item.len() as u32).to_le_bytes();
        *before = [a, b, c, d, 0, 0];
        self.kept = len;
        self.count += 1;
        true
    }

    /// Takes off the item that was written.
    #[cold]
    pub fn take_off(&mut self) -> Payload {
        let item = self.body.split_off(self.kept + ENTRY);
        self.undo();
        item
    }

    /// Drops what was written of an item.
    pub fn undo(&mut self) {
        if !self.body.is_one_piece() {
            self.body.split_off(self.kept);
        }
        let kept = self.kept;
        self.body.buffer().truncate(kept);
    }

    /// Puts an item behind the others, in a copy but for its attachments, for which there is [room](Self::has_room). There are
    /// not yet [as many as can be](Self::MOST), and it has less than 4 GiB.
    pub fn put(&mut self, item: &Payload) {
        let body = self.body.buffer();
        body.reserve(ENTRY + item.body_len());
        body.put_u32_le(item.body_len() as u32);
        body.put_u16_le(item.attachments().len() as u16);
        body.put_slice(item.body());
        item.more().iter().for_each(|piece| body.put_slice(piece));
        self.kept = body.len();
        self.attachments.extend_from_slice(item.attachments());
        self.attached += item.attachments().iter().map(|attachment| 4 + attachment.len()).sum::<usize>();
        self.count += 1;
    }

    /// Returns the ITEM's head and payload. The batch must hold an item.
    pub fn finish(self) -> (ItemHead, Payload) {
        let (head, mut body, attachments) = self.end();
        attachments.into_iter().for_each(|attachment| {
            body.attach(attachment);
        });
        (head, body.finish())
    }

    /// Like [`finish`](Self::finish), with `share` to make shared bytes of the batch's buffer, whose memory the caller wants
    /// back.
    pub fn finish_with(self, share: impl FnOnce(BytesMut) -> Bytes) -> (ItemHead, Payload) {
        let (head, body, attachments) = self.end();
        (head, Payload::new(share(body.into_buffer()), attachments))
    }

    fn end(self) -> (ItemHead, Encoder, Vec<Bytes>) {
        let Self { mut body, attachments, count, .. } = self;
        let head = ItemHead { more: count.saturating_sub(1) as u16 };
        if head.more == 0 {
            drop_entry(body.buffer());
        }
        (head, body, attachments)
    }

    /// Returns the memory of a batch that stays empty.
    pub fn into_buffer(self) -> BytesMut {
        self.body.into_buffer()
    }
}

/// An item that is alone has nothing before it.
fn drop_entry(body: &mut BytesMut) {
    if body.len() > ENTRY + BY_REFERENCE {
        return body.advance(ENTRY);
    }
    // Cheaper than that, and the buffer is as good as before.
    body.copy_within(ENTRY.., 0);
    body.truncate(body.len() - ENTRY);
}

/// The items of an ITEM, one after the other.
#[derive(Debug)]
pub struct Items {
    /// How many were not read.
    left: u32,
    /// Whether the last stands alone, with nothing before it that says how long it is.
    is_alone: bool,
    input: Decoder,
    attachments: vec::IntoIter<Bytes>,
}

impl Default for Items {
    fn default() -> Self {
        let (input, attachments) = (Decoder::of_several(), Vec::new().into_iter());
        Self { left: 0, is_alone: false, input, attachments }
    }
}

impl Items {
    /// Counts the memory that the values of an item take in this account, until the next item is read.
    pub fn count_in(&mut self, account: Box<dyn MemoryGrant>) {
        self.input.count_in(account);
    }

    /// Goes on with those of a whole ITEM.
    pub fn go_on_in(&mut self, head: ItemHead, content: Content) {
        let (body, attachments) = content.payload.into_parts();
        self.left = u32::from(head.more) + 1;
        self.is_alone = head.more == 0;
        self.input.go_on_in(body, attachments.is_empty());
        self.attachments = attachments.into_iter();
    }

    /// Goes on with the next item, which [is read from this](Self::input). `None`: there is none. An error is the last.
    #[inline]
    pub fn advance(&mut self) -> Option<Result<(), WireError>> {
        self.left = self.left.checked_sub(1)?;
        let begun = self.begin();
        if begun.is_err() {
            self.left = 0;
        }
        Some(begun)
    }

    /// Returns the decoder that the item is read from.
    #[inline]
    pub fn input(&mut self) -> &mut Decoder {
        &mut self.input
    }

    /// Keeps nothing of what was read.
    pub fn clear(&mut self) {
        self.left = 0;
        self.input.go_on_in(Bytes::new(), true);
    }

    #[cold]
    fn attach(&mut self, count: usize) -> Result<(), WireError> {
        let mut attachments = list_of(count, "item.attachments")?;
        attachments.extend(self.attachments.by_ref().take(count));
        self.input.attach(attachments);
        Ok(())
    }

    #[inline]
    fn begin(&mut self) -> Result<(), WireError> {
        let behind = self.input.end();
        let (all, ends_early) = (behind.len(), "the frame ends before it");
        let (before, len, count) = if self.is_alone {
            (0, all, self.attachments.len())
        } else if let Some(&[a, b, c, d, e, f]) = behind.first_chunk::<ENTRY>() {
            (ENTRY, u32::from_le_bytes([a, b, c, d]) as usize, u16::from_le_bytes([e, f]).into())
        } else {
            return Err(WireError::new("item.length", ends_early));
        };
        if !self.input.begin(before, len) {
            return Err(WireError::new("item.body", ends_early));
        }
        if count > self.attachments.len() {
            return Err(WireError::new("item.attachments", "are more than the message has"));
        }
        if count > 0 {
            self.attach(count)?;
        }
        if self.left == 0 && (all > before + len || self.attachments.len() > 0) {
            return Err(WireError::new("item", "has bytes after its end"));
        }
        Ok(())
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

/// The fields of an END besides its content, which is a status, the application's error or nothing.
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
        let content = Content::decode(r, attachments, Some(Compression::None))?;
        let says_why = matches!(reason, EndReason::Status | EndReason::Error);
        if !says_why && content.payload.memory() > 0 {
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
