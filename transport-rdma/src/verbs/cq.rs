//! Completion queues and the channel that tells of their events.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::Hca;
use super::inflight::RawCompletion;
use super::load::Verbs;
use super::sys::{self, Plain as _, ibv_comp_channel, ibv_cq, ibv_wc};
use super::{last_errno, leaked, returned_errno};
use crate::device::{DeviceError, WcStatus};

/// Completions that are taken from the device with one call.
const POLL_BATCH: usize = 32;

/// Events that are acknowledged together, because that takes a mutex.
const ACK_BATCH: u32 = 64;

/// A completion queue. Destroyed on drop, after its queue pairs and before its channel. Where a device is asked for, it is the
/// one it was made on.
pub(super) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    verbs: &'static Verbs,
    /// The lock makes polling exclusive, so that completions of a queue pair are resolved in order.
    polling: Mutex<Polling>,
    /// Events that were read from the channel and are not acknowledged yet.
    unacknowledged: AtomicU32,
}

struct Polling {
    /// Completions that were taken from the device when a queue pair was destroyed. They are polled first.
    backlog: VecDeque<RawCompletion>,
    /// Where the device writes completions; kept, because zeroing it for each poll would cost more than an empty poll.
    entries: Box<[ibv_wc; POLL_BATCH]>,
    /// An event was asked for, for whatever comes next, and nothing has been taken from the device since: it is still asked
    /// for, or it has come.
    armed: bool,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// `id` comes back with asynchronous events. The owner drops it before the channel and before the device.
    pub(super) fn new(
        hca: &Hca,
        channel: &CompletionChannel,
        entries: u32,
        id: u64,
    ) -> Result<Self, DeviceError> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let id = ptr::without_provenance_mut::<c_void>(id as usize);
        // SAFETY: an open context and a channel of it; the id is only carried around.
        let raw = unsafe { (hca.verbs().ibv_create_cq)(hca.context(), entries, id, channel.raw.as_ptr(), 0) };
        let raw = NonNull::new(raw).ok_or_else(|| hca.error("ibv_create_cq", last_errno()))?;
        let entries = Box::new([ibv_wc::zeroed(); POLL_BATCH]);
        let polling = Polling { backlog: VecDeque::new(), entries, armed: false };
        Ok(Self { raw, verbs: hca.verbs(), polling: Mutex::new(polling), unacknowledged: AtomicU32::new(0) })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Hands up to `max` completions to `take`, in order, and says how many there were.
    pub(super) fn poll(
        &self,
        hca: &Hca,
        max: usize,
        mut take: impl FnMut(&RawCompletion),
    ) -> Result<usize, i32> {
        let mut polling = self.lock();
        let mut count = 0;
        while count < max {
            let Some(raw) = polling.backlog.pop_front() else { break };
            take(&raw);
            count += 1;
        }
        while count < max {
            let want = POLL_BATCH.min(max - count);
            let got = self.poll_device(hca, &mut polling, want)?;
            polling.entries[..got].iter().map(completion).for_each(|raw| take(&raw));
            count += got;
            if got < want {
                break;
            }
        }
        Ok(count)
    }

    /// Takes everything from the device before or after a queue pair is destroyed: what is in the queue then, some devices
    /// drop, and some leave to be taken for a later queue pair of the same number.
    pub(super) fn absorb(&self, hca: &Hca) {
        let mut polling = self.lock();
        loop {
            // A queue that is lost is noticed where it is polled.
            let got = self.poll_device(hca, &mut polling, POLL_BATCH).unwrap_or(0);
            let Polling { backlog, entries, .. } = &mut *polling;
            backlog.extend(entries[..got].iter().map(completion));
            if got < POLL_BATCH {
                return;
            }
        }
    }

    /// Hands what was absorbed of a destroyed queue pair to `take`.
    pub(super) fn purge(&self, qp_num: u32, mut take: impl FnMut(&RawCompletion)) {
        self.lock().backlog.retain(|raw| {
            let keep = raw.qp_num != qp_num;
            if !keep {
                take(raw);
            }
            keep
        });
    }

    /// Asks for an event, unless that was done and none has come: on many devices it takes a system call.
    pub(super) fn arm(&self, hca: &Hca, solicited_only: bool) -> Result<(), i32> {
        let mut polling = self.lock();
        if polling.armed {
            return Ok(());
        }
        let Some(req_notify_cq) = hca.ops().req_notify_cq else { return Err(libc::EOPNOTSUPP) };
        // SAFETY: this queue, with the function of its own context.
        returned_errno(unsafe { req_notify_cq(self.as_ptr(), i32::from(solicited_only)) })?;
        polling.armed = !solicited_only;
        Ok(())
    }

