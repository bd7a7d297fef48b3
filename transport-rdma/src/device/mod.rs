//! What the transport needs of RDMA hardware: the traits that libibverbs ([`crate::verbs`]) and the simulated device
//! ([`crate::sim`]) implement, and the safe, hardware-free parts around them.
//!
//! Ownership is the point of these traits. Memory that a device may write is a [`Slot`] that was moved into a queue, or a
//! [`Landing`] that nobody can look into; memory that a device may read, for itself or for a peer, is a [`Bytes`] of which
//! the queue pair holds a clone. A completion is the only way back, so code above these traits cannot race with a device.
//!
//! What is absent: anything by which a peer could write to memory it was not sent to (WRITE, atomics), receive queues of
//! one queue pair (there is the shared one only), and the opcode of completions, which devices leave undefined when they
//! fail.

mod address;
mod memlock;
mod select;
mod status;
mod sysfs;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use address::{Gid, GidEntry, GidKind, LinkLayer, LocalPath, Mtu, PortStatus, RemoteQp};
pub(crate) use memlock::memlock;
pub use select::{Match, Selection, choose};
pub use status::{WcClass, WcError, WcStatus};
pub use sysfs::{Roots, check_access};

pub use crate::config::RdmaConfig;
pub use crate::unavailable::{DeviceError, Unavailable};
pub use crate::verbs::inflight::Exposure;
pub use crate::verbs::memory::{Arena, Extent, Landing, Slab, SlabLayout, Slot};

/// A machine with its RDMA devices.
pub trait Host: Debug + Send + Sync {
    /// The devices there are, in order of name; at least one. Reads a few hundred small files.
    fn devices(&self) -> Result<Vec<DeviceSummary>, Unavailable>;

    /// The machine's network addresses.
    fn interfaces(&self) -> Vec<Interface>;

    /// Opens a device. Blocks for milliseconds.
    fn open(&self, device: &DeviceSummary, config: &RdmaConfig) -> Result<Arc<dyn Device>, Unavailable>;
}

/// A device as one sees it without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The kernel's name, as in `/sys/class/infiniband`.
    pub name: String,
    /// What has to be opened to use it.
    pub node: PathBuf,
    /// The NUMA node it is attached to, if the machine has several.
    pub numa_node: Option<u32>,
    /// Its ports in order of number.
    pub ports: Vec<PortSummary>,
}

/// A port as one sees it without opening the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSummary {
    /// Counted from 1.
    pub number: u8,
    /// Whether it can be used now.
    pub active: bool,
    /// The kernel's name of its state.
    pub state: String,
    /// What it is connected to.
    pub link_layer: LinkLayer,
    /// The filled entries of its GID table.
    pub gids: Vec<GidEntry>,
}

/// An address of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
}

/// What a device can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Receives that a shared receive queue can hold.
    pub max_srq_wr: u32,
    /// Work requests of a queue pair.
    pub max_qp_wr: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Memory windows. Zero if the device has none that are bound to a queue pair (type 2B): nothing can be exposed.
    pub windows: u32,
    /// READs that a queue pair can have outstanding, at most 16; zero if it cannot READ.
    pub reads: u8,
    /// READs of the peer that a queue pair can serve at a time, at most 16.
    pub reads_served: u8,
}

/// An open device: one context, one protection domain, and the memory that is registered with it.
///
/// All methods may block for milliseconds, `port` and `events` excepted, and belong on a control thread.
pub trait Device: Debug + Send + Sync {
    /// The kernel's name of it.
    fn name(&self) -> &str;

    /// What it can do.
    fn limits(&self) -> Limits;

    /// A port's state now.
    fn port(&self, number: u8) -> Result<PortStatus, DeviceError>;

    /// Maps and registers a slab of receive and send slots, without any remote access to it. It stays registered as long
    /// as the device is open; its memory is there until the last slot and view.
    fn add_slab(&self, layout: SlabLayout) -> Result<Arc<Slab>, Unavailable>;

    /// Maps and registers an arena of at least this many bytes, without any remote access to it: that takes a window. It
    /// stays registered until it is removed or the device is closed; its memory is there until the last extent and view.
    fn add_arena(&self, bytes: usize) -> Result<Arc<Arena>, Unavailable>;

    /// Ends the registration of an arena of this device, and with it all use of it, if no extent or view of it is there;
    /// says whether that was so.
    fn remove_arena(&self, arena: &Arc<Arena>) -> bool;

    /// Creates the queues that one shard's queue pairs share.
    fn create_queues(&self, size: QueueSize) -> Result<Arc<dyn Queues>, DeviceError>;

    /// The device's asynchronous events, from inside a tokio runtime with I/O enabled. If there are several of these
    /// streams, each event goes to one of them.
    fn events(&self) -> io::Result<Box<dyn DeviceEvents>>;
}

/// How large a shard's queues are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSize {
    /// Receives that can be posted; also the receive completion queue's size.
    pub receives: u32,
    /// Completions of other requests that can be outstanding: the sum of the queue pairs' [`QpSize::reserve`].
    pub sends: u32,
}

/// Which of a shard's completion queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cq {
    /// Completions of receives.
    Receive,
    /// Completions of everything else.
    Send,
}

/// A shard's queues: two completion queues, a completion channel for both, and a shared receive queue.
///
/// They cannot overflow: no more receives can be posted than the receive completion queue holds, and creating a queue pair
/// takes its part of the send completion queue until it is destroyed.
pub trait Queues: Debug + Send + Sync {
    /// Posts receives into these slots, from the end, until the vector is empty or the queue is full, and says how many.
    /// After an error what was not posted is still in the vector.
    fn post_receives(&self, slots: &mut Vec<Slot>) -> Result<usize, PostError>;

