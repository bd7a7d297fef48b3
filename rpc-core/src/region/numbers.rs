//! The numbers of a region: the processor changes them, or a device does, for the owner and for all peers.
//!
//! A device's operations are not atomic with the processor's. So all go to the device from before the first peer can have it change a number,
//! until after the last peer can.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use super::exported::{Exported, InUse, Shared};
use crate::access::{GivenGrant, Progress, check_number};
use crate::proto::wire::Outcome;
use crate::status::Executed;
use crate::transport::{Atomic, DeviceAtomics, words};

/// The party that changes the numbers of a region.
#[derive(Default)]
pub(super) struct Numbers {
    /// `None`: the processor does, under the lock that this is under.
    device: Option<Arc<dyn DeviceAtomics>>,
    /// Each ends when a peer, or this process, can have the device change numbers no more.
    changing: Vec<watch::Receiver<()>>,
    /// The processor does, always, because the application does, too.
    pub(super) by_processor: bool,
}

impl Numbers {
    pub(super) fn device(&self) -> Option<Arc<dyn DeviceAtomics>> {
        self.device.clone()
    }

    fn are_with(&self, device: &Arc<dyn DeviceAtomics>) -> bool {
        self.device.as_ref().is_some_and(|now| Arc::ptr_eq(now, device))
    }

    /// See [`ExportedMemory::entrust`](crate::access::ExportedMemory::entrust).
    pub(super) fn entrust(&mut self, device: Arc<dyn DeviceAtomics>, ends: Vec<watch::Receiver<()>>) -> bool {
        let now = self.device.get_or_insert_with(|| device.clone());
        let is_entrusted = now.device() == device.device() && now.is_open();
        if is_entrusted {
            self.changing.retain(|end| end.has_changed().is_ok());
            self.changing.extend(ends);
        }
        is_entrusted
    }
}

impl Shared {
    /// Does an operation on a number, or has the device do it that changes the numbers.
    pub(super) fn change(self: Arc<Self>, offset: usize, atomic: Atomic) -> Result<Progress<u64>, Outcome> {
        check_number(offset, self.len)?;
        let exported = self.exported.lock();
        let Exported { memory, numbers, .. } = exported.as_ref().ok_or(Outcome::Gone)?;
        let Some(device) = numbers.device() else {
            return Ok(Progress::Done(memory.change(offset, atomic)));
        };
        drop(exported);
        Ok(Progress::ByDevice(Box::pin(self.change_by_device(device, offset, atomic))))
    }

    async fn change_by_device(
        self: Arc<Self>,
        mut device: Arc<dyn DeviceAtomics>,
        offset: usize,
        atomic: Atomic,
    ) -> Result<u64, Outcome> {
        loop {
            let changed = device.change(offset, atomic);
            // Not held while the caller may not poll: a region that is revoked waits for the last owner.
            let held = Arc::downgrade(&device);
            drop(device);
            match (changed.await, held.upgrade()) {
                (Ok(before), _) => return Ok(before),
                (Err(Executed::No), Some(device)) => self.leave(&device).await,
                (Err(Executed::No), None) => {}
                (Err(_), _) => return Err(Outcome::Unknown),
            }
            let exported = self.exported.lock();
            let Exported { memory, numbers, .. } = exported.as_ref().ok_or(Outcome::Gone)?;
            match numbers.device() {
                Some(now) => device = now,
                None => return Ok(memory.change(offset, atomic)),
            }
        }
    }

    pub(super) async fn change_and_wait(
        self: Arc<Self>,
        offset: usize,
        atomic: Atomic,
    ) -> Result<u64, Outcome> {
        match self.change(offset, atomic)? {
            Progress::Done(before) => Ok(before),
            Progress::ByDevice(before) => before.await,
        }
    }

    /// Sets a number, by operations of whoever changes numbers: else one of another could be lost.
    pub(super) async fn set_and_wait(self: Arc<Self>, offset: usize, number: u64) -> Result<(), Outcome> {
        check_number(offset, self.len)?;
        loop {
            let expected = self.memory()?.load(offset);
            let swap = Atomic::CompareAndSwap { expected, new: number };
            if self.clone().change_and_wait(offset, swap).await? == expected {
                return Ok(());
            }
        }
    }

    /// Has the processor change numbers again, because the device has failed: as soon as no peer can have a device do so.
    async fn leave(&self, device: &Arc<dyn DeviceAtomics>) {
        let (grants, changing) = match &mut *self.exported.lock() {
            Some(exported) if exported.numbers.are_with(device) => {
                (std::mem::take(&mut exported.grants), exported.numbers.changing.clone())
            }
            _ => return,
        };
        grants.into_iter().for_each(GivenGrant::end);
        for mut end in changing {
            // Fails when the grant has no effect any more.
            let _ = end.changed().await;
        }
        let left = match &mut *self.exported.lock() {
            Some(exported) if exported.numbers.are_with(device) => std::mem::take(&mut exported.numbers),
            _ => return,
        };
        // Outside of the lock.
        drop(left);
    }

    /// Sets a number, or has that done.
    pub(super) fn set(self: Arc<Self>, offset: usize, number: u64) -> Result<Progress<()>, Outcome> {
        check_number(offset, self.len)?;
        let exported = self.exported.lock();
        let Exported { memory, numbers, .. } = exported.as_ref().ok_or(Outcome::Gone)?;
        if numbers.device.is_none() {
            words::copy_in((**memory).as_ref(), offset, &number.to_le_bytes());
            return Ok(Progress::Done(()));
        }
        drop(exported);
        Ok(Progress::ByDevice(Box::pin(self.set_and_wait(offset, number))))
    }
}

impl InUse {
    pub(super) fn load(&self, offset: usize) -> u64 {
        self.as_ref().get(offset / words::WORD).map_or(0, |word| u64::from_le(word.load(Ordering::SeqCst)))
    }

    /// Does an operation on the number at an offset, which is within the memory. Returns the number before.
    fn change(&self, offset: usize, atomic: Atomic) -> u64 {
        let Some(word) = self.as_ref().get(offset / words::WORD) else { return 0 };
        let apply = |before| Some(atomic.apply(u64::from_le(before)).to_le());
        // Never refuses.
        let changed = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, apply);
        u64::from_le(changed.unwrap_or_else(|before| before))
    }
}
