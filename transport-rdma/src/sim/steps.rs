//! The steps by which requests move from queue pair to queue pair.

use bytes::Bytes;
use farcall_core::transport::Atomic;

use super::fabric::{Qp, QpState, Request, State, raw};
use super::wire::Crossing;
use crate::device::{Cq, Gid, ReadTarget, RemoteRange, WcStatus};
use crate::verbs::inflight::RawCompletion;

#[derive(Debug, Clone, Copy)]
enum Step {
    Deliver(u32),
    Acknowledge(u32),
}

/// The fate of the first request that waits on a queue pair.
enum Outlook {
    /// It is done here.
    Local,
    Arrives(u32),
    /// Until READs before it are done.
    Queues,
    /// Until something changes, or retries run out.
    Waits(WcStatus),
    Fails(WcStatus),
}

/// The arrival at the peer.
enum Arrival {
    /// A message, into this receive, of this length.
    Message(u64, u32),
    Nothing,
}

/// The peer's device refuses a request, as it does when there are too many.
pub(super) const REM_INV_REQ_ERR: WcStatus = WcStatus(9);

impl State {
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

    /// Whether what a step completes is asked for.
    fn is_expected(&self, step: Step, arming: Option<u64>) -> bool {
        let first = |num| self.qps.get(&num).and_then(|qp: &Qp| qp.waiting.front());
        let (num, cq) = match step {
            // A request that puts nothing into the peer's queues is not waited for there.
            Step::Deliver(num) if first(num).is_none_or(|p| !matches!(p.request, Request::Send { .. })) => {
                return true;
            }
            Step::Deliver(num) => {
                (self.qps.get(&num).and_then(|qp| qp.remote).map(|remote| remote.qp_num), Cq::Receive)
            }
            Step::Acknowledge(num) => (Some(num), Cq::Send),
        };
        // A request that goes nowhere fails, as expected.
        let Some(qp) = num.and_then(|num| self.qps.get(&num)) else { return true };
        let armed = self.shards.get(&qp.shard).is_none_or(|shard| shard.cqs[cq as usize].armed.is_some());
        armed || arming == Some(qp.shard)
    }

    fn steps(&self, num: u32) -> impl Iterator<Item = Step> + use<> {
        let deliver = match self.outlook(num) {
            Some(Outlook::Local | Outlook::Arrives(_) | Outlook::Fails(_)) => Some(Step::Deliver(num)),
            Some(Outlook::Waits(_) | Outlook::Queues) | None => None,
        };
        let qp = self.qps.get(&num);
        let first = qp.and_then(|qp| Some((qp, &qp.delivered.front()?.request)));
        let acknowledged = first.is_some_and(|(qp, request)| match request {
            Request::Bind(_) | Request::Invalidate(_) => true,
            Request::Send { .. } | Request::Write { .. } => self.acknowledgements && self.path(qp),
            Request::Read { .. } | Request::Atomic { .. } => {
                self.acknowledgements && self.reads && self.path(qp)
            }
        });
        deliver.into_iter().chain(acknowledged.then_some(Step::Acknowledge(num)))
    }

    /// Whether packets get through between a queue pair and its peer.
    fn path(&self, qp: &Qp) -> bool {
        let up = |gid: Gid| self.ports.get(&gid).is_some_and(|port| port.up);
        self.traffic && up(qp.port) && qp.remote.is_some_and(|remote| up(remote.gid))
    }

    fn outlook(&self, num: u32) -> Option<Outlook> {
        let qp = self.qps.get(&num).filter(|qp| qp.state == QpState::Rts)?;
        let first = &qp.waiting.front()?.request;
        if first.is_local() {
            return Some(Outlook::Local);
        }
        let (remote, tuning) = (qp.remote?, qp.tuning?);
        let reads = qp.delivered.iter().filter(|posted| posted.request.is_read()).count();
        if first.is_read() && reads >= usize::from(tuning.reads) {
            return Some(if reads == 0 { Outlook::Fails(WcStatus::LOC_QP_OP_ERR) } else { Outlook::Queues });
        }
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
        if first.is_read() {
            let served = peer.tuning.map_or(0, |theirs| usize::from(theirs.reads_served));
            return Some(if reads < served {
                Outlook::Arrives(remote.qp_num)
            } else {
                Outlook::Fails(REM_INV_REQ_ERR)
            });
        }
        if matches!(first, Request::Write { .. }) {
            return Some(Outlook::Arrives(remote.qp_num));
        }
        let empty = self.shards.get(&peer.shard).is_none_or(|shard| shard.posted.is_empty());
        Some(match (empty, tuning.rnr_retry) {
            (false, _) => Outlook::Arrives(remote.qp_num),
            (true, 0) => Outlook::Fails(WcStatus::RNR_RETRY_EXC_ERR),
            (true, _) => Outlook::Waits(WcStatus::RNR_RETRY_EXC_ERR),
        })
    }

