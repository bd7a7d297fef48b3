//! A lock-free stack of slot numbers. Safe code; it stands here because the exclusiveness of slots rests on it.

#[cfg(not(all(test, farcall_loom)))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(all(test, farcall_loom))]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The free ones among the numbers `0..len`, last in, first out: the slot that was used last is the one in the cache.
///
/// Push and pop are one compare-and-swap each and make no system call, so that a view of received data can be dropped
/// anywhere.
#[derive(Debug)]
pub(super) struct FreeList {
    /// The top of the stack plus one, zero if empty, in the lower half. The upper half counts operations, so that a pop
    /// that was overtaken by a pop and a push of the same number fails (ABA); it would have to sleep through exactly 2^32
    /// operations not to.
    head: AtomicU64,
    /// For each number in the stack the one below it, plus one.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// All of `0..len` are free.
    pub(super) fn full(len: u32) -> Self {
        let below = (0..len).map(AtomicU32::new).collect();
        Self { head: AtomicU64::new(u64::from(len)), below }
    }

    /// Takes a number that nobody else has until it is pushed again.
    pub(super) fn pop(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = lower(head).checked_sub(1)?;
            // May be stale if another thread has popped `top` meanwhile; then the exchange fails.
            let next = self.below[top as usize].load(Ordering::Relaxed);
            // Acquire: what the last owner did to the slot happened before what the next one does.
            match self.head.compare_exchange_weak(
                head,
                successor(head, next),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }

    /// Pushes a number that was popped.
    pub(super) fn push(&self, number: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.below[number as usize].store(lower(head), Ordering::Relaxed);
            let next = successor(head, number + 1);
            match self.head.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

fn lower(head: u64) -> u32 {
    head as u32
}

fn successor(head: u64, top: u32) -> u64 {
    let operations = ((head >> 32) as u32).wrapping_add(1);
    u64::from(operations) << 32 | u64::from(top)
}

#[cfg(all(test, not(farcall_loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn every_number_once_and_last_in_first_out() {
        let list = FreeList::full(3);
        assert_eq!([list.pop(), list.pop(), list.pop(), list.pop()], [Some(2), Some(1), Some(0), None]);
        list.push(1);
        list.push(2);
        assert_eq!([list.pop(), list.pop(), list.pop()], [Some(2), Some(1), None]);
        assert_eq!(FreeList::full(0).pop(), None);
    }

    #[test]
    fn no_number_has_two_owners_under_threads() {
        const NUMBERS: u32 = 7;
        let list = FreeList::full(NUMBERS);
        let owned: Vec<AtomicBool> = (0..NUMBERS).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        let held: Vec<u32> = (0..1 + round % 4).filter_map(|_| list.pop()).collect();
                        for &n in &held {
                            assert!(!owned[n as usize].swap(true, Ordering::Relaxed), "{n} has two owners");
                        }
                        for &n in held.iter().rev() {
                            owned[n as usize].store(false, Ordering::Relaxed);
                            list.push(n);
                        }
                    }
                });
            }
        });
        let mut left: Vec<u32> = std::iter::from_fn(|| list.pop()).collect();
        left.sort_unstable();
        assert_eq!(left, (0..NUMBERS).collect::<Vec<_>>());
    }
}

/// Every interleaving of a few threads: `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-rdma --lib loom`.
#[cfg(all(test, farcall_loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::FreeList;

    /// Slots that complain when two threads touch one without one having happened before the other.
    struct Slots {
        free: FreeList,
        slots: [UnsafeCell<u32>; 2],
    }

    impl Slots {
        fn write(&self, number: u32, mark: u32) {
            // SAFETY: loom has checked that no other thread is at it.
            self.slots[number as usize].with_mut(|slot| unsafe { *slot = mark });
        }

        fn check(&self, number: u32, mark: u32) {
            // SAFETY: as above.
            let found = self.slots[number as usize].with(|slot| unsafe { *slot });
            assert_eq!(found, mark, "another thread has it, too");
        }

        /// Takes up to two slots, writes to them, and gives them back in the order in which they came: the order in which
        /// a pop that was overtaken would find the same number on top, with another below it.
        fn use_both(&self, mark: u32) {
            let taken: Vec<u32> = [self.free.pop(), self.free.pop()].into_iter().flatten().collect();
            taken.iter().for_each(|&number| self.write(number, mark));
            taken.iter().for_each(|&number| self.check(number, mark));
            taken.iter().for_each(|&number| self.free.push(number));
        }

        fn use_one(&self, mark: u32) {
            let Some(number) = self.free.pop() else { return };
            self.write(number, mark);
            self.check(number, mark);
            self.free.push(number);
        }
    }

    #[test]
    fn a_slot_has_one_owner_at_a_time() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let slots = [UnsafeCell::new(0), UnsafeCell::new(0)];
            let slots = Arc::new(Slots { free: FreeList::full(2), slots });
            let others: Vec<_> = [1, 2]
                .map(|mark| {
                    let slots = Arc::clone(&slots);
                    thread::spawn(move || if mark == 1 { slots.use_both(1) } else { slots.use_one(2) })
                })
                .into();
            slots.use_one(3);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert!(slots.free.pop().is_some() && slots.free.pop().is_some(), "a slot was lost");
            assert_eq!(slots.free.pop(), None);
        });
    }
}
