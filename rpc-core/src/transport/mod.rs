//! What a transport is to the rest of farcall.
//!
//! A [`Link`] moves frames between two peers, in order, and knows nothing of calls. A session begins on a *stream*
//! link (TCP, or the in-memory one) and may be moved to another kind by an [`Upgrade`] (RDMA). The connection above
//! decides what is sent next; a link takes as much of it as it has room for, from the thread that has something to
//! send, and delivers what arrives from a task of its own.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::class::TrafficClass;
use crate::proto::inbox::Described;
use crate::proto::message::{Expose, Frame};
use crate::proto::wire::{Frames, Header, WireError};

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
pub mod memory;
mod reason;
pub mod spin;

pub use reason::{Reason, Unavailable};

/// One way to move frames between two peers, in order, without loss or repetition until it fails.
pub trait Link: Send + Sync + fmt::Debug + 'static {
    /// What it is, for people and for counters.
    fn description(&self) -> &Description;

    /// The longest payload of one frame that may be sent, in bytes.
    fn max_frame(&self) -> usize;

    /// Starts to deliver to `handler`: called once. What arrived before is delivered then.
    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>);

    /// Marks the packets that it sends from now on, as the transport is configured to for connections of this class. Called
    /// before anything is sent by a client, and when that has said what it wants by a server. What can't be marked is sent
    /// without.
    fn mark(&self, _: TrafficClass) {}

    /// Takes frames from `source` for as long as it has room, and sends them. Never blocks. When it stops for lack
    /// of room it calls [`LinkHandler::writable`] once there is some again. A failure is not reported here but to
    /// [`LinkHandler::closed`].
    ///
    /// The connection calls this from any thread, but never from two at once.
    fn send(&self, source: &mut dyn FrameSource);

    /// Sends what it has taken, then ends the link; the peer sees an orderly end. Returns at once; the handler's
    /// [`closed`](LinkHandler::closed) says when it is done, or was given up because the peer does not read.
    fn close(&self);

    /// What it has moved so far.
    fn counters(&self) -> Counters;

    /// Readies the end of a long message, so that the peer can read it there instead of having it sent: memory that
    /// it can [expose](crate::proto::message::Expose), with the bytes of `pieces` one after the other. A piece that
    /// lies in such memory already is given back as it is if it is the only one; else they are copied. `None`: they are
    /// too few to be worth it, or there is no memory, and they are to be sent. Called from any thread, without a lock.
    fn stage(&self, _: Direction, _pieces: &[Bytes]) -> Option<Bytes> {
        None
    }

    /// Reads the rest of a message that the peer has described, and says so to [`LinkHandler::pulled`], unless the
    /// link ends before. Never blocks.
    fn pull(&self, _: Direction, described: Described) {
        // A link that exposes nothing is described nothing: the connection has closed before this.
        drop(described);
    }

    /// The peer has read what the frame of this number described, or will not: it is exposed no longer.
    fn revoke(&self, _seq: u32, _was_read: bool) {}

    /// Polls for answers, for some microseconds at most, on the thread of a caller that waits for one, and delivers them as the
    /// link's own task would. Never waits for another thread, and leaves what would run a handler to that task.
    ///
    /// `waited`: for how long the caller has polled; zero when it begins. A link may answer that with
    /// [`BusyPoll::Again`] without having polled. A caller may stop at any time without saying so.
    fn busy_poll(&self, waited: Duration) -> BusyPoll {
        let _ = waited;
        BusyPoll::Sleep
    }

    /// Whether others can't read what it moves. A session is not moved from such a link to one that is not.
    fn is_encrypted(&self) -> bool {
        false
    }
}

/// What a caller is to do that has [polled](Link::busy_poll) its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyPoll {
    /// See what has come: there were answers.
    Found,
    /// Poll again, after other tasks have had their turn: nothing was found yet.
    Again,
    /// Sleep until it is woken: more polling does not pay.
    Sleep,
}

/// Which way a message goes. Memory for the two is budgeted apart, so that requests that wait for answers do not keep
/// these from arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From client to server.
    Request,
    /// From server to client.
    Response,
}

/// What a link has moved since it began, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Bytes handed to the network.
    pub bytes_sent: u64,
    /// Bytes taken from the network.
    pub bytes_received: u64,
    /// Payload bytes copied between the network's buffer and the message's, beyond the one copy that the transport
    /// can't do without.
    pub bytes_copied: u64,
}

/// What a link is.
#[derive(Clone, Debug)]
pub struct Description {
    /// The transport's name: `tcp`, `rdma`, `memory`.
    pub transport: &'static str,
    /// The local network address, where there is one.
    pub local: Option<SocketAddr>,
    /// The peer's network address, where there is one.
    pub peer: Option<SocketAddr>,
    /// The device and what else distinguishes it, as in `rxe0 port 1 gid 1`; empty for TCP.
    pub device: String,
    /// Whether a caller that has sent the only call under way is to [poll](Link::busy_poll) at once, before it is woken by
    /// anything.
    pub busy_polls: bool,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.bytes_copied += other.bytes_copied;
    }
}

/// Where a link gets what it sends.
pub trait FrameSource {
    /// Whether nothing waits: a link may ask before it gets ready to encode a frame. False where that is not known.
    fn is_empty(&self) -> bool {
        false
    }

    /// The next frame, with a payload of at most `max_payload` bytes; its header is complete but for `grant`.
    fn next(&mut self, max_payload: usize) -> Option<Frame>;

    /// Returns the next frame for a link whose peer can read this side's memory: the frame may describe what `expose` has exposed just
    /// before.
    fn next_exposing(&mut self, max_payload: usize, expose: &mut dyn Expose) -> Option<Frame> {
        let _ = expose;
        self.next(max_payload)
    }