    /// Begins the first request that waits on a queue pair.
    fn deliver(&mut self, num: u32) {
        let peer = match self.outlook(num) {
            Some(Outlook::Local) => None,
            Some(Outlook::Arrives(peer)) => Some(peer),
            Some(Outlook::Fails(status)) => return self.fail(num, status),
            Some(Outlook::Waits(_) | Outlook::Queues) | None => return,
        };
        let Some(posted) = self.qps.get_mut(&num).and_then(|qp| qp.waiting.pop_front()) else { return };
        let (done, solicited) = match (&posted.request, peer) {
            (Request::Send { parts, solicited }, Some(peer)) => (self.land(peer, parts), *solicited),
            (Request::Read { len, from, .. }, Some(peer)) => (self.ask(peer, *from, *len), false),
            (Request::Write { from, to }, Some(peer)) => {
                // As the words are when the device gets to them.
                let bytes = from.bytes().unwrap_or_default();
                (self.write(peer, *to, &bytes).and_then(|()| self.announce(peer, bytes.len())), false)
            }
            (Request::Atomic { atomic, on, into }, Some(peer)) => {
                (self.count(num, peer, *on, *atomic, into), false)
            }
            (Request::Bind(grant), _) => (self.bind(num, grant.clone()).map(|()| Arrival::Nothing), false),
            (Request::Invalidate(rkey), _) => (self.invalidate(num, *rkey).map(|()| Arrival::Nothing), false),
            (_, None) => return,
        };
        if let Some(qp) = self.qps.get_mut(&num) {
            qp.delivered.push_back(posted);
        }
        match (done, peer) {
            (Ok(Arrival::Message(wr_id, len)), Some(peer)) => {
                let Some(shard) = self.qps.get(&peer).map(|qp| qp.shard) else { return };
                let foreign = self.immediate_data;
                let arrived = RawCompletion { foreign, ..raw(wr_id, WcStatus::SUCCESS, peer, len) };
                self.complete(shard, Cq::Receive, arrived, solicited);
            }
            (Ok(_), _) => {}
            (Err(status), peer) => self.fail_last(num, peer, status),
        }
    }

    /// Fails the request that was begun last, and both ends with it.
    fn fail_last(&mut self, num: u32, peer: Option<u32>, status: WcStatus) {
        if let Some(peer) = peer {
            self.fail(peer, WcStatus::WR_FLUSH_ERR);
        }
        // Requests before it that were not acknowledged yet have completed.
        while self.qps.get(&num).is_some_and(|qp| qp.delivered.len() > 1) {
            self.acknowledge(num);
        }
        self.fail(num, status);
    }

    /// Puts a message into the peer's first receive.
    fn land(&mut self, peer: u32, parts: &[Bytes; 2]) -> Result<Arrival, WcStatus> {
        let shard_id = self.qps.get(&peer).map(|qp| qp.shard).ok_or(WcStatus::RETRY_EXC_ERR)?;
        let shard = self.shards.get_mut(&shard_id).ok_or(WcStatus::RETRY_EXC_ERR)?;
        let wr_id = shard.posted.pop_front().ok_or(WcStatus::RNR_RETRY_EXC_ERR)?;
        let seen = self.wire.cross(Crossing::Message, peer, &[&parts[0], &parts[1]]);
        let parts = seen.map_or_else(|| parts.clone(), |seen| [Bytes::from(seen), Bytes::new()]);
        let len = parts.iter().map(Bytes::len).sum::<usize>();
        match shard.in_flight.receives().slot_mut(wr_id) {
            Some(slot) if len <= slot.len() => {
                let (head, body) = slot[..len].split_at_mut(parts[0].len());
                head.copy_from_slice(&parts[0]);
                body.copy_from_slice(&parts[1]);
                return Ok(Arrival::Message(wr_id, u32::try_from(len).unwrap_or(u32::MAX)));
            }
            _ => {}
        }
        self.complete(shard_id, Cq::Receive, raw(wr_id, WcStatus::LOC_QP_OP_ERR, peer, 0), true);
        Err(WcStatus::REM_OP_ERR)
    }

