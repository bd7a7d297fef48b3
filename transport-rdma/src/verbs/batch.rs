//! Lists of requests for a send queue.

use std::ptr;

use bytes::Bytes;
use farcall_core::transport::Atomic;

use super::device::{Hca, Regions};
use super::returned_errno;
use super::srq::index_of;
use super::sys::{self, Plain as _, ibv_qp, ibv_send_wr, ibv_sge};
use crate::device::{PostError, RemoteRange};

/// Parts of a message.
pub(super) const MAX_PARTS: usize = 2;

/// A list of requests under construction, at most `N`: zeroing many takes longer than posting one.
pub(super) struct Batch<const N: usize> {
    wrs: [ibv_send_wr; N],
    sges: [[ibv_sge; MAX_PARTS]; N],
    len: usize,
}

impl<const N: usize> Batch<N> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn new() -> Self {
        let sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
        Self { wrs: [ibv_send_wr::zeroed(); N], sges: [[sge; MAX_PARTS]; N], len: 0 }
    }

    /// Adds a message, to be signed.
    pub(super) fn send(
        &mut self,
        parts: &[Bytes; 2],
        inline: bool,
        solicited: bool,
        regions: &Regions<'_>,
    ) -> Result<(), PostError> {
        let mut num_sge = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            // Inline data needs no key.
            let lkey = if inline { 0 } else { regions.lkey(part).ok_or(PostError::NotRegistered)? };
            let length = part.len() as u32;
            self.sges[self.len][num_sge] = ibv_sge { addr: part.as_ptr() as u64, length, lkey };
            num_sge += 1;
        }
        let wr = &mut self.wrs[self.len];
        wr.num_sge = num_sge as i32;
        wr.opcode = sys::IBV_WR_SEND;
        wr.send_flags = if inline && num_sge > 0 { sys::IBV_SEND_INLINE } else { 0 };
        if solicited {
            wr.send_flags |= sys::IBV_SEND_SOLICITED;
        }
        Ok(())
    }

    /// Adds a message that is copied when it is posted, to be signed.
    pub(super) fn send_copy(&mut self, message: &[u8]) {
        self.sges[self.len][0] =
            ibv_sge { addr: message.as_ptr() as u64, length: message.len() as u32, lkey: 0 };
        let wr = &mut self.wrs[self.len];
        wr.num_sge = 1;
        wr.opcode = sys::IBV_WR_SEND;
        wr.send_flags = sys::IBV_SEND_INLINE;
    }

    /// Adds a READ, to be signed.
    pub(super) fn read(&mut self, into: ibv_sge, from: RemoteRange) {
        let wr = &mut self.wrs[self.len];
        wr.opcode = sys::IBV_WR_RDMA_READ;
        wr.num_sge = i32::from(into.length > 0);
        wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: from.addr, rkey: from.rkey };
        self.sges[self.len][0] = into;
    }

    /// Adds an atomic operation, to be signed.
    pub(super) fn atomic(&mut self, atomic: Atomic, on: RemoteRange, into: ibv_sge) {
        // ibv_post_send(3): the operands are in the host's order, and so is the number in memory.
        let (opcode, compare_add, swap) = match atomic {
            Atomic::CompareAndSwap { expected, new } => (sys::IBV_WR_ATOMIC_CMP_AND_SWP, expected, new),
            Atomic::FetchAdd(add) => (sys::IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0),
        };
        let wr = &mut self.wrs[self.len];
        wr.opcode = opcode;
        wr.num_sge = 1;
        wr.wr.atomic = sys::ibv_send_wr_atomic { remote_addr: on.addr, compare_add, swap, rkey: on.rkey };
        self.sges[self.len][0] = into;
    }

    /// Adds a WRITE, to be signed.
    pub(super) fn write(&mut self, from: ibv_sge, inline: bool, to: RemoteRange) {
        let wr = &mut self.wrs[self.len];
        wr.opcode = sys::IBV_WR_RDMA_WRITE;
        wr.num_sge = i32::from(from.length > 0);
        wr.send_flags = if inline && from.length > 0 { sys::IBV_SEND_INLINE } else { 0 };
        wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: to.addr, rkey: to.rkey };
        self.sges[self.len][0] = from;
    }

    /// Adds a bind, to be signed.
    pub(super) fn bind(&mut self, bind_mw: sys::ibv_send_wr_bind_mw) {
        let wr = &mut self.wrs[self.len];
        wr.opcode = sys::IBV_WR_BIND_MW;
        wr.bind_mw = bind_mw;
    }

    /// Adds an invalidation, to be signed.
    pub(super) fn invalidate(&mut self, rkey: u32) {
        let wr = &mut self.wrs[self.len];
        wr.opcode = sys::IBV_WR_LOCAL_INV;
        wr.invalidate_rkey = rkey;
    }

    /// Adds a request without data, to be signed.
    pub(super) fn push_empty(&mut self) {
        self.wrs[self.len].opcode = sys::IBV_WR_SEND;
    }

    /// Completes the request that was added.
    pub(super) fn sign(&mut self, wr_id: u64, signaled: bool) {
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
    /// The queue pair is one of this device, and so are the windows and regions. The data of inline requests is there
    /// during the call, that of others until they complete, and what is bound until it is no longer.
    pub(super) unsafe fn post(&mut self, hca: &Hca, qp: *mut ibv_qp) -> (usize, Result<(), i32>) {
        if self.len == 0 {
            return (0, Ok(()));
        }
        let (first, buffers) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr().cast::<ibv_sge>());
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
