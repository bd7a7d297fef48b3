//! Queue pairs: what they are asked to do, and what comes of it.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use super::{
    Atomic, DeviceError, Exposure, LocalPath, Mtu, ReadTarget, RemoteAccess, RemoteQp, SharesWords, Slot,
    Source, WcError,
};

/// How large a queue pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpSize {
    /// Requests of any kind that can be outstanding, at most 16384. One more is kept for the marker.
    pub sends: u16,
    /// Every how many requests a completion is asked for, at most half of `sends`. It bounds how long buffers of completed
    /// sends stay with the queue.
    pub signal_every: u16,
    /// Bytes that are wanted to fit into a work request itself; the device may give less.
    pub inline: u32,
}

impl QpSize {
    /// Returns the entries that it takes of the send completion queue: a failing queue pair completes every request, asked
    /// for or not.
    pub fn reserve(self) -> u32 {
        u32::from(self.sends) + 1
    }
}

/// A reliable connected queue pair on a shard's queues. Dropping the last reference destroys it, its windows first, and
/// blocks for milliseconds: leave that to a control thread, after it was drained. Memory that was still exposed is kept
/// until then.
///
/// To drain: [`to_err`](Self::to_err), [`post_marker`](Self::post_marker), poll until [`Completion::Drained`], then poll the
/// receive queue until it is empty. Completions not polled before the queue pair is destroyed are lost, but the receives among
/// them are posted again: others count on those.
pub trait QueuePair: Debug + Send + Sync {
    /// Its number, which the peer needs, and which is not used again on this device while it exists.
    fn number(&self) -> u32;

    /// Bytes that fit into a work request itself.
    fn inline(&self) -> u32;

    /// RESET to INIT, on the path's port and partition.
    fn to_init(&self, local: &LocalPath) -> Result<(), DeviceError>;

    /// INIT to RTR: the peer can now be received from. Can block for a second.
    fn to_rtr(&self, local: &LocalPath, remote: &RemoteQp, tuning: &QpTuning) -> Result<(), DeviceError>;

    /// RTR to RTS: sends are allowed, the first with packet number `psn` (24 bits).
    fn to_rts(&self, psn: u32, tuning: &QpTuning) -> Result<(), DeviceError>;

    /// Any state to ERR: outstanding requests fail, and the peer is no longer listened to.
    fn to_err(&self) -> Result<(), DeviceError>;

    /// Allocates this many more memory windows. Blocks for milliseconds. After an error there may be some more than before.
    fn alloc_windows(&self, count: usize) -> Result<(), DeviceError>;

    /// Takes a window for exactly these bytes, and keeps a clone of them until the exposure is over: when the completion of
    /// its [`Work::Invalidate`] was polled, or the queue pair was destroyed.
    ///
    /// The peer can read them from when [`Work::Bind`] has run.
    fn expose(&self, bytes: &Bytes) -> Result<Exposure, ExposeError>;

    /// As [`expose`](Self::expose), for all of these words. The peer may write to those in an arena, and to others that were registered
    /// for that.
    fn expose_words(
        &self,
        words: Arc<dyn SharesWords>,
        access: RemoteAccess,
    ) -> Result<Exposure, ExposeError>;

    /// Posts requests from the front of the queue, up to [`MAX_BATCH`] at a time and as many as there is room for, with
    /// one call of the device, and says how many it has taken from the queue; zero means that the send queue is full.
    /// Requests that are left were not posted, after an error too.
    fn post(&self, works: &mut VecDeque<Work>) -> Result<usize, PostError>;

    /// Posts a message of at most [`inline`](Self::inline) bytes, which are copied during the call. False: the send
    /// queue is full. It is less work than a [`Work::Send`] of one message, which has to be kept.
    fn send_copy(&self, message: &[u8]) -> Result<bool, PostError>;

    /// After [`to_err`](Self::to_err): posts the request whose completion comes after all others. Once only.
    fn post_marker(&self) -> Result<(), PostError>;

    /// Requests that were posted and have not completed, as far as completions have been asked for and polled.
    fn sends_outstanding(&self) -> usize;
}

/// The largest number of requests that are posted with one call.
pub const MAX_BATCH: usize = 16;

/// Parameters of a connection beside its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpTuning {
    /// The smaller of both ends' active MTUs.
    pub mtu: Mtu,
    /// An acknowledgement is waited for 4.096 us times two to the power of this.
    pub timeout: u8,
    /// Retries without an answer, at most 6: Soft-RoCE takes 7 for infinitely many.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted, at most 6: 7 is infinitely many.
    pub rnr_retry: u8,
    /// How long a peer waits before such a retry, as InfiniBand codes it; 12 is 0.64 ms, 0 is 655 ms.
    pub min_rnr_timer: u8,
    /// How many routers packets may pass.
    pub hop_limit: u8,
    /// READs that may be outstanding: at most what the peer serves. More than the device's own limit counts as that.
    pub reads: u8,
    /// READs of the peer that are served at a time. More than the device's own limit counts as that.
    pub reads_served: u8,
}

impl QpTuning {
    /// The values for production: a dead peer is noticed in about half a second. As many READs as there may be, which is
    /// more than a peer with a lesser device can serve.
    pub fn new(mtu: Mtu) -> Self {
        Self {
            mtu,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 6,
            min_rnr_timer: 12,
            hop_limit: 64,
            reads: MAX_READS,
            reads_served: MAX_READS,
        }
    }
}

/// Returns the number of a queue pair's first packet. Random, so that packets of an earlier queue pair with its number, or a stranger's,
/// are not taken for ours.
pub(crate) fn random_psn() -> Result<u32, getrandom::Error> {
    Ok(getrandom::u32()? & 0xff_ffff)
}

