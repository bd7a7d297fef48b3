//! The content of a message: a body and the byte strings that travel beside it.

mod allowance;
mod body;
mod decoder;
mod loans;
mod packed;

use std::mem;

use bytes::{Bytes, BytesMut};
#[cfg(feature = "prost")]
use farcall_segments::Segments;

#[cfg(feature = "prost")]
pub(crate) use self::allowance::{FREE, check_memory};
pub use self::allowance::{MemoryGrant, OpenGrant, TooLarge};
pub(crate) use self::body::Body;
use self::body::Written;
pub use self::decoder::{COPY_OUT, Decoder, LONG_BODY};
pub use self::loans::Loan;
use self::loans::Loans;
pub use self::packed::Packed;

/// A message of a call that is no longer than this is copied rather than sent by reference. Bytes.
pub const MAX_SHORT: usize = 8192;

/// A message with a shorter payload is short: a link copies it out of its receive buffer. Bytes.
pub const SHORT_PAYLOAD: usize = 1024;

/// Byte strings longer than this are sent by reference; shorter ones are cheaper to copy.
pub const BY_REFERENCE: usize = 4096;

/// A body that is no longer than this is copied when it is sent: it has no pieces worth a reference.
const SHORT_BODY: usize = MAX_SHORT - 64;

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
    loans: Loans,
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

    /// How many attachments there are, or were before they were compressed.
    pub fn attachment_count(&self) -> usize {
        self.as_packed().map_or_else(|| self.attachments().len(), |packed| packed.attachments().len())
    }

    /// The memory of the bytes and of the list of attachments, in bytes: a peer may send thousands of empty ones.
    pub fn memory(&self) -> usize {
        self.len() + self.attachment_count() * size_of::<Bytes>()
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
    pub fn more(&self) -> &[Bytes] {
        self.rest.as_ref().map_or(&[], |rest| &rest.more)
    }

    /// The length of a body that is copied when it is sent, if there is no more than that.
    #[inline]
    pub fn short_len(&self) -> Option<u32> {
        let len = self.body.len();
        (self.rest.is_none() && len <= SHORT_BODY).then_some(len as u32)
    }

    /// The first piece of the body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether there is nothing but the first piece of the body.
    pub fn is_one_piece(&self) -> bool {
        self.rest.is_none()
    }

    /// All pieces, in order.
    pub fn into_pieces(self) -> impl Iterator<Item = Bytes> {
        let Rest { more, attachments, .. } = self.rest.map_or_else(Rest::default, |rest| *rest);
        std::iter::once(self.body.into_bytes()).chain(more).chain(attachments)
    }

    /// The body in one piece, and the attachments.
    pub fn into_parts(self) -> (Bytes, Vec<Bytes>) {
        let Rest { more, attachments, .. } = self.rest.map_or_else(Rest::default, |rest| *rest);
        let body = if more.is_empty() { self.body.into_bytes() } else { flatten(&self.body, &more) };
        (body, attachments)
    }

    /// Returns the first piece of the body, which is all of it in a payload that has arrived.
    pub fn into_body(self) -> Bytes {
        self.body.into_bytes()
    }

    /// Returns the buffer that a short payload was written to, so that [another](Encoder::reusing) can be.
    #[inline]
    pub fn into_buffer(self) -> Option<Box<BytesMut>> {
        match self.body {
            Body::Written(written) => Some(written.into_buffer()),
            Body::Shared(_) => None,
        }
    }

    /// Takes the buffer that a short payload was written to, so that [another](Encoder::reusing) can be. The payload is empty then.
    #[inline]
    pub fn take_buffer(&mut self) -> Option<Box<BytesMut>> {
        if matches!(self.body, Body::Shared(_)) {
            return None;
        }
        match mem::take(&mut self.body) {
            Body::Written(written) => Some(written.into_buffer()),
            Body::Shared(_) => None,
        }
    }

    /// Returns the loans of the call, if these are its arguments.
    pub fn loans(&self) -> &[Loan] {
        self.rest.as_ref().map_or(&[], |rest| &rest.loans.0)
    }

    /// Takes the last attachment off.
    pub fn pop_attachment(&mut self) -> Option<Bytes> {
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
    /// The attachments, and all of the body but its end; `None` in most messages.
    rest: Option<Box<Rest>>,
    /// Whether the message may [lend](Self::lend).
    lends: bool,
}

impl Encoder {
    /// An empty message.
    #[inline]
    pub fn new() -> Self {
        Self { buffer: Written::new(), rest: None, lends: false }
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
        keep(&mut self.rest, self.buffer.buffer(), bytes.clone());
    }

    /// Returns the end of the body as a buffer that keeps long byte strings [by reference](Self::put_bytes).
    #[cfg(feature = "prost")]
    pub(crate) fn segments(&mut self) -> impl bytes::BufMut {
        let Self { buffer, rest, .. } = self;
        Segments::new(buffer.buffer(), BY_REFERENCE, |buffer, bytes| keep(rest, buffer, bytes))
    }

    /// Sends bytes beside the body, by reference, and gives their index among the attachments.
    pub fn attach(&mut self, bytes: Bytes) -> usize {
        let attachments = &mut self.rest.get_or_insert_default().attachments;
        attachments.push(bytes);
        attachments.len() - 1
    }

    /// Returns an empty message that is written to this buffer, which must be empty.
    pub fn to(buffer: BytesMut) -> Self {
        Self { buffer: buffer.into(), rest: None, lends: false }
    }

    /// Returns an empty message that is written to a buffer which [a payload](Payload::take_buffer) has left.
    #[inline]
    pub fn reusing(mut buffer: Box<BytesMut>) -> Self {
        buffer.clear();
        Self { buffer: buffer.into(), rest: None, lends: false }
    }

    /// Allows the message to lend memory, because it has the arguments of a call.
    #[inline]
    #[must_use]
    pub fn lending(mut self) -> Self {
        self.lends = true;
        self
    }

    /// Lends memory to the server of the call. Returns false if the message [may not](Self::lending).
    pub(crate) fn lend(&mut self, loan: Loan) -> bool {
        if self.lends {
            self.rest.get_or_insert_default().loans.0.push(loan);
        }
        self.lends
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
        let first = mem::take(&mut rest.more[0]);
        rest.more[0] = Bytes::copy_from_slice(&first[at..]);
        let mut before = first.try_into_mut().unwrap_or_else(|first| BytesMut::from(&first[..]));
        before.truncate(at);
        let last = mem::replace(&mut self.buffer, before.into());
        in_pieces(*rest, last.freeze())
    }

    /// Returns the written bytes, all of which were [copied](Self::is_one_piece).
    pub(crate) fn into_buffer(self) -> BytesMut {
        *self.buffer.into_buffer()
    }

    /// The finished message.
    #[inline]
    pub fn finish(self) -> Payload {
        let Self { buffer, rest, .. } = self;
        match rest {
            Some(rest) if !rest.more.is_empty() => in_pieces(*rest, buffer.freeze()),
            rest => Payload { body: buffer.into(), rest },
        }
    }
}

/// Ends a piece of the body, and adds a byte string as a piece of its own.
fn keep(rest: &mut Option<Box<Rest>>, buffer: &mut BytesMut, bytes: Bytes) {
    let before = mem::take(buffer).freeze();
    let pieces = &mut rest.get_or_insert_default().more;
    if !before.is_empty() || pieces.is_empty() {
        pieces.push(before);
    }
    pieces.push(bytes);
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
}
