//! Arenas: memory in extents, each as long as somebody needs it.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::bitmap::Bitmap;
use super::mapping::{Mapping, Pages};

/// The unit of extents, in bytes. Large messages begin where slots end, at 8 KiB.
pub(super) const PAGE: usize = 16 << 10;

/// A mapping from which extents are taken: runs of 16 KiB pages, first fit.
pub struct Arena {
    mapping: Arc<Mapping>,
    pages: Bitmap,
}

impl Arena {
    /// Maps an arena of at least this many bytes, on this NUMA node if there is a choice; its memory is zeroed.
    pub(crate) fn map(bytes: usize, node: Option<u32>) -> io::Result<Arc<Self>> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::new(bytes, node)?;
        let pages = Bitmap::new(mapping.range().len() / PAGE);
        Ok(Arc::new(Self { mapping, pages }))
    }

    /// Takes an extent of this many bytes, with whatever its last owner left in it; `None` if no run of pages is long
    /// enough.
    pub fn take(self: &Arc<Self>, len: usize) -> Option<Extent> {
        let first = self.pages.take(pages(len))?;
        Some(Extent { arena: Arc::clone(self), first, len })
    }

    /// Returns how many bytes an extent of this many takes.
    pub(crate) fn taken_for(len: usize) -> usize {
        pages(len) * PAGE
    }

    /// Lets nothing be taken any more, if nothing is; says whether that is so.
    pub(crate) fn retire(&self) -> bool {
        self.pages.retire()
    }

    /// Its bytes, free or not.
    pub fn bytes(&self) -> usize {
        self.mapping.range().len()
    }

    /// Whether these bytes lie in it.
    pub fn contains(&self, bytes: Range<usize>) -> bool {
        let range = self.mapping.range();
        range.contains(&bytes.start) && bytes.len() <= range.end - bytes.start
    }

    /// Bytes that belong to no extent now.
    pub fn free(&self) -> usize {
        self.pages.free() * PAGE
    }

    /// Returns the kind of pages that the arena's memory has.
    pub fn pages(&self) -> Pages {
        self.mapping.pages()
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

/// Pages of an extent of this many bytes: an empty one has a place, too.
fn pages(len: usize) -> usize {
    len.max(1).div_ceil(PAGE)
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("free", &self.free())
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

/// The only owner of a piece of an arena. Dropping it makes its pages free again; no lock, no system call.
pub struct Extent {
    arena: Arc<Arena>,
    first: usize,
    len: usize,
}

impl Extent {
    /// Turns a part of the extent into an immutable view, without copying. The extent becomes free when the last clone of
    /// the view is dropped.
    ///
    /// # Panics
    /// If the range is not within the extent.
    pub fn freeze(self, range: Range<usize>) -> Bytes {
        super::freeze(self, range)
    }

    /// Returns the length. No reference is needed for it.
    pub(super) fn size(&self) -> usize {
        self.len
    }

    /// Returns the first address. A reference may not exist while a device writes.
    pub(super) fn start(&self) -> *mut u8 {
        // SAFETY: the extent's pages lie within the mapping.
        unsafe { self.arena.mapping.base().add(self.first * PAGE) }
    }
}

impl Deref for Extent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised (by the kernel, with zeroes) for as long as the arena lives, which `self` keeps. The
        // extent has one owner, and no device writes to it while that is neither a `ReadTarget` nor a `SharedExtent`.
        unsafe { slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for Extent {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extent").field("page", &self.first).field("len", &self.len).finish()
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.arena.pages.give_back(self.first, pages(self.len));
    }
}
