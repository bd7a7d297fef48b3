//! The payload of REQUEST and RESPONSE, and the content of ITEM and END: a fixed prefix, metadata, attachment lengths, body, attachments
//! (WIRE.md section 5.2).

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError, list_of};
use super::write::{TooLong, len16, put_len32};
use crate::compression::Compression;
use crate::payload::{LONG_BODY, Packed, Payload};
use crate::status::{Blame, Code, Executed, Status};
use crate::text::cut;

/// The length of the fixed part of a REQUEST, before the metadata.
pub const REQUEST_PREFIX: usize = 20;

/// The length of all that goes before the body of a REQUEST without metadata and attachments.
pub const PLAIN_REQUEST: usize = REQUEST_PREFIX + 1;

/// The length of all that goes before the body of a RESPONSE without metadata and attachments.
pub const PLAIN_RESPONSE: usize = 4 + 4 + 1;

/// The most attachments that a message can have.
pub const MAX_ATTACHMENTS: usize = u16::MAX as usize;

/// The fields of a REQUEST besides its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The index of a BIND.
    pub service: u16,
    /// The index of a method in that BIND.
    pub method: u16,
    /// 1 for a first attempt.
    pub attempt: u8,
    /// How long the caller still waits, in microseconds; 0: for ever.
    pub timeout_us: u64,
}

/// The meaning of a RESPONSE's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResponseKind {
    /// The result, in the service's codec.
    Ok = 0,
    /// The application's error, in the service's codec.
    Err = 1,
    /// A [`Status`], in the form of [`encode_status`].
    Status = 2,
}

/// The fields of a RESPONSE besides its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The meaning of the body.
    pub kind: ResponseKind,
}

/// Metadata, body and attachments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The metadata block, which [`decode_metadata`](super::decode_metadata) and
    /// [`decode_answer_metadata`](super::decode_answer_metadata) read.
    pub metadata: Bytes,
    /// Body and attachments.
    pub payload: Payload,
}

impl RequestHead {
    /// How many bytes go before the body.
    pub fn len(&self, content: &Content) -> usize {
        REQUEST_PREFIX - 4 + content.lengths_len()
    }

    /// Appends all that goes before the body, unless the content has more than [`MAX_ATTACHMENTS`] or a part of
    /// 4 GiB.
    pub fn encode(&self, content: &Content, out: &mut impl BufMut) -> Result<(), TooLong> {
        let attachments = len16(content.payload.attachment_count(), "request.attachments")?;
        let mut b = [0; REQUEST_PREFIX - 4];
        b[0..2].copy_from_slice(&self.service.to_le_bytes());
        b[2..4].copy_from_slice(&self.method.to_le_bytes());
        b[4] = self.attempt;
        b[5] = content.payload.compression().to_wire();
        b[6..8].copy_from_slice(&attachments.to_le_bytes());
        b[8..16].copy_from_slice(&self.timeout_us.to_le_bytes());
        out.put_slice(&b);
        content.encode_lengths(out)
    }

    /// Encodes all that goes before a body of `body_len` bytes without metadata and attachments, as in most calls.
    pub fn encode_plain(&self, body_len: u32) -> [u8; PLAIN_REQUEST] {
        let mut b = [0; PLAIN_REQUEST];
        b[0..2].copy_from_slice(&self.service.to_le_bytes());
        b[2..4].copy_from_slice(&self.method.to_le_bytes());
        b[4] = self.attempt;
        b[8..16].copy_from_slice(&self.timeout_us.to_le_bytes());
        b[16..20].copy_from_slice(&body_len.to_le_bytes());
        b
    }

    /// Reads what goes before the body of a REQUEST as [`encode_plain`](Self::encode_plain) writes it. `None`: it is not of that
    /// form.
    #[inline(always)]
    fn decode_plain(message: &[u8]) -> Option<Self> {
        let &[s0, s1, m0, m1, attempt, 0, 0, 0, ref rest @ ..] = message.first_chunk::<PLAIN_REQUEST>()?
        else {
            return None;
        };
        let &[r0, r1, r2, r3, r4, r5, r6, r7, b0, b1, b2, b3, 0] = rest else { return None };
        let is_whole = u32::from_le_bytes([b0, b1, b2, b3]) as usize == message.len() - PLAIN_REQUEST;
        is_whole.then(|| Self {
            service: u16::from_le_bytes([s0, s1]),
            method: u16::from_le_bytes([m0, m1]),
            attempt,
            timeout_us: u64::from_le_bytes([r0, r1, r2, r3, r4, r5, r6, r7]),
        })
    }

    /// Reads a whole REQUEST.
    pub fn decode(message: Bytes) -> Result<(Self, Content), WireError> {
        if Self::decode_plain(&message).is_none() {
            return Self::decode_any(message);
        }
        let (head, _, payload) = Self::decode_apart(message)?;
        Ok((head, Content { metadata: Bytes::new(), payload }))
    }

