//! Reliable connected queue pairs.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::device::{Hca, Regions};
use super::inflight::SendRing;
use super::queues::Inner;
use super::srq::index_of;
use super::sys::{self, Plain as _, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_send_wr, ibv_sge};
use super::{last_errno, leaked, returned_errno};
use crate::device::{
    Cq, CreateQpError, DeviceError, LinkLayer, LocalPath, MAX_BATCH, PostError, QpSize, QpTuning, QueuePair,
    RemoteQp, SendRequest,
};

/// Parts of a message.
const MAX_PARTS: usize = 2;

/// See [`QueuePair`].
pub(super) struct VerbsQp {
    raw: NonNull<ibv_qp>,
    number: u32,
    inline: u32,
    size: QpSize,
    ring: Arc<SendRing>,
    /// Held while posting, so that requests reach the device in the order in which the ring has them.
    posting: Mutex<()>,
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

    fn posting(&self) -> MutexGuard<'_, ()> {
        self.posting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device_error(&self, errno: i32) -> PostError {
        PostError::Device(self.queues.hca().error("ibv_post_send", errno))
    }
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
        // No remote access: peers send, and that is all.
        attr.qp_access_flags = 0;
        self.modify(&mut attr, sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS)
    }

    fn to_rtr(&self, local: &LocalPath, remote: &RemoteQp, tuning: &QpTuning) -> Result<(), DeviceError> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = sys::IBV_QPS_RTR;
        attr.path_mtu = tuning.mtu.code().into();
        attr.dest_qp_num = remote.qp_num;
        attr.rq_psn = remote.psn & PSN_MASK;
        attr.max_dest_rd_atomic = 0;
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
        attr.max_rd_atomic = 0;
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

    fn post_sends(&self, requests: &mut VecDeque<SendRequest>) -> Result<usize, PostError> {
        let posting = self.posting();
        let regions = self.queues.hca().regions();
        let count = requests.len().min(MAX_BATCH).min(self.ring.room());
        let (mut batch, mut refused) = (Batch::new(), None);
        for request in requests.iter().take(count) {
            let inline = request.len() <= self.inline as usize;
            if let Err(error) = batch.push(request, inline, &regions) {
                refused = Some(error);
                break;
            }
            // Inline data is copied during the call, and the request is there until it returns.
            let kept = if inline { [Bytes::new(), Bytes::new()] } else { request.parts.clone() };
            let ticket = self.ring.push(kept, request.signaled);
            batch.sign(ticket.wr_id, ticket.signaled);
        }
        let built = batch.len;
        if built == 0 {
            return refused.map_or(Ok(0), Err);
        }
        // SAFETY: inline data outlives the call, as it is in `requests`; other data is kept by the ring.
        let (posted, result) = unsafe { batch.post(self.queues.hca(), self.raw.as_ptr()) };
        self.ring.withdraw(built - posted);
        drop((posting, regions));
        requests.drain(..posted);
        match result {
            Err(errno) if posted == 0 => Err(self.device_error(errno)),
            // What was posted is with the device; the error is met again by who posts the rest.
            _ => Ok(posted),
        }
    }

    fn post_marker(&self) -> Result<(), PostError> {
        let _posting = self.posting();
        // In any other state the peer would receive it.
        if !self.failed.load(Ordering::Acquire) {
            return Err(PostError::Misplaced);
        }
        let ticket = self.ring.push_marker().ok_or(PostError::Misplaced)?;
        let mut batch = Batch::new();
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
        let mut budget = self.queues.budget();
        let (hca, queues) = (self.queues.hca(), [self.queues.cq(Cq::Receive), self.queues.cq(Cq::Send)]);
        // Some devices drop the completions of a queue pair that is destroyed, and with them the slots' way back.
        queues.iter().for_each(|cq| cq.absorb(hca));
        // SAFETY: this queue pair, once.
        let result = unsafe { (hca.verbs().ibv_destroy_qp)(self.raw.as_ptr()) };
        if let Err(errno) = returned_errno(result) {
            leaked("ibv_destroy_qp", errno);
            self.ring.leak();
            std::mem::forget(Arc::clone(&self.queues));
            return;
        }
        // Others leave them in the queue, where the next bearer of the number would find them.
        for cq in queues {
            cq.absorb(hca);
            cq.purge(self.number, |raw| drop(self.queues.in_flight().resolve(raw)));
        }
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

/// A list of sends under construction.
struct Batch {
    wrs: [ibv_send_wr; MAX_BATCH],
    sges: [ibv_sge; MAX_BATCH * MAX_PARTS],
    len: usize,
}

impl Batch {
    fn new() -> Self {
        let sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
        Self { wrs: [ibv_send_wr::zeroed(); MAX_BATCH], sges: [sge; MAX_BATCH * MAX_PARTS], len: 0 }
    }

    /// Adds a request, to be signed.
    fn push(&mut self, request: &SendRequest, inline: bool, regions: &Regions<'_>) -> Result<(), PostError> {
        if request.len() > i32::MAX as usize {
            return Err(PostError::TooLong);
        }
        let mut num_sge = 0;
        for part in request.parts.iter().filter(|part| !part.is_empty()) {
            // Inline data needs no key.
            let lkey = if inline { 0 } else { regions.lkey(part).ok_or(PostError::NotRegistered)? };
            let length = part.len() as u32;
            self.sges[self.len * MAX_PARTS + num_sge] = ibv_sge { addr: part.as_ptr() as u64, length, lkey };
            num_sge += 1;
        }
        let wr = &mut self.wrs[self.len];
        wr.num_sge = num_sge as i32;
        wr.opcode = sys::IBV_WR_SEND;
        wr.send_flags = if inline && num_sge > 0 { sys::IBV_SEND_INLINE } else { 0 };
        if request.solicited {
            wr.send_flags |= sys::IBV_SEND_SOLICITED;
        }
        Ok(())
    }

    /// Adds a request without data, to be signed.
    fn push_empty(&mut self) {
        self.wrs[self.len].opcode = sys::IBV_WR_SEND;
    }

    /// Completes the request that was added.
    fn sign(&mut self, wr_id: u64, signaled: bool) {
        let wr = &mut self.wrs[self.len];
        wr.wr_id = wr_id;
        if signaled {
            wr.send_flags |= sys::IBV_SEND_SIGNALED;
        }
        self.len += 1;
    }

    /// Posts the requests and says how many the device has taken.
    ///
    /// # Safety
    /// The queue pair is one of this device. The data of inline requests is there during the call, that of others until they complete.
    unsafe fn post(&mut self, hca: &Hca, qp: *mut ibv_qp) -> (usize, Result<(), i32>) {
        let (first, buffers) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        for i in 0..self.len {
            let wr = first.wrapping_add(i);
            let next = if i + 1 < self.len { first.wrapping_add(i + 1) } else { ptr::null_mut() };
            // SAFETY: an element of the array, to which no reference exists.
            unsafe { (*wr).next = next };
            // SAFETY: as above.
            unsafe { (*wr).sg_list = buffers.wrapping_add(i * MAX_PARTS) };
        }
        let Some(post_send) = hca.ops().post_send else { return (0, Err(libc::EOPNOTSUPP)) };
        let mut bad = ptr::null_mut();
        // SAFETY: this queue pair, with the function of its own context; a list that lives during the call; the data as the
        // caller says.
        let result = returned_errno(unsafe { post_send(qp, first, &raw mut bad) });
        let posted = if result.is_ok() { self.len } else { index_of(bad, first, self.len) };
        (posted, result)
    }
}
