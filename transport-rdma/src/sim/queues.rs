//! A simulated shard's queues and queue pairs.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::fabric::{CompletionQueue, Posted, Qp, QpState, Request, Shard};
use super::machine::{Hca, Registration, error};
use super::windows::Grant;
use crate::device::{
    Channel, Completion, Cq, CreateQpError, DeviceError, ExposeError, Exposure, LocalPath, MAX_BATCH,
    MAX_READS, NUMBER, PostError, QpSize, QpTuning, QueuePair, QueueSize, Queues, RegisteredWords,
    RemoteAccess, RemoteQp, SharesWords, Slot, Source, WcStatus, Work,
};
use crate::dma::Exposed;
use crate::verbs::inflight::{InFlight, Kept, SendRing, Step, Ticket};

/// Whether the device has registered these words so that it can use them like this.
fn has_registered(hca: &Arc<Hca>, words: &RegisteredWords, access: RemoteAccess) -> bool {
    words.registration::<Registration>().is_some_and(|ours| ours.allows(hca, access))
}

/// The largest message that fits into a work request itself.
const MAX_INLINE: u32 = 220;

#[derive(Debug)]
pub(super) struct SimQueues(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hca: Arc<Hca>,
    in_flight: Arc<InFlight>,
    /// The shard's key on the fabric.
    shard: u64,
    ids: [u64; 2],
    size: QueueSize,
    reserved: Mutex<u32>,
}

impl SimQueues {
    pub(super) fn new(hca: Arc<Hca>, size: QueueSize, cqe: u32) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let [shard, receive, send] = [(); 3].map(|()| NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let in_flight = Arc::new(InFlight::new(size.receives));
        let queue = |id, capacity: u32| CompletionQueue {
            id,
            capacity: capacity.min(cqe) as usize,
            entries: VecDeque::new(),
            armed: None,
            lost: false,
        };
        let entry = Shard {
            port: hca.host.gid(),
            in_flight: Arc::clone(&in_flight),
            posted: VecDeque::new(),
            cqs: [queue(receive, size.receives), queue(send, size.sends)],
            event: false,
            waiting: None,
        };
        hca.host.fabric().with(|state| state.shards.insert(shard, entry));
        Self(Arc::new(Inner { hca, in_flight, shard, ids: [receive, send], size, reserved: Mutex::new(0) }))
    }
}

impl Inner {
    fn reserved(&self) -> MutexGuard<'_, u32> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.hca.host.fabric().with(|state| state.shards.remove(&self.shard));
    }
}

impl Queues for SimQueues {
    fn post_receives(&self, slots: &mut Vec<Slot>) -> Result<usize, PostError> {
        self.0.hca.host.call("ibv_post_srq_recv").map_err(PostError::Device)?;
        if slots.iter().any(|slot| !self.0.hca.is_registered(slot.as_ptr() as usize, slot.len())) {
            return Err(PostError::NotRegistered);
        }
        self.0.hca.host.fabric().with(|state| state.post_receives(self.0.shard, slots))
    }

    fn receives_posted(&self) -> usize {
        self.0.in_flight.receives().len()
    }

    fn poll(&self, cq: Cq, max: usize, out: &mut Vec<Completion>) -> Result<usize, DeviceError> {
        self.0.hca.host.fabric().with(|state| {
            if !state.spiteful {
                state.run(None);
            }
            let lost = || error("ibv_poll_cq", libc::EIO);
            let queue = state.shards.get_mut(&self.0.shard).map(|shard| &mut shard.cqs[cq as usize]);
            let queue = queue.filter(|queue| !queue.lost).ok_or_else(lost)?;
            let count = queue.entries.len().min(max);
            out.extend(queue.entries.drain(..count).filter_map(|entry| self.0.in_flight.resolve(&entry)));
            Ok(count)
        })
    }

    fn awaits_sends(&self) -> bool {
        self.0.in_flight.awaits_sends()
    }

