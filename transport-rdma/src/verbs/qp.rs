//! Reliable connected queue pairs.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::batch::{Batch, MAX_PARTS};
use super::device::{Regions, Registration};
use super::inflight::{Kept, SendRing, Step};
use super::queues::Inner;
use super::sys::{self, Plain as _, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_sge};
use super::window::Window;
use super::{last_errno, leaked, returned_errno};
use crate::device::{
    Completion, Cq, CreateQpError, DeviceError, ExposeError, Exposure, LinkLayer, LocalPath, MAX_BATCH,
    NUMBER, PostError, QpSize, QpTuning, QueuePair, ReadTarget, RegisteredWords, RemoteAccess, RemoteQp,
    SharesWords, Source, Work,
};
use crate::dma::Exposed;

/// See [`QueuePair`].
pub(super) struct VerbsQp {
    raw: NonNull<ibv_qp>,
    number: u32,
    inline: u32,
    size: QpSize,
    ring: Arc<SendRing>,
    /// Held while posting, so that requests reach the device in the order in which the ring has them. Windows are in the
    /// order in which the ring knows them; their keys change with posting.
    posting: Mutex<Vec<Window>>,
    /// Set to ERR by this side.
    failed: AtomicBool,
    queues: Arc<Inner>,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for VerbsQp {}
// SAFETY: as above.
unsafe impl Sync for VerbsQp {}

impl VerbsQp {
    pub(super) fn new(queues: Arc<Inner>, size: QpSize) -> Result<Self, CreateQpError> {
        let size = QpSize { sends: size.sends.clamp(1, 1 << 14), ..size };
        let mut budget = queues.budget();
        if !queues.fits(&budget, size) {
            return Err(CreateQpError::CqBudget);
        }
        let (raw, inline) = create(&queues, size)
            .map_err(|errno| CreateQpError::Device(queues.hca().error("ibv_create_qp", errno)))?;
        budget.take(size);
        drop(budget);
        // SAFETY: a queue pair that the library has just made.
        let number = unsafe { raw.as_ref() }.qp_num;
        let ring = queues.in_flight().add_ring(size);
        let (posting, failed) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { raw, number, inline, size, ring, posting, failed, queues })
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: i32) -> Result<(), DeviceError> {
        let hca = self.queues.hca();
        // SAFETY: this queue pair, and a structure that lives during the call.
        let result =
            unsafe { (hca.verbs().ibv_modify_qp)(self.raw.as_ptr(), attr, mask | sys::IBV_QP_STATE) };
        returned_errno(result).map_err(|errno| hca.error("ibv_modify_qp", errno))
    }

    fn posting(&self) -> MutexGuard<'_, Vec<Window>> {
        self.posting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a window for memory in an arena.
    fn expose_in_arena(&self, exposed: Exposed, access: RemoteAccess) -> Result<Exposure, ExposeError> {
        let mut windows = self.posting();
        let hca = self.queues.hca();
        let (regions, range) = (hca.regions(), exposed.range());
        let arena = regions.arena(range.start, range.len()).ok_or(ExposeError::NotInArena)?;
        let exposure = self.ring.windows().take(exposed, access).ok_or(ExposeError::NoWindow)?;
        if hca.has_loose_windows()
            && let Some(window) = windows.get_mut(exposure.window())
            && let Err(errno) = window.enclose(hca, arena, &exposure)
        {
            self.ring.windows().invalidate(&exposure);
            return Err(ExposeError::Refused(errno));
        }
        Ok(exposure)
    }

    fn device_error(&self, errno: i32) -> PostError {
        PostError::Device(self.queues.hca().error("ibv_post_send", errno))
    }

