//! What happens on the fabric: queue pairs, queues, and the steps by which messages move.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;

use crate::device::{Cq, DeviceEvent, Gid, PostError, QpTuning, RemoteQp, Slot, WcStatus};
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
    pub(super) remote: Option<RemoteQp>,
    pub(super) psn: u32,
    pub(super) tuning: Option<QpTuning>,
    /// Posted and not delivered.
    pub(super) waiting: VecDeque<Send>,
    /// Delivered and not acknowledged.
    pub(super) delivered: VecDeque<Send>,
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
pub(super) struct Send {
    pub(super) wr_id: u64,
    pub(super) parts: [Bytes; 2],
    pub(super) signaled: bool,
    pub(super) solicited: bool,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Deliver(u32),
    Acknowledge(u32),
}

/// What becomes of the first message that waits on a queue pair.
enum Outlook {
    Arrives(u32),
    /// Until something changes, or retries run out.
    Waits(WcStatus),
    Fails(WcStatus),
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
            wakers: Vec::new(),
        }
    }

    /// Runs everything that can happen now, in an order that the seed decides. Out of spite only what goes to queues that
    /// are armed, or to this shard, which is about to arm them.
    pub(super) fn run(&mut self, arming: Option<u64>) {
        loop {
            let mut steps: Vec<Step> = self.qps.keys().flat_map(|&num| self.steps(num)).collect();
            steps.retain(|&step| !self.spiteful || self.is_expected(step, arming));
            if steps.is_empty() {
                return;
            }
            let pick = self.random() as usize % steps.len();
            match steps[pick] {
                Step::Deliver(num) => self.deliver(num),
                Step::Acknowledge(num) => self.acknowledge(num),
            }
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

    /// Every send that waits now runs out of retries.
    pub(super) fn expire(&mut self) {
        self.run(None);
        let numbers: Vec<u32> = self.qps.keys().copied().collect();
        for num in numbers {
            let status = match self.outlook(num) {
                Some(Outlook::Waits(status)) => Some(status),
                _ => self.qps.get(&num).and_then(|qp| qp.delivered.front()).map(|_| WcStatus::RETRY_EXC_ERR),
            };
            if let Some(status) = status {
                self.fail(num, status);
            }
        }
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
        let sends: Vec<Send> = qp.delivered.drain(..).chain(qp.waiting.drain(..)).collect();
        for (i, send) in sends.into_iter().enumerate() {
            let status = if i == 0 { status } else { WcStatus::WR_FLUSH_ERR };
            self.complete(shard, Cq::Send, raw(send.wr_id, status, num, 0), true);
        }
    }

    /// Takes a send; in ERR it fails at once.
    pub(super) fn post(&mut self, num: u32, send: Send) -> Result<(), i32> {
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

    /// Forgets a queue pair. Its completions vanish; receives that they stand for never come back.
    pub(super) fn destroy(&mut self, num: u32) {
        let Some(qp) = self.qps.remove(&num) else { return };
        if let Some(shard) = self.shards.get_mut(&qp.shard) {
            shard.cqs.iter_mut().for_each(|cq| cq.entries.retain(|entry| entry.qp_num != num));
        }
    }

    pub(super) fn event(&mut self, port: Gid, event: DeviceEvent) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.events.push_back(event);
            self.wakers.append(&mut port.waiting);
        }
    }

    /// Whether what a step completes is asked for.
    fn is_expected(&self, step: Step, arming: Option<u64>) -> bool {
        let (num, cq) = match step {
            Step::Deliver(num) => {
                (self.qps.get(&num).and_then(|qp| qp.remote).map(|remote| remote.qp_num), Cq::Receive)
            }
            Step::Acknowledge(num) => (Some(num), Cq::Send),
        };
        // What goes nowhere fails, and that is expected enough.
        let Some(qp) = num.and_then(|num| self.qps.get(&num)) else { return true };
        let armed = self.shards.get(&qp.shard).is_none_or(|shard| shard.cqs[cq as usize].armed.is_some());
        armed || arming == Some(qp.shard)
    }

    fn steps(&self, num: u32) -> impl Iterator<Item = Step> + use<> {
        let deliver = match self.outlook(num) {
            Some(Outlook::Arrives(_) | Outlook::Fails(_)) => Some(Step::Deliver(num)),
            Some(Outlook::Waits(_)) | None => None,
        };
        let open = self.acknowledgements && self.qps.get(&num).is_some_and(|qp| self.path(qp));
        let unacknowledged = open && self.qps.get(&num).is_some_and(|qp| !qp.delivered.is_empty());
        deliver.into_iter().chain(unacknowledged.then_some(Step::Acknowledge(num)))
    }

    /// Whether packets get through between a queue pair and its peer.
    fn path(&self, qp: &Qp) -> bool {
        let up = |gid: Gid| self.ports.get(&gid).is_some_and(|port| port.up);
        self.traffic && up(qp.port) && qp.remote.is_some_and(|remote| up(remote.gid))
    }

    fn outlook(&self, num: u32) -> Option<Outlook> {
        let qp = self.qps.get(&num).filter(|qp| qp.state == QpState::Rts)?;
        qp.waiting.front()?;
        let (remote, tuning) = (qp.remote?, qp.tuning?);
        if !self.path(qp) {
            return Some(Outlook::Waits(WcStatus::RETRY_EXC_ERR));
        }
        let Some(peer) = self.qps.get(&remote.qp_num).filter(|peer| peer.port == remote.gid) else {
            return Some(Outlook::Fails(WcStatus::RETRY_EXC_ERR));
        };
        match peer.state {
            // The peer may yet get there within the retries.
            QpState::Reset | QpState::Init => return Some(Outlook::Waits(WcStatus::RETRY_EXC_ERR)),
            QpState::Err => return Some(Outlook::Fails(WcStatus::RETRY_EXC_ERR)),
            QpState::Rtr | QpState::Rts => {}
        }
        let expects = peer.remote.is_some_and(|r| r.qp_num == num && r.gid == qp.port && r.psn == qp.psn);
        if !expects || peer.tuning.is_none_or(|theirs| theirs.mtu != tuning.mtu) {
            return Some(Outlook::Fails(WcStatus::RETRY_EXC_ERR));
        }
        let empty = self.shards.get(&peer.shard).is_none_or(|shard| shard.posted.is_empty());
        Some(match (empty, tuning.rnr_retry) {
            (false, _) => Outlook::Arrives(remote.qp_num),
            (true, 0) => Outlook::Fails(WcStatus::RNR_RETRY_EXC_ERR),
            (true, _) => Outlook::Waits(WcStatus::RNR_RETRY_EXC_ERR),
        })
    }

    /// Moves the first message that waits on a queue pair.
    fn deliver(&mut self, num: u32) {
        let peer = match self.outlook(num) {
            Some(Outlook::Arrives(peer)) => peer,
            Some(Outlook::Fails(status)) => return self.fail(num, status),
            Some(Outlook::Waits(_)) | None => return,
        };
        let Some(send) = self.qps.get_mut(&num).and_then(|qp| qp.waiting.pop_front()) else { return };
        let Some(shard_id) = self.qps.get(&peer).map(|qp| qp.shard) else { return };
        let Some(shard) = self.shards.get_mut(&shard_id) else { return };
        let Some(wr_id) = shard.posted.pop_front() else { return };
        let len = send.parts.iter().map(Bytes::len).sum::<usize>();
        let fits = match shard.in_flight.receives().slot_mut(wr_id) {
            Some(slot) if len <= slot.len() => {
                let (head, body) = slot[..len].split_at_mut(send.parts[0].len());
                head.copy_from_slice(&send.parts[0]);
                body.copy_from_slice(&send.parts[1]);
                true
            }
            _ => false,
        };
        let solicited = send.solicited;
        if let Some(qp) = self.qps.get_mut(&num) {
            qp.delivered.push_back(send);
        }
        if fits {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            self.complete(shard_id, Cq::Receive, raw(wr_id, WcStatus::SUCCESS, peer, len), solicited);
        } else {
            self.complete(shard_id, Cq::Receive, raw(wr_id, WcStatus::LOC_QP_OP_ERR, peer, 0), true);
            self.fail(peer, WcStatus::WR_FLUSH_ERR);
            self.fail(num, WcStatus::REM_OP_ERR);
        }
    }

    /// Completes the oldest message that was delivered.
    fn acknowledge(&mut self, num: u32) {
        let Some(qp) = self.qps.get_mut(&num) else { return };
        let shard = qp.shard;
        if let Some(send) = qp.delivered.pop_front().filter(|send| send.signaled) {
            self.complete(shard, Cq::Send, raw(send.wr_id, WcStatus::SUCCESS, num, 0), false);
        }
    }

    /// Puts a completion into a queue, which is lost if it is full.
    fn complete(&mut self, shard: u64, cq: Cq, entry: RawCompletion, solicited: bool) {
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
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn raw(wr_id: u64, status: WcStatus, qp_num: u32, len: u32) -> RawCompletion {
    RawCompletion { wr_id, status, vendor: 0, qp_num, len }
}
