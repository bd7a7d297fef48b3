//! A link: one queue pair of an endpoint, with credits, as the session above sees it.

mod arrival;
mod bootstrap;
mod credit;
mod descriptor;
mod expose;
mod grant;
mod granted;
mod handover;
mod lending;
mod receive;
mod seal;
mod send;
mod transfers;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use farcall_core::origin::Origin;
use farcall_core::proto::wire::{HEADER_LEN, Probe};
use farcall_core::transport::{Counters, LinkEnd, LinkHandler, TAG_LEN};
use tokio::sync::oneshot;

pub(crate) use arrival::{Arrival, ReceivedSend};
pub(crate) use bootstrap::{Bootstrap, PLAINTEXT, announced, announcement};
pub(crate) use expose::{LEAST_EXPOSED, watch as watch_exposed};
pub(crate) use receive::Delivered;
pub(crate) use seal::{End, KeyTerms, Seal};

use self::receive::Receiving;
use self::send::Sending;
use crate::device::{Limits, LocalPath, QueuePair, RemoteQp, WcError, WcStatus};
use crate::resources::{CreditLease, NewQp, Resources, SLOT};

/// The part of a link that its endpoint's driver knows.
///
/// Locks, in the order in which they may be taken: `receiving`, `lease`, `sending`. No handler is called under any.
pub(crate) struct LinkCore {
    /// The queue pair's.
    number: u32,
    /// For people: queue pair, device, port, GID.
    name: String,
    path: LocalPath,
    /// The host at the other end, by which links are counted.
    peer_host: Origin,
    since: Instant,
    /// It has to make room for another.
    displaced: AtomicBool,
    /// The peer's queue pair, once it is known.
    remote: OnceLock<RemoteQp>,
    /// How what it moves is sealed; nothing is taken in before that is known. `None` within: it is not.
    seal: OnceLock<Option<Arc<Seal>>>,
    resources: Resources,
    lease: Mutex<Option<CreditLease>>,
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
    pub(crate) fn new(
        new: NewQp,
        name: String,
        path: LocalPath,
        peer_host: Origin,
        resources: &Resources,
    ) -> Arc<Self> {
        let (number, window, shares) = (new.qp.number(), new.lease.window(), new.shares);
        Arc::new(Self {
            number,
            name,
            path,
            peer_host,
            since: Instant::now(),
            displaced: AtomicBool::new(false),
            remote: OnceLock::new(),
            seal: OnceLock::new(),
            resources: resources.clone(),
            lease: Mutex::new(Some(new.lease)),
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

    /// Returns the link's name, for people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host at its other end.
    pub(crate) fn peer_host(&self) -> Origin {
        self.peer_host
    }

    /// Returns when it was made.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Says that it has to make room for another link.
    pub(crate) fn displace(&self) {
        self.displaced.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_displaced(&self) -> bool {
        self.displaced.load(Ordering::Relaxed)
    }

    /// The queue pair, until the link is released.
    pub(crate) fn qp(&self) -> Option<Arc<dyn QueuePair>> {
        self.sending().qp()
    }

    /// Says how the link is sealed, before anything can arrive.
    pub(crate) fn protect(&self, seal: Option<Seal>) {
        // Set once, by the candidate that makes the link.
        let _ = self.seal.set(seal.map(Arc::new));
    }

    /// How the link is sealed, if it is.
    pub(crate) fn seal(&self) -> Option<&Arc<Seal>> {
        self.seal.get()?.as_ref()
    }

    /// How many bytes are sent behind each message.
    fn overhead(&self) -> usize {
        self.seal().map_or(0, |_| TAG_LEN)
    }

    /// The peer's end is known, and may be sent to.
    pub(crate) fn connected(&self, peer: &Bootstrap, device: &Limits) {
        // Set once, by the candidate that makes the link.
        let _ = self.remote.set(peer.qp);
        let overhead = self.overhead();
        let max_frame = peer.max_frame(overhead).min(SLOT - HEADER_LEN - overhead);
        self.max_frame.store(max_frame as u32, Ordering::Release);
        let cannot_expose = [
            (device.windows == 0, "this side's device has no memory windows of type 2B"),
            (device.reads_served == 0, "this side's device serves no READs"),
            (peer.reads == 0, "the peer's device makes no READs"),
        ];
        let cannot_expose = cannot_expose.into_iter().find_map(|(is_so, why)| is_so.then_some(why));
        self.sending().open(peer.grant, cannot_expose, device.reads.min(peer.reads_served));
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
        self.resources.mailbox.changed(self.number);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns queue pair and receives to the endpoint. The driver has ended the link, and takes it off its list.
    pub(crate) fn release(&self) {
        self.release_receiving();
        // The queue pair first: its receives are free only when it receives no more. Destroying it may block, and happens
        // elsewhere; by now it is in ERR.
        self.sending().release();
        drop(self.lease.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Releases everything without telling anybody.
    pub(crate) fn abandon(&self) {
        let handler = self.receiving().abandon();
        drop(handler);
        self.release();
    }

    /// Returns the end of the link that follows from a failed send or receive.
    pub(crate) fn explain(&self, error: WcError) -> LinkEnd {
        let why = format!("{}: {error}; {}", self.ends(), error.status.remedy());
        match error.status {
            WcStatus::FOREIGN_REQUEST => LinkEnd::malformed(why),
            _ => LinkEnd::failed(why),
        }
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

    /// Returns the path by which the link leaves this machine.
    pub(crate) fn path(&self) -> &LocalPath {
        &self.path
    }

    /// The longest payload of a frame that the peer takes, in bytes.
    pub(crate) fn max_frame(&self) -> usize {
        self.max_frame.load(Ordering::Acquire) as usize
    }

    /// Resolves when the peer's PROBE has arrived, or the link has failed. Asked once.
    pub(crate) fn probe(&self) -> oneshot::Receiver<Result<Probe, LinkEnd>> {
        self.receiving().probe()
    }

    /// Has a handler take what arrives. The driver delivers frames that have arrived before, too. Where the link has
    /// been released, [`deliver_rest`](Self::deliver_rest) does. Returns whether it has been.
    pub(crate) fn start(&self, handler: Arc<dyn LinkHandler>) -> bool {
        let released = self.receiving().start(handler);
        if !released {
            self.resources.mailbox.changed(self.number);
        }
        released
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        counters.bytes_sent = self.sent.load(Ordering::Relaxed);
        counters.bytes_received = self.received.load(Ordering::Relaxed);
        counters.bytes_copied = self.copied.load(Ordering::Relaxed);
        counters
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
        self.0.resources.mailbox.changed(self.0.number);
    }
}

impl fmt::Debug for LinkCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkCore").field("name", &self.name).finish_non_exhaustive()
    }
}
