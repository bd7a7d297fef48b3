//! The bound on the arguments of calls in progress.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::BoxFuture;

/// The unit in which arguments are counted, in bytes.
const UNIT: u64 = 4 << 10;

/// The part of the bound that the calls to one of several servers may take before others are preferred: one of so many. So one
/// that is slow does not keep calls from the others.
const SHARES: u64 = 4;

/// A part of the bound, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Room(OwnedSemaphorePermit);

impl Room {
    /// Returns how many units it is.
    pub(super) fn units(&self) -> u32 {
        // It was asked for as such a number.
        self.0.num_permits() as u32
    }
}

/// Returns how many units of a bound of so many bytes the calls to one server may take before others are preferred.
pub(super) fn share(limit: u64) -> u32 {
    u32::try_from(limit / UNIT / SHARES).unwrap_or(u32::MAX)
}

/// The bound for the calls of one class, first come, first served.
#[derive(Debug)]
pub(super) struct RequestMemory {
    units: u32,
    free: Arc<Semaphore>,
}

impl RequestMemory {
    /// Returns a bound of so many bytes.
    pub(super) fn new(limit: u64) -> Self {
        let units = u32::try_from(limit / UNIT).unwrap_or(u32::MAX);
        Self { units, free: Arc::new(Semaphore::new(units as usize)) }
    }

    /// Returns how many units arguments of so many bytes take: all of them if they are longer than the bound.
    fn units(&self, len: usize) -> u32 {
        u32::try_from((len as u64).div_ceil(UNIT)).map_or(self.units, |units| units.min(self.units))
    }

    /// Takes room for arguments of so many bytes, if there is enough and nobody waits for it.
    pub(super) fn try_take(&self, len: usize) -> Option<Room> {
        self.free.clone().try_acquire_many_owned(self.units(len)).ok().map(Room)
    }

    /// Waits for room for arguments of so many bytes.
    pub(super) fn take(&self, len: usize) -> BoxFuture<Room> {
        let (free, units) = (self.free.clone(), self.units(len));
        // An error would mean that the semaphore was closed, which nobody does.
        Box::pin(async move { Room(free.acquire_many_owned(units).await.expect("never closed")) })
    }
}