    /// Tells the peer of a WRITE of so many bytes, if it carries immediate data: that takes a receive, and leaves its memory as it is.
    fn announce(&mut self, peer: u32, len: usize) -> Result<Arrival, WcStatus> {
        if !self.immediate_data {
            return Ok(Arrival::Nothing);
        }
        let shard = self.qps.get(&peer).and_then(|qp| self.shards.get_mut(&qp.shard));
        let wr_id = shard.and_then(|shard| shard.posted.pop_front()).ok_or(WcStatus::RNR_RETRY_EXC_ERR)?;
        Ok(Arrival::Message(wr_id, u32::try_from(len).unwrap_or(u32::MAX)))
    }

    /// Asks the peer for what a READ wants; the bytes come later.
    fn ask(&mut self, peer: u32, from: RemoteRange, len: usize) -> Result<Arrival, WcStatus> {
        if let Some(status) = self.read_failure.take() {
            return Err(status);
        }
        self.granted(peer, from, len).map(|_| Arrival::Nothing)
    }

    /// Changes a number of the peer's. The answer comes later, but nobody looks at its place before.
    fn count(
        &mut self,
        num: u32,
        peer: u32,
        on: RemoteRange,
        atomic: Atomic,
        into: &ReadTarget,
    ) -> Result<Arrival, WcStatus> {
        let before = self.change(peer, on, atomic)?.to_ne_bytes();
        let stays_within = self.port_of(num) == self.port_of(peer);
        let seen = if stays_within { None } else { self.wire.cross(Crossing::Atomic, num, &[&before]) };
        into.write(0, seen.as_deref().unwrap_or(&before));
        Ok(Arrival::Nothing)
    }

    /// Completes the oldest request that was begun.
    fn acknowledge(&mut self, num: u32) {
        let Some(qp) = self.qps.get(&num) else { return };
        let shard = qp.shard;
        if let Some(Request::Read { into, at, len, from }) = qp.delivered.front().map(|done| &done.request) {
            // The bytes are looked up and copied only now, so that a READ whose grant has ended since gets none.
            let result = self.answerer(qp).and_then(|peer| self.granted(peer, *from, *len));
            match result {
                Ok(bytes) => match self.wire.cross(Crossing::Read, num, &[&bytes]) {
                    Some(seen) => into.write(*at, &seen),
                    None => into.write(*at, &bytes),
                },
                Err(status) => return self.fail_read(num, status),
            }
        }
        let Some(done) = self.qps.get_mut(&num).and_then(|qp| qp.delivered.pop_front()) else { return };
        if done.signaled {
            self.complete(shard, Cq::Send, raw(done.wr_id, WcStatus::SUCCESS, num, 0), false);
        }
    }

    /// Returns the queue pair that answers this one's READs, if it still does.
    fn answerer(&self, qp: &Qp) -> Result<u32, WcStatus> {
        let peer = qp.remote.map(|remote| remote.qp_num).ok_or(WcStatus::RETRY_EXC_ERR)?;
        let answers = |peer: &Qp| matches!(peer.state, QpState::Rtr | QpState::Rts);
        self.qps.get(&peer).filter(|peer| answers(peer)).map(|_| peer).ok_or(WcStatus::RETRY_EXC_ERR)
    }

    /// The oldest request that was begun is a READ, and its answer is a refusal, which takes both ends with it.
    fn fail_read(&mut self, num: u32, status: WcStatus) {
        let peer = self.qps.get(&num).and_then(|qp| qp.remote);
        if let Some(peer) = peer.filter(|_| status == WcStatus::REM_ACCESS_ERR) {
            self.fail(peer.qp_num, WcStatus::WR_FLUSH_ERR);
        }
        self.fail(num, status);
    }
}
