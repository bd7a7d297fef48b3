//! The locks of a connection, and the order in which a thread takes them.
//!
//! Each lock has a [rank] as its type. A rank names the ranks that a thread may hold when it takes the lock. Builds
//! with debug assertions, such as those of `cargo test`, check this at every locking and panic on a violation. Release
//! builds check nothing.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

#[cfg(all(test, farcall_loom))]
use loom::sync as imp;
#[cfg(not(all(test, farcall_loom)))]
use std::sync as imp;

/// The position of a lock in the lock order.
#[cfg_attr(
    any(not(debug_assertions), all(test, farcall_loom)),
    expect(dead_code, reason = "release builds and models check nothing")
)]
pub(crate) trait Rank {
    const NAME: &'static str;
    /// The bit of this rank in a set of ranks.
    const BIT: u16;
    /// The ranks that a thread may hold when it takes a lock of this rank.
    const UNDER: u16;
}

/// The ranks, from the outermost to the innermost. A lock may be taken under the ranks that its own rank names.
pub(crate) mod rank {
    use super::Rank;

    macro_rules! ranks {
        ($($(#[$doc:meta])* $rank:ident = $number:literal under [$($outer:ident),*];)*) => {$(
            $(#[$doc])*
            #[derive(Debug)]
            pub(crate) enum $rank {}

            impl Rank for $rank {
                const NAME: &'static str = stringify!($rank);
                const BIT: u16 = 1 << $number;
                const UNDER: u16 = 0 $(| $outer::BIT)*;
            }
        )*};
    }

    ranks! {
        /// The order of the peer's messages: `connection::receive::Receiving`.
        Receiving = 0 under [];
        /// The slots of calls that wait for answers.
        CallTable = 1 under [Receiving];
        /// The services that this side has announced.
        Services = 2 under [];
        /// The peer's calls that run here.
        Running = 3 under [Receiving];
        /// The list of calls with streams.
        StreamTable = 4 under [Receiving, CallTable];
        /// The streams of one call.
        CallStreams = 5 under [Receiving];
        /// The outbox and the links that it feeds.
        Sending = 6 under [Receiving];
        /// The queue in front of the outbox.
        Queue = 7 under [Receiving, CallTable, Services, Running, CallStreams, Sending];
        /// Memory that a call lends, while it is accessed.
        OnLoan = 8 under [Receiving, CallTable];
        /// A value that is copied or replaced, or lent memory. No lock is taken under it.
        Leaf = 9 under [Receiving, CallTable, Running, Sending, CallStreams, OnLoan];
    }
}

/// A mutex with a rank. It ignores poisoning: no user code runs under it, so a panic leaves nothing half changed.
pub(crate) struct Mutex<R, T> {
    inner: imp::Mutex<T>,
    rank: PhantomData<fn() -> R>,
}

impl<R: Rank, T> Mutex<R, T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: imp::Mutex::new(value), rank: PhantomData }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    ///
    /// With debug assertions, if the thread holds a lock that its rank does not name.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, R, T> {
        let held = Held::new();
        MutexGuard { guard: self.inner.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Returns the value without locking, since nobody else has access.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if no thread has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, R, T>> {
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { guard, _held: Held::new() })
    }
}

impl<R: Rank, T: Default> Default for Mutex<R, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<R, T: fmt::Debug> fmt::Debug for Mutex<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A guard of a lock that is held.
pub(crate) struct MutexGuard<'a, R: Rank, T> {
    guard: imp::MutexGuard<'a, T>,
    _held: Held<R>,
}

impl<R: Rank, T> Deref for MutexGuard<'_, R, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<R: Rank, T> DerefMut for MutexGuard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Whether the order is checked. Not under loom, which runs all threads of a model on one, so that a thread-local can't
/// tell them apart.
const CHECKED: bool = cfg!(all(debug_assertions, not(all(test, farcall_loom))));

thread_local! {
    /// The ranks of the locks that this thread holds.
    static HELD: std::cell::Cell<u16> = const { std::cell::Cell::new(0) };
}

/// A lock of this rank, counted among those that the thread holds.
struct Held<R: Rank>(PhantomData<R>);

impl<R: Rank> Held<R> {
    #[inline(always)]
    #[track_caller]
    fn new() -> Self {
        #[cfg(all(debug_assertions, not(all(test, farcall_loom))))]
        HELD.with(|held| {
            let others = held.get() & !R::UNDER;
            assert!(
                others == 0,
                "the lock {} is taken under ranks {others:#b}, which it does not name",
                R::NAME
            );
            held.set(held.get() | R::BIT);
        });
        Self(PhantomData)
    }
}

impl<R: Rank> Drop for Held<R> {
    #[inline(always)]
    fn drop(&mut self) {
        if CHECKED {
            HELD.with(|held| held.set(held.get() & !R::BIT));
        }
    }
}

#[cfg(all(test, not(farcall_loom)))]
mod tests {
    use super::{Mutex, rank};

    #[test]
    fn locks_are_taken_in_their_order() {
        let receiving = Mutex::<rank::Receiving, _>::new(1);
        let queue = Mutex::<rank::Queue, _>::new(2);
        let (outer, inner) = (receiving.lock(), queue.lock());
        assert_eq!(*outer + *inner, 3);
    }

    #[test]
    #[should_panic(expected = "the lock Receiving is taken under")]
    fn a_lock_that_is_taken_under_an_inner_one_panics() {
        let receiving = Mutex::<rank::Receiving, _>::new(());
        let queue = Mutex::<rank::Queue, _>::new(());
        let _inner = queue.lock();
        receiving.lock();
    }

    #[test]
    #[should_panic(expected = "the lock CallTable is taken under")]
    fn of_locks_side_by_side_a_thread_takes_one() {
        let running = Mutex::<rank::Running, _>::new(());
        let calls = Mutex::<rank::CallTable, _>::new(());
        let _running = running.lock();
        calls.lock();
    }
}
