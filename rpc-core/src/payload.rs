//! The content of a message: a body and the byte strings that travel beside it.

mod body;
mod packed;

use std::cell::RefCell;

use bytes::{Buf, Bytes, BytesMut};

pub(crate) use self::body::Body;
use self::body::Written;
pub(crate) use self::packed::Packed;
use crate::proto::shorts::MAX_SHORT;
use crate::transport::SHORT_PAYLOAD;

/// Byte strings longer than this are sent by reference; shorter ones are cheaper to copy.
pub const BY_REFERENCE: usize = 4096;

/// A body that is no longer than this is copied when it is sent: it has no pieces worth a reference.
const SHORT_BODY: usize = MAX_SHORT - 64;

/// A body of this length or more is not sure to have come in a [short payload](SHORT_PAYLOAD), for the sake of what goes
/// before it.
pub(crate) const LONG_BODY: usize = SHORT_PAYLOAD - 64;

/// A view shorter than this is copied out of a long message, so that a few kept bytes do not pin many kilobytes.
pub const COPY_OUT: usize = 1024;

/// A message's content: the body that a codec wrote, and attachments that were not copied into it.
///
/// The body may be in several pieces when the codec put references to large byte strings in its middle; on the
/// wire, and so on arrival, it is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Payload {
    pub(crate) body: Body,
    /// Short messages have no more than a body, and are moved about a lot.
    rest: Option<Box<Rest>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Rest {
    more: Vec<Bytes>,
    attachments: Vec<Bytes>,
    packed: Option<Packed>,
}

impl Payload {
    /// A payload that is only a body.
    #[inline]
    pub fn from_body(body: Bytes) -> Self {
        Self { body: Body::Shared(body), rest: None }
    }

    /// A payload as it arrives: the body in one piece.
    pub fn new(body: Bytes, attachments: Vec<Bytes>) -> Self {
        let rest = (!attachments.is_empty()).then(|| Box::new(Rest { attachments, ..Rest::default() }));
        Self { body: Body::Shared(body), rest }
    }

    /// The length of the body in bytes.
    pub fn body_len(&self) -> usize {
        self.body.len() + self.more().iter().map(Bytes::len).sum::<usize>()
    }

    /// The length of body and attachments in bytes: what size limits are held against.
    pub fn len(&self) -> usize {
        self.body_len() + self.attachments().iter().map(Bytes::len).sum::<usize>()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The attachments in order.
    pub fn attachments(&self) -> &[Bytes] {
        self.rest.as_ref().map_or(&[], |rest| &rest.attachments)
    }

    /// The pieces of the body after the first.
    pub(crate) fn more(&self) -> &[Bytes] {
        self.rest.as_ref().map_or(&[], |rest| &rest.more)
    }

    /// The length of a body that is copied when it is sent, if there is no more than that.
    #[inline]
    pub(crate) fn short_len(&self) -> Option<u32> {
        let len = self.body.len();
        (self.rest.is_none() && len <= SHORT_BODY).then_some(len as u32)
    }

    /// The first piece of the body.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether there is nothing but the first piece of the body.
    pub(crate) fn is_one_piece(&self) -> bool {
        self.rest.is_none()
    }

    /// All pieces, in order.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Bytes> {
        let Rest { more, attachments, .. } = self.rest.map_or_else(Rest::default, |rest| *rest);
        std::iter::once(self.body.into_bytes()).chain(more).chain(attachments)
    }

    /// The body in one piece, and the attachments.
    pub(crate) fn into_parts(self) -> (Bytes, Vec<Bytes>) {
        let Rest { more, attachments, .. } = self.rest.map_or_else(Rest::default, |rest| *rest);
        let body = if more.is_empty() { self.body.into_bytes() } else { flatten(&self.body, &more) };
        (body, attachments)
    }

    /// Takes the last attachment off.
    pub(crate) fn pop_attachment(&mut self) -> Option<Bytes> {
        self.rest.as_mut()?.attachments.pop()
    }
}

