//! Arenas: memory in extents, each as long as somebody needs it.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::mapping::{Mapping, Pages};

/// What extents are made of. Large messages begin where slots end, at 8 KiB.
pub(super) const PAGE: usize = 16 << 10;

/// Pages that one word of the bitmap stands for.
const WORD: usize = u64::BITS as usize;

/// A mapping from which extents are taken: runs of 16 KiB pages, first fit.
pub struct Arena {
    mapping: Arc<Mapping>,
    /// A bit for each page, set while it belongs to an extent, and for what the last word has beyond the mapping. Only
    /// who holds `taking` sets bits, so a run that was found free stays so; clearing needs no lock.
    used: Box<[AtomicU64]>,
    taking: Mutex<()>,
}

impl Arena {
    /// Maps an arena of at least this many bytes, on this NUMA node if there is a choice; its memory is zeroed.
    pub(crate) fn map(bytes: usize, node: Option<u32>) -> io::Result<Arc<Self>> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::new(bytes, node)?;
        let pages = mapping.range().len() / PAGE;
        let used: Box<[AtomicU64]> = (0..pages.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect();
        if let Some(last) = used.last().filter(|_| !pages.is_multiple_of(WORD)) {
            last.store(u64::MAX << (pages % WORD), Ordering::Relaxed);
        }
        Ok(Arc::new(Self { mapping, used, taking: Mutex::new(()) }))
    }

    /// Takes an extent of this many bytes, with whatever its last owner left in it; `None` if no run of pages is long
    /// enough.
    pub fn take(self: &Arc<Self>, len: usize) -> Option<Extent> {
        let pages = len.max(1).div_ceil(PAGE);
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.find(pages)?;
        for (word, mask) in masks(first, pages) {
            self.used[word].fetch_or(mask, Ordering::Relaxed);
        }
        Some(Extent { arena: Arc::clone(self), first, len })
    }

    /// Lets nothing be taken any more, if nothing is; says whether that is so.
    pub(crate) fn retire(&self) -> bool {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = self.free() == self.bytes();
        if idle {
            self.used.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        }
        idle
    }

    /// Its bytes, free or not.
    pub fn bytes(&self) -> usize {
        self.mapping.range().len()
    }

    /// Whether these bytes lie in it.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        let range = self.mapping.range();
        let start = bytes.as_ptr() as usize;
        range.contains(&start) && bytes.len() <= range.end - start
    }

    /// Bytes that belong to no extent now.
    pub fn free(&self) -> usize {
        // Acquire: see `find`; who is told that nothing is taken may end the memory's registration.
        let pages = |word: &AtomicU64| word.load(Ordering::Acquire).count_zeros() as usize;
        self.used.iter().map(pages).sum::<usize>() * PAGE
    }

    /// What the arena's memory is made of.
    pub fn pages(&self) -> Pages {
        self.mapping.pages()
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The first of this many free pages in a row.
    fn find(&self, pages: usize) -> Option<usize> {
        let (mut start, mut run) = (0, 0);
        for (i, word) in self.used.iter().enumerate() {
            // Acquire: what the last owner did to the pages happened before what the next one does.
            let used = word.load(Ordering::Acquire);
            let mut bit = 0;
            while bit < WORD {
                let rest = used >> bit;
                if rest & 1 != 0 {
                    run = 0;
                    bit += rest.trailing_ones() as usize;
                    continue;
                }
                if run == 0 {
                    start = i * WORD + bit;
                }
                let free = (rest.trailing_zeros() as usize).min(WORD - bit);
                run += free;
                bit += free;
                if run >= pages {
                    return Some(start);
                }
            }
        }
        None
    }
}

/// The words of a bitmap that a run of bits touches, and which of their bits.
fn masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / WORD..end.div_ceil(WORD)).map(move |word| {
        let (low, high) = (first.max(word * WORD) % WORD, end - word * WORD);
        (word, u64::MAX >> (WORD - (high.min(WORD) - low)) << low)
    })
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

    /// Where it begins. Not a reference, which may not exist while a device writes to it.
    pub(super) fn start(&self) -> *mut u8 {
        // SAFETY: the extent's pages lie within the mapping.
        unsafe { self.arena.mapping.base().add(self.first * PAGE) }
    }
}

impl Deref for Extent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised (by the kernel, with zeroes) for as long as the arena lives, which `self` keeps. The
        // extent has one owner, and no device writes to it while that is not a `Landing`.
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
        for (word, mask) in masks(self.first, self.len.max(1).div_ceil(PAGE)) {
            // Release: see `find`.
            self.arena.used[word].fetch_and(!mask, Ordering::Release);
        }
    }
}
