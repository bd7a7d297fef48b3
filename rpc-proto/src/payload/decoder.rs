//! Where a message is read from.

use std::mem;

use bytes::{Buf, Bytes};

use super::allowance::{Allowance, MemoryGrant, OpenGrant, TooLarge};
use super::{Body, Payload, Rest, SHORT_PAYLOAD, flatten};

/// A body of this length or more is not sure to have come in a [short payload](SHORT_PAYLOAD), for the sake of what goes
/// before it.
pub const LONG_BODY: usize = SHORT_PAYLOAD - 64;

/// A view shorter than this is copied out of a long message, so that a few kept bytes do not pin many kilobytes.
pub const COPY_OUT: usize = 1024;

/// Where a codec reads a message from.
#[derive(Debug)]
pub struct Decoder {
    body: Bytes,
    /// The unread part begins here,
    at: usize,
    /// and ends here: behind that stands what belongs to others.
    end: usize,
    /// Whether the body may pin more than is good for a few bytes of it.
    is_long: bool,
    /// The attachments, in most messages none.
    rest: Option<Box<Rest>>,
    /// The index of the next attachment.
    next: u32,
    /// How much memory the values that are read may still take.
    memory: Allowance,
    /// The copies of a decoder that reads message after message.
    copies: Option<Box<Copies>>,
}

impl Decoder {
    /// Reads `payload` from its start.
    #[inline]
    pub fn new(payload: Payload) -> Self {
        match payload {
            // As most arrive.
            Payload { body: Body::Shared(body), rest: None } => {
                let end = body.len();
                Self {
                    is_long: end >= LONG_BODY,
                    at: 0,
                    end,
                    body,
                    rest: None,
                    next: 0,
                    memory: Allowance::new(),
                    copies: None,
                }
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
        (self.at, self.end, self.body) = (0, 0, body);
        (self.rest, self.next) = (None, 0);
        if let Some(copies) = &mut self.copies {
            copies.clear();
        }
    }

    /// Returns the bytes behind the message, of which nothing more is read.
    #[inline]
    pub(crate) fn end(&mut self) -> &[u8] {
        self.at = self.end;
        if self.rest.is_some() {
            self.forget_attachments();
        }
        &self.body[self.end..]
    }

    #[cold]
    fn forget_attachments(&mut self) {
        (self.rest, self.next) = (None, 0);
    }

    /// Goes on with the message that stands so far behind the last, which has [ended](Self::end): it has so many bytes, and
    /// no attachments. False: there are less bytes.
    #[inline]
    pub(crate) fn begin(&mut self, behind: usize, len: usize) -> bool {
        let at = self.end + behind;
        let is_there = len <= self.body.len().saturating_sub(at);
        if is_there {
            (self.at, self.end) = (at, at + len);
            self.memory.renew();
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
        let end = body.len();
        let is_long = rest.is_some() || end >= LONG_BODY;
        Self { body, at: 0, end, is_long, rest, next: 0, memory: Allowance::new(), copies: None }
    }

    /// Returns the part of the body that has not been read yet.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        &self.body[self.at..self.end]
    }

    /// How many bytes [the rest](Self::rest) has.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.end - self.at
    }

    /// Takes the next `len` bytes of the body, if there are so many: as a view of what was received, or as a copy when they
    /// are few of many.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<Bytes> {
        self.take_behind(0, len)
    }

    /// Takes the bytes that stand behind these many, and skips those; if there are less, it does neither.
    #[inline]
    pub(crate) fn take_behind(&mut self, skipped: usize, len: usize) -> Option<Bytes> {
        if skipped + len > self.end - self.at {
            return None;
        }
        let from = self.at + skipped;
        self.at = from + len;
        Some(match &mut self.copies {
            _ if !self.is_long => self.part_of_short(from),
            _ if len >= COPY_OUT => self.body.slice(from..self.at),
            Some(copies) => copies.take(&self.body, from, len),
            None => Bytes::copy_from_slice(&self.body[from..self.at]),
        })
    }

    /// A view of what was read from here on.
    #[inline]
    fn part_of_short(&mut self, from: usize) -> Bytes {
        if self.at < self.body.len() {
            return self.body.slice(from..self.at);
        }
        // Nobody counts another reference where the body itself is of no use any more.
        (self.at, self.end) = (0, 0);
        let mut part = mem::take(&mut self.body);
        part.advance(from);
        part
    }

