//! The events of the fabric: queue pairs, queues, and the steps by which messages move.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use farcall_core::transport::Atomic;

use super::windows::{Grant, SimWindow};
use super::wire::Wire;
use crate::device::{
    Completion, Cq, DeviceEvent, Gid, LocalPath, PostError, QpTuning, ReadTarget, RemoteQp, RemoteRange,
    Slot, Source, WcStatus,
};
use crate::verbs::inflight::{InFlight, RawCompletion};

/// Everything on the fabric.
#[derive(Debug)]
pub(super) struct State {
    random: u64,
    pub(super) traffic: bool,
    pub(super) acknowledgements: bool,
    pub(super) spiteful: bool,
    pub(super) ports: BTreeMap<Gid, Port>,
    pub(super) shards: BTreeMap<u64, Shard>,
    pub(super) qps: BTreeMap<u32, Qp>,
    /// By the upper 24 bits of their keys.
    pub(super) windows: BTreeMap<u32, SimWindow>,
    /// Whether what READs ask for comes.
    pub(super) reads: bool,
    /// How the next READ fails.
    pub(super) read_failure: Option<WcStatus>,
    /// Whether SENDs and WRITEs carry immediate data.
    pub(super) immediate_data: bool,
    pub(super) wire: Wire,
    /// To be woken when the lock is free.
    pub(super) wakers: Vec<Waker>,
}

/// A machine's port, and the events of its device.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) up: bool,
    pub(super) events: VecDeque<DeviceEvent>,
    pub(super) waiting: Vec<Waker>,
}

/// A shard's queues.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) port: Gid,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) posted: VecDeque<u64>,
    pub(super) cqs: [CompletionQueue; 2],
    pub(super) event: bool,
    pub(super) waiting: Option<Waker>,
}

#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub(super) id: u64,
    pub(super) capacity: usize,
    pub(super) entries: VecDeque<RawCompletion>,
    /// Whether an event is asked for, and then whether of solicited completions only.
    pub(super) armed: Option<bool>,
    pub(super) lost: bool,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) shard: u64,
    pub(super) port: Gid,
    pub(super) state: QpState,
    pub(super) local: Option<LocalPath>,
    pub(super) remote: Option<RemoteQp>,
    pub(super) psn: u32,
    pub(super) tuning: Option<QpTuning>,
    /// Posted and not begun.
    pub(super) waiting: VecDeque<Posted>,
    /// Delivered and not acknowledged, asked for and not read, or done here behind such.
    pub(super) delivered: VecDeque<Posted>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QpState {
    Reset,
    Init,
    Rtr,
    Rts,
    Err,
}

#[derive(Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) signaled: bool,
    pub(super) request: Request,
}

#[derive(Debug)]
pub(super) enum Request {
    Send { parts: [Bytes; 2], solicited: bool },
    Bind(Grant),
    Invalidate(u32),
    Read { into: Arc<ReadTarget>, at: usize, len: usize, from: RemoteRange },
    Write { from: Source, to: RemoteRange },
    Atomic { atomic: Atomic, on: RemoteRange, into: Arc<ReadTarget> },
}