    /// Adds a request to the batch and to the ring. One whose exposure is over comes to nothing.
    fn build<const N: usize>(
        &self,
        batch: &mut Batch<N>,
        work: &Work,
        windows: &[Window],
        regions: &Regions<'_>,
    ) -> Result<(), PostError> {
        if work.bytes() > i32::MAX as usize {
            return Err(PostError::TooLong);
        }
        let mut asked = false;
        let kept = match work {
            Work::Send { parts, signaled, solicited } => {
                asked = *signaled;
                let inline = work.bytes() <= self.inline as usize;
                batch.send(parts, inline, *solicited, regions)?;
                // Inline data is copied during the call, and the request is there until it returns.
                Kept::Message(if inline { Default::default() } else { parts.clone() })
            }
            Work::Bind(exposure) => {
                let exposed = self.ring.windows().exposed(exposure);
                let own = match &exposed {
                    Some(Exposed::Words(words)) => words.words().registration().map(Registration::region),
                    Some(Exposed::Message(_)) => None,
                    None => return Ok(()),
                };
                let within = own.or_else(|| regions.arena(exposure.addr() as usize, exposure.len()));
                let (Some(within), Some(window)) = (within, windows.get(exposure.window())) else {
                    return Ok(());
                };
                if self.ring.windows().bind(exposure) == Step::Skip {
                    return Ok(());
                }
                batch.bind(window.bind(within, exposure));
                Kept::Bind(*exposure)
            }
            Work::Invalidate(exposure) => {
                if self.ring.windows().invalidate(exposure) == Step::Skip {
                    return Ok(());
                }
                batch.invalidate(exposure.rkey());
                Kept::Invalidate(*exposure)
            }
            Work::Read { into, at, len, from, tag } => {
                batch.read(self.target(regions, into, *at, *len)?, *from);
                Kept::ReadTarget(Arc::clone(into), *tag)
            }
            Work::Atomic { atomic, on, into, tag } => {
                on.check_number()?;
                batch.atomic(*atomic, *on, self.target(regions, into, 0, NUMBER)?);
                Kept::ReadTarget(Arc::clone(into), *tag)
            }
            Work::Write { from: Source::Bytes(bytes), to, tag } if bytes.len() <= self.inline as usize => {
                // Inline data needs no key.
                batch.write(sge(bytes.as_ptr() as usize, bytes.len(), 0), true, *to);
                Kept::Source(Bytes::new().into(), *tag)
            }
            Work::Write { from, to, tag } => {
                batch.write(self.source(regions, from)?, false, *to);
                Kept::Source(from.clone(), *tag)
            }
        };
        let ticket = self.ring.push(kept, asked);
        batch.sign(ticket.wr_id, ticket.signaled);
        Ok(())
    }

    /// Returns the part of a target that the device writes to.
    fn target(
        &self,
        regions: &Regions<'_>,
        into: &ReadTarget,
        at: usize,
        len: usize,
    ) -> Result<ibv_sge, PostError> {
        let start = into.address(at, len).ok_or(PostError::OutOfBounds)?;
        let lkey = match into.words() {
            Some(words) => self.key_of(words, RemoteAccess::WRITE),
            None => regions.lkey_at(start, len),
        };
        Ok(sge(start, len, lkey.ok_or(PostError::NotRegistered)?))
    }

    /// Returns the memory that the device reads.
    fn source(&self, regions: &Regions<'_>, from: &Source) -> Result<ibv_sge, PostError> {
        let start = from.address().ok_or(PostError::OutOfBounds)?;
        let lkey = match from {
            Source::Words(words, _) => self.key_of(words.words(), RemoteAccess::READ),
            Source::Bytes(_) => regions.lkey_at(start, from.len()),
        };
        Ok(sge(start, from.len(), lkey.ok_or(PostError::NotRegistered)?))
    }

    /// Returns the key by which this device uses words of the application like this, if it has registered them so.
    fn key_of(&self, words: &RegisteredWords, access: RemoteAccess) -> Option<u32> {
        let registration = words.registration::<Registration>()?;
        let is_ours = registration.is_of(self.queues.hca()) && registration.allows(access);
        is_ours.then(|| registration.region().lkey)
    }

