//! The shared receive queue.

use std::ffi::c_void;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::device::Hca;
use super::inflight::InFlight;
use super::load::Verbs;
use super::sys::{self, Plain as _, ibv_recv_wr, ibv_sge, ibv_srq};
use super::{last_errno, leaked, returned_errno};
use crate::device::{DeviceError, MAX_BATCH, PostError, Slot};

/// A shared receive queue. Destroyed on drop; the slots in it are free after that.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    raw: NonNull<ibv_srq>,
    verbs: &'static Verbs,
    in_flight: Arc<InFlight>,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// `id` comes back with asynchronous events. The owner drops it before the device.
    pub(super) fn new(hca: &Hca, receives: u32, id: u64) -> Result<Self, DeviceError> {
        let mut init = sys::ibv_srq_init_attr::zeroed();
        init.srq_context = ptr::without_provenance_mut::<c_void>(id as usize);
        init.attr = sys::ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        // SAFETY: a protection domain, and a structure that is read and written during the call.
        let raw = unsafe { (hca.verbs().ibv_create_srq)(hca.pd(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| hca.error("ibv_create_srq", last_errno()))?;
        // The device may have made it larger; what was asked for is what the completion queue has room for.
        Ok(Self { raw, verbs: hca.verbs(), in_flight: Arc::new(InFlight::new(receives)) })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    pub(super) fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    /// See [`crate::device::Queues::post_receives`].
    pub(super) fn post(&self, hca: &Hca, slots: &mut Vec<Slot>) -> Result<usize, PostError> {
        let mut total = 0;
        while !slots.is_empty() {
            let posted = match slots.len() {
                1 => self.post_batch::<1>(hca, slots),
                _ => self.post_batch::<MAX_BATCH>(hca, slots),
            };
            match posted {
                Ok(0) => break,
                Ok(count) => total += count,
                // The receives posted before are with the device. Posting the rest meets the error again.
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    /// Posts up to `N`: zeroing the requests of many takes longer than posting one.
    fn post_batch<const N: usize>(&self, hca: &Hca, slots: &mut Vec<Slot>) -> Result<usize, PostError> {
        let regions = hca.regions();
        let mut receives = self.in_flight.receives();
        let count = slots.len().min(N).min(receives.room());
        let mut wrs = [ibv_recv_wr::zeroed(); N];
        let mut sges = [ibv_sge { addr: 0, length: 0, lkey: 0 }; N];
        let mut built = 0;
        while built < count {
            let Some(mut slot) = slots.pop() else { break };
            let Some(lkey) = regions.lkey(&slot) else {
                slots.push(slot);
                break;
            };
            let length = u32::try_from(slot.len()).unwrap_or(u32::MAX);
            sges[built] = ibv_sge { addr: slot.as_mut_ptr() as u64, length, lkey };
            match receives.insert(slot) {
                Ok(wr_id) => wrs[built].wr_id = wr_id,
                Err(slot) => {
                    slots.push(slot);
                    break;
                }
            }
            built += 1;
        }
        if built == 0 {
            return if count == 0 { Ok(0) } else { Err(PostError::NotRegistered) };
        }
        let (posted, result) = self.post_list(hca, &mut wrs[..built], &mut sges[..built]);
        // Those that the device refused come back in the order in which they stood.
        for wr in wrs[posted..built].iter().rev() {
            slots.extend(receives.withdraw(wr.wr_id));
        }
        match result {
            Err(errno) if posted == 0 => Err(PostError::Device(hca.error("ibv_post_srq_recv", errno))),
            _ => Ok(posted),
        }
    }

    /// Posts the requests, one buffer each, and says how many the device has taken.
    fn post_list(
        &self,
        hca: &Hca,
        wrs: &mut [ibv_recv_wr],
        sges: &mut [ibv_sge],
    ) -> (usize, Result<(), i32>) {
        let (first, buffers, count) = (wrs.as_mut_ptr(), sges.as_mut_ptr(), wrs.len());
        for (i, wr) in wrs.iter_mut().enumerate() {
            wr.num_sge = 1;
            wr.sg_list = buffers.wrapping_add(i);
            wr.next = if i + 1 < count { first.wrapping_add(i + 1) } else { ptr::null_mut() };
        }
        let Some(post_srq_recv) = hca.ops().post_srq_recv else { return (0, Err(libc::EOPNOTSUPP)) };
        let mut bad = ptr::null_mut();
        // SAFETY: this queue, with the function of its own context; a list whose requests and buffers live during the call.
        // Each buffer is a slot that the table owns until its completion or the queue's end.
        let result = returned_errno(unsafe { post_srq_recv(self.as_ptr(), first, &raw mut bad) });
        let posted = if result.is_ok() { count } else { index_of(bad, first, count) };
        (posted, result)
    }
}

/// Where in the list the request stands that the device refused: all before it were posted.
pub(super) fn index_of<T>(bad: *mut T, first: *mut T, count: usize) -> usize {
    let offset = (bad as usize).wrapping_sub(first as usize) / mem::size_of::<T>();
    // A driver that names none has looked at none.
    if bad.is_null() || offset > count { 0 } else { offset }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: this queue, once; the queue pairs on it are gone.
        let result = returned_errno(unsafe { (self.verbs.ibv_destroy_srq)(self.raw.as_ptr()) });
        if let Err(errno) = result {
            leaked("ibv_destroy_srq", errno);
            self.in_flight.receives().leak();
        }
    }
}
