//! The owner's side of a region.

use std::fmt;
use std::ops::RangeBounds;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::numbers::Numbers;
use super::{RemoteRegion, Rights};
use crate::access::{
    self, ExportedMemory, GivenGrant, Memory, Offered, Progress, Transfers, check_number, check_range, failed,
};
use crate::proto::wire::Outcome;
use crate::status::Status;
use crate::sync::{Mutex, rank};
use crate::transport::{Atomic, DeviceAtomics, Exportable, Words, words};

/// Memory that this process exports; see [the module](super). Dropping it revokes it.
///
/// Its owner reaches the memory by copies and by operations on numbers. It may also keep a clone of the `Arc` that it exports, and use
/// the words.
#[derive(Debug)]
pub struct Region {
    pub(super) shared: Arc<Shared>,
    remote: RemoteRegion,
    /// Closed when nothing uses the memory any more.
    released: watch::Receiver<()>,
}

/// The part of a region that peers reach.
pub(super) struct Shared {
    rights: Rights,
    pub(super) len: usize,
    expires: Option<Instant>,
    /// `None` once it is revoked.
    pub(super) exported: Mutex<rank::Leaf, Option<Exported>>,
}

/// The state of a region that is not revoked.
pub(super) struct Exported {
    pub(super) memory: Arc<InUse>,
    /// Peers that use it by themselves.
    pub(super) grants: Vec<GivenGrant>,
    pub(super) numbers: Numbers,
    /// Those that this process starts.
    pub(super) transfers: Transfers,
}

/// The memory of a region. Accesses keep it while they use it.
pub(super) struct InUse {
    words: Words,
    /// Dropped after the words, which tells the tasks that revoke the region.
    #[expect(dead_code, reason = "its drop is what counts")]
    released: watch::Sender<()>,
}

impl AsRef<[AtomicU64]> for InUse {
    fn as_ref(&self) -> &[AtomicU64] {
        (*self.words).as_ref()
    }
}

impl Exportable for InUse {
    #[cfg(unix)]
    fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        self.words.dma_buf()
    }
}

impl Region {
    /// Exports memory of so many bytes, all zero.
    ///
    /// # Panics
    ///
    /// If there is not so much memory, or the system has no random numbers for the key.
    pub fn zeroed(len: usize, rights: Rights) -> Self {
        let words: Vec<_> = (0..len.div_ceil(words::WORD)).map(|_| AtomicU64::new(0)).collect();
        Self::exported(Arc::new(words), len, rights, None)
    }

    /// Exports memory of the application: a vector of words, or another [`Exportable`] type.
    ///
    /// If the application changes the words by atomic operations of its own, see [`by_processor`](Self::by_processor).
    ///
    /// # Panics
    ///
    /// If the system has no random numbers for the key.
    pub fn export<M: Exportable>(memory: Arc<M>, rights: Rights) -> Self {
        let len = size_of_val((*memory).as_ref());
        Self::exported(memory, len, rights, None)
    }

    /// Exports memory for some time, after which peers find it gone. The owner keeps it.
    ///
    /// A peer that uses the memory by RDMA is then asked to stop. One that does not answer goes on for 10 seconds at most, and loses its
    /// link. `revoke` waits for that, so it says when no peer can reach the memory any more.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers for the key.
    pub fn export_for<M: Exportable>(time: Duration, memory: Arc<M>, rights: Rights) -> Self {
        let len = size_of_val((*memory).as_ref());
        Self::exported(memory, len, rights, Instant::now().checked_add(time))
    }

    /// Has the processor change the region's numbers, always: this process's runtime does it for peers. So the application may change the
    /// words that it has exported by atomic operations of its own. To be called before the handle is sent.
    ///
    /// Otherwise peers have the RDMA device change numbers where they can, and the device's operations are not atomic with those of the
    /// processor: then only peers and the methods of this may change them.
    #[must_use]
    pub fn by_processor(self) -> Self {
        if let Some(exported) = &mut *self.shared.exported.lock() {
            exported.numbers.by_processor = true;
        }
        self
    }

