//! Moving between links: what is said before, at, and after it (WIRE.md section 7).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};
use super::write::{MAX_TEXT, put_name, put_text};

/// The longest data of an [`Offer`] or [`Answer`], in bytes. With it the frame is within the smallest `max_frame`.
pub const MAX_SWITCH_DATA: usize = 512;

/// Reads the data of an OFFER or ANSWER, to the end of the frame. The data may have to wait, and must not keep a longer
/// buffer that the frame is in, so this copies them.
fn read_data(r: Reader, what: &'static str) -> Result<Bytes, WireError> {
    if r.remaining() > MAX_SWITCH_DATA {
        return Err(WireError::new(what, "are longer than 512 bytes"));
    }
    Ok(Bytes::copy_from_slice(&r.rest()))
}

/// OFFER: the client proposes to move the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The attempt: counted up from 1, never used again.
    pub epoch: u32,
    /// The link to move to, as named in HELLO.
    pub name: String,
    /// The transport's own proposal, of up to [`MAX_SWITCH_DATA`] bytes.
    pub data: Bytes,
}

impl Offer {
    /// Appends the payload.
    ///
    /// # Panics
    ///
    /// If the name has more than 255 bytes, or there are too many data.
    pub fn encode(&self, out: &mut BytesMut) {
        assert!(self.data.len() <= MAX_SWITCH_DATA, "the caller keeps data to 512 bytes");
        out.put_u32_le(self.epoch);
        put_name(out, &self.name);
        out.put_slice(&self.data);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let epoch = r.u32("offer.epoch")?;
        let name_len = usize::from(r.u8("offer.name")?);
        let name = r.string(name_len, "offer.name")?;
        Ok(Self { epoch, name, data: read_data(r, "offer.data")? })
    }
}

/// ANSWER: the server is ready on the new link. A server that can't sends DOWN instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The epoch of the OFFER.
    pub epoch: u32,
    /// The transport's own answer, of up to [`MAX_SWITCH_DATA`] bytes.
    pub data: Bytes,
}

impl Answer {
    /// Appends the payload.
    ///
    /// # Panics
    ///
    /// If there are too many data.
    pub fn encode(&self, out: &mut BytesMut) {
        assert!(self.data.len() <= MAX_SWITCH_DATA, "the caller keeps data to 512 bytes");
        out.put_u32_le(self.epoch);
        out.put_slice(&self.data);
    }

    /// Reads the payload.
    pub fn decode(payload: Bytes) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let epoch = r.u32("answer.epoch")?;
        Ok(Self { epoch, data: read_data(r, "answer.data")? })
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pull {
    /// The number of the message.
    pub seq: u32,
}

/// DOWN: the sender has stopped using the link of this epoch, for good.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Down {
    /// The epoch.
    pub epoch: u32,
    /// The last session frame the sender has taken in; what went by the lost link after it is sent again.
    pub rx_seq: u32,
    /// Why: the number of a reason (WIRE.md section 4.2).
    pub reason: u8,
    /// Messages whose described part must be sent again.
    pub pulls: Vec<Pull>,
    /// The observation, for the other side's log.
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
        if count > Self::MAX_PULLS || count * 4 > r.remaining() {
            return Err(WireError::new("down.pulls", "are more than there can be"));
        }
        let mut pulls = Vec::with_capacity(count);
        for _ in 0..count {
            pulls.push(Pull { seq: r.u32("down.pull")? });
        }
        let len = r.remaining();
        Ok(Self { epoch, rx_seq, reason, pulls, detail: r.text(len, MAX_TEXT, "down.detail")? })
    }
}