/// Where a codec writes a message.
///
/// Small things are copied into a buffer; large byte strings are kept by reference, either as an attachment
/// ([`attach`](Self::attach)) or in the middle of the body ([`put_bytes`](Self::put_bytes)).
#[derive(Debug)]
pub struct Encoder {
    buffer: Written,
    /// Of the body, all but the end; empty in most messages, as the attachments are.
    rest: Option<Box<Rest>>,
}

thread_local! {
    static COPIES: RefCell<Option<BytesMut>> = const { RefCell::new(None) };
}

/// Copies of this size share an allocation.
const COPIES_SIZE: usize = 4 * COPY_OUT;

/// A copy, of no more than [`COPIES_SIZE`], that pins little more than itself.
fn copy_out(view: &[u8]) -> Bytes {
    COPIES.with_borrow_mut(|kept| {
        let buffer = match kept {
            Some(buffer) if buffer.capacity() >= view.len() => buffer,
            _ => kept.insert(BytesMut::with_capacity(COPIES_SIZE)),
        };
        buffer.extend_from_slice(view);
        buffer.split().freeze()
    })
}

/// Short parts of a long message, copied several together: who reads one will read the next.
#[derive(Debug, Default)]
struct Copies {
    bytes: Bytes,
    /// How much of the body was left where they begin.
    from: usize,
    /// How much was copied last, and whether more than one part was taken of it.
    size: usize,
    is_of_use: bool,
}

impl Copies {
    /// A copy of the first bytes of what is left.
    fn take(&mut self, left: &Bytes, len: usize) -> Bytes {
        let at = if self.bytes.is_empty() { 0 } else { self.from - left.len() };
        if at + len <= self.bytes.len() {
            self.is_of_use = true;
            return self.bytes.slice(at..at + len);
        }
        let size = if std::mem::take(&mut self.is_of_use) { 2 * self.size } else { 0 };
        self.size = size.clamp(4 * len, COPIES_SIZE);
        self.bytes = copy_out(&left[..self.size.min(left.len())]);
        self.from = left.len();
        self.bytes.slice(..len)
    }
}

impl Encoder {
    /// An empty message.
    #[inline]
    pub fn new() -> Self {
        Self { buffer: Written::new(), rest: None }
    }

    /// Copies bytes to the end of the body.
    #[inline]
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.buffer().extend_from_slice(bytes);
    }

    /// The buffer at the end of the body, for codecs that write to a [`bytes::BufMut`]. Only append to it.
    #[inline]
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.buffer.buffer()
    }

    /// Puts bytes at the end of the body: by reference if they are long, else as a copy.
    pub fn put_bytes(&mut self, bytes: &Bytes) {
        if bytes.len() <= BY_REFERENCE {
            return self.put_slice(bytes);
        }
        let before = std::mem::replace(&mut self.buffer, Written::new()).freeze();
        let pieces = &mut self.rest.get_or_insert_default().more;
        if !before.is_empty() || pieces.is_empty() {
            pieces.push(before);
        }
        pieces.push(bytes.clone());
    }

    /// Sends bytes beside the body, by reference, and gives their index among the attachments.
    pub fn attach(&mut self, bytes: Bytes) -> usize {
        let attachments = &mut self.rest.get_or_insert_default().attachments;
        attachments.push(bytes);
        attachments.len() - 1
    }

    /// An empty message that is written to this buffer.
    pub(crate) fn to(buffer: BytesMut) -> Self {
        Self { buffer: buffer.into(), rest: None }
    }

    /// Whether all of it was copied.
    #[inline]
    pub(crate) fn is_one_piece(&self) -> bool {
        self.rest.is_none()
    }

    /// Takes off what was written from here on, before which all was [copied](Self::is_one_piece).
    #[cold]
    pub(crate) fn split_off(&mut self, at: usize) -> Payload {
        let mut rest = self.rest.take().unwrap_or_default();
        if rest.more.is_empty() {
            let body = Bytes::copy_from_slice(&self.buffer[at..]);
            self.buffer().truncate(at);
            return Payload {
                body: Body::Shared(body),
                rest: (!rest.attachments.is_empty()).then_some(rest),
            };
        }
        let first = std::mem::take(&mut rest.more[0]);
        rest.more[0] = Bytes::copy_from_slice(&first[at..]);
        let mut before = first.try_into_mut().unwrap_or_else(|first| BytesMut::from(&first[..]));
        before.truncate(at);
        let last = std::mem::replace(&mut self.buffer, before.into());
        in_pieces(*rest, last.freeze())
    }

    /// What was written, all of which was [copied](Self::is_one_piece).
    pub(crate) fn into_buffer(self) -> BytesMut {
        self.buffer.into_buffer()
    }

    /// The finished message.
    #[inline]
    pub fn finish(self) -> Payload {
        let Self { buffer, rest } = self;
        match rest {
            Some(rest) if !rest.more.is_empty() => in_pieces(*rest, buffer.freeze()),
            rest => Payload { body: buffer.into(), rest },
        }
    }
}