    fn exported(words: Words, len: usize, rights: Rights, expires: Option<Instant>) -> Self {
        let (sender, released) = watch::channel(());
        let memory = Arc::new(InUse { words, released: sender });
        let exported = Mutex::new(Some(Exported {
            memory,
            grants: Vec::new(),
            numbers: Numbers::default(),
            transfers: Transfers::default(),
        }));
        let shared = Arc::new(Shared { rights, len, expires, exported });
        let mut key = [0; 16];
        // Without random numbers the system can't be used safely, so there is nothing else to do.
        getrandom::fill(&mut key).expect("the system has random numbers");
        let key = u128::from_le_bytes(key);
        let number = access::export(key, shared.clone());
        Self { shared, remote: RemoteRegion::new(number, key, len, rights), released }
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
    /// - OUT_OF_RANGE, if the range is not within the region.
    /// - RESOURCE_EXHAUSTED, if there is no memory for the copy.
    /// - FAILED_PRECONDITION, if the region was revoked.
    pub fn read(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, Status> {
        let (offset, len) = access::range(range, self.len())?;
        self.shared.copy(offset, len).map_err(failed)
    }

    /// Writes to the region, from an offset on.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the bytes do not fit.
    /// - FAILED_PRECONDITION, if the region was revoked.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Status> {
        self.shared.fill(offset, bytes).map_err(failed)
    }

    /// Replaces the number at an offset by `new` if it is `expected`. Returns the number before.
    ///
    /// If peers have this process's RDMA device change numbers, so does this, and waits for it.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the offset is no multiple of eight, or the number is not within the region.
    /// - FAILED_PRECONDITION, if the region was revoked.
    /// - UNAVAILABLE, if the RDMA device has failed meanwhile. The operation [may have been done](crate::status::Executed::Maybe).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the operation may have been done, or be done later.
    pub async fn compare_and_swap(&self, offset: usize, expected: u64, new: u64) -> Result<u64, Status> {
        self.atomic(offset, Atomic::CompareAndSwap { expected, new }).await
    }

    /// Adds to the number at an offset, which wraps. Returns the number before.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`compare_and_swap`](Self::compare_and_swap).
    pub async fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Status> {
        self.atomic(offset, Atomic::FetchAdd(add)).await
    }

    async fn atomic(&self, offset: usize, atomic: Atomic) -> Result<u64, Status> {
        self.shared.clone().change_and_wait(offset, atomic).await.map_err(failed)
    }

    /// Returns the number at an offset.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the offset is no multiple of eight, or the number is not within the region.
    /// - FAILED_PRECONDITION, if the region was revoked.
    pub fn load(&self, offset: usize) -> Result<u64, Status> {
        check_number(offset, self.len()).map_err(failed)?;
        Ok(self.shared.memory().map_err(failed)?.load(offset))
    }

    /// Sets the number at an offset.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`compare_and_swap`](Self::compare_and_swap).
    pub async fn store(&self, offset: usize, number: u64) -> Result<(), Status> {
        self.shared.clone().set_and_wait(offset, number).await.map_err(failed)
    }

    /// Ends the export. When it returns, no peer can reach the memory any more, and farcall keeps no clone of what was exported.
    /// The owner's accesses fail FAILED_PRECONDITION.
    ///
    /// A peer that uses the memory by itself is asked to stop. One that does not answer within 10 seconds loses its link. A call that
    /// [lends](crate::bulk::BulkRead::of_region) a part of the region is waited for, if its server uses that by itself.
    /// Several tasks may revoke a region: all of them wait for its end.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the export ends all the same, some time later. Another `revoke` waits for that.
    pub async fn revoke(&self) {
        self.withdraw();
        // Fails when the last access is done.
        let _ = self.released.clone().changed().await;
    }

    /// Lets no further access begin, and ends the grants.
    fn withdraw(&self) {
        access::withdraw(self.remote.number());
        let exported = self.shared.exported.lock().take();
        if let Some(Exported { grants, .. }) = exported {
            grants.into_iter().for_each(GivenGrant::end);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rights, len, expires, .. } = self;
        f.debug_struct("Region").field("len", len).field("rights", rights).field("expires", expires).finish()
    }
}

impl Shared {
    /// Checks that a peer may do something now.
    fn allows(&self, right: Rights) -> Result<(), Outcome> {
        if self.expires.is_some_and(|expires| Instant::now() >= expires) {
            return Err(Outcome::Gone);
        }
        if self.rights.contains(right) { Ok(()) } else { Err(Outcome::Forbidden) }
    }

    /// Returns the memory, unless it was revoked.
    pub(super) fn memory(&self) -> Result<Arc<InUse>, Outcome> {
        let exported = self.exported.lock();
        exported.as_ref().map(|exported| exported.memory.clone()).ok_or(Outcome::Gone)
    }

