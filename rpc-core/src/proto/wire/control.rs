//! The short frames: cancelling, stream control, draining, credits, moving between links, closing (WIRE.md
//! sections 5.3 to 7).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};
use super::write::{put_name, put_text};

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

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// Every item was sent.
    Completed = 0,
    /// The sender or the receiver gave up.
    Cancelled = 1,
    /// The deadline passed.
    Deadline = 2,
    /// A status says why.
    Status = 3,
}

/// END: a stream ended, and why; a stream without one is cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub reason: EndReason,
    /// How many items were sent before it.
    pub items: u64,
    /// The status, as in a RESPONSE, if that is the reason; else empty.
    pub status: Bytes,
}

impl End {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.reason as u8);
        out.put_u64_le(self.items);
        out.put_slice(&self.status);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let reason = match r.u8("end.reason")? {
            0 => EndReason::Completed,
            1 => EndReason::Cancelled,
            2 => EndReason::Deadline,
            3 => EndReason::Status,
            _ => return Err(WireError::new("end.reason", "is unknown")),
        };
        let end = Self { reason, items: r.u64("end.items")?, status: r.rest() };
        if reason != EndReason::Status && !end.status.is_empty() {
            return Err(WireError::new("end.status", "is not the reason"));
        }
        Ok(end)
    }
}

/// WINDOW: how much of a stream the receiver takes, in all since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        Ok(Self { last_call, reason: r.string(len, "goaway.reason")? })
    }
}

/// DONE: the described attachment of a message has been read, or never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number of the message that described it.
    pub seq: u32,
    /// 0: read whole; 1: given up.
    pub outcome: u8,
}

impl Done {
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
        Ok(done)
    }
}

/// What a CREDIT frame is about.
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
    /// What it is about.
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

/// OFFER: the client proposes to move the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The attempt: counted up from 1, never used again.
    pub epoch: u32,
    /// What to move to, as named in HELLO.
    pub name: String,
    /// The transport's own proposal.
    pub data: Bytes,
}

impl Offer {
    /// Appends the payload.
    ///
    /// # Panics
    ///
    /// If the name has more than 255 bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.epoch);
        put_name(out, &self.name);
        out.put_slice(&self.data);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let epoch = r.u32("offer.epoch")?;
        let name_len = usize::from(r.u8("offer.name")?);
        Ok(Self { epoch, name: r.string(name_len, "offer.name")?, data: r.rest() })
    }
}

/// ANSWER: the server is ready on the new link. A server that can't sends DOWN instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The epoch of the OFFER.
    pub epoch: u32,
    /// The transport's own answer.
    pub data: Bytes,
}

impl Answer {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.epoch);
        out.put_slice(&self.data);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        Ok(Self { epoch: r.u32("answer.epoch")?, data: r.rest() })
    }
}

/// PROBE: sent first on a new link; its payload is filled up to twice the path MTU, so that it shows what a
/// shorter one would not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The epoch it belongs to.
    pub epoch: u32,
    /// How long the payload is, these eight bytes and the filling together. Below eight there is no filling.
    pub len: u32,
}

impl Probe {
    /// Appends the payload, filling and all.
    pub fn encode(&self, out: &mut BytesMut) {
        let len = self.len.max(8);
        out.put_u32_le(self.epoch);
        out.put_u32_le(len);
        out.extend((0..len - 8).map(|i| i as u8));
    }

    /// Reads the payload and checks that the filling arrived as it was sent.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let whole = payload.len();
        let mut r = Reader::new(payload);
        let probe = Self { epoch: r.u32("probe.epoch")?, len: r.u32("probe.len")? };
        if whole != probe.len as usize {
            return Err(WireError::new("probe.len", "is not the length that arrived"));
        }
        if r.rest().iter().enumerate().any(|(i, b)| *b != i as u8) {
            return Err(WireError::new("probe.filling", "is not what was sent"));
        }
        Ok(probe)
    }
}

/// UP: no session frame follows on this link; the next is on the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Up {
    /// The epoch of the new link.
    pub epoch: u32,
    /// The number of the first session frame there.
    pub first_seq: u32,
}

impl Up {
    /// Appends the payload.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.epoch);
        out.put_u32_le(self.first_seq);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let up = Self { epoch: r.u32("up.epoch")?, first_seq: r.u32("up.first_seq")? };
        r.finish("up")?;
        Ok(up)
    }
}

/// A message whose described part was not read before the link died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The number of the message.
    pub seq: u32,
}

/// DOWN: the sender has stopped using the link of this epoch, for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// The epoch.
    pub epoch: u32,
    /// The last session frame the sender has taken in; what went by the lost link after it is sent again.
    pub rx_seq: u32,
    /// Why: the number of a reason (WIRE.md section 4.2).
    pub reason: u8,
    /// Messages whose described part must be sent again.
    pub pulls: Vec<Pull>,
    /// What was seen, for the other side's log.
    pub detail: String,
}

impl Down {
    /// The most pulls there can be: with them the frame is within the smallest `max_frame`.
    pub const MAX_PULLS: usize = 125;

    /// Appends the payload; the detail is cut to 512 bytes.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PULLS`](Self::MAX_PULLS): no side has so many described messages open.
    pub fn encode(&self, out: &mut BytesMut) {
        assert!(self.pulls.len() <= Self::MAX_PULLS, "more pulls than described messages");
        out.put_u32_le(self.epoch);
        out.put_u32_le(self.rx_seq);
        out.put_u8(self.reason);
        out.put_u16_le(self.pulls.len() as u16);
        for pull in &self.pulls {
            out.put_u32_le(pull.seq);
        }
        put_text(out, &self.detail);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let (epoch, rx_seq, reason) = (r.u32("down.epoch")?, r.u32("down.rx_seq")?, r.u8("down.reason")?);
        let count = usize::from(r.u16("down.pulls")?);
        if count * 4 > r.remaining() {
            return Err(WireError::new("down.pulls", "are more than the frame can hold"));
        }
        let mut pulls = Vec::with_capacity(count);
        for _ in 0..count {
            pulls.push(Pull { seq: r.u32("down.pull")? });
        }
        let len = r.remaining();
        Ok(Self { epoch, rx_seq, reason, pulls, detail: r.string(len, "down.detail")? })
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
    /// What the sender requires (RDMA, say) could not be had.
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
        Ok(Self { code, reason: r.string(len, "close.reason")? })
    }
}
