//! The interface between a transport and the rest of farcall.
//!
//! A [`Link`] moves frames between two peers, in order, and knows nothing of calls. A session begins on a *stream* link
//! (TCP, or the in-memory one). An [`Upgrade`] may move it to another kind of link (RDMA). The connection above decides
//! what is sent next. A link takes as many frames as it has room for, on the thread that has something to send. It
//! delivers what arrives from its own task.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{oneshot, watch};

use crate::class::TrafficClass;
use crate::proto::inbox::Described;
use crate::proto::message::{Bulk, Expose, Frame};

mod atomics;
mod grant;
mod handler;
mod identity;
pub mod memory;
mod reason;
mod round_trip;
mod seal;
pub mod spin;
mod upgrade;
pub mod words;

pub use atomics::{Atomic, DeviceAtomics, DeviceId};
pub use grant::{DirectMemory, Grant, GrantTerms, Hold, Registered};
pub use handler::{LinkEnd, LinkHandler};
pub use identity::{Identity, PeerProcess};
pub use reason::{Reason, Unavailable};
pub use round_trip::RoundTrip;
pub use seal::{Attempt, Cipher, Key, Secret, TAG_LEN};
pub use upgrade::{Candidate, PreparedUpgrade, Upgrade};
pub use words::{Exportable, Words};

