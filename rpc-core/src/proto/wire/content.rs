//! The payload of REQUEST, RESPONSE and ITEM: a fixed prefix, metadata, attachment lengths, body, attachments
//! (WIRE.md section 5.2).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};
use crate::payload::Payload;
use crate::status::{Blame, Code, Executed, Status};

/// The length of the fixed part of a REQUEST, before the metadata.
pub const REQUEST_PREFIX: usize = 20;

/// What a REQUEST says besides its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The index of a BIND.
    pub service: u16,
    /// The index of a method in that BIND.
    pub method: u16,
    /// 1 for a first attempt.
    pub attempt: u8,
    /// How long the caller still waits, in microseconds; 0: for ever.
    pub remaining_us: u64,
}

/// What a RESPONSE's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The result, in the service's codec.
    Ok = 0,
    /// The application's error, in the service's codec.
    Err = 1,
    /// A status, in the form of [`encode_status`].
    Status = 2,
}

/// What a RESPONSE says besides its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// What the body is.
    pub verdict: Verdict,
}

/// Metadata, body and attachments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The metadata block; empty in this version, and not looked at.
    pub metadata: Bytes,
    /// Body and attachments.
    pub payload: Payload,
}

impl RequestHead {
    /// Appends all that goes before the body.
    pub fn encode(&self, content: &Content, out: &mut BytesMut) {
        out.put_u16_le(self.service);
        out.put_u16_le(self.method);
        out.put_u8(self.attempt);
        out.put_u8(0);
        out.put_u16_le(content.payload.attachments.len() as u16);
        out.put_u64_le(self.remaining_us);
        content.encode_lengths(out);
    }

    /// Reads a whole REQUEST.
    pub fn decode(message: Bytes) -> Result<(Self, Content), WireError> {
        let mut r = Reader::new(message);
        let service = r.u16("request.service")?;
        let method = r.u16("request.method")?;
        let attempt = r.u8("request.attempt")?;
        reserved(&mut r, "request.reserved")?;
        let attachments = r.u16("request.attachments")?;
        let remaining_us = r.u64("request.remaining")?;
        let content = Content::decode(r, attachments)?;
        Ok((Self { service, method, attempt, remaining_us }, content))
    }
}

impl ResponseHead {
    /// Appends all that goes before the body.
    pub fn encode(&self, content: &Content, out: &mut BytesMut) {
        out.put_u8(self.verdict as u8);
        out.put_u8(0);
        out.put_u16_le(content.payload.attachments.len() as u16);
        content.encode_lengths(out);
    }

    /// Reads a whole RESPONSE.
    pub fn decode(message: Bytes) -> Result<(Self, Content), WireError> {
        let mut r = Reader::new(message);
        let verdict = match r.u8("response.verdict")? {
            0 => Verdict::Ok,
            1 => Verdict::Err,
            2 => Verdict::Status,
            _ => return Err(WireError::new("response.verdict", "is unknown")),
        };
        reserved(&mut r, "response.reserved")?;
        let attachments = r.u16("response.attachments")?;
        Ok((Self { verdict }, Content::decode(r, attachments)?))
    }
}

fn reserved(r: &mut Reader, what: &'static str) -> Result<(), WireError> {
    if r.u8(what)? == 0 { Ok(()) } else { Err(WireError::new(what, "is not zero")) }
}

/// A metadata block of this length or more has its length in four bytes after this one.
const LONG_METADATA: u8 = 0xff;

impl Content {
    fn encode_lengths(&self, out: &mut BytesMut) {
        out.put_u32_le(self.payload.body_len() as u32);
        if self.metadata.len() < usize::from(LONG_METADATA) {
            out.put_u8(self.metadata.len() as u8);
        } else {
            out.put_u8(LONG_METADATA);
            out.put_u32_le(self.metadata.len() as u32);
        }
        out.put_slice(&self.metadata);
        for attachment in &self.payload.attachments {
            out.put_u32_le(attachment.len() as u32);
        }
    }

    fn decode(mut r: Reader, attachments: u16) -> Result<Self, WireError> {
        let body_len = r.u32("content.body")? as usize;
        let metadata_len = match r.u8("content.metadata")? {
            LONG_METADATA => r.u32("content.metadata")? as usize,
            short => usize::from(short),
        };
        let metadata = r.bytes(metadata_len, "content.metadata")?;
        let count = usize::from(attachments);
        if count * 4 > r.remaining() {
            return Err(WireError::new("content.attachments", "are more than the message can hold"));
        }
        let mut lengths = Vec::with_capacity(count);
        for _ in 0..count {
            lengths.push(r.u32("content.attachments")? as usize);
        }
        let body = r.bytes(body_len, "content.body")?;
        let attachments =
            lengths.into_iter().map(|len| r.bytes(len, "content.attachment")).collect::<Result<_, _>>()?;
        r.finish("content")?;
        Ok(Self { metadata, payload: Payload::new(body, attachments) })
    }
}

/// A status message longer than this is cut when it is sent.
const MAX_STATUS_MESSAGE: usize = 16 * 1024;

/// A status as the body of a RESPONSE.
pub fn encode_status(status: &Status) -> Bytes {
    let mut message = status.message();
    if message.len() > MAX_STATUS_MESSAGE {
        message = &message[..message.floor_char_boundary(MAX_STATUS_MESSAGE)];
    }
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

/// Reads the body of a RESPONSE that is a status.
pub fn decode_status(body: Bytes) -> Result<Status, WireError> {
    let mut r = Reader::new(body);
    let code = Code::from_wire(r.u8("status.code")?);
    let blame = Blame::from_wire(r.u8("status.blame")?);
    let executed = Executed::from_wire(r.u8("status.executed")?);
    reserved(&mut r, "status.reserved")?;
    let message_len = r.u32("status.message")? as usize;
    let message = r.string(message_len, "status.message")?;
    Ok(Status::new(code, message).with_blame(blame).with_executed(executed).with_details(r.rest()))
}