    fn arm(&self, cq: Cq, solicited_only: bool) -> Result<(), DeviceError> {
        self.0.hca.host.call("ibv_req_notify_cq")?;
        self.0.hca.host.fabric().with(|state| {
            // Everything that can happen happens just before: too early for an event, too late for the poll before.
            state.run(Some(self.0.shard));
            if let Some(shard) = state.shards.get_mut(&self.0.shard) {
                let armed = &mut shard.cqs[cq as usize].armed;
                // The wider of two requests counts.
                *armed = Some(solicited_only && armed.unwrap_or(true));
            }
        });
        Ok(())
    }

    fn channel(&self) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(SimChannel(Arc::clone(&self.0))))
    }

    fn owns(&self, queue_id: u64) -> bool {
        self.0.ids.contains(&queue_id)
    }

    fn create_qp(&self, size: QpSize) -> Result<Arc<dyn QueuePair>, CreateQpError> {
        self.0.hca.host.call("ibv_create_qp").map_err(CreateQpError::Device)?;
        let size = QpSize { sends: size.sends.clamp(1, 1 << 14), ..size };
        let mut reserved = self.0.reserved();
        let sum = reserved.checked_add(size.reserve()).filter(|&sum| sum <= self.0.size.sends);
        *reserved = sum.ok_or(CreateQpError::CqBudget)?;
        drop(reserved);
        let ring = self.0.in_flight.add_ring(size);
        let number = self.0.hca.host.fabric().with(|state| {
            let number = state.next_qp_num();
            let (shard, port) = (self.0.shard, self.0.hca.host.gid());
            let qp = Qp {
                shard,
                port,
                state: QpState::Reset,
                local: None,
                remote: None,
                psn: 0,
                tuning: None,
                waiting: VecDeque::new(),
                delivered: VecDeque::new(),
            };
            state.qps.insert(number, qp);
            number
        });
        let (queues, posting, failed) = (Arc::clone(&self.0), Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(SimQp { queues, number, size, ring, posting, failed }))
    }
}

#[derive(Debug)]
struct SimChannel(Arc<Inner>);