/// A message whose body ends with `last`.
fn in_pieces(mut rest: Rest, last: Bytes) -> Payload {
    if !last.is_empty() {
        rest.more.push(last);
    }
    let body = Body::Shared(rest.more.remove(0));
    Payload { body, rest: Some(Box::new(rest)) }
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a codec reads a message from.
#[derive(Debug)]
pub struct Decoder {
    body: Bytes,
    /// Whether the body may pin more than is good for a few bytes of it.
    is_long: bool,
    /// How much of the body is left: behind that stands what belongs to others.
    left: usize,
    /// The attachments, in most messages none.
    rest: Option<Box<Rest>>,
    next: usize,
    /// Of one that reads message after message.
    copies: Option<Box<Copies>>,
}

impl Decoder {
    /// Reads `payload` from its start.
    #[inline]
    pub fn new(payload: Payload) -> Self {
        match payload {
            // As most arrive.
            Payload { body: Body::Shared(body), rest: None } => {
                let left = body.len();
                Self { is_long: left >= LONG_BODY, left, body, rest: None, next: 0, copies: None }
            }
            payload => Self::of_any(payload),
        }
    }

    /// Reads message after message, of which there are none yet.
    pub(crate) fn of_several() -> Self {
        Self { copies: Some(Box::default()), ..Self::new(Payload::default()) }
    }

    /// Goes on in this body, in which one message stands behind another. The first is empty. `alone`: no attachments came with
    /// it.
    pub(crate) fn go_on_in(&mut self, body: Bytes, alone: bool) {
        self.is_long = !alone || body.len() >= LONG_BODY;
        (self.left, self.body, self.rest) = (0, body, None);
        if let Some(copies) = &mut self.copies {
            copies.bytes = Bytes::new();
        }
    }

    /// What stands behind the message, of which nothing is read any more.
    #[inline]
    pub(crate) fn end(&mut self) -> &[u8] {
        self.body.advance(std::mem::take(&mut self.left));
        (self.rest, self.next) = (None, 0);
        &self.body
    }

    /// Goes on with the message that stands so far behind the last, which has [ended](Self::end): it has so many bytes, and
    /// no attachments. False: there are less bytes.
    #[inline]
    pub(crate) fn begin(&mut self, behind: usize, len: usize) -> bool {
        let is_there = len <= self.body.len().saturating_sub(behind);
        if is_there {
            self.body.advance(behind);
            self.left = len;
        }
        is_there
    }

    /// The message has these attachments.
    pub(crate) fn attach(&mut self, attachments: Vec<Bytes>) {
        self.rest = Some(Box::new(Rest { attachments, ..Rest::default() }));
    }

    #[cold]
    fn of_any(payload: Payload) -> Self {
        let Payload { body, rest } = payload;
        let body = match &rest {
            // It has not crossed a wire.
            Some(rest) if !rest.more.is_empty() => flatten(&body, &rest.more),
            _ => body.into_bytes(),
        };
        let left = body.len();
        let is_long = rest.is_some() || left >= LONG_BODY;
        Self { body, is_long, left, rest, next: 0, copies: None }
    }

    /// What of the body has not been read yet.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        &self.body[..self.left]
    }

    /// Takes the next `len` bytes of the body, if there are so many: as a view of what was received, or as a copy when they
    /// are few of many.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<Bytes> {
        if len > self.left {
            return None;
        }
        if self.is_long && len < COPY_OUT {
            let copy = match &mut self.copies {
                Some(copies) => copies.take(&self.body, len),
                None => copy_out(&self.body[..len]),
            };
            self.advance(len);
            return Some(copy);
        }
        self.left -= len;
        Some(self.body.split_to(len))
    }

    /// Takes all that is left of the body, as a view.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        self.body.split_to(std::mem::take(&mut self.left))
    }

    /// Skips `len` bytes of the body that were read through [`rest`](Self::rest).
    #[inline]
    pub fn advance(&mut self, len: usize) {
        let len = len.min(self.left);
        self.left -= len;
        self.body.advance(len);
    }

    /// Takes attachment `index`, if it is there and was not taken yet. Attachments are taken in order: a message
    /// that names one twice, or out of order, is malformed.
    pub fn attachment(&mut self, index: usize) -> Option<Bytes> {
        if index != self.next {
            return None;
        }
        self.next += 1;
        self.rest.as_mut()?.attachments.get_mut(index).map(std::mem::take)
    }

    /// Whether everything, attachments too, has been read.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.left == 0 && self.next == self.rest.as_ref().map_or(0, |rest| rest.attachments.len())
    }
}

