//! Slabs: memory in slots of one size.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::free_list::FreeList;
use super::mapping::{Mapping, Pages};

/// Slots start on cache lines of their own.
pub(super) const ALIGN: usize = 64;

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

/// A mapping that is divided into slots of one size.
pub struct Slab {
    mapping: Arc<Mapping>,
    stride: usize,
    free: FreeList,
    slots: u32,
}

impl Slab {
    /// Maps a slab, on this NUMA node if there is a choice; its memory is zeroed.
    pub(crate) fn map(layout: SlabLayout, node: Option<u32>) -> io::Result<Arc<Self>> {
        let mapping = Mapping::new(layout.bytes(), node)?;
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

    /// Returns the kind of pages that the slab's memory has.
    pub fn pages(&self) -> Pages {
        self.mapping.pages()
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Slab");
        s.field("slots", &self.slots).field("slot_size", &self.stride).field("mapping", &self.mapping);
        s.finish_non_exhaustive()
    }
}

/// The only owner of a piece of a slab. Dropping it makes the slot free again; no system call.
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
        super::freeze(self, range)
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the number is below the slab's count, so this stays within the mapping.
        unsafe { self.slab.mapping.base().add(self.number as usize * self.slab.stride) }
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
        // Not `self.len()`, which would form a slice: a device may be writing to the slot.
        f.debug_struct("Slot").field("number", &self.number).field("len", &self.slab.stride).finish()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slab.free.push(self.number);
    }
}