    /// Decodes the content and its metadata block apart: most have none.
    #[inline(always)]
    pub fn decode_apart(mut message: Bytes) -> Result<(Self, Option<Box<Bytes>>, Payload), WireError> {
        let Some(head) = Self::decode_plain(&message) else {
            let (head, content) = Self::decode_any(message)?;
            return Ok((head, content.boxed_metadata(), content.payload));
        };
        message.advance(PLAIN_REQUEST);
        Ok((head, None, Payload::from_body(message)))
    }

    #[cold]
    fn decode_any(message: Bytes) -> Result<(Self, Content), WireError> {
        let mut r = Reader::new(message);
        let service = r.u16("request.service")?;
        let method = r.u16("request.method")?;
        let attempt = r.u8("request.attempt")?;
        let compression = compression(r.u8("request.compression")?)?;
        let attachments = r.u16("request.attachments")?;
        let timeout_us = r.u64("request.remaining")?;
        let content = Content::decode(r, attachments, Some(compression))?;
        Ok((Self { service, method, attempt, timeout_us }, content))
    }
}

impl ResponseHead {
    /// How many bytes go before the body.
    pub fn len(&self, content: &Content) -> usize {
        4 + content.lengths_len()
    }

    /// Appends all that goes before the body, unless the content has more than [`MAX_ATTACHMENTS`] or a part of
    /// 4 GiB.
    pub fn encode(&self, content: &Content, out: &mut impl BufMut) -> Result<(), TooLong> {
        let [a, b] = len16(content.payload.attachment_count(), "response.attachments")?.to_le_bytes();
        out.put_slice(&[self.kind as u8, content.payload.compression().to_wire(), a, b]);
        content.encode_lengths(out)
    }

    /// Encodes all that goes before a body of `body_len` bytes without metadata and attachments, as in most answers.
    pub fn encode_plain(&self, body_len: u32) -> [u8; PLAIN_RESPONSE] {
        let [b0, b1, b2, b3] = body_len.to_le_bytes();
        [self.kind as u8, 0, 0, 0, b0, b1, b2, b3, 0]
    }

    /// Whether a RESPONSE is as [`encode_plain`](Self::encode_plain) begins it, and has a result.
    #[inline(always)]
    fn is_plain(message: &[u8]) -> bool {
        match message.first_chunk::<PLAIN_RESPONSE>() {
            Some(&[0, 0, 0, 0, b0, b1, b2, b3, 0]) => {
                u32::from_le_bytes([b0, b1, b2, b3]) as usize == message.len() - PLAIN_RESPONSE
            }
            _ => false,
        }
    }

    /// Reads a whole RESPONSE.
    pub fn decode(message: Bytes) -> Result<(Self, Content), WireError> {
        if !Self::is_plain(&message) {
            return Self::decode_any(message);
        }
        let (head, _, payload) = Self::decode_apart(message)?;
        Ok((head, Content { metadata: Bytes::new(), payload }))
    }

    /// Decodes the content and its metadata block apart.
    #[inline(always)]
    pub fn decode_apart(mut message: Bytes) -> Result<(Self, Option<Box<Bytes>>, Payload), WireError> {
        if !Self::is_plain(&message) {
            let (head, content) = Self::decode_any(message)?;
            return Ok((head, content.boxed_metadata(), content.payload));
        }
        message.advance(PLAIN_RESPONSE);
        Ok((Self { kind: ResponseKind::Ok }, None, Payload::from_body(message)))
    }

    #[cold]
    fn decode_any(message: Bytes) -> Result<(Self, Content), WireError> {
        let mut r = Reader::new(message);
        let kind = match r.u8("response.kind")? {
            0 => ResponseKind::Ok,
            1 => ResponseKind::Err,
            2 => ResponseKind::Status,
            _ => return Err(WireError::new("response.kind", "is unknown")),
        };
        let compression = compression(r.u8("response.compression")?)?;
        if kind == ResponseKind::Status && compression != Compression::None {
            return Err(WireError::new("response.compression", "is of a status"));
        }
        let attachments = r.u16("response.attachments")?;
        Ok((Self { kind }, Content::decode(r, attachments, Some(compression))?))
    }
}

pub(super) fn reserved(r: &mut Reader, what: &'static str) -> Result<(), WireError> {
    if r.u8(what)? == 0 { Ok(()) } else { Err(WireError::new(what, "is not zero")) }
}

fn compression(number: u8) -> Result<Compression, WireError> {
    Compression::from_wire(number).ok_or(WireError::new("content.compression", "is unknown"))
}

/// A metadata block of this length or more has its length in four bytes after this one.
const LONG_METADATA: u8 = 0xff;

impl Content {
    /// `None` also says that the payload is not compressed: who takes a plain message looks no further.
    fn boxed_metadata(&self) -> Option<Box<Bytes>> {
        let is_plain = self.metadata.is_empty() && self.payload.as_packed().is_none();
        (!is_plain).then(|| Box::new(self.metadata.clone()))
    }

    pub(super) fn lengths_len(&self) -> usize {
        let long = usize::from(self.metadata.len() >= usize::from(LONG_METADATA));
        4 + 1 + 4 * long + self.metadata.len() + 4 * self.payload.attachment_count()
    }