    /// For a link whose `grant` is always 0 and which copies what is short: gives frames that are next, encoded one behind the
    /// other, in exchange for `empty`, of whose memory others are made; none has a payload of more than `max_payload` bytes.
    /// False: there is nothing else. True: there may be; if this has given none, from [`next`](Self::next).
    fn next_small_frames(&mut self, empty: &mut BytesMut, max_payload: usize) -> bool {
        let _ = (empty, max_payload);
        true
    }
}

pub use farcall_proto::payload::SHORT_PAYLOAD;

/// How much memory a short payload that is kept may keep with it.
pub const SHORT_PAYLOADS_SHARE: usize = 8192;

/// What a link delivers to. Calls come one at a time, from the link's own task or from a caller that
/// [polls](Link::busy_poll); none after [`closed`](Self::closed), until which a link keeps it, or until its task is dropped with
/// its runtime.
pub trait LinkHandler: Send + Sync {
    /// A frame has arrived. `Err`: the peer broke the protocol; the handler has closed the connection and the link
    /// delivers no more.
    ///
    /// Applications keep views of what is short ([`SHORT_PAYLOAD`]): that lies in an allocation of
    /// [`SHORT_PAYLOADS_SHARE`] at most, which it may share with others. One copy for all that one read has brought costs
    /// less than one for each byte string in them.
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError>;

    /// Takes in frames that have arrived one after the other, of which those behind a wrong one are left. It is cheaper
    /// to take in many at once. `frames` is asked for the next one under a lock, and only cuts it off.
    fn receive_all(&self, frames: &mut dyn Iterator<Item = (Header, Bytes)>) -> Result<(), WireError> {
        for (header, payload) in frames {
            self.receive(header, payload)?;
        }
        Ok(())
    }

    /// Takes in frames that lie one behind the other, which is cheapest.
    fn receive_frames(&self, frames: &mut Frames) -> Result<(), WireError> {
        self.receive_all(frames)
    }

    /// Asks where the payload of a FRAGMENT belongs, before it is read. `Some`: the link appends `header.len` bytes
    /// to it and gives it to [`filled`](Self::filled). `None`: it goes to [`receive`](Self::receive), as does that of a link
    /// that does not ask because it has the payload in memory.
    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError>;

    /// Takes back what [`buffer`](Self::buffer) gave, with the payload appended.
    fn filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError>;

    /// A message that was to be [pulled](Link::pull) is whole, with these bytes; `None`: there is no memory for it, and
    /// the peer has to send it.
    fn pulled(&self, seq: u32, whole: Option<Bytes>) -> Result<(), WireError> {
        let _ = (seq, whole);
        Ok(())
    }

    /// All that had arrived has been delivered: answers to it can leave together now.
    fn batch_end(&self);

    /// There is room to send again.
    fn writable(&self);

    /// The link has ended: nothing more arrives, nothing more leaves.
    fn closed(&self, end: LinkEnd);
}

/// Why a link ended.
#[derive(Clone, Debug)]
pub struct LinkEnd {
    /// `false`: the peer ended it in order, between two frames.
    pub failed: bool,
    /// The peer broke the protocol, which ends the session, whichever link it is: it is told so.
    pub malformed: bool,
    /// What was seen and what to do about it.
    pub detail: String,
}

impl LinkEnd {
    /// The peer ended the link in order.
    pub fn orderly() -> Self {
        Self { failed: false, malformed: false, detail: "the peer closed the connection".into() }
    }

    /// The peer sent what is no frame, or what it may not.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self { failed: true, malformed: true, detail: detail.into() }
    }

    /// The link failed.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self { failed: true, malformed: false, detail: detail.into() }
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// A boxed future, where a trait must be used as an object and the future is rare.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A link that is not proven yet, and what to tell the peer of it.
pub type PreparedUpgrade = (Box<dyn Candidate>, Bytes);

/// Another kind of link that a session can be moved to.
///
/// Client and server go through the same steps, each with its own [`Candidate`]: the client [`offer`](Self::offer)s,
/// the server [`answer`](Self::answer)s, both [`complete`](Candidate::complete).
pub trait Upgrade: Send + Sync + fmt::Debug + 'static {
    /// Its name in HELLO and OFFER: at most 255 bytes.
    fn name(&self) -> &'static str;

    /// What HELLO says of it: data for the peer, or why this side can't. Of more than 65,535 bytes none is said, and sessions stay
    /// on the stream link.
    fn announce(&self) -> BoxFuture<Result<Bytes, Unavailable>>;

    /// Client: prepares a link for a connection of this class, and what to say of it in an OFFER. `announced` is from the
    /// server's HELLO.
    fn offer(
        &self,
        announced: Bytes,
        stream: &Description,
        class: TrafficClass,
    ) -> BoxFuture<Result<PreparedUpgrade, Unavailable>>;

    /// Server: prepares a link as the OFFER says, ready to receive, and what to say in the ANSWER.
    fn answer(
        &self,
        offer: Bytes,
        stream: &Description,
        class: TrafficClass,
    ) -> BoxFuture<Result<PreparedUpgrade, Unavailable>>;
}

/// A link that is not proven yet. Dropping it gives it up.
pub trait Candidate: Send {
    /// Finishes the link (the client with the data of the ANSWER, the server with none), exchanges probes, and gives
    /// the link once the peer's probe has arrived, within a time limit of its own. Frames that arrive after the probe
    /// wait for [`Link::start`].
    fn complete(
        self: Box<Self>,
        epoch: u32,
        answer: Option<Bytes>,
    ) -> BoxFuture<Result<Arc<dyn Link>, Unavailable>>;
}
