//! A link: one queue pair of an endpoint, with credits, as the session above sees it.

mod arrival;
mod bootstrap;
mod candidate;
mod credit;
mod expose;
mod lending;
mod pull;
mod receive;
mod send;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::proto::inbox::Described;
use farcall_core::transport::{Counters, Description, Direction, FrameSource, Link, LinkEnd, LinkHandler};

pub(crate) use arrival::{Arrival, Message};
pub(crate) use bootstrap::{Bootstrap, announcement};
pub(crate) use candidate::{RdmaCandidate, Side};
pub(crate) use expose::LEAST_EXPOSED;
pub(crate) use receive::Delivered;

use self::receive::Receiving;
use self::send::Sending;
use crate::device::{Limits, LocalPath, QueuePair, RemoteQp, WcError};
use crate::endpoint::bulk::Bulk;
use crate::endpoint::mailbox::Mailbox;
use crate::endpoint::memory::{Memory, Promise};
use crate::endpoint::{Counts, Endpoint, NewQp, Shard};

/// The part of a link that its endpoint's driver knows.
///
/// Locks, in the order in which they may be taken: `receiving`, `promise`, `sending`. No handler is called under any.
pub(crate) struct LinkCore {
    /// The queue pair's.
    number: u32,
    /// For people: queue pair, device, port, GID.
    name: String,
    path: LocalPath,
    /// The peer's queue pair, once it is known.
    remote: OnceLock<RemoteQp>,
    memory: Arc<Memory>,
    bulk: Arc<Bulk>,
    mailbox: Arc<Mailbox>,
    counts: Arc<Counts>,
    promise: Mutex<Option<Promise>>,
    /// Receives granted to the peer since the link began.
    granted: AtomicU32,
    /// How many of those the peer has been told of. Written under the lock of `sending`.
    told: AtomicU32,
    /// The longest payload that the peer takes; set with `remote`.
    max_frame: AtomicU32,
    closing: AtomicBool,
    /// A control thread has it.
    connecting: AtomicBool,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    /// Bytes, counted before they are posted: what the peer may have heard.
    sent: AtomicU64,
    received: AtomicU64,
    copied: AtomicU64,
}

impl LinkCore {
    /// A link with a queue pair in state INIT.
    pub(crate) fn new(new: NewQp, name: String, path: LocalPath, shard: &Shard) -> Arc<Self> {
        let (number, window, shares) = (new.qp.number(), new.promise.window(), new.shares);
        Arc::new(Self {
            number,
            name,
            path,
            remote: OnceLock::new(),
            memory: Arc::clone(&shard.memory),
            bulk: Arc::clone(&shard.device.bulk),
            mailbox: Arc::clone(&shard.mailbox),
            counts: Arc::clone(&shard.counts),
            promise: Mutex::new(Some(new.promise)),
            granted: AtomicU32::new(window),
            told: AtomicU32::new(window),
            max_frame: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            connecting: AtomicBool::new(false),
            sending: Mutex::new(Sending::new(new.qp, window, shares)),
            receiving: Mutex::default(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            copied: AtomicU64::new(0),
        })
    }

    /// The queue pair's number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Which link it is, for people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The queue pair, until the link is released.
    pub(crate) fn qp(&self) -> Option<Arc<dyn QueuePair>> {
        self.sending().qp()
    }

    /// The peer's end is known, and may be sent to.
    pub(crate) fn connected(&self, peer: &Bootstrap, device: &Limits) {
        // Set once, by the candidate that makes the link.
        let _ = self.remote.set(peer.qp);
        let max_frame =
            peer.max_frame().min(crate::endpoint::memory::SLOT - farcall_core::proto::wire::HEADER_LEN);
        self.max_frame.store(max_frame as u32, Ordering::Release);
        let can_expose = device.windows > 0 && device.reads_served > 0 && peer.reads > 0;
        self.sending().open(peer.grant, can_expose, device.reads.min(peer.reads_served));
    }

    /// To be kept while a control thread connects the queue pair.
    pub(crate) fn connecting(self: &Arc<Self>) -> Connecting {
        self.connecting.store(true, Ordering::Release);
        Connecting(Arc::clone(self))
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting.load(Ordering::Acquire)
    }

    /// This side wants no more of it.
    pub(crate) fn close(&self) {
        if self.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.say_close();
        self.mailbox.changed(self.number);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Gives queue pair and receives back. The driver has ended it, and takes it off its list.
    pub(crate) fn release(&self) {
        self.release_receiving();
        // The queue pair first: its receives are free only when it receives no more. Destroying it may block, and happens
        // elsewhere; by now it is in ERR.
        self.sending().release();
        drop(self.promise.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Gives everything back without telling anybody.
    pub(crate) fn abandon(&self) {
        let handler = self.receiving().abandon();
        drop(handler);
        self.release();
    }

    /// What a failed send or receive says about the link.
    pub(crate) fn explain(&self, error: WcError) -> LinkEnd {
        LinkEnd::failed(format!("{}: {error}; {}", self.ends(), error.status.remedy()))
    }

    /// Both ends, for people.
    pub(crate) fn ends(&self) -> String {
        match self.remote.get() {
            Some(remote) => {
                format!("{} with queue pair {} at {}", self.name, remote.qp_num, remote.gid.ip())
            }
            None => format!("{} with no peer yet", self.name),
        }
    }

    /// Where it leaves this machine.
    pub(crate) fn path(&self) -> &LocalPath {
        &self.path
    }

    fn sending(&self) -> MutexGuard<'_, Sending> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receiving(&self) -> MutexGuard<'_, Receiving> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A link that a control thread connects.
pub(crate) struct Connecting(Arc<LinkCore>);

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.connecting.store(false, Ordering::Release);
        // It may have been closed meanwhile, and waits for this.
        self.0.mailbox.changed(self.0.number);
    }
}

impl fmt::Debug for LinkCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkCore").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A link as the session has it. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct RdmaLink {
    core: Arc<LinkCore>,
    description: Description,
    /// The driver runs as long as there are links.
    endpoint: Arc<Endpoint>,
}

impl Link for RdmaLink {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_frame(&self) -> usize {
        self.core.max_frame.load(Ordering::Acquire) as usize
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        let released = self.core.receiving().start(handler);
        if released {
            let core = Arc::clone(&self.core);
            self.endpoint.shard().spawn(async move { core.deliver_rest() });
        } else {
            // What has arrived before is delivered by the driver, as everything is.
            self.core.mailbox.changed(self.core.number);
        }
    }

    fn send(&self, source: &mut dyn FrameSource) {
        if self.core.send(source) {
            self.endpoint.shard().spawn(expose::watch(Arc::downgrade(&self.core)));
        }
    }

    fn stage(&self, direction: Direction, pieces: &[Bytes]) -> Option<Bytes> {
        self.core.stage(direction, pieces)
    }

    fn pull(&self, direction: Direction, described: Described) {
        self.core.pull(direction, described);
    }

    fn conceal(&self, seq: u32, was_read: bool) {
        self.core.conceal(seq, was_read);
    }

    fn begin_help(&self) -> Option<Duration> {
        self.endpoint.shard().begin_help()
    }

    fn help(&self) -> bool {
        self.endpoint.shard().help()
    }

    fn end_help(&self) {
        self.endpoint.shard().end_help();
    }

    fn close(&self) {
        self.core.close();
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        counters.bytes_sent = self.core.sent.load(Ordering::Relaxed);
        counters.bytes_received = self.core.received.load(Ordering::Relaxed);
        counters.bytes_copied = self.core.copied.load(Ordering::Relaxed);
        counters
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        self.core.close();
    }
}
