//! The owner's side of a region.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{RemoteRegion, Rights};
use crate::access::{self, Atomic, Memory, check_number, check_range};
use crate::bulk::Lend;
use crate::proto::wire::Outcome;
use crate::status::{Blame, Code, Executed, Status};
use crate::sync::{Mutex, rank};

/// Memory that this process exports; see [the module](super). Dropping it revokes it and frees the memory.
///
/// Its owner reaches the memory by copies and by atomic operations, never by reference, because peers may write it at any time.
pub struct Region<M: Lend> {
    shared: Arc<Shared<M>>,
    remote: RemoteRegion,
}

struct Shared<M> {
    rights: Rights,
    len: usize,
    expires: Option<Instant>,
    /// `None` once it is revoked.
    memory: Mutex<rank::Leaf, Option<M>>,
}

impl<M: Lend> Region<M> {
    /// Exports memory: a byte vector or buffer, or several, which peers see one behind the other. See [`Lend`].
    ///
    /// A number for atomic operations must lie in one part.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers for the key.
    pub fn export(memory: M, rights: Rights) -> Self {
        Self::exported(memory, rights, None)
    }

    /// Exports memory for some time, after which peers find it gone. The owner keeps it.
    ///
    /// # Panics
    ///
    /// As [`export`](Self::export).
    pub fn export_for(time: Duration, memory: M, rights: Rights) -> Self {
        Self::exported(memory, rights, Instant::now().checked_add(time))
    }

    fn exported(mut memory: M, rights: Rights, expires: Option<Instant>) -> Self {
        let len = memory.parts().iter().map(|part| part.len()).sum();
        let memory = Mutex::new(Some(memory));
        let shared = Arc::new(Shared { rights, len, expires, memory });
        let mut key = [0; 16];
        // Without random numbers the system can't be used safely, so there is nothing else to do.
        getrandom::fill(&mut key).expect("the system has random numbers");
        let key = u128::from_le_bytes(key);
        let number = access::export(key, shared.clone());
        Self { shared, remote: RemoteRegion::new(number, key, len, rights) }
    }

    /// Returns the handle by which peers use the region.
    pub fn remote(&self) -> RemoteRegion {
        self.remote.clone()
    }

    /// Returns the length of the region, in bytes.
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a copy of a range.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE, if the range is not within the region.
    pub fn read(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, Status> {
        let (offset, len) = access::range(range, self.len())?;
        self.shared.copy(offset, len).map_err(failed)
    }

    /// Writes to the region, from an offset on.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE, if the bytes do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Status> {
        self.shared.fill(offset, bytes).map_err(failed)
    }

    /// Replaces the number at an offset by `new` if it is `expected`. Returns the number before.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE, if the offset is no multiple of eight, or the number is not within one part of the region.
    pub fn compare_and_swap(&self, offset: usize, expected: u64, new: u64) -> Result<u64, Status> {
        self.shared.change(offset, Atomic::CompareAndSwap { expected, new }).map_err(failed)
    }

    /// Adds to the number at an offset, which wraps. Returns the number before.
    ///
    /// # Errors
    ///
    /// As [`compare_and_swap`](Self::compare_and_swap).
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Status> {
        self.shared.change(offset, Atomic::FetchAdd(add)).map_err(failed)
    }

    /// Returns the number at an offset.
    ///
    /// # Errors
    ///
    /// As [`compare_and_swap`](Self::compare_and_swap).
    pub fn load(&self, offset: usize) -> Result<u64, Status> {
        self.fetch_add(offset, 0)
    }

    /// Sets the number at an offset.
    ///
    /// # Errors
    ///
    /// As [`compare_and_swap`](Self::compare_and_swap).
    pub fn store(&self, offset: usize, number: u64) -> Result<(), Status> {
        check_number(offset, self.len()).map_err(failed)?;
        self.write(offset, &number.to_le_bytes())
    }

