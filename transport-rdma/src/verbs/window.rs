//! Memory windows of type 2, which a queue pair binds and unbinds by itself.

use std::mem;
use std::ptr::NonNull;

use super::device::{Hca, Region};
use super::sys::{self, ibv_context_ops, ibv_mw, ibv_pd, ibv_send_wr_bind_mw};
use super::{last_errno, leaked, returned_errno};
use crate::device::Exposure;

/// A memory window. It belongs to a queue pair, and goes before that and before the region it was bound to: both wait for
/// it, in vain, or refuse to go.
pub(super) struct Window {
    raw: NonNull<ibv_mw>,
    dealloc_mw: sys::DeallocMw,
    /// On devices with loose windows: exactly what is exposed. It is kept until the next exposure, when the window is
    /// certain not to be bound to it any more.
    region: Option<Region>,
}

// SAFETY: the library allows its objects to be used and destroyed on any thread.
unsafe impl Send for Window {}

impl Window {
    /// # Safety
    /// The domain is one of the context whose functions these are.
    pub(super) unsafe fn alloc(ops: &ibv_context_ops, pd: *mut ibv_pd) -> Result<Self, i32> {
        let (Some(alloc_mw), Some(dealloc_mw)) = (ops.alloc_mw, ops.dealloc_mw) else {
            return Err(libc::EOPNOTSUPP);
        };
        // SAFETY: as the caller says.
        let raw = NonNull::new(unsafe { alloc_mw(pd, sys::IBV_MW_TYPE_2) }).ok_or_else(last_errno)?;
        Ok(Self { raw, dealloc_mw, region: None })
    }

    /// Ends what the window grants, and the window. When this returns, nobody reads through it any more.
    pub(super) fn dealloc(self) -> Result<(), i32> {
        // SAFETY: this window, once.
        let result = returned_errno(unsafe { (self.dealloc_mw)(self.raw.as_ptr()) });
        if let Err(errno) = result {
            leaked("ibv_dealloc_mw", errno);
            mem::forget(self.region);
        }
        result
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: a window of the library; only `set_rkey` changes the field.
        unsafe { self.raw.as_ref() }.rkey
    }

    /// To be told after each bind that was posted: the next one names the window by this key.
    pub(super) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: as above, and there is no other reference.
        unsafe { self.raw.as_mut() }.rkey = rkey;
    }

    /// Registers what is exposed by itself. The window is not bound.
    pub(super) fn enclose(&mut self, hca: &Hca, arena: &Region, exposure: &Exposure) -> Result<(), i32> {
        let start = exposure.addr() as usize;
        self.region = Some(arena.of_part(hca, start..start + exposure.len())?);
        Ok(())
    }

    /// Lets go of the region of the exposure before. The window is not bound.
    pub(super) fn disclose(&mut self) {
        self.region = None;
    }

    /// The request that lets the peer use what is exposed, which lies in this region.
    pub(super) fn bind(&self, within: &Region, exposure: &Exposure) -> ibv_send_wr_bind_mw {
        let access = exposure.access();
        let flag = |may: bool, flag| if may { flag } else { 0 };
        let flags = flag(access.read, sys::IBV_ACCESS_REMOTE_READ)
            | flag(access.write, sys::IBV_ACCESS_REMOTE_WRITE)
            | flag(access.atomics, sys::IBV_ACCESS_REMOTE_ATOMIC);
        ibv_send_wr_bind_mw {
            mw: self.raw.as_ptr(),
            rkey: exposure.rkey(),
            bind_info: sys::ibv_mw_bind_info {
                mr: self.region.as_ref().unwrap_or(within).as_ptr(),
                addr: exposure.addr(),
                length: exposure.len() as u64,
                mw_access_flags: flags as u32,
            },
        }
    }
}