/// A path that moves frames between two peers, in order, without loss or repetition until it fails.
pub trait Link: Send + Sync + fmt::Debug + 'static {
    /// Returns the description of the link, for people and for counters.
    fn description(&self) -> &Description;

    /// Returns the longest payload of one frame that may be sent, in bytes.
    fn max_frame(&self) -> usize;

    /// Starts to deliver to `handler`, beginning with what has arrived already. Called once.
    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>);

    /// Marks the packets that the link sends from now on, as the transport is configured for connections of this class.
    /// A client calls this before it sends anything, a server once the client has announced the class. Packets that
    /// can't be marked are sent unmarked.
    fn mark(&self, _: TrafficClass) {}

    /// Takes frames from `source` while it has room, and sends them. Never blocks. If it stops for lack of room, it
    /// calls [`LinkHandler::writable`] once there is room again. It reports failures to [`LinkHandler::closed`], not
    /// here.
    ///
    /// The connection calls this from any thread, but never from two at once.
    fn send(&self, source: &mut dyn FrameSource);

    /// Returns how much memory the frames keep that the link has taken and not sent yet, in bytes. A fragment keeps its whole
    /// message. 0 if the link has no such memory of its own.
    fn unsent(&self) -> usize {
        0
    }

    /// Sends the frames that it has taken, then ends the link; the peer sees an orderly end. Returns at once. The link
    /// calls [`closed`](LinkHandler::closed) when it is done, or has given up because the peer does not read.
    fn close(&self);

    /// Ends the link now. Frames that it has taken may be lost. For peers that keep this side waiting.
    fn abort(&self) {
        self.close();
    }

    /// Returns what the link has moved so far.
    fn counters(&self) -> Counters;

    /// Returns how long a PING by this link took to the peer and back, and sends another if that was a while ago. `None`: the link has sent
    /// none, or leaves that to its session.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Returns how many more messages the peer has room for. `None`: the link does not count them.
    fn credits(&self) -> Option<u32> {
        None
    }

    /// Prepares the end of a long message, which is `pieces` one after the other, so that the link can
    /// [expose](crate::proto::message::Expose) it. A link that does not encrypt copies it, unless it is a single piece that lies
    /// in memory that can be exposed. A link that encrypts makes an encrypted copy. [`Bulk::None`]: the bytes are too few to be
    /// worth it, or there is no memory, so they must be sent. Called from any thread, without a lock.
    fn stage(&self, _: Direction, _pieces: &[Bytes]) -> Bulk {
        Bulk::None
    }

    /// Reads the rest of a message that the peer has described, and reports it to [`LinkHandler::pulled`] unless the
    /// link ends first. Never blocks.
    fn pull(&self, _: Direction, described: Described) {
        // A link that exposes nothing gets no descriptions, because the connection rejects them.
        drop(described);
    }

    /// Returns how much has been read of the message that the frame of this number described. Any unit will do: it grows as
    /// reading goes on.
    fn pulled_so_far(&self, _seq: u32) -> usize {
        0
    }

    /// Ends the exposure for the frame of this number, because the peer has read what it described, or will not.
    fn revoke(&self, _seq: u32, _was_read: bool) {}

    /// Lets the peer use memory by itself, without this side's program. Resolves to `None` if the link can't do that, or has no room for
    /// another grant.
    fn grant(self: Arc<Self>, _memory: Words, _terms: GrantTerms) -> BoxFuture<Option<Grant>> {
        Box::pin(std::future::ready(None))
    }

    /// Lets the peer use memory that a call lends by itself, at once or not at all. The memory has this length and lies in so many
    /// pieces. The link asks for it only if it can use it. It keeps `in_effect` together with the memory, and drops it when the peer can
    /// do nothing any more by the grant. Never blocks.
    fn grant_loan(
        &self,
        _len: usize,
        _pieces: usize,
        _memory: &dyn Fn() -> Vec<DirectMemory>,
        _in_effect: watch::Sender<()>,
    ) -> Option<Grant> {
        None
    }

    /// Begins to read memory that the peer has granted by this link, from an offset on. `None`: nothing was begun. The receiver gets an
    /// error if the link fails. The link keeps a clone of the descriptor until it reads no more, even if the receiver is dropped.
    fn read_granted(
        &self,
        _descriptor: Bytes,
        _offset: usize,
        _len: usize,
    ) -> Option<oneshot::Receiver<Bytes>> {
        None
    }

    /// Begins to write to memory that the peer has granted by this link, from an offset on. The receiver hears that the bytes are there.
    /// If it gets an error, some may be, or may come as long as the peer's end of the link exists. The link keeps a clone of the
    /// descriptor as for a read.
    fn write_granted(
        &self,
        _descriptor: Bytes,
        _offset: usize,
        _bytes: Bytes,
    ) -> Option<oneshot::Receiver<()>> {
        None
    }

    /// Returns the id of the device that [registers](Self::register) memory of this process for the link. `None`: it registers none.
    fn registrar(&self) -> Option<DeviceId> {
        None
    }

    /// Registers memory of this process with the link's device. Resolves to `None` if the device can't have it.
    fn register(self: Arc<Self>, _memory: Words) -> BoxFuture<Option<Arc<dyn Registered>>> {
        Box::pin(std::future::ready(None))
    }

    /// Begins to read memory that the peer has granted by this link, from an offset on, into a range of registered memory. `None`:
    /// nothing was begun. The receiver hears that the bytes are there, and gets an error if the link fails.
    ///
    /// The link keeps `in_effect` and a clone of the descriptor, and drops them when nothing is moved any more. If the receiver is
    /// dropped, the link moves as little as it still can.
    fn read_granted_into(
        &self,
        _descriptor: Bytes,
        _offset: usize,
        _into: &dyn Registered,
        _range: Range<usize>,
        _in_effect: Box<dyn Any + Send + Sync>,
    ) -> Option<oneshot::Receiver<()>> {
        None
    }

    /// Begins to write a range of registered memory to memory that the peer has granted by this link, from an offset on. `None`: nothing
    /// was begun. The receiver hears that the bytes are there. If it gets an error, some may be, or may come as long as the peer's end
    /// of the link exists.
    ///
    /// The link keeps `in_effect` and the descriptor like [`read_granted_into`](Self::read_granted_into).
    fn write_granted_from(
        &self,
        _descriptor: Bytes,
        _offset: usize,
        _from: &dyn Registered,
        _range: Range<usize>,
        _in_effect: Box<dyn Any + Send + Sync>,
    ) -> Option<oneshot::Receiver<()>> {
        None
    }

    /// Has the peer's device change a number in memory that the peer has granted by this link. The receiver gets the number before. If it
    /// gets an error, the number may have been changed, or may be as long as the peer's end of the link exists. The link keeps a clone
    /// of the descriptor as for a read.
    fn change_granted(
        &self,
        _descriptor: Bytes,
        _offset: usize,
        _: Atomic,
    ) -> Option<oneshot::Receiver<u64>> {
        None
    }

    /// Looks once, on the caller's thread, for what the device has done of reads, writes and changes of granted memory, and tells their
    /// receivers. Waits for other threads only at locks that are held for microseconds, and runs no handler. Without it the link's
    /// own task tells them.
    ///
    /// Returns false if it has not looked, because that task must have its turn first.
    fn look(&self) -> bool {
        true
    }

    /// Returns the device that would change numbers in memory that this side grants by this link, if one would.
    fn changes_numbers(&self) -> Option<DeviceId> {
        None
    }

    /// Has that device change numbers in memory for this process, too. The link keeps `in_effect` together with the memory, and drops it
    /// when the device can change nothing any more for this process.
    fn own_atomics(
        &self,
        _memory: Words,
        _in_effect: watch::Sender<()>,
    ) -> BoxFuture<Option<Arc<dyn DeviceAtomics>>> {
        Box::pin(std::future::ready(None))
    }

    /// Polls on the thread of a caller that waits for an answer, or for the end of an operation on granted memory, for some
    /// microseconds at most. Delivers both as the link's own task would. Waits for other threads only at locks that are held for
    /// microseconds, and leaves to that task everything that would run a handler.
    ///
    /// `waited` is how long the caller has polled, and zero when it begins. A link may answer that first call with
    /// [`BusyPoll::Again`] without polling. A caller may stop at any time without notice.
    fn busy_poll(&self, waited: Duration) -> BusyPoll {
        let _ = waited;
        BusyPoll::Sleep
    }

    /// Returns who the peer is, if the link has found out before it delivers anything: by the handshake of an encrypted link, or from
    /// the kernel.
    fn identity(&self) -> Option<Arc<Identity>> {
        None
    }

    /// Whether a frame has arrived in part, so that the rest of it is due.
    fn is_amid_frame(&self) -> bool {
        false
    }

    /// Whether the link is encrypted. A session is not moved from an encrypted link to a plain one, unless both sides allow it.
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Returns a secret that only the peer has as well, once the handshake of an encrypted link is over.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    fn secret(&self) -> Result<Arc<dyn Secret>, Unavailable> {
        Err(Unavailable::new(Reason::Encrypted, "the encrypted link shares no secret"))
    }
}

