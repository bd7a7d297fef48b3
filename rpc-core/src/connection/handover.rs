//! A state that is worked on by whoever is there, and never waited for.

use std::collections::VecDeque;
use std::sync::{PoisonError, TryLockError};

#[cfg(not(all(test, farcall_loom)))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};

#[cfg(all(test, farcall_loom))]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};

/// A state, and a queue of what waits to be put into it.
///
/// Who has something for the state [pushes](Self::push) it and calls [`run`](Self::run), which works on the state
/// unless another thread does: then that thread sees to it, because it looks at the queue again after it has
/// unlocked. So nobody waits for work that takes long, and nothing is forgotten.
#[derive(Debug)]
pub(super) struct Handover<T, S> {
    queue: Mutex<VecDeque<T>>,
    /// There may be something in the queue, or other work.
    wanted: AtomicBool,
    state: Mutex<S>,
}

impl<T, S: Extend<T>> Handover<T, S> {
    pub(super) fn new(state: S) -> Self {
        Self { queue: Mutex::new(VecDeque::new()), wanted: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Queues `item`, and gives how many are queued now. [`run`](Self::run) must follow.
    pub(super) fn push(&self, item: T) -> usize {
        let mut queue = lock(&self.queue);
        queue.push_back(item);
        let len = queue.len();
        drop(queue);
        self.want();
        len
    }

    /// There is something to do although nothing is queued. [`run`](Self::run) must follow.
    pub(super) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// How many are queued.
    pub(super) fn queued(&self) -> usize {
        lock(&self.queue).len()
    }

    /// Puts what is queued into the state and does `work` on it, for as long as more comes. Returns at once if another
    /// thread is at it, or looks at the state.
    pub(super) fn run(&self, mut work: impl FnMut(&mut S)) {
        loop {
            // Either the holder's look at `wanted` after unlocking sees what we want, or we see it unlocked: these two
            // fences forbid that both miss. Without them a message could wait for the next one to come.
            fence(Ordering::SeqCst);
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.absorb(&mut state);
            work(&mut state);
            drop(state);
            if !self.is_wanted() {
                return;
            }
        }
    }

    /// Waits for the state and has `look` at it, as it is without what is queued. Then does the `work` that others have
    /// left meanwhile.
    pub(super) fn look<R>(&self, look: impl FnOnce(&mut S) -> R, work: impl FnMut(&mut S)) -> R {
        let result = look(&mut lock(&self.state));
        if self.is_wanted() {
            self.run(work);
        }
        result
    }

    /// Waits for the state and has `change` change it, with what was queued in it. Then does `work`.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut S) -> R, mut work: impl FnMut(&mut S)) -> R {
        let mut state = lock(&self.state);
        self.absorb(&mut state);
        let result = change(&mut state);
        work(&mut state);
        drop(state);
        if self.is_wanted() {
            self.run(work);
        }
        result
    }

    /// To be asked after unlocking: whether others have left something.
    fn is_wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        self.wanted.load(Ordering::Relaxed)
    }

    fn absorb(&self, state: &mut S) {
        if self.wanted.swap(false, Ordering::AcqRel) {
            state.extend(lock(&self.queue).drain(..));
        }
    }
}

/// Locks, also after a panic; see [`super::lock`].
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every interleaving of a few threads: `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-core --lib loom`.
#[cfg(all(test, farcall_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::Handover;

    /// What was put in, and how much of it was worked on.
    #[derive(Default)]
    struct Done {
        taken: usize,
        worked: usize,
    }

    impl Extend<()> for Done {
        fn extend<I: IntoIterator<Item = ()>>(&mut self, items: I) {
            self.taken += items.into_iter().count();
        }
    }

    fn work(done: &mut Done) {
        done.worked = done.taken;
    }

    fn check(threads: usize, act: fn(&Handover<(), Done>, usize)) {
        loom::model(move || {
            let shared = Arc::new(Handover::new(Done::default()));
            let others: Vec<_> = (1..threads)
                .map(|i| {
                    let shared = shared.clone();
                    thread::spawn(move || act(&shared, i))
                })
                .collect();
            act(&shared, 0);
            others.into_iter().for_each(|other| other.join().unwrap());
            let done = super::lock(&shared.state);
            assert_eq!((done.taken, done.worked), (threads, threads), "something was forgotten");
        });
    }

    #[test]
    fn whatever_is_pushed_is_worked_on() {
        check(3, |shared, _| {
            shared.push(());
            shared.run(work);
        });
    }

    #[test]
    fn who_only_looks_leaves_nothing_undone() {
        check(2, |shared, i| {
            if i == 0 {
                shared.look(|_| (), work);
            }
            shared.push(());
            shared.run(work);
            shared.look(|_| (), work);
        });
    }

    #[test]
    fn who_changes_leaves_nothing_undone() {
        check(2, |shared, i| {
            shared.push(());
            match i {
                0 => shared.change(|_| (), work),
                _ => shared.run(work),
            }
        });
    }
}