    /// Counts an event that was read, and acknowledges if there are many.
    fn count_event(&self) {
        if self.unacknowledged.fetch_add(1, Ordering::Relaxed) + 1 >= ACK_BATCH {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let count = self.unacknowledged.swap(0, Ordering::Relaxed);
        if count > 0 {
            // SAFETY: this many events of this queue were read and not acknowledged.
            unsafe { (self.verbs.ibv_ack_cq_events)(self.as_ptr(), count) };
        }
    }

    /// Fills the entries from the beginning, `want` at most, and says how many.
    fn poll_device(&self, hca: &Hca, polling: &mut Polling, want: usize) -> Result<usize, i32> {
        let Some(poll_cq) = hca.ops().poll_cq else { return Err(libc::EOPNOTSUPP) };
        let entries = &mut polling.entries[..want];
        let count = i32::try_from(entries.len()).unwrap_or(i32::MAX);
        // SAFETY: this queue, with the function of its own context, and room for `count` entries.
        let got = unsafe { poll_cq(self.as_ptr(), count, entries.as_mut_ptr()) };
        let got = usize::try_from(got).ok().filter(|&got| got <= want).ok_or(libc::EIO)?;
        polling.armed &= got == 0;
        Ok(got)
    }

    fn lock(&self) -> MutexGuard<'_, Polling> {
        self.polling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn completion(wc: &ibv_wc) -> RawCompletion {
    RawCompletion {
        wr_id: wc.wr_id,
        status: WcStatus(wc.status),
        vendor: wc.vendor_err,
        qp_num: wc.qp_num,
        len: wc.byte_len,
        foreign: wc.wc_flags & (sys::IBV_WC_WITH_IMM | sys::IBV_WC_WITH_INV) != 0,
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Destroying waits for as many acknowledgements as events were read.
        self.acknowledge();
        // SAFETY: this queue, once; its queue pairs are gone.
        let result = returned_errno(unsafe { (self.verbs.ibv_destroy_cq)(self.raw.as_ptr()) });
        if let Err(errno) = result {
            leaked("ibv_destroy_cq", errno);
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("backlog", &self.lock().backlog.len()).finish_non_exhaustive()
    }
}

/// A completion channel, whose descriptor is readable when there are events.
#[derive(Debug)]
pub(super) struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    verbs: &'static Verbs,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    pub(super) fn new(hca: &Hca) -> Result<Self, DeviceError> {
        // SAFETY: an open context.
        let raw = unsafe { (hca.verbs().ibv_create_comp_channel)(hca.context()) };
        let raw = NonNull::new(raw).ok_or_else(|| hca.error("ibv_create_comp_channel", last_errno()))?;
        let channel = Self { raw, verbs: hca.verbs() };
        super::events::set_nonblocking(channel.fd()).map_err(|errno| hca.error("fcntl", errno))?;
        Ok(channel)
    }

    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: a channel of the library; the descriptor does not change.
        unsafe { self.raw.as_ref() }.fd
    }

    /// Reads events of these queues, `max` at most, and says how many there were.
    pub(super) fn read_events(&self, queues: [&CompletionQueue; 2], max: usize) -> Result<usize, i32> {
        let mut count = 0;
        while count < max {
            let (mut cq, mut id) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: this channel; the results are written on success only.
            let result =
                unsafe { (self.verbs.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut id) };
            if result != 0 {
                return match last_errno() {
                    libc::EAGAIN => Ok(count),
                    libc::EINTR => continue,
                    errno => Err(errno),
                };
            }
            count += 1;
            if let Some(queue) = queues.into_iter().find(|queue| queue.as_ptr() == cq) {
                queue.count_event();
            }
        }
        Ok(count)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: this channel, once; its queues were dropped before it.
        let result = returned_errno(unsafe { (self.verbs.ibv_destroy_comp_channel)(self.raw.as_ptr()) });
        if let Err(errno) = result {
            leaked("ibv_destroy_comp_channel", errno);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_and_invalidated_keys_are_foreign() {
        const WITH_ROUTE: u32 = 1;
        let is_foreign = |wc_flags| completion(&ibv_wc { wc_flags, ..ibv_wc::zeroed() }).foreign;
        for flags in [0, WITH_ROUTE] {
            assert!(!is_foreign(flags));
            assert!(is_foreign(flags | sys::IBV_WC_WITH_IMM));
            assert!(is_foreign(flags | sys::IBV_WC_WITH_INV));
        }
    }
}