    /// Posts up to `N` requests.
    fn post_batch<const N: usize>(&self, works: &mut VecDeque<Work>) -> Result<usize, PostError> {
        let mut windows = self.posting();
        let regions = self.queues.hca().regions();
        let count = works.len().min(N).min(self.ring.room());
        // The work that each request of the batch stands for.
        let mut places = [0; N];
        let (mut batch, mut taken, mut refused) = (Batch::<N>::new(), 0, None);
        for work in works.iter().take(count) {
            let before = batch.len();
            if let Err(error) = self.build(&mut batch, work, &windows, &regions) {
                refused = Some(error);
                break;
            }
            if batch.len() > before {
                places[before] = taken;
            }
            taken += 1;
        }
        let built = batch.len();
        if taken == 0 {
            return refused.map_or(Ok(0), Err);
        }
        // SAFETY: inline data outlives the call, as it is in `works`; other data, and what is bound, is kept by the ring.
        // Windows and regions are there during the call, and longer than what is bound.
        let (posted, result) = unsafe { batch.post(self.queues.hca(), self.raw.as_ptr()) };
        if posted < built {
            self.ring.withdraw(built - posted);
            taken = places[posted];
        }
        for &place in &places[..posted] {
            if let Some(Work::Bind(exposure)) = works.get(place)
                && let Some(window) = windows.get_mut(exposure.window())
            {
                window.set_rkey(exposure.rkey());
            }
        }
        drop((windows, regions));
        works.drain(..taken);
        match result {
            Err(errno) if taken == 0 => Err(self.device_error(errno)),
            // The posted requests are with the device. Posting the rest meets the error again.
            _ => Ok(taken),
        }
    }

    /// Ends what the peer may read and deallocates the windows, which the queue pair could not be destroyed with. False if
    /// the library refuses.
    fn dealloc_windows(&mut self) -> bool {
        if self.ring.windows().bound() > 0 && !self.failed.load(Ordering::Acquire) {
            // Windows that are in use go quietly once the peer is no longer listened to.
            let _ = self.to_err();
        }
        let windows = std::mem::take(self.posting.get_mut().unwrap_or_else(PoisonError::into_inner));
        // All of them, also after one that stays.
        windows.into_iter().map(Window::dealloc).filter(Result::is_err).count() == 0
    }

    /// Leaves the queue pair to the device for good, with all that it may still use.
    fn leak(&self) {
        self.ring.leak();
        std::mem::forget(Arc::clone(&self.queues));
    }
}

fn sge(start: usize, len: usize, lkey: u32) -> ibv_sge {
    ibv_sge { addr: start as u64, length: len as u32, lkey }
}

/// Creates a queue pair with as much inline room as the device gives.
fn create(queues: &Inner, size: QpSize) -> Result<(NonNull<ibv_qp>, u32), i32> {
    let hca = queues.hca();
    // A device refuses what is more than it has, without saying how much that is.
    let smaller = [188, 128, 64, 0].into_iter().filter(|&inline| inline < size.inline);
    let mut errno = libc::EINVAL;
    for inline in std::iter::once(size.inline).chain(smaller) {
        let mut init = ibv_qp_init_attr::zeroed();
        init.send_cq = queues.cq(Cq::Send).as_ptr();
        init.recv_cq = queues.cq(Cq::Receive).as_ptr();
        init.srq = queues.srq().as_ptr();
        init.cap.max_send_wr = size.reserve();
        init.cap.max_send_sge = MAX_PARTS as u32;
        init.cap.max_inline_data = inline;
        init.qp_type = sys::IBV_QPT_RC;
        // SAFETY: queues of one device, and a structure that is read and written during the call.
        let raw = unsafe { (hca.verbs().ibv_create_qp)(hca.pd(), &raw mut init) };
        if let Some(raw) = NonNull::new(raw) {
            return Ok((raw, init.cap.max_inline_data));
        }
        errno = last_errno();
        if errno != libc::EINVAL {
            break;
        }
    }
    Err(errno)
}

impl QueuePair for VerbsQp {
    fn number(&self) -> u32 {
        self.number
    }

    fn inline(&self) -> u32 {
        self.inline
    }