impl Channel for SimChannel {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.hca.host.fabric().with(|state| {
            let Some(shard) = state.shards.get_mut(&self.0.shard) else { return Poll::Pending };
            if std::mem::take(&mut shard.event) {
                return Poll::Ready(Ok(()));
            }
            shard.waiting = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}

#[derive(Debug)]
struct SimQp {
    queues: Arc<Inner>,
    number: u32,
    size: QpSize,
    ring: Arc<SendRing>,
    /// Held while posting, so that requests get to the device in the order in which the ring has them.
    posting: Mutex<()>,
    failed: AtomicBool,
}

impl SimQp {
    /// Changes the state, if `from` allows it.
    fn modify(&self, from: &[QpState], change: impl FnOnce(&mut Qp)) -> Result<(), DeviceError> {
        self.queues.hca.host.call("ibv_modify_qp")?;
        self.queues.hca.host.fabric().with(|state| {
            let qp = state.qps.get_mut(&self.number).filter(|qp| from.contains(&qp.state));
            change(qp.ok_or_else(|| error("ibv_modify_qp", libc::EINVAL))?);
            Ok(())
        })
    }

    /// Posts one request. One whose exposure is over comes to nothing.
    fn post_one(&self, work: &Work) -> Result<(), PostError> {
        if work.bytes() > i32::MAX as usize {
            return Err(PostError::TooLong);
        }
        let (hca, windows) = (&self.queues.hca, self.ring.windows());
        let mut asked = false;
        let (kept, request) = match work {
            Work::Send { parts, signaled, solicited } => {
                let inline = work.bytes() <= self.inline() as usize;
                let registered = |part: &Bytes| hca.is_registered(part.as_ptr() as usize, part.len());
                if !inline && !parts.iter().all(|part| part.is_empty() || registered(part)) {
                    return Err(PostError::NotRegistered);
                }
                asked = *signaled;
                let kept = Kept::Message(if inline { Default::default() } else { parts.clone() });
                (kept, Request::Send { parts: parts.clone(), solicited: *solicited })
            }
            Work::Bind(exposure) => {
                let Some(exposed) = windows.exposed(exposure) else { return Ok(()) };
                if windows.bind(exposure) == Step::Skip {
                    return Ok(());
                }
                (
                    Kept::Bind(*exposure),
                    Request::Bind(Grant { rkey: exposure.rkey(), exposed, access: exposure.access() }),
                )
            }
            Work::Invalidate(exposure) => {
                if windows.invalidate(exposure) == Step::Skip {
                    return Ok(());
                }
                (Kept::Invalidate(*exposure), Request::Invalidate(exposure.rkey()))
            }
            Work::Read { into, at, len, from, tag } => {
                let start = into.address(*at, *len).ok_or(PostError::OutOfBounds)?;
                let is_registered = match into.words() {
                    Some(words) => has_registered(hca, words, RemoteAccess::WRITE),
                    None => hca.is_registered(start, *len),
                };
                if !is_registered {
                    return Err(PostError::NotRegistered);
                }
                into.write(*at, &vec![0xdd; *len]);
                let request = Request::Read { into: Arc::clone(into), at: *at, len: *len, from: *from };
                (Kept::ReadTarget(Arc::clone(into), *tag), request)
            }
            Work::Write { from, to, tag } => {
                let start = from.address().ok_or(PostError::OutOfBounds)?;
                let (inline, is_registered) = match from {
                    Source::Bytes(bytes) => {
                        (bytes.len() <= self.inline() as usize, hca.is_registered(start, bytes.len()))
                    }
                    Source::Words(words, _) => {
                        (false, has_registered(hca, words.words(), RemoteAccess::READ))
                    }
                };
                if !inline && !is_registered {
                    return Err(PostError::NotRegistered);
                }
                let kept = Kept::Source(if inline { Bytes::new().into() } else { from.clone() }, *tag);
                (kept, Request::Write { from: from.clone(), to: *to })
            }
            Work::Atomic { atomic, on, into, tag } => {
                on.check_number()?;
                let start = into.address(0, NUMBER).ok_or(PostError::OutOfBounds)?;
                if !hca.is_registered(start, NUMBER) {
                    return Err(PostError::NotRegistered);
                }
                let request = Request::Atomic { atomic: *atomic, on: *on, into: Arc::clone(into) };
                (Kept::ReadTarget(Arc::clone(into), *tag), request)
            }
        };
        self.give(self.ring.push(kept, asked), request)
    }

    /// Hands a request that the ring has to the device.
    fn give(&self, ticket: Ticket, request: Request) -> Result<(), PostError> {
        let posted = Posted { wr_id: ticket.wr_id, signaled: ticket.signaled, request };
        let posted = self.queues.hca.host.fabric().with(|state| state.post(self.number, posted));
        posted.map_err(|errno| {
            self.ring.withdraw(1);
            PostError::Device(error("ibv_post_send", errno))
        })
    }

    fn posting(&self) -> MutexGuard<'_, ()> {
        self.posting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn within_limits(tuning: &QpTuning) -> QpTuning {
    let (reads, reads_served) = (tuning.reads.min(MAX_READS), tuning.reads_served.min(MAX_READS));
    QpTuning { reads, reads_served, ..*tuning }
}

impl QueuePair for SimQp {
    fn number(&self) -> u32 {
        self.number
    }

    fn inline(&self) -> u32 {
        self.size.inline.min(MAX_INLINE)
    }

    fn to_init(&self, _local: &LocalPath) -> Result<(), DeviceError> {
        self.modify(&[QpState::Reset], |qp| qp.state = QpState::Init)
    }

    fn to_rtr(&self, local: &LocalPath, remote: &RemoteQp, tuning: &QpTuning) -> Result<(), DeviceError> {
        self.modify(&[QpState::Init], |qp| {
            qp.state = QpState::Rtr;
            qp.local = Some(*local);
            qp.remote = Some(*remote);
            qp.tuning = Some(within_limits(tuning));
        })
    }

    fn to_rts(&self, psn: u32, tuning: &QpTuning) -> Result<(), DeviceError> {
        self.modify(&[QpState::Rtr], |qp| {
            qp.state = QpState::Rts;
            qp.psn = psn;
            qp.tuning = Some(within_limits(tuning));
        })
    }

    fn to_err(&self) -> Result<(), DeviceError> {
        self.queues.hca.host.call("ibv_modify_qp")?;
        self.queues.hca.host.fabric().with(|state| state.fail(self.number, WcStatus::WR_FLUSH_ERR));
        self.failed.store(true, Ordering::Release);
        Ok(())
    }

    fn alloc_windows(&self, count: usize) -> Result<(), DeviceError> {
        let host = &self.queues.hca.host;
        for _ in 0..count {
            host.call("ibv_alloc_mw")?;
            let limit = host.windows();
            let rkey = host.fabric().with(|state| {
                let there =
                    state.windows.values().filter(|window| state.port_of(window.qp) == Some(host.gid()));
                (there.count() < limit).then(|| state.alloc_window(self.number))
            });
            self.ring.windows().add(rkey.ok_or_else(|| error("ibv_alloc_mw", libc::ENOMEM))?);
        }
        Ok(())
    }

    fn expose(&self, bytes: &Bytes) -> Result<Exposure, ExposeError> {
        if bytes.is_empty() || !self.queues.hca.is_in_arena(bytes.as_ptr() as usize, bytes.len()) {
            return Err(ExposeError::NotInArena);
        }
        self.ring
            .windows()
            .take(Exposed::Message(bytes.clone()), RemoteAccess::READ)
            .ok_or(ExposeError::NoWindow)
    }

    fn expose_words(
        &self,
        words: Arc<dyn SharesWords>,
        access: RemoteAccess,
    ) -> Result<Exposure, ExposeError> {
        let (words_of, hca) = (words.words(), &self.queues.hca);
        let range = words_of.range();
        let is_ours = match words_of.registration::<Registration>() {
            Some(ours) => ours.allows(hca, access),
            None => hca.is_in_arena(range.start, range.len()),
        };
        if !is_ours || range.is_empty() {
            return Err(ExposeError::NotInArena);
        }
        self.ring.windows().take(Exposed::Words(words), access).ok_or(ExposeError::NoWindow)
    }

    fn post(&self, works: &mut VecDeque<Work>) -> Result<usize, PostError> {
        self.queues.hca.host.call("ibv_post_send").map_err(PostError::Device)?;
        let _posting = self.posting();
        let count = works.len().min(MAX_BATCH).min(self.ring.room());
        for taken in 0..count {
            let Some(work) = works.front() else { return Ok(taken) };
            match self.post_one(work) {
                Ok(()) => drop(works.pop_front()),
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn send_copy(&self, message: &[u8]) -> Result<bool, PostError> {
        self.queues.hca.host.call("ibv_post_send").map_err(PostError::Device)?;
        if message.is_empty() || message.len() > self.inline() as usize {
            return Err(PostError::TooLong);
        }
        let _posting = self.posting();
        let Some(ticket) = self.ring.push_copied() else { return Ok(false) };
        let parts = [Bytes::copy_from_slice(message), Bytes::new()];
        self.give(ticket, Request::Send { parts, solicited: false }).map(|()| true)
    }

    fn post_marker(&self) -> Result<(), PostError> {
        self.queues.hca.host.call("ibv_post_send").map_err(PostError::Device)?;
        if !self.failed.load(Ordering::Acquire) {
            return Err(PostError::Misplaced);
        }
        let _posting = self.posting();
        let ticket = self.ring.push_marker().ok_or(PostError::Misplaced)?;
        self.give(ticket, Request::Send { parts: Default::default(), solicited: false })
    }

    fn sends_outstanding(&self) -> usize {
        self.ring.len()
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        let destroyed = self.queues.hca.host.fabric().with(|state| {
            state.dealloc_windows(self.number);
            let mut slots = state.take_completed(self.number);
            // A completion that comes after this last look, as it can unless the queue pair is in ERR, vanishes with it.
            state.run(None);
            state.destroy(self.number)?;
            // There is room: they have just been taken from it.
            let _ = state.post_receives(self.queues.shard, &mut slots);
            Ok(())
        });
        if let Err(errno) = destroyed {
            crate::dma::leaked("ibv_destroy_qp", errno);
            self.ring.leak();
            return;
        }
        self.queues.in_flight.remove_ring(&self.ring);
        *self.queues.reserved() -= self.size.reserve();
    }
}
