//! The receiver of what a link delivers, and of the link's end.

use std::fmt;

use bytes::{Bytes, BytesMut};

use super::BoxFuture;
use crate::proto::wire::{Frames, Header, WireError};

/// The receiver of what a link delivers. Calls come one at a time, from the link's own task or from a caller that
/// [polls](super::Link::busy_poll). None comes after [`closed`](Self::closed). The link keeps the handler until then, or until
/// its task is dropped with the runtime. A link that sends something after that keeps it until it has no socket any more.
pub trait LinkHandler: Send + Sync {
    /// Receives a frame. `Err`: the peer broke the protocol. The handler has then closed the connection, and the link
    /// delivers no more.
    ///
    /// A payload shorter than [`SHORT_PAYLOAD`](super::SHORT_PAYLOAD) must lie in an allocation of at most [`SHORT_PAYLOADS_SHARE`](super::SHORT_PAYLOADS_SHARE) bytes,
    /// because applications keep views of it. Several payloads may share the allocation: one copy of all that a read
    /// has brought costs less than one for each byte string.
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError>;

    /// Receives frames that have arrived one after the other, and drops those after an invalid one. Many at once are
    /// cheaper than one at a time. The handler calls `frames.next()` under a lock, so it must only split off the next
    /// frame.
    fn receive_all(&self, frames: &mut dyn Iterator<Item = (Header, Bytes)>) -> Result<(), WireError> {
        for (header, payload) in frames {
            self.receive(header, payload)?;
        }
        Ok(())
    }

    /// Receives frames that lie one after the other in memory. This is cheapest.
    fn receive_frames(&self, frames: &mut Frames) -> Result<(), WireError> {
        self.receive_all(frames)
    }

    /// Returns the buffer for the payload of a FRAGMENT, before it is read. `Some`: the link appends `header.len` bytes
    /// and passes the buffer to [`filled`](Self::filled). `None`: the link passes the payload to
    /// [`receive`](Self::receive). A link that has the payload in memory already calls that without asking.
    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        let _ = header;
        Ok(None)
    }

    /// Takes the buffer from [`buffer`](Self::buffer) back, with the payload appended.
    fn filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        self.receive(header, buffer.freeze())
    }

    /// Receives the bytes of a message that was [pulled](super::Link::pull). `None`: there is no memory for it, and the peer
    /// has to send it.
    fn pulled(&self, seq: u32, whole: Option<Bytes>) -> Result<(), WireError> {
        let _ = (seq, whole);
        Ok(())
    }

    /// Returns a future to wait for before more is delivered, if this side has no memory for it now. A link asks before it
    /// takes more from the network.
    fn pause(&self) -> Option<BoxFuture<()>> {
        None
    }

    /// Called when everything that had arrived has been delivered, so that answers to it can be sent together.
    fn batch_end(&self) {}

    /// Called when the memory of the link's receive buffers has changed, with its size in bytes. A [buffer](Self::buffer) of the
    /// handler does not count, nor the few KiB that every link has. When the link ends, it has freed them.
    fn holds(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Called when the link waits for the rest of a frame.
    fn amid_frame(&self) {}

    /// Called when there is room to send again.
    fn writable(&self) {}

    /// Called when the link has ended: nothing more arrives or is sent.
    fn closed(&self, end: LinkEnd);
}

/// The reason why a link ended.
#[derive(Clone, Debug)]
pub struct LinkEnd {
    /// Whether the link failed. False if the peer ended it in order, between two frames.
    pub failed: bool,
    /// Whether the peer broke the protocol. This ends the session, whichever link it is, and the peer is told so.
    pub malformed: bool,
    /// The observed problem, and what to do about it.
    pub detail: String,
}

impl LinkEnd {
    /// Returns the end of a link that the peer closed in order.
    pub fn orderly() -> Self {
        Self { failed: false, malformed: false, detail: "the peer closed the connection".into() }
    }

    /// Returns the end of a link whose peer sent a malformed or forbidden frame.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self { failed: true, malformed: true, detail: detail.into() }
    }

    /// Returns the end of a link that failed.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self { failed: true, malformed: false, detail: detail.into() }
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}