    fn to_init(&self, local: &LocalPath) -> Result<(), DeviceError> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = sys::IBV_QPS_INIT;
        attr.pkey_index = local.pkey_index;
        attr.port_num = local.port;
        // The access that windows may give. Without a window, a peer can only send.
        let atomics = if self.queues.hca().limits().atomics { sys::IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        attr.qp_access_flags = (sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE | atomics) as u32;
        self.modify(&mut attr, sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS)
    }

    fn to_rtr(&self, local: &LocalPath, remote: &RemoteQp, tuning: &QpTuning) -> Result<(), DeviceError> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = sys::IBV_QPS_RTR;
        attr.path_mtu = tuning.mtu.code().into();
        attr.dest_qp_num = remote.qp_num;
        attr.rq_psn = remote.psn & PSN_MASK;
        attr.max_dest_rd_atomic = tuning.reads_served.min(self.queues.hca().limits().reads_served);
        attr.min_rnr_timer = tuning.min_rnr_timer;
        attr.ah_attr = route(local, remote, tuning);
        let mask = sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask)
    }

    fn to_rts(&self, psn: u32, tuning: &QpTuning) -> Result<(), DeviceError> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = sys::IBV_QPS_RTS;
        attr.sq_psn = psn & PSN_MASK;
        attr.timeout = tuning.timeout;
        attr.retry_cnt = tuning.retry_cnt.min(MAX_RETRIES);
        attr.rnr_retry = tuning.rnr_retry.min(MAX_RETRIES);
        attr.max_rd_atomic = tuning.reads.min(self.queues.hca().limits().reads);
        let mask = sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask)
    }

    fn to_err(&self) -> Result<(), DeviceError> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = sys::IBV_QPS_ERR;
        self.modify(&mut attr, 0)?;
        self.failed.store(true, Ordering::Release);
        Ok(())
    }

    fn alloc_windows(&self, count: usize) -> Result<(), DeviceError> {
        let hca = self.queues.hca();
        for _ in 0..count {
            // SAFETY: the functions and the domain are those of one context.
            let window = unsafe { Window::alloc(hca.ops(), hca.pd()) };
            let window = window.map_err(|errno| hca.error("ibv_alloc_mw", errno))?;
            let mut windows = self.posting();
            self.ring.windows().add(window.rkey());
            windows.push(window);
        }
        Ok(())
    }

    fn expose(&self, bytes: &Bytes) -> Result<Exposure, ExposeError> {
        self.expose_in_arena(Exposed::Message(bytes.clone()), RemoteAccess::READ)
    }

    fn expose_words(
        &self,
        words: Arc<dyn SharesWords>,
        access: RemoteAccess,
    ) -> Result<Exposure, ExposeError> {
        let Some(ours) = words.words().registration::<Registration>() else {
            return self.expose_in_arena(Exposed::Words(words), access);
        };
        let is_ours = ours.is_of(self.queues.hca()) && ours.allows(access);
        if !is_ours || words.range().is_empty() {
            return Err(ExposeError::NotInArena);
        }
        let mut windows = self.posting();
        let exposed = Exposed::Words(Arc::clone(&words));
        let exposure = self.ring.windows().take(exposed, access).ok_or(ExposeError::NoWindow)?;
        let Some(window) = windows.get_mut(exposure.window()) else { return Ok(exposure) };
        // The words have a region of their own, so only a part of them needs another.
        window.disclose();
        let hca = self.queues.hca();
        if hca.has_loose_windows()
            && words.range() != words.words().range()
            && let Err(errno) = window.enclose(hca, ours.region(), &exposure)
        {
            self.ring.windows().invalidate(&exposure);
            return Err(ExposeError::Refused(errno));
        }
        Ok(exposure)
    }

    fn post(&self, works: &mut VecDeque<Work>) -> Result<usize, PostError> {
        if works.len() == 1 { self.post_batch::<1>(works) } else { self.post_batch::<MAX_BATCH>(works) }
    }

    fn send_copy(&self, message: &[u8]) -> Result<bool, PostError> {
        if message.is_empty() || message.len() > self.inline as usize {
            return Err(PostError::TooLong);
        }
        let _posting = self.posting();
        let Some(ticket) = self.ring.push_copied() else { return Ok(false) };
        let mut batch = Batch::<1>::new();
        batch.send_copy(message);
        batch.sign(ticket.wr_id, ticket.signaled);
        // SAFETY: the data outlives the call, in which it is copied.
        let (posted, result) = unsafe { batch.post(self.queues.hca(), self.raw.as_ptr()) };
        if posted == 0 {
            self.ring.withdraw(1);
        }
        result.map(|()| true).map_err(|errno| self.device_error(errno))
    }

    fn post_marker(&self) -> Result<(), PostError> {
        let _posting = self.posting();
        // In any other state the peer would receive it.
        if !self.failed.load(Ordering::Acquire) {
            return Err(PostError::Misplaced);
        }
        let ticket = self.ring.push_marker().ok_or(PostError::Misplaced)?;
        let mut batch = Batch::<1>::new();
        batch.push_empty();
        batch.sign(ticket.wr_id, true);
        // SAFETY: a request without data.
        let (posted, result) = unsafe { batch.post(self.queues.hca(), self.raw.as_ptr()) };
        self.ring.withdraw(1 - posted);
        result.map_err(|errno| self.device_error(errno))
    }

    fn sends_outstanding(&self) -> usize {
        self.ring.len()
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        if !self.dealloc_windows() {
            return self.leak();
        }
        let mut budget = self.queues.budget();
        let (hca, queues) = (self.queues.hca(), [self.queues.cq(Cq::Receive), self.queues.cq(Cq::Send)]);
        // Some devices drop the completions of a queue pair that is destroyed, and with them the slots' way back.
        queues.iter().for_each(|cq| cq.absorb(hca));
        // SAFETY: this queue pair, once.
        let result = unsafe { (hca.verbs().ibv_destroy_qp)(self.raw.as_ptr()) };
        if let Err(errno) = returned_errno(result) {
            leaked("ibv_destroy_qp", errno);
            return self.leak();
        }
        // Others leave them in the queue, where the next bearer of the number would find them.
        let mut slots = Vec::new();
        for cq in queues {
            cq.absorb(hca);
            cq.purge(self.number, |raw| {
                slots.extend(self.queues.in_flight().resolve(raw).and_then(Completion::into_slot));
            });
        }
        // Nobody will poll these receives, but the peers of other queue pairs count on them. A device that refuses them is
        // lost, and that is noticed where it is polled.
        let _ = self.queues.srq().post(hca, &mut slots);
        self.queues.in_flight().remove_ring(&self.ring);
        budget.give_back(self.size);
    }
}