fn flatten(first: &[u8], more: &[Bytes]) -> Bytes {
    let mut whole = BytesMut::with_capacity(first.len() + more.iter().map(Bytes::len).sum::<usize>());
    whole.extend_from_slice(first);
    for piece in more {
        whole.extend_from_slice(piece);
    }
    whole.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_bytes_are_kept_by_reference_and_short_ones_copied() {
        let long = Bytes::from(vec![7; BY_REFERENCE + 1]);
        let mut e = Encoder::new();
        e.put_slice(b"ab");
        e.put_bytes(&Bytes::from_static(b"cd"));
        e.put_bytes(&long);
        e.put_slice(b"ef");
        let p = e.finish();
        assert_eq!(&p.body[..], b"abcd");
        assert_eq!(p.more()[0].as_ptr(), long.as_ptr());
        assert_eq!(p.more()[1], "ef");
        assert_eq!(p.body_len(), 6 + long.len());
        let d = Decoder::new(p);
        assert_eq!(&d.rest()[..4], b"abcd");
        assert_eq!(d.rest().len(), 6 + long.len());
    }

    #[test]
    fn attachments_are_taken_once_and_in_order() {
        let mut e = Encoder::new();
        e.attach(Bytes::from_static(b"one"));
        e.attach(Bytes::from_static(b"two"));
        let mut d = Decoder::new(e.finish());
        assert_eq!(d.attachment(1), None);
        assert_eq!(d.attachment(0).unwrap(), "one");
        assert_eq!(d.attachment(0), None);
        assert!(!d.is_finished());
        assert_eq!(d.attachment(1).unwrap(), "two");
        assert!(d.is_finished());
        assert_eq!(d.attachment(2), None);
    }

    #[test]
    fn short_parts_do_not_pin_a_long_message() {
        let buffer = Bytes::from(vec![1; 8192]);
        let mut d = Decoder::new(Payload::from_body(buffer.clone()));
        assert_ne!(d.take(100).unwrap().as_ptr(), buffer.as_ptr());
        assert_eq!(d.take(4096).unwrap().as_ptr(), buffer[100..].as_ptr());
        assert_eq!(d.take(8192), None);
    }

    #[test]
    fn parts_of_a_short_message_are_views() {
        let first = |len, attachments: &[Bytes]| {
            let buffer = Bytes::from(vec![1; len]);
            let mut d = Decoder::new(Payload::new(buffer.clone(), attachments.to_vec()));
            d.take(100).unwrap().as_ptr() == buffer.as_ptr()
        };
        assert!(first(500, &[]));
        assert!(!first(SHORT_PAYLOAD - 1, &[]), "with what went before it, it was not short");
        assert!(!first(500, &[Bytes::from_static(b"long")]), "nor where more came with it");
    }
}
