//! The short frames: cancelling, draining, credits, pings, closing (WIRE.md sections 5.3 to 6).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};
use super::write::{MAX_TEXT, put_text};

/// CANCEL: the caller no longer waits. The call is in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// 0: dropped; 1: its deadline passed.
    pub reason: u8,
}

impl Cancel {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.reason);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let reason = r.u8("cancel.reason")?;
        r.finish("cancel")?;
        Ok(Self { reason })
    }
}

/// GOAWAY: calls after this one are refused. Sent twice: first with the highest number there is, so that the peer
/// stops, then with the highest call that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goaway {
    /// The highest call that is, or will be, answered.
    pub last_call: u64,
    /// Why, for a person.
    pub reason: String,
}

impl Goaway {
    /// Appends the payload; the reason is cut to 512 bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.last_call);
        put_text(out, &self.reason);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let last_call = r.u64("goaway.last_call")?;
        let len = r.remaining();
        Ok(Self { last_call, reason: r.text(len, MAX_TEXT, "goaway.reason")? })
    }
}

/// DONE: the described end of a message has been read, or will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number of the message that described it.
    pub seq: u32,
    /// [`READ`](Self::READ), or that it must be sent in fragments.
    pub outcome: u8,
}

impl Done {
    /// It was read whole.
    pub const READ: u8 = 0;

    /// It was not, and must be sent.
    pub const SEND: u8 = 1;

    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.seq);
        out.put_u8(self.outcome);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let done = Self { seq: r.u32("done.seq")?, outcome: r.u8("done.outcome")? };
        r.finish("done")?;
        if done.outcome > Self::SEND {
            return Err(WireError::new("done.outcome", "is unknown"));
        }
        Ok(done)
    }
}

/// The purpose of a CREDIT frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CreditOp {
    /// The header's grant is news.
    Grant = 0,
    /// Give back up to `count` unused credits.
    Reclaim = 1,
    /// `count` credits are given back.
    Forfeit = 2,
}

/// CREDIT: its header's grant, or giving credits back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The purpose.
    pub op: CreditOp,
    /// How many.
    pub count: u32,
}

impl Credit {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.op as u8);
        out.put_u32_le(self.count);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let op = match r.u8("credit.op")? {
            0 => CreditOp::Grant,
            1 => CreditOp::Reclaim,
            2 => CreditOp::Forfeit,
            _ => return Err(WireError::new("credit.op", "is unknown")),
        };
        let credit = Self { op, count: r.u32("credit.count")? };
        r.finish("credit")?;
        Ok(credit)
    }
}

/// PING, and the PONG that answers it, by the same link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The PING's own choice; the PONG repeats it.
    pub token: u64,
}

impl Ping {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.token);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let token = r.u64("ping.token")?;
        r.finish("ping")?;
        Ok(Self { token })
    }
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CloseCode {
    /// Nothing is wrong; the sender is done.
    Done = 0,
    /// The peer broke the protocol.
    Protocol = 1,
    /// No version in common.
    Version = 2,
    /// The server takes no more connections.
    Overloaded = 3,
    /// The sender requires a transport (RDMA, say) that could not be had.
    Required = 4,
    /// The peer did not answer in time.
    Silent = 5,
    /// Something is wrong with the sender itself.
    Internal = 6,
}

/// CLOSE: the last frame on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// Why.
    pub code: CloseCode,
    /// Why, for a person.
    pub reason: String,
}

impl Close {
    /// Appends the payload; the reason is cut to 512 bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.code as u8);
        put_text(out, &self.reason);
    }

    /// Reads the payload. An unknown code is an internal one: the reason says more.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let code = match r.u8("close.code")? {
            0 => CloseCode::Done,
            1 => CloseCode::Protocol,
            2 => CloseCode::Version,
            3 => CloseCode::Overloaded,
            4 => CloseCode::Required,
            5 => CloseCode::Silent,
            _ => CloseCode::Internal,
        };
        let len = r.remaining();
        Ok(Self { code, reason: r.text(len, MAX_TEXT, "close.reason")? })
    }
}
