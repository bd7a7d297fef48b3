//! The free pages of an arena. This is safe code; it stands here because the exclusiveness of extents rests on it.

use std::sync::PoisonError;

#[cfg(not(all(test, farcall_loom)))]
use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

#[cfg(all(test, farcall_loom))]
use loom::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// The free ones among the numbers `0..len`, from which runs are taken, first fit.
#[derive(Debug)]
pub(super) struct Bitmap {
    /// A bit for each number, set while it is taken, and for what the last word has beyond them. Only who holds `taking`
    /// sets bits, so a run that was found free stays so; clearing needs no lock.
    taken: Box<[AtomicU64]>,
    taking: Mutex<()>,
    len: usize,
}

impl Bitmap {
    /// All of `0..len` are free.
    pub(super) fn new(len: usize) -> Self {
        let beyond = |word: usize| match len - word * WORD {
            bits @ 0..WORD => u64::MAX << bits,
            _ => 0,
        };
        let taken = (0..len.div_ceil(WORD)).map(|word| AtomicU64::new(beyond(word))).collect();
        Self { taken, taking: Mutex::new(()), len }
    }

    /// Takes this many numbers in a row, at least one, and says the first. Nobody else has them until they are given back.
    pub(super) fn take(&self, count: usize) -> Option<usize> {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.find(count)?;
        for (word, mask) in masks(first, count) {
            self.taken[word].fetch_or(mask, Ordering::Relaxed);
        }
        Some(first)
    }

    /// Frees a run exactly as it was taken.
    pub(super) fn give_back(&self, first: usize, count: usize) {
        for (word, mask) in masks(first, count) {
            // Release: see `find`.
            self.taken[word].fetch_and(!mask, Ordering::Release);
        }
    }

    /// How many are free.
    pub(super) fn free(&self) -> usize {
        // Acquire: whoever learns that something is free may end what its last owner used it by.
        self.taken.iter().map(|word| word.load(Ordering::Acquire).count_zeros() as usize).sum()
    }

    /// Takes everything for good, if all of it is free; says whether that was so.
    pub(super) fn retire(&self) -> bool {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = self.free() == self.len;
        if idle {
            self.taken.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        }
        idle
    }

    /// The first of this many free ones in a row.
    fn find(&self, count: usize) -> Option<usize> {
        let (mut start, mut run) = (0, 0);
        for (i, word) in self.taken.iter().enumerate() {
            // Acquire: what the last owner did to the pages happened before what the next one does.
            let taken = word.load(Ordering::Acquire);
            let mut bit = 0;
            while bit < WORD {
                let rest = taken >> bit;
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
                if run >= count {
                    return Some(start);
                }
            }
        }
        None
    }
}

/// The words that a run of bits touches, and which of their bits.
fn masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / WORD..end.div_ceil(WORD)).map(move |word| {
        let (low, high) = (first.max(word * WORD) % WORD, end - word * WORD);
        (word, u64::MAX >> (WORD - (high.min(WORD) - low)) << low)
    })
}

#[cfg(all(test, not(farcall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_the_run_and_nothing_else() {
        for first in [0, 1, 63, 64, 100] {
            for count in [1, 2, 63, 64, 65, 200] {
                let bits: Vec<usize> = masks(first, count)
                    .flat_map(|(word, mask)| {
                        (0..WORD).filter(move |bit| mask >> bit & 1 != 0).map(move |bit| word * WORD + bit)
                    })
                    .collect();
                assert!(bits.iter().copied().eq(first..first + count), "{first} {count}: {bits:?}");
            }
        }
    }

    #[test]
    fn every_length_has_that_many_numbers() {
        for len in [0, 1, 63, 64, 65, 128, 130] {
            let bitmap = Bitmap::new(len);
            assert_eq!(bitmap.free(), len);
            assert_eq!(bitmap.take(len + 1), None);
            if len > 0 {
                assert_eq!(bitmap.take(len), Some(0));
                assert_eq!((bitmap.free(), bitmap.take(1)), (0, None));
                bitmap.give_back(0, len);
            }
            assert!(bitmap.retire());
            assert_eq!((bitmap.free(), bitmap.take(1)), (0, None));
        }
    }
}

/// Every interleaving of a few threads: `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-rdma --lib loom`.
#[cfg(all(test, farcall_loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::Bitmap;

    /// Pages that complain when two threads touch one without one having happened before the other.
    struct Pages {
        bitmap: Bitmap,
        pages: Vec<UnsafeCell<u32>>,
    }

    impl Pages {
        fn new(len: usize) -> Arc<Self> {
            let pages = (0..len).map(|_| UnsafeCell::new(0)).collect();
            Arc::new(Self { bitmap: Bitmap::new(len), pages })
        }

        /// Takes a run, writes to it, reads that back, and gives it back.
        fn use_run(&self, count: usize, mark: u32) -> bool {
            let Some(first) = self.bitmap.take(count) else { return false };
            let run = &self.pages[first..first + count];
            run.iter().for_each(|page| page.with_mut(|page| set(page, mark)));
            assert!(run.iter().all(|page| page.with(get) == mark), "another thread has it, too");
            self.bitmap.give_back(first, count);
            true
        }
    }

    fn set(page: *mut u32, mark: u32) {
        // SAFETY: loom has checked that no other thread is at it.
        unsafe { *page = mark };
    }

    fn get(page: *const u32) -> u32 {
        // SAFETY: as above.
        unsafe { *page }
    }

    #[test]
    fn a_run_has_one_owner_at_a_time() {
        loom::model(|| {
            let pages = Pages::new(3);
            let others: Vec<_> = [2, 1]
                .into_iter()
                .map(|count| {
                    let pages = Arc::clone(&pages);
                    thread::spawn(move || pages.use_run(count, count as u32))
                })
                .collect();
            pages.use_run(2, 7);
            for other in others {
                other.join().unwrap();
            }
            assert!(pages.use_run(3, 8), "something was not given back");
        });
    }

    #[test]
    fn a_thread_that_finds_all_free_comes_after_all_owners() {
        loom::model(|| {
            let pages = Pages::new(2);
            let other = thread::spawn({
                let pages = Arc::clone(&pages);
                move || (pages.use_run(1, 1), pages.use_run(2, 2))
            });
            if pages.bitmap.retire() {
                // As if the memory were gone.
                pages.pages.iter().for_each(|page| page.with_mut(|page| set(page, 9)));
            }
            other.join().unwrap();
        });
    }
}