impl fmt::Debug for VerbsQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("VerbsQp");
        s.field("number", &self.number).field("outstanding", &self.sends_outstanding());
        s.finish_non_exhaustive()
    }
}

/// Packet numbers have 24 bits.
const PSN_MASK: u32 = 0xff_ffff;

/// 7 means for ever, for RNR on every device and for lost packets on Soft-RoCE.
const MAX_RETRIES: u8 = 6;

/// How packets get to the peer.
fn route(local: &LocalPath, remote: &RemoteQp, tuning: &QpTuning) -> sys::ibv_ah_attr {
    let mut attr = sys::ibv_ah_attr::zeroed();
    attr.port_num = local.port;
    attr.sl = local.service_level;
    attr.dlid = remote.lid;
    // RoCE has no local identifiers, and those of InfiniBand reach no other subnet.
    let global = local.status.link_layer == LinkLayer::Ethernet || !local.gid.same_subnet(remote.gid);
    if global {
        let gid = remote.gid.0;
        let (prefix, id) = gid.split_at(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        attr.is_global = 1;
        attr.grh.dgid = [word(prefix), word(id)];
        attr.grh.sgid_index = local.gid_index;
        attr.grh.hop_limit = tuning.hop_limit;
        attr.grh.traffic_class = local.traffic_class;
    }
    attr
}
