//! One end: a queue pair with its own queues and memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Contact, Failed, Operation, Plan};
use crate::device::{
    Completion, Cq, Device, DeviceSummary, Gid, GidKind, Host, Limits, LocalPath, Mtu, QpSize, QpTuning,
    QueuePair, QueueSize, Queues, RdmaConfig, RemoteAddress, RemoteQp, RemoteRange, Selection, Slab,
    SlabLayout, Slot, Work, random_psn,
};
use crate::probe::examine::open_chosen;
use crate::probe::stop::Stop;

/// The longest time without a completion. A device gives up by itself before.
const LIMIT: Duration = Duration::from_secs(10);

/// Completions that are taken with one poll.
const BATCH: usize = 32;

/// Messages up to this length go within the request, as those of calls do.
const INLINE: u32 = 220;

/// Every how many short messages a completion is asked for. Long ones stay in memory until theirs, so each has one.
const SIGNAL_EVERY: u16 = 16;

impl From<Stop> for Failed {
    fn from(stop: Stop) -> Self {
        Self(stop.to_string())
    }
}

/// An end. The queue pair is dropped before its queues, and both before the device with its memory.
#[derive(Debug)]
pub(super) struct Half {
    qp: Arc<dyn QueuePair>,
    pub(super) queues: Arc<dyn Queues>,
    pub(super) device: Arc<dyn Device>,
    path: LocalPath,
    address: RemoteAddress,
    psn: u32,
    pub(super) plan: Plan,
    /// Requests that are posted next.
    pub(super) works: VecDeque<Work>,
    done: Vec<Completion>,
}

impl Half {
    /// Opens the device of an address, and makes a queue pair that is not connected.
    pub(super) fn open(
        host: &dyn Host,
        config: &RdmaConfig,
        devices: &[DeviceSummary],
        chosen: &Selection,
        plan: Plan,
    ) -> Result<Self, Stop> {
        let (device, path) = open_chosen(host, config, devices, chosen)?;
        let limits = device.limits();
        if plan.operation != Operation::Send && (limits.windows == 0 || limits.reads == 0) {
            let why = format!("{} exposes no memory to others (memory windows of type 2B)", device.name());
            return Err(Stop::Other(why));
        }
        let signal_every = if plan.operation == Operation::Send { SIGNAL_EVERY } else { 1 };
        // Requests that have completed take room until a later completion is polled.
        let sends = plan.in_flight + 2 * SIGNAL_EVERY;
        let size = QpSize { sends, signal_every, inline: INLINE };
        let queues = device.create_queues(QueueSize { receives: plan.slots(), sends: size.reserve() })?;
        let qp = queues.create_qp(size)?;
        qp.to_init(&path)?;
        let psn =
            random_psn().map_err(|error| Stop::Other(format!("there are no random numbers: {error}")))?;
        Ok(Self {
            qp,
            queues,
            device,
            path,
            address: RemoteAddress::from(chosen),
            psn,
            plan,
            works: VecDeque::new(),
            done: Vec::new(),
        })
    }

    /// Returns how the peer reaches this end and this memory.
    pub(super) fn contact(&self, memory: Option<RemoteRange>) -> Contact {
        let Limits { reads, reads_served, .. } = self.device.limits();
        let RemoteRange { addr, rkey } = memory.unwrap_or(RemoteRange { addr: 0, rkey: 0 });
        Contact {
            qp_num: self.qp.number(),
            psn: self.psn,
            gid: self.path.gid.0,
            kind: self.address.kind.code(),
            prefix: self.address.prefix,
            lid: self.path.status.lid,
            mtu: self.path.status.active_mtu.code(),
            reads,
            reads_served,
            addr,
            rkey,
        }
    }

    /// Connects with the peer's queue pair.
    pub(super) fn connect(&self, peer: &Contact) -> Result<(), Stop> {
        let theirs = |why| Stop::Other(format!("the peer's queue pair: {why}"));
        let mtu = Mtu::from_code(peer.mtu)
            .ok_or_else(|| theirs(format!("its path MTU has the code {}", peer.mtu)))?;
        let Contact { qp_num, psn, lid, .. } = *peer;
        let remote = RemoteQp { qp_num, psn, gid: Gid(peer.gid), lid }.check().map_err(theirs)?;
        let limits = self.device.limits();
        let mut tuning = QpTuning::new(self.path.status.active_mtu.min(mtu));
        tuning.reads = limits.reads.min(peer.reads_served);
        tuning.reads_served = limits.reads_served.min(peer.reads);
        self.qp.to_rtr(&self.path, &remote, &tuning)?;
        self.qp.to_rts(self.psn, &tuning)?;
        Ok(())
    }