/// The largest number of READs that are outstanding on a queue pair, each way. More keep no device busier.
pub const MAX_READS: u8 = 16;

/// Work for a queue pair. Requests begin in the order in which they were posted, and complete in it.
#[derive(Debug, Clone)]
pub enum Work {
    /// Send a message.
    Send {
        /// The message in up to two parts, sent one after the other. Parts that do not fit inline must lie in memory that is
        /// registered with this device; empty parts are skipped.
        parts: [Bytes; 2],
        /// Ask for a completion of this request, whatever the queue pair's rule says.
        signaled: bool,
        /// Wake a peer that waits for solicited completions only.
        solicited: bool,
    },
    /// Let the peer read what was exposed. Belongs in front of the message that tells it so.
    Bind(Exposure),
    /// End an exposure; always with a completion. One that was not bound ends without a request. After an exposure has
    /// ended, this and a bind are taken from the queue and come to nothing.
    Invalidate(Exposure),
    /// Read from the peer's memory; always with a completion.
    Read {
        /// Where the bytes go.
        into: Arc<ReadTarget>,
        /// Where in it.
        at: usize,
        /// How many.
        len: usize,
        /// Where they come from.
        from: RemoteRange,
        /// Comes back with the completion.
        tag: u64,
    },
    /// Write to the peer's memory; always with a completion, which says that the bytes are there.
    Write {
        /// The bytes: in registered memory, or so few that they fit into the request itself. Words never do.
        from: Source,
        /// Where they go.
        to: RemoteRange,
        /// Comes back with the completion.
        tag: u64,
    },
    /// Change a number of eight bytes in the peer's memory; always with a completion. It is atomic with other such operations of the
    /// peer's device, and with nothing else.
    Atomic {
        /// The operation.
        atomic: Atomic,
        /// Where the number is, at a multiple of eight.
        on: RemoteRange,
        /// The first eight bytes become the number before the operation.
        into: Arc<ReadTarget>,
        /// Comes back with the completion.
        tag: u64,
    },
}

impl Work {
    /// The length of a message to send, or of what is read, written or changed.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Send { parts, .. } => parts.iter().map(Bytes::len).sum(),
            Self::Read { len, .. } => *len,
            Self::Write { from, .. } => from.len(),
            Self::Atomic { .. } => NUMBER,
            Self::Bind(_) | Self::Invalidate(_) => 0,
        }
    }
}

impl RemoteRange {
    /// Checks that a number can be here.
    pub(crate) fn check_number(self) -> Result<(), PostError> {
        if self.addr.is_multiple_of(NUMBER as u64) { Ok(()) } else { Err(PostError::Misaligned) }
    }
}

/// Bytes of a number that is changed.
pub(crate) const NUMBER: usize = size_of::<u64>();

/// Where memory of the peer begins, as the peer tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRange {
    /// The address of the first byte.
    pub addr: u64,
    /// The key that was granted for it.
    pub rkey: u32,
}

/// Why bytes were not exposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExposeError {
    /// No window is free: one will be, when an exposure ends.
    NoWindow,
    /// They do not lie in an arena of this device, or are not registered with it, or there are none.
    NotInArena,
    /// The device or the kernel has refused what it takes, memory that may be locked perhaps. The number is the `errno`.
    Refused(i32),
}

/// Why a work request was not posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostError {
    /// A buffer does not lie in memory that is registered with this device.
    NotRegistered,
    /// A message or a READ of more than 2 GiB, which no device takes.
    TooLong,
    /// A READ beyond the end of its read_target.
    OutOfBounds,
    /// An atomic operation on a number that is at no multiple of eight.
    Misaligned,
    /// A marker for a queue pair that was not set to ERR, or has one already.
    Misplaced,
    /// The device refused, as it does in states that do not allow it.
    Device(DeviceError),
}

/// Something a device has finished.
#[derive(Debug)]
pub enum Completion {
    /// A message has arrived.
    Received {
        /// The queue pair it arrived on.
        qp_num: u32,
        /// The message is at its beginning.
        slot: Slot,
        /// The message's length.
        len: usize,
    },
    /// A receive has failed. The slot's contents are undefined.
    ReceiveFailed {
        /// The queue pair it failed on.
        qp_num: u32,
        /// The buffer, no longer with the device.
        slot: Slot,
        /// Why.
        error: WcError,
    },
    /// Sends, binds or invalidations have completed: the peer's device has the messages, which does not say that its program
    /// does.
    Sent {
        /// The queue pair they were posted on.
        qp_num: u32,
        /// How many, counting those for which no completion was asked.
        count: usize,
    },
    /// A READ, a WRITE or an atomic operation has completed: the bytes are there.
    Moved {
        /// The queue pair it was posted on.
        qp_num: u32,
        /// How many requests this completes, this one included.
        count: usize,
        /// The request's own.
        tag: u64,
    },
    /// A request has failed, and so has its queue pair. If it was a message, that does not say that the peer has not
    /// received it.
    SendFailed {
        /// The queue pair it was posted on.
        qp_num: u32,
        /// How many requests this completes, the failed one included.
        count: usize,
        /// Why.
        error: WcError,
    },
    /// The marker: every request of the queue pair has completed.
    Drained {
        /// The queue pair it was posted on.
        qp_num: u32,
        /// How many requests this completes beside the marker.
        count: usize,
    },
}

impl Completion {
    /// The buffer of a receive.
    pub(crate) fn into_slot(self) -> Option<Slot> {
        match self {
            Self::Received { slot, .. } | Self::ReceiveFailed { slot, .. } => Some(slot),
            Self::Sent { .. } | Self::Moved { .. } | Self::SendFailed { .. } | Self::Drained { .. } => None,
        }
    }
}
