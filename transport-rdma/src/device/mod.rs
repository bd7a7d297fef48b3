//! The interface to RDMA hardware: the traits that libibverbs ([`crate::verbs`]) and the simulated device ([`crate::sim`])
//! implement, and the safe, hardware-free parts around them.
//!
//! Ownership is the point of these traits. Memory that a device may write is a [`Slot`] that was moved into a queue, or a
//! [`ReadTarget`] that nobody can look into; memory that a device may read, for itself or for a peer, is a
//! [`Bytes`](bytes::Bytes) of which the queue pair holds a clone. A completion is the only way back, so code above these
//! traits cannot race with a device. Memory that a peer may write to is atomic words of the application.
//!
//! Left out: receive queues of one queue pair (there is the shared one only), and the opcode of completions, which devices leave
//! undefined when they fail.

mod address;
mod event;
mod exposure;
mod loopback;
mod memlock;
mod paths;
mod queue_pair;
mod select;
mod status;
mod sysfs;

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use farcall_core::explain::Explanation;
pub use farcall_core::transport::Atomic;
use farcall_core::transport::Words;

pub use address::{Gid, GidEntry, GidKind, LinkLayer, LocalPath, Mtu, PortStatus, RemoteQp};
pub(crate) use loopback::connect_with_itself;
pub(crate) use memlock::{is_first_namespace, lockable, memlock, memlock_reached};
pub use paths::{PairOnTrial, Paths, RemoteAddress, StreamEnds};
pub use queue_pair::{
    Completion, ExposeError, MAX_BATCH, MAX_READS, PostError, QpSize, QpTuning, QueuePair, RemoteRange, Work,
};
pub(crate) use queue_pair::{NUMBER, random_psn};
pub(crate) use select::ranked;
pub use select::{Match, Selection, addresses, choose};
pub use status::{WcClass, WcError, WcStatus};
pub(crate) use sysfs::ranges;

pub use self::exposure::{Exposure, RemoteAccess};
pub use crate::config::RdmaConfig;
pub use crate::dma::{
    Arena, Extent, ReadTarget, RegisteredWords, SharesWords, Slab, SlabLayout, Slot, Source,
};
pub use crate::errno::Blame;
pub use crate::unavailable::{DeviceError, Unavailable};

/// Returns the explanations of completions' statuses and of devices' events.
pub(crate) fn explanations() -> Vec<Explanation> {
    status::explanations().chain(event::explanations()).collect()
}

/// A machine with its RDMA devices.
pub trait Host: Debug + Send + Sync {
    /// The devices there are, in order of name; at least one. Reads a few hundred small files.
    fn devices(&self) -> Result<Vec<DeviceSummary>, Unavailable>;

    /// The machine's network addresses.
    fn interfaces(&self) -> Vec<Interface>;

    /// The NUMA node of all CPUs that this process may run on, if it is one.
    fn home_node(&self) -> Option<u32> {
        None
    }

    /// Opens a device. Blocks for milliseconds.
    fn open(&self, device: &DeviceSummary, config: &RdmaConfig) -> Result<Arc<dyn Device>, Unavailable>;
}

/// A device as one sees it without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The kernel's name, as in `/sys/class/infiniband`.
    pub name: String,
    /// The file to open to use it.
    pub node: String,
    /// The NUMA node it is attached to, if the machine has several.
    pub numa_node: Option<u32>,
    /// The reason why it can't be used, whatever its ports are.
    pub unsuited: Option<Unsuited>,
    /// Its ports in order of number.
    pub ports: Vec<PortSummary>,
}

/// Why a device can't be used, whatever its ports are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsuited {
    /// The devices of this driver have no reliable connected queue pairs.
    NoReliableQueuePairs(&'static str),
    /// It speaks iWARP, whose queue pairs are connected by the kernel's connection manager only.
    Iwarp,
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
    /// The network that it is connected to.
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
    /// How many bits of the address name its network.
    pub prefix: u8,
}

/// The limits of a device.
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
    /// Registrations of memory.
    pub max_mr: u32,
    /// Memory windows. Zero if the device has none that are bound to a queue pair (type 2B): nothing can be exposed.
    pub windows: u32,
    /// READs that a queue pair can have outstanding, at most 16; zero if it cannot READ.
    pub reads: u8,
    /// READs of the peer that a queue pair can serve at a time, at most 16.
    pub reads_served: u8,
    /// Whether it does [atomic operations](Work::Atomic). They count as READs.
    pub atomics: bool,
}

/// An open device: one context, one protection domain, and the memory that is registered with it.
///
/// All methods may block for milliseconds, `port` and `events` excepted, and belong on a control thread.
pub trait Device: Debug + Send + Sync {
    /// The kernel's name of it.
    fn name(&self) -> &str;

    /// Returns its limits.
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

    /// Registers words of the application, without any remote access to them: that takes a window. Only if they are `writable`, a
    /// window may let a peer write to them. They stay registered until the result is dropped, which may take milliseconds.
    fn add_words(&self, words: Words, writable: bool) -> Result<RegisteredWords, Unavailable>;

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

/// One of a shard's completion queues.
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

    /// Whether a completion of a send, or of whatever else goes to a send queue, was asked for and not polled yet. If not,
    /// there can only be those of requests that have failed.
    fn awaits_sends(&self) -> bool;

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