impl Request {
    /// Whether it is done without the peer.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::Invalidate(_))
    }

    /// Whether the peer answers with bytes.
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: seed,
            traffic: true,
            acknowledgements: true,
            spiteful: false,
            ports: BTreeMap::new(),
            shards: BTreeMap::new(),
            qps: BTreeMap::new(),
            windows: BTreeMap::new(),
            reads: true,
            read_failure: None,
            immediate_data: false,
            wire: Wire::default(),
            wakers: Vec::new(),
        }
    }

    /// Whether a queue is armed: its owner does not poll, so work has to run without being asked.
    pub(super) fn somebody_sleeps(&self) -> bool {
        self.shards.values().any(|shard| shard.cqs.iter().any(|cq| cq.armed.is_some()))
    }

    /// The lowest number that is not in use: the one that was given back last, more often than not.
    pub(super) fn next_qp_num(&self) -> u32 {
        (17..).find(|num| !self.qps.contains_key(num)).unwrap_or(u32::MAX)
    }

    pub(super) fn kill(&mut self, num: u32, status: WcStatus) -> bool {
        let Some(port) = self.qps.get(&num).map(|qp| qp.port) else { return false };
        self.fail(num, status);
        self.event(port, DeviceEvent::QpFailed { qp_num: num });
        true
    }

    /// The queue pair goes to ERR: its oldest send fails with `status`, the others are flushed.
    pub(super) fn fail(&mut self, num: u32, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(&num) else { return };
        qp.state = QpState::Err;
        let shard = qp.shard;
        let sends: Vec<Posted> = qp.delivered.drain(..).chain(qp.waiting.drain(..)).collect();
        for (i, send) in sends.into_iter().enumerate() {
            let status = if i == 0 { status } else { WcStatus::WR_FLUSH_ERR };
            self.complete(shard, Cq::Send, raw(send.wr_id, status, num, 0), true);
        }
    }

    /// Takes a send; in ERR it fails at once.
    pub(super) fn post(&mut self, num: u32, send: Posted) -> Result<(), i32> {
        let Some(qp) = self.qps.get_mut(&num) else { return Err(libc::EINVAL) };
        match qp.state {
            QpState::Rts => qp.waiting.push_back(send),
            QpState::Err => {
                let shard = qp.shard;
                self.complete(shard, Cq::Send, raw(send.wr_id, WcStatus::WR_FLUSH_ERR, num, 0), true);
            }
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// Swaps the first two messages that wait for a queue pair. Returns false if fewer wait.
    pub(super) fn swap_messages(&mut self, to: u32) -> bool {
        let from = self.qps.values_mut().find(|qp| qp.remote.is_some_and(|remote| remote.qp_num == to));
        let requests = from.into_iter().flat_map(|qp| &mut qp.waiting).map(|posted| &mut posted.request);
        let mut messages = requests.filter_map(|request| match request {
            Request::Send { parts, .. } => Some(parts),
            _ => None,
        });
        let (Some(first), Some(second)) = (messages.next(), messages.next()) else { return false };
        std::mem::swap(first, second);
        true
    }

    /// Takes slots into a shard's receive queue as long as there is room.
    pub(super) fn post_receives(&mut self, shard: u64, slots: &mut Vec<Slot>) -> Result<usize, PostError> {
        let Some(shard) = self.shards.get_mut(&shard) else { return Ok(0) };
        let mut count = 0;
        while let Some(mut slot) = slots.pop() {
            slot.fill(0xdd);
            match shard.in_flight.receives().insert(slot) {
                Ok(wr_id) => shard.posted.push_back(wr_id),
                Err(slot) => {
                    slots.push(slot);
                    break;
                }
            }
            count += 1;
        }
        Ok(count)
    }

    /// Takes the receives out of the completion queue that have completed on a queue pair.
    pub(super) fn take_completed(&mut self, num: u32) -> Vec<Slot> {
        let mut slots = Vec::new();
        let Some(qp) = self.qps.get(&num) else { return slots };
        let Some(Shard { in_flight, cqs, .. }) = self.shards.get_mut(&qp.shard) else { return slots };
        cqs[Cq::Receive as usize].entries.retain(|entry| {
            let keep = entry.qp_num != num;
            if !keep {
                slots.extend(in_flight.resolve(entry).and_then(Completion::into_slot));
            }
            keep
        });
        slots
    }

    /// Forgets a queue pair. Its completions vanish; receives that they stand for never come back. Refused, as long as it has
    /// a window that is bound: a real device would hang.
    pub(super) fn destroy(&mut self, num: u32) -> Result<(), i32> {
        if self.windows.values().any(|window| window.qp == num && window.grant.is_some()) {
            return Err(libc::EBUSY);
        }
        let Some(qp) = self.qps.remove(&num) else { return Ok(()) };
        if let Some(shard) = self.shards.get_mut(&qp.shard) {
            shard.cqs.iter_mut().for_each(|cq| cq.entries.retain(|entry| entry.qp_num != num));
        }
        Ok(())
    }

    pub(super) fn port_of(&self, num: u32) -> Option<Gid> {
        self.qps.get(&num).map(|qp| qp.port)
    }

    pub(super) fn event(&mut self, port: Gid, event: DeviceEvent) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.events.push_back(event);
            self.wakers.append(&mut port.waiting);
        }
    }

    /// Puts a completion into a queue, which is lost if it is full.
    pub(super) fn complete(&mut self, shard: u64, cq: Cq, entry: RawCompletion, solicited: bool) {
        let Some(shard) = self.shards.get_mut(&shard) else { return };
        let queue = &mut shard.cqs[cq as usize];
        if queue.lost {
            return;
        }
        if queue.entries.len() >= queue.capacity {
            queue.lost = true;
            queue.entries.clear();
            let event = DeviceEvent::QueueFailed { queue_id: queue.id };
            let port = shard.port;
            return self.event(port, event);
        }
        queue.entries.push_back(entry);
        if queue.armed.is_some_and(|solicited_only| solicited || !solicited_only) {
            queue.armed = None;
            shard.event = true;
            self.wakers.extend(shard.waiting.take());
        }
    }

    /// SplitMix64.
    pub(super) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(super) fn raw(wr_id: u64, status: WcStatus, qp_num: u32, len: u32) -> RawCompletion {
    RawCompletion { wr_id, status, vendor: 0, qp_num, len, foreign: false }
}