    /// Takes all that is left of the body, as a view.
    #[cfg(any(feature = "prost", test))]
    pub(crate) fn take_rest(&mut self) -> Bytes {
        let from = mem::replace(&mut self.at, self.end);
        if self.is_long { self.body.slice(from..self.end) } else { self.part_of_short(from) }
    }

    /// Skips `len` bytes of the body that were read through [`rest`](Self::rest).
    #[inline]
    pub fn advance(&mut self, len: usize) {
        self.at += len.min(self.end - self.at);
    }

    /// Takes attachment `index`, if it is there and was not taken yet. Attachments are taken in order: a message
    /// that names one twice, or out of order, is malformed.
    pub fn attachment(&mut self, index: usize) -> Option<Bytes> {
        let attachments = &mut self.rest.as_mut()?.attachments;
        if index != self.next as usize {
            return None;
        }
        let taken = attachments.get_mut(index).map(mem::take)?;
        self.next += 1;
        Some(taken)
    }

    /// Sets how much memory the values that are read from now on may take, in bytes. 256 MiB if it is not called.
    pub fn limit_memory(&mut self, bytes: u32) {
        self.memory.limit(bytes);
    }

    /// Counts memory that a value is about to take.
    ///
    /// A few bytes of a message may stand for many of memory: an empty `Vec` takes one byte in a message, and 24 in memory. A
    /// codec calls this before it makes room for such values, so that a message can't use up the memory of its reader.
    ///
    /// # Errors
    ///
    /// If the values of this message take more memory than they may, or than the process has.
    #[inline]
    pub fn take_memory(&mut self, bytes: usize) -> Result<(), TooLarge> {
        self.memory.take(bytes)
    }

    /// Counts the memory that values take beyond 8 KiB in an account, which `open` opens when it is needed.
    #[inline]
    #[must_use]
    pub fn counted_at_need(mut self, open: OpenGrant) -> Self {
        self.memory = Allowance::at_need(open);
        self
    }

    /// Counts the memory that the values of each message take beyond 8 KiB in this account.
    pub(crate) fn count_in(&mut self, account: Box<dyn MemoryGrant>) {
        self.memory = Allowance::counted(account);
    }

    /// Returns the account of the memory that values have taken, if one was [opened](Self::counted_at_need). It counts that memory
    /// until it is dropped.
    #[inline]
    pub fn into_grant(self) -> Option<Box<dyn MemoryGrant>> {
        self.memory.into_grant()
    }

    /// Whether everything, attachments too, has been read.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.at == self.end
            && self.next as usize == self.rest.as_ref().map_or(0, |rest| rest.attachments.len())
    }
}

/// Copies that are made together are no longer than this, in bytes.
const COPIES_SIZE: usize = 4 * COPY_OUT;

/// Short parts of a long message, copied several together: who reads one will read the next.
#[derive(Debug, Default)]
struct Copies {
    bytes: Bytes,
    /// Where in the body they begin.
    from: usize,
    /// How much was copied last, and whether more than one part was taken of it.
    size: usize,
    is_of_use: bool,
}

impl Copies {
    /// A copy of so many bytes of the body from here on, which is behind those that were taken of it before.
    #[inline]
    fn take(&mut self, body: &[u8], at: usize, len: usize) -> Bytes {
        let behind = at - self.from;
        if behind + len > self.bytes.len() {
            return self.copy(&body[at..], at, len);
        }
        self.is_of_use = true;
        self.bytes.slice(behind..behind + len)
    }

    fn copy(&mut self, left: &[u8], at: usize, len: usize) -> Bytes {
        let size = if mem::take(&mut self.is_of_use) { 2 * self.size } else { 0 };
        self.size = size.clamp(4 * len, COPIES_SIZE);
        self.bytes = Bytes::copy_from_slice(&left[..self.size.min(left.len())]);
        self.from = at;
        self.bytes.slice(..len)
    }

    /// Another body begins.
    fn clear(&mut self) {
        (self.bytes, self.from) = (Bytes::new(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Encoder;

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