    /// Ends the export and returns the memory; `None` if it was revoked before. No access can happen any more when it returns,
    /// and those of the owner fail FAILED_PRECONDITION.
    pub fn revoke(&self) -> Option<M> {
        access::withdraw(self.remote.number());
        self.shared.memory.lock().take()
    }
}

impl<M: Lend> Drop for Region<M> {
    fn drop(&mut self) {
        drop(self.revoke());
    }
}

impl<M: Lend> fmt::Debug for Region<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Region").field(&self.shared).finish()
    }
}

impl<M> fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rights, len, expires, .. } = self;
        f.debug_struct("Region").field("len", len).field("rights", rights).field("expires", expires).finish()
    }
}

impl<M: Lend> Shared<M> {
    /// Checks that a peer may do something now.
    fn allows(&self, right: Rights) -> Result<(), Outcome> {
        if self.expires.is_some_and(|expires| Instant::now() >= expires) {
            return Err(Outcome::Gone);
        }
        if self.rights.contains(right) { Ok(()) } else { Err(Outcome::Forbidden) }
    }

    fn copy(&self, offset: usize, len: usize) -> Result<Vec<u8>, Outcome> {
        check_range(offset, len, self.len)?;
        let mut bytes = Vec::new();
        // The length is a peer's choice.
        bytes.try_reserve_exact(len).map_err(|_| Outcome::NoMemory)?;
        self.walk(offset, len, |part| bytes.extend_from_slice(part))?;
        Ok(bytes)
    }

    fn fill(&self, offset: usize, mut bytes: &[u8]) -> Result<(), Outcome> {
        check_range(offset, bytes.len(), self.len)?;
        self.walk(offset, bytes.len(), |part| {
            let (now, later) = bytes.split_at(part.len());
            part.copy_from_slice(now);
            bytes = later;
        })
    }

    fn change(&self, offset: usize, atomic: Atomic) -> Result<u64, Outcome> {
        check_number(offset, self.len)?;
        let mut before = None;
        self.walk(offset, size_of::<u64>(), |part| {
            if let Some(bytes) = part.first_chunk_mut() {
                let value = u64::from_le_bytes(*bytes);
                *bytes = atomic.apply(value).to_le_bytes();
                before = Some(value);
            }
        })?;
        before.ok_or(Outcome::OutOfRange)
    }

    /// Shows the parts of a range that was checked, under the lock.
    fn walk(
        &self,
        mut offset: usize,
        mut len: usize,
        mut visit: impl FnMut(&mut [u8]),
    ) -> Result<(), Outcome> {
        let mut memory = self.memory.lock();
        for part in memory.as_mut().ok_or(Outcome::Gone)?.parts() {
            let from = offset.min(part.len());
            let count = len.min(part.len() - from);
            (offset, len) = (offset - from, len - count);
            if count > 0 {
                visit(&mut part[from..from + count]);
            }
        }
        // Unless the parts have become shorter.
        if len == 0 { Ok(()) } else { Err(Outcome::OutOfRange) }
    }
}

/// What peers do.
impl<M: Lend> Memory for Shared<M> {
    fn read(&self, offset: usize, len: usize) -> Result<Vec<Bytes>, Outcome> {
        self.allows(Rights::READ)?;
        Ok(vec![self.copy(offset, len)?.into()])
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Outcome> {
        self.allows(Rights::WRITE)?;
        self.fill(offset, bytes)
    }

    fn atomic(&self, offset: usize, atomic: Atomic) -> Result<u64, Outcome> {
        self.allows(Rights::ATOMICS)?;
        self.change(offset, atomic)
    }
}

/// Returns the status of an access of the owner that failed.
fn failed(outcome: Outcome) -> Status {
    let (code, why) = match outcome {
        Outcome::OutOfRange => (
            Code::OutOfRange,
            "the access is not within the region, or its number is not at a multiple of 8 within one part",
        ),
        Outcome::NoMemory => (Code::ResourceExhausted, "there is no memory for the copy"),
        _ => (Code::FailedPrecondition, "the region was revoked"),
    };
    Status::new(code, why).with_blame(Blame::Application).with_executed(Executed::No)
}