    pub(super) fn qp(&self) -> &dyn QueuePair {
        &*self.qp
    }

    /// Returns where the end is, in words.
    pub(super) fn name(&self) -> String {
        let LocalPath { port, gid, gid_index, .. } = self.path;
        format!("{} port {port} gid {gid_index} ({})", self.device.name(), gid.ip())
    }

    /// Registers memory for messages, as many as this.
    pub(super) fn slab(&self, slots: u32) -> Result<Arc<Slab>, Stop> {
        Ok(self.device.add_slab(SlabLayout { slot_size: self.plan.size as usize, slots })?)
    }

    /// Posts as many of the requests as there is room for.
    pub(super) fn post(&mut self) -> Result<(), Stop> {
        while !self.works.is_empty() && self.qp.post(&mut self.works)? > 0 {}
        Ok(())
    }

    /// Sends a message in registered memory.
    pub(super) fn send(&mut self, message: bytes::Bytes) {
        let signaled = message.len() > self.qp.inline() as usize;
        self.works.push_back(Work::Send {
            parts: [message, bytes::Bytes::new()],
            signaled,
            solicited: false,
        });
    }

    /// Polls a queue once. Returns how many completions there were. The slots of messages that have arrived, with their lengths, go to
    /// `arrived`.
    pub(super) fn poll(&mut self, cq: Cq, arrived: &mut Vec<(Slot, usize)>) -> Result<usize, Stop> {
        let count = self.queues.poll(cq, BATCH, &mut self.done)?;
        for completion in self.done.drain(..) {
            match completion {
                Completion::Received { slot, len, .. } => arrived.push((slot, len)),
                Completion::Sent { .. } | Completion::Moved { .. } | Completion::Drained { .. } => {}
                Completion::ReceiveFailed { error, .. } | Completion::SendFailed { error, .. } => {
                    return Err(Stop::Completion(error));
                }
            }
        }
        Ok(count)
    }

    /// Takes the completions of messages that were sent. Their memory waits for them. A failure comes there, too, also of messages
    /// whose completion was not asked for.
    pub(super) fn reap(&mut self) -> Result<(), Stop> {
        self.poll(Cq::Send, &mut Vec::new()).map(drop)
    }
}

/// Returns the peer's address.
pub(super) fn address(peer: &Contact) -> Result<RemoteAddress, Stop> {
    let unknown = || Stop::Other(format!("the peer's address is of the unknown kind {}", peer.kind));
    let kind = GidKind::from_code(peer.kind).ok_or_else(unknown)?;
    Ok(RemoteAddress { gid: Gid(peer.gid), kind, prefix: peer.prefix.min(128) })
}

/// Waits by polling, and gives up on a device that says nothing.
#[derive(Debug)]
pub(super) struct Patience {
    since: Instant,
    polls: u32,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), polls: 0 }
    }

    /// Notes that the device has said something.
    pub(super) fn renew(&mut self, now: Instant) {
        *self = Self { since: now, polls: 0 };
    }

    /// Lets others have the processor now and then. Returns `true` if it is time to look at what is not polled for.
    pub(super) fn wait(&mut self) -> Result<bool, Stop> {
        self.polls = self.polls.wrapping_add(1);
        give_way(self.polls);
        if !self.polls.is_multiple_of(LOOK_EVERY) {
            return Ok(false);
        }
        if self.since.elapsed() > LIMIT { Err(Stop::silent(LIMIT)) } else { Ok(true) }
    }
}

/// Lets others have the processor at every sixteenth poll. It takes longer than a poll, and what is polled for may need it.
pub(super) fn give_way(polls: u32) {
    if polls.is_multiple_of(16) {
        thread::yield_now();
    }
}

/// Every how many polls something else is looked at, such as the clock. It takes longer than a poll.
pub(super) const LOOK_EVERY: u32 = 64;