    /// How many receives are posted or completed and not yet polled.
    fn receives_posted(&self) -> usize;

    /// Appends up to `max` completions, in the order in which they happened on each queue pair, and says how many the
    /// device had; completions of queue pairs that no longer exist are counted but not appended.
    ///
    /// An error means that the completion queue is lost, and with it every queue pair that uses it.
    fn poll(&self, cq: Cq, max: usize, out: &mut Vec<Completion>) -> Result<usize, DeviceError>;

    /// Asks for an event when the next completion comes, or the next that is solicited or failed. One that is there
    /// already makes no event: after arming, poll once more before sleeping.
    fn arm(&self, cq: Cq, solicited_only: bool) -> Result<(), DeviceError>;

    /// The completion channel, from inside a tokio runtime with I/O enabled. There is one event stream: a second channel
    /// takes events away from the first.
    fn channel(&self) -> io::Result<Box<dyn Channel>>;

    /// Whether an asynchronous event about a queue with this id means one of these.
    fn owns(&self, queue_id: u64) -> bool;

    /// Creates a queue pair, in state RESET. Blocks for milliseconds.
    fn create_qp(&self, size: QpSize) -> Result<Arc<dyn QueuePair>, CreateQpError>;
}

/// Why there is no queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateQpError {
    /// The send completion queue has no room for the completions of another queue pair.
    CqBudget,
    /// The device refused.
    Device(DeviceError),
}

/// Waits for completion events.
pub trait Channel: Debug + Send {
    /// Ready when an event has come since the last time; several events may count as one, and an event may come without a
    /// completion to poll.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Waits for asynchronous events.
pub trait DeviceEvents: Debug + Send {
    /// The next event.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<DeviceEvent>>;
}

/// Something that happened outside of any work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A queue pair has failed.
    QpFailed {
        /// The queue pair's number.
        qp_num: u32,
    },
    /// A completion queue or shared receive queue has failed; [`Queues::owns`] tells whose.
    QueueFailed {
        /// The queue's id.
        queue_id: u64,
    },
    /// The device has failed: everything on it must be destroyed.
    DeviceFailed,
    /// A port's link went down.
    PortDown {
        /// Counted from 1.
        port: u8,
    },
    /// A port's link came up.
    PortUp {
        /// Counted from 1.
        port: u8,
    },
    /// A port's addresses (GID, LID, partition keys, subnet manager) have changed.
    PortChanged {
        /// Counted from 1.
        port: u8,
    },
    /// Nothing to act on, or an event that this program does not know.
    Other {
        /// `enum ibv_event_type`.
        code: u32,
    },
}

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
    /// What it takes of the send completion queue: a failing queue pair completes every request, asked for or not.
    pub fn reserve(self) -> u32 {
        u32::from(self.sends) + 1
    }
}

/// A reliable connected queue pair on a shard's queues. Dropping the last reference destroys it, its windows first, and
/// blocks for milliseconds: leave that to a control thread, after it was drained. What was still exposed is kept until then.
///
/// To drain: [`to_err`](Self::to_err), [`post_marker`](Self::post_marker), poll until [`Completion::Drained`], then poll the
/// receive queue until it is empty. Completions not polled before the queue pair is destroyed are lost.
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
    /// its [`Work::Invalidate`] was polled, or the queue pair was destroyed. `None` if no window is free, the bytes do not
    /// lie in an arena of this device, or there are none.
    ///
    /// The peer can read them from when [`Work::Bind`] has run.
    fn expose(&self, bytes: &Bytes) -> Option<Exposure>;

    /// Posts requests from the front of the queue, up to [`MAX_BATCH`] at a time and as many as there is room for, with one
    /// call of the device, and says how many it has taken from the queue; zero means that the send queue is full. What is
    /// left was not posted, after an error too.
    fn post(&self, works: &mut VecDeque<Work>) -> Result<usize, PostError>;

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

/// The largest number of READs that are outstanding on a queue pair, each way. More keep no device busier.
pub const MAX_READS: u8 = 16;

/// What a queue pair is to do. Requests begin in the order in which they were posted, and complete in it.
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
        into: Arc<Landing>,
        /// Where in it.
        at: usize,
        /// How many.
        len: usize,
        /// Where they come from.
        from: RemoteRange,
        /// Comes back with the completion.
        tag: u64,
    },
}

impl Work {
    /// The length of a message to send, or of what is read.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Send { parts, .. } => parts.iter().map(Bytes::len).sum(),
            Self::Read { len, .. } => *len,
            Self::Bind(_) | Self::Invalidate(_) => 0,
        }
    }
}

/// Where memory of the peer begins, as the peer tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRange {
    /// The address of the first byte.
    pub addr: u64,
    /// The key that was granted for it.
    pub rkey: u32,
}

/// Why a work request was not posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostError {
    /// A buffer does not lie in memory that is registered with this device.
    NotRegistered,
    /// A message or a READ of more than 2 GiB, which no device takes.
    TooLong,
    /// A READ beyond the end of its landing.
    OutOfBounds,
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
    /// A receive has failed. What the slot contains is undefined.
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
    /// A READ has completed: the bytes are there.
    Read {
        /// The queue pair it was posted on.
        qp_num: u32,
        /// How many requests this completes, the READ included.
        count: usize,
        /// The READ's own.
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
