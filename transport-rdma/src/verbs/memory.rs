//! Memory that devices read and write: mappings, slabs of slots, and views of slots.
//!
//! A slot has one owner at a time: the code that holds the [`Slot`], a queue into which it was moved, or the views
//! ([`Bytes`]) into which it was frozen. The last of them returns its number to the slab. The mapping stays until the last
//! slot and view are gone, whatever has become of device and runtime; registrations do not keep it, and it does not keep
//! them.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::free_list::FreeList;

/// The size of a huge page on the machines that have RDMA; a mapping of another huge page size falls back.
const HUGE_PAGE: usize = 2 << 20;

/// Slots start on cache lines of their own.
const ALIGN: usize = 64;

/// How a slab is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabLayout {
    /// Bytes per slot; rounded up to a multiple of 64.
    pub slot_size: usize,
    /// How many slots.
    pub slots: u32,
}

impl SlabLayout {
    /// Bytes of the whole slab, which count against the limit on locked memory.
    pub fn bytes(self) -> usize {
        self.stride().saturating_mul(self.slots as usize)
    }

    fn stride(self) -> usize {
        self.slot_size.checked_next_multiple_of(ALIGN).unwrap_or(self.slot_size)
    }
}

/// The pages that a mapping is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages.
    Huge,
    /// Transparent huge pages, as far as the kernel has them.
    Transparent,
    /// The machine's base pages.
    Base,
}

/// A mapping that is divided into slots of one size.
pub struct Slab {
    mapping: Mapping,
    stride: usize,
    free: FreeList,
    slots: u32,
}

impl Slab {
    /// Maps a slab; its memory is zeroed.
    pub(crate) fn map(layout: SlabLayout) -> io::Result<Arc<Self>> {
        let mapping = Mapping::new(layout.bytes())?;
        let free = FreeList::full(layout.slots);
        Ok(Arc::new(Self { mapping, stride: layout.stride(), free, slots: layout.slots }))
    }

    /// Takes a free slot, with whatever its last owner left in it; `None` if there is none.
    pub fn take(self: &Arc<Self>) -> Option<Slot> {
        let number = self.free.pop()?;
        Some(Slot { slab: Arc::clone(self), number })
    }

    /// How many slots there are, free or not.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes per slot.
    pub fn slot_size(&self) -> usize {
        self.stride
    }

    /// What the slab's memory is made of.
    pub fn pages(&self) -> Pages {
        self.mapping.pages
    }

    /// Its addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.mapping.base.as_ptr() as usize;
        start..start + self.mapping.len
    }

    /// Where it begins, for its registration.
    pub(super) fn base(&self) -> *mut u8 {
        self.mapping.base.as_ptr()
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Slab");
        s.field("slots", &self.slots).field("slot_size", &self.stride).field("pages", &self.mapping.pages);
        s.finish_non_exhaustive()
    }
}

/// The only owner of a piece of registered memory. Dropping it makes the slot free again; no system call.
pub struct Slot {
    slab: Arc<Slab>,
    number: u32,
}

impl Slot {
    /// Turns a part of the slot into an immutable view, without copying. The slot becomes free when the last clone of the
    /// view is dropped.
    ///
    /// # Panics
    /// If the range is not within the slot.
    pub fn freeze(self, range: Range<usize>) -> Bytes {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of a slot of {}", self.len());
        Bytes::from_owner(View { slot: self, range })
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the number is below the slab's count, so this stays within the mapping.
        unsafe { self.slab.base().add(self.number as usize * self.slab.stride) }
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised (by the kernel, with zeroes) for as long as the slab lives, which `self` keeps. The
        // slot has one owner, and no device has it while that is not a queue.
        unsafe { slice::from_raw_parts(self.start(), self.slab.stride) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start(), self.slab.stride) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("number", &self.number).field("len", &self.len()).finish()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slab.free.push(self.number);
    }
}

/// A slot that is only read from now on.
struct View {
    slot: Slot,
    range: Range<usize>,
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        &self.slot[self.range.clone()]
    }
}

/// Private anonymous memory, unmapped on drop.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    pages: Pages,
}

// SAFETY: it owns its pages; who may touch which of them is the business of slots, one owner each.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping itself is never written to.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// From huge pages if there are any, else from what the kernel makes into such, else from base pages.
    fn new(len: usize) -> io::Result<Self> {
        if len == 0 || len > isize::MAX as usize - 2 * HUGE_PAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if len < HUGE_PAGE {
            return Ok(Self { base: map(len, 0)?, len, pages: Pages::Base });
        }
        let len = len.next_multiple_of(HUGE_PAGE);
        if let Ok(base) = map(len, libc::MAP_HUGETLB) {
            return Ok(Self { base, len, pages: Pages::Huge });
        }
        let base = map_aligned(len)?;
        // SAFETY: advice about pages that this function has just mapped.
        let advised = unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) } == 0;
        Ok(Self { base, len, pages: if advised { Pages::Transparent } else { Pages::Base } })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base.as_ptr(), self.len);
    }
}

fn map(len: usize, flags: i32) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// A mapping that begins on a huge page: a longer one, of which the ends are given back.
fn map_aligned(len: usize) -> io::Result<NonNull<u8>> {
    let start = map(len + HUGE_PAGE, 0)?.as_ptr();
    let before = start.align_offset(HUGE_PAGE);
    if before > 0 {
        unmap(start, before);
    }
    // SAFETY: `before` is less than a huge page, so this and `len` bytes from here are within the mapping.
    let base = unsafe { start.add(before) };
    // SAFETY: the end of the needed part, and not beyond the end of the mapping.
    let end = unsafe { base.add(len) };
    unmap(end, HUGE_PAGE - before);
    NonNull::new(base).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Unmaps pages of which nothing is used any more.
fn unmap(start: *mut u8, len: usize) {
    // SAFETY: called with pages of this module's own mappings, to which no reference is left.
    let result = unsafe { libc::munmap(start.cast(), len) };
    if result != 0 {
        // Only with a wrong range, or when the kernel cannot split a mapping for lack of memory; then it stays.
        super::leaked("munmap", io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
}

#[cfg(test)]
mod tests;