/// The next step of a caller that has [polled](Link::busy_poll) its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyPoll {
    /// Look for the answer or the end: some have come.
    Found,
    /// Poll again after other tasks have had their turn: nothing has arrived yet.
    Again,
    /// Sleep until woken: more polling does not pay.
    Sleep,
}

/// The direction of a message. Each direction has its own memory budget, so that requests that wait for answers do not
/// keep the answers from arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From client to server.
    Request,
    /// From server to client.
    Response,
}

/// The bytes that a link has moved since it began, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Bytes handed to the network.
    pub bytes_sent: u64,
    /// Bytes taken from the network.
    pub bytes_received: u64,
    /// Payload bytes copied between the network's buffer and the message's, beyond the one copy that the transport
    /// can't avoid.
    pub bytes_copied: u64,
}

/// The description of a link.
#[derive(Clone, Debug)]
pub struct Description {
    /// The transport's name: `tcp`, `unix`, `stream` for one of the application's, `rdma`, `memory`.
    pub transport: &'static str,
    /// The local network address, where there is one.
    pub local: Option<SocketAddr>,
    /// The peer's network address, where there is one.
    pub peer: Option<SocketAddr>,
    /// The device and other details that identify it, as in `rxe0 port 1 gid 1`. Empty for TCP.
    pub device: String,
    /// Whether a caller whose call is the only one in progress should [poll](Link::busy_poll) at once, without waiting
    /// to be woken.
    pub busy_polls: bool,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.bytes_copied += other.bytes_copied;
    }
}

/// The source of the frames that a link sends.
pub trait FrameSource {
    /// Whether there is nothing to send. A link may ask before it prepares to encode a frame. False if not known.
    fn is_empty(&self) -> bool {
        false
    }

    /// Returns the next frame, with a payload of at most `max_payload` bytes. Its header is complete except for
    /// `grant`.
    fn next(&mut self, max_payload: usize) -> Option<Frame>;

    /// Returns the next frame for a link whose peer can read this side's memory. The frame may describe memory that
    /// `expose` has just exposed.
    fn next_exposing(&mut self, max_payload: usize, expose: &mut dyn Expose) -> Option<Frame> {
        let _ = expose;
        self.next(max_payload)
    }

    /// Returns encoded frames, one after the other, in exchange for the buffer `empty`, which is reused for later ones.
    /// For links whose `grant` is always 0 and that copy short payloads. No frame has a payload of more than
    /// `max_payload` bytes. Returns false if there is nothing else to send, true if there may be. If it returned true
    /// and no frames, [`next`](Self::next) may have one.
    fn next_small_frames(&mut self, empty: &mut BytesMut, max_payload: usize) -> bool {
        let _ = (empty, max_payload);
        true
    }

    /// Returns how much memory the frames take that are still to come, in bytes. 0 if not known.
    fn held(&self) -> usize {
        0
    }
}

pub use farcall_proto::payload::SHORT_PAYLOAD;

/// The largest allocation that an application may keep alive with a short payload, in bytes.
pub const SHORT_PAYLOADS_SHARE: usize = 8192;

/// The largest allocation that an application may keep alive with a longer payload, in bytes, if the payload itself is not
/// longer.
pub const SHARED_BUFFER: usize = 64 << 10;

/// A boxed future, for rare futures of object-safe traits.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