    /// Ends the grants of a region that has expired.
    fn end_grants(&self) {
        let grants = self.exported.lock().as_mut().map(|exported| std::mem::take(&mut exported.grants));
        grants.into_iter().flatten().for_each(GivenGrant::end);
    }

    fn copy(&self, offset: usize, len: usize) -> Result<Vec<u8>, Outcome> {
        check_range(offset, len, self.len)?;
        let memory = self.memory()?;
        words::copy_out((*memory).as_ref(), offset, len).map_err(|_| Outcome::NoMemory)
    }

    fn fill(&self, offset: usize, bytes: &[u8]) -> Result<(), Outcome> {
        check_range(offset, bytes.len(), self.len)?;
        words::copy_in((*self.memory()?).as_ref(), offset, bytes);
        Ok(())
    }
}

/// The accesses of peers.
impl Memory for Shared {
    fn read(&self, offset: usize, len: usize) -> Result<Vec<Bytes>, Outcome> {
        self.allows(Rights::READ)?;
        Ok(vec![self.copy(offset, len)?.into()])
    }

    fn write(&self, offset: usize, bytes: Bytes) -> Result<(), Outcome> {
        self.allows(Rights::WRITE)?;
        self.fill(offset, &bytes)
    }
}

impl ExportedMemory for Shared {
    fn atomic(self: Arc<Self>, offset: usize, atomic: Atomic) -> Result<Progress<u64>, Outcome> {
        self.allows(Rights::ATOMICS)?;
        self.change(offset, atomic)
    }

    fn store(self: Arc<Self>, offset: usize, number: u64) -> Result<Progress<()>, Outcome> {
        self.allows(Rights::WRITE)?;
        self.set(offset, number)
    }

    fn offered(&self) -> Result<Offered, Outcome> {
        let of = |right| self.allows(right).is_ok();
        let [read, write, atomics] = [Rights::READ, Rights::WRITE, Rights::ATOMICS].map(of);
        if !(read || write || atomics) {
            return Err(self.allows(Rights::READ).err().unwrap_or(Outcome::Forbidden));
        }
        let exported = self.exported.lock();
        let Exported { memory, numbers, .. } = exported.as_ref().ok_or(Outcome::Gone)?;
        // The padding behind a length that is no multiple of a word is nobody's to write.
        let is_whole = self.len.is_multiple_of(words::WORD);
        Ok(Offered {
            words: memory.clone(),
            read,
            write: write && is_whole,
            atomics: atomics && is_whole && !numbers.by_processor,
        })
    }

    fn device(&self) -> Option<Arc<dyn DeviceAtomics>> {
        self.exported.lock().as_ref().and_then(|exported| exported.numbers.device())
    }

    fn entrust(&self, device: Arc<dyn DeviceAtomics>, ends: Vec<watch::Receiver<()>>) -> bool {
        let mut exported = self.exported.lock();
        exported.as_mut().is_some_and(|exported| exported.numbers.entrust(device, ends))
    }

    fn keep(self: Arc<Self>, grant: GivenGrant) -> Result<(), GivenGrant> {
        let mut exported = self.exported.lock();
        let Some(Exported { grants, .. }) = &mut *exported else { return Err(grant) };
        // Those of links that are gone.
        let over: Vec<_> = grants.extract_if(.., |grant| grant.is_over()).collect();
        // Each grant has a timer of its own, because the runtime of another may be gone by then.
        if let Some(expires) = self.expires {
            let this = Arc::downgrade(&self);
            grant.run_at(expires, move || {
                if let Some(this) = this.upgrade() {
                    this.end_grants();
                }
            });
        }
        grants.push(grant);
        drop(exported);
        drop(over);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn each_task_that_revokes_waits_for_the_last_access() {
        let region = Region::zeroed(64, Rights::READ);
        let in_use = region.shared.memory().expect("it is not revoked");
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(region.revoke()).poll(&mut cx).is_pending(), "it was dropped after its first poll");
        let (mut second, mut third) = (pin!(region.revoke()), pin!(region.revoke()));
        for _ in 0..2 {
            assert!(second.as_mut().poll(&mut cx).is_pending(), "the memory is in use");
            assert!(third.as_mut().poll(&mut cx).is_pending(), "the memory is in use");
        }
        drop(in_use);
        assert!(second.poll(&mut cx).is_ready());
        assert!(third.poll(&mut cx).is_ready());
        assert!(pin!(region.revoke()).poll(&mut cx).is_ready());
    }
}