    pub(super) fn encode_lengths(&self, out: &mut impl BufMut) -> Result<(), TooLong> {
        let packed = self.payload.as_packed();
        let body_len = packed.map_or_else(|| self.payload.body_len(), |packed| packed.body() as usize);
        put_len32(out, body_len, "content.body")?;
        match u8::try_from(self.metadata.len()) {
            Ok(len) if len < LONG_METADATA => out.put_u8(len),
            _ => {
                out.put_u8(LONG_METADATA);
                put_len32(out, self.metadata.len(), "content.metadata")?;
            }
        }
        out.put_slice(&self.metadata);
        for attachment in self.payload.attachments() {
            put_len32(out, attachment.len(), "content.attachments")?;
        }
        packed.iter().flat_map(|packed| packed.attachments()).for_each(|len| out.put_u32_le(*len));
        Ok(())
    }

    /// The content of an ITEM, which has no room to say elsewhere what it is compressed by.
    pub fn item(payload: Payload) -> Self {
        let metadata = match payload.compression() {
            Compression::None => Bytes::new(),
            by => Bytes::copy_from_slice(&[by.to_wire()]),
        };
        Self { metadata, payload }
    }

    /// `said`: what it is compressed by. `None`: as [`item`](Self::item) says it.
    pub(super) fn decode(
        mut r: Reader,
        attachments: u16,
        said: Option<Compression>,
    ) -> Result<Self, WireError> {
        let body_len = r.u32("content.body")? as usize;
        let metadata_len = match r.u8("content.metadata")? {
            LONG_METADATA => match r.u32("content.metadata")? as usize {
                len if len < usize::from(LONG_METADATA) => {
                    return Err(WireError::new("content.metadata", "has the long form of a short length"));
                }
                len => len,
            },
            short => usize::from(short),
        };
        let metadata =
            if metadata_len == 0 { Bytes::new() } else { r.bytes(metadata_len, "content.metadata")? };
        let compression = match (said, &metadata[..]) {
            (Some(said), _) => said,
            (None, []) => Compression::None,
            (None, &[number]) => compression(number)?,
            (None, _) => return Err(WireError::new("item.metadata", "are no compression")),
        };
        let count = usize::from(attachments);
        if compression != Compression::None {
            let mut lengths = Reader::new(r.bytes(count * 4, "content.attachments")?);
            let mut attachments = list_of(count, "content.attachments")?;
            for _ in 0..count {
                attachments.push(lengths.u32("content.attachments")?);
            }
            let packed = Packed::new(compression, body_len as u32, attachments);
            return Ok(Self { metadata, payload: Payload::packed(r.rest(), packed) });
        }
        if count == 0 {
            let mut body = r.bytes(body_len, "content.body")?;
            r.finish("content")?;
            if !metadata.is_empty() && body.len() < LONG_BODY {
                // Views of a short body are kept, and must not keep the metadata.
                body = Bytes::copy_from_slice(&body);
            }
            return Ok(Self { metadata, payload: Payload::from_body(body) });
        }
        let mut lengths = Reader::new(r.bytes(count * 4, "content.attachments")?);
        let body = r.bytes(body_len, "content.body")?;
        let mut attachments = list_of(count, "content.attachments")?;
        for _ in 0..count {
            let len = lengths.u32("content.attachments")? as usize;
            attachments.push(r.bytes(len, "content.attachment")?);
        }
        r.finish("content")?;
        Ok(Self { metadata, payload: Payload::new(body, attachments) })
    }
}

/// A status message longer than this is cut when it is sent, and when it is read, and says so at its end.
const MAX_STATUS_MESSAGE: usize = 16 * 1024;

/// A status as the body of a RESPONSE, or the rest of an END. Its details are not cut: a sender that finds the message
/// too long for its peer leaves them out.
pub fn encode_status(status: &Status) -> Bytes {
    let message = cut(status.message(), MAX_STATUS_MESSAGE);
    let mut out = BytesMut::with_capacity(8 + message.len() + status.details().len());
    out.put_u8(status.code() as u8);
    out.put_u8(status.blame() as u8);
    out.put_u8(status.executed() as u8);
    out.put_u8(0);
    out.put_u32_le(message.len() as u32);
    out.put_slice(message.as_bytes());
    out.put_slice(status.details());
    out.freeze()
}

/// Reads what [`encode_status`] wrote. Numbers that this version does not know are read as those that promise least.
pub fn decode_status(body: Bytes) -> Result<Status, WireError> {
    let mut r = Reader::new(body);
    let code = Code::from_wire(r.u8("status.code")?);
    let blame = Blame::from_wire(r.u8("status.blame")?);
    let executed = Executed::from_wire(r.u8("status.executed")?);
    reserved(&mut r, "status.reserved")?;
    let message_len = r.u32("status.message")? as usize;
    let message = r.text(message_len, MAX_STATUS_MESSAGE, "status.message")?;
    Ok(Status::new(code, message).with_blame(blame).with_executed(executed).with_details(r.rest()))
}
