//! A combining queue ("flat combining"): the lock holder does the work of all threads that queue meanwhile.

#[cfg(not(all(test, farcall_loom)))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(all(test, farcall_loom))]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::sync::{Mutex, rank};

/// A state, and a queue of items that wait to be put into it.
///
/// A thread [pushes](Self::push) an item and calls [`run`](Self::run), which works on the state unless another thread
/// does. If another does, that thread also does this work, because it checks the queue again after unlocking. So no
/// thread waits for long work, and nothing is forgotten.
#[derive(Debug)]
pub(crate) struct CombiningQueue<Q, S> {
    queue: Mutex<rank::Queue, Q>,
    /// The length of the queue, readable without the lock.
    queued: AtomicUsize,
    /// Whether the queue may have items, or there may be other work. Every access is one read-modify-write. So either
    /// the unlocking thread sees the request, or the requester's access comes after the unlocking and it can take the
    /// lock. With plain loads and stores both could miss, and a message would wait for the next one.
    requested: AtomicBool,
    state: Mutex<rank::Sending, S>,
}

/// The content of the queue.
pub(crate) trait Queued: Default {
    /// Returns how many items there are.
    fn len(&self) -> usize;
}

/// A state that absorbs the queue.
pub(crate) trait Absorb<Q> {
    /// Takes all items out of the queue.
    fn absorb(&mut self, queue: &mut Q);
}

impl<Q: Queued, S: Absorb<Q>> CombiningQueue<Q, S> {
    pub(crate) fn new(state: S) -> Self {
        Self {
            queue: Mutex::new(Q::default()),
            queued: AtomicUsize::new(0),
            requested: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Puts something into the queue, and returns how many items are in it now. [`run`](Self::run) must follow if the
    /// queue was empty. Otherwise the thread that put in the first item calls it.
    // Inlined with `put`, so that the item is not moved on its way.
    #[inline(always)]
    pub(crate) fn push(&self, put: impl FnOnce(&mut Q)) -> usize {
        let mut queue = self.queue.lock();
        if queue.len() == 0 {
            // Under the lock: a thread that finds items in the queue relies on a request, or on another thread taking
            // them out.
            self.request();
        }
        put(&mut queue);
        let len = queue.len();
        self.queued.store(len, Ordering::Release);
        len
    }

    /// Returns how many items are queued.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Requests a run although nothing is queued. [`run`](Self::run) must follow.
    pub(crate) fn request(&self) {
        self.requested.swap(true, Ordering::AcqRel);
    }

    /// Inspects the queue.
    pub(super) fn inspect_queue<R>(&self, inspect: impl FnOnce(&Q) -> R) -> R {
        inspect(&self.queue.lock())
    }

    /// Puts queued items into the state and does `work` on it, until no more come. Returns at once if another thread
    /// holds the state.
    pub(crate) fn run(&self, mut work: impl FnMut(&mut S)) {
        // If nothing is requested now, a later requester finds the state unlocked.
        while self.is_requested() {
            let Some(mut state) = self.state.try_lock() else { return };
            self.absorb(&mut state);
            work(&mut state);
        }
    }

    /// Waits for the state and inspects it, without absorbing the queue. Then does the `work` that others have left
    /// meanwhile.
    pub(super) fn inspect<R>(&self, inspect: impl FnOnce(&mut S) -> R, work: impl FnMut(&mut S)) -> R {
        let result = inspect(&mut self.state.lock());
        if self.is_requested() {
            self.run(work);
        }
        result
    }

    /// Waits for the state and inspects it, but does not do work that others have left: [`run`](Self::run) must follow.
    pub(crate) fn inspect_only<R>(&self, inspect: impl FnOnce(&mut S) -> R) -> R {
        inspect(&mut self.state.lock())
    }

    /// Waits for the state, absorbs the queue, and changes the state. Then does `work`.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut S) -> R, mut work: impl FnMut(&mut S)) -> R {
        let mut state = self.state.lock();
        self.absorb(&mut state);
        let result = change(&mut state);
        work(&mut state);
        drop(state);
        if self.is_requested() {
            self.run(work);
        }
        result
    }

    /// Whether others have left work. Must be checked after unlocking.
    fn is_requested(&self) -> bool {
        self.requested.fetch_or(false, Ordering::AcqRel)
    }

    fn absorb(&self, state: &mut S) {
        if self.requested.swap(false, Ordering::AcqRel) {
            let mut queue = self.queue.lock();
            state.absorb(&mut queue);
            self.queued.store(0, Ordering::Release);
        }
    }
}

/// Every interleaving of a few threads: `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-core --lib loom`.
#[cfg(all(test, farcall_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::Ordering;
    use loom::thread;

    use super::super::flusher::Flusher;
    use super::{Absorb, CombiningQueue, Queued};

    /// How many items were put in, and how many of them were worked on.
    #[derive(Default)]
    struct Done {
        taken: usize,
        worked: usize,
    }

    #[derive(Default)]
    struct Count(usize);

    impl Queued for Count {
        fn len(&self) -> usize {
            self.0
        }
    }

    impl Absorb<Count> for Done {
        fn absorb(&mut self, queued: &mut Count) {
            self.taken += std::mem::take(&mut queued.0);
        }
    }

    type Shared = CombiningQueue<Count, Done>;

    /// Lets other threads act while this one holds the state. The model does not interleave around unlocking. It does
    /// around this access to the flag, which another thread may change before it finds the state locked.
    fn pause(shared: &Shared) {
        shared.requested.load(Ordering::Relaxed);
    }

    fn work(shared: &Shared, done: &mut Done) {
        done.worked = done.taken;
        pause(shared);
    }

    /// Pushes an item. Only the first pusher runs.
    fn push(shared: &Shared) {
        if shared.push(|queued| queued.0 += 1) == 1 {
            shared.run(|done| work(shared, done));
        }
    }

    /// Changes the state after a push, and finds the pushed item there.
    fn push_and_change(shared: &Shared) {
        let first = shared.push(|queued| queued.0 += 1) == 1;
        shared.change(|done| assert!(done.taken > 0, "it was left out"), |done| work(shared, done));
        if first {
            shared.run(|done| work(shared, done));
        }
    }

    fn look(shared: &Shared) {
        shared.inspect(|_| pause(shared), |done| work(shared, done));
    }

    fn change(shared: &Shared) {
        shared.change(|_| pause(shared), |done| work(shared, done));
    }

    /// Runs threads that act on the same state; `pushes` of them push an item.
    fn check(pushes: usize, threads: &'static [fn(&Shared)]) {
        let mut model = loom::model::Builder::new();
        // A lost wake-up needs one preemption. With a higher bound, three threads take for ever.
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new(CombiningQueue::new(Done::default()));
            let threads: Vec<_> = threads
                .iter()
                .map(|act| {
                    let shared = shared.clone();
                    thread::spawn(move || act(&shared))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let done = shared.state.lock();
            assert_eq!((done.taken, done.worked), (pushes, pushes), "something was forgotten");
        });
    }

    #[test]
    fn whatever_is_pushed_is_worked_on() {
        check(2, &[push, push]);
        check(3, &[push, push, push]);
    }

    #[test]
    fn a_look_leaves_nothing_undone() {
        check(1, &[push, look]);
        check(2, &[push, push, look]);
    }

    #[test]
    fn a_change_leaves_nothing_undone() {
        check(1, &[push, change]);
        check(2, &[push, push, change]);
    }

    #[test]
    fn a_change_finds_all_that_its_thread_has_pushed() {
        check(2, &[push, push_and_change]);
    }

    /// The flusher's task begins while another thread notifies it of more. This notification is either merged, or wakes
    /// the task again.
    #[test]
    fn links_that_the_flusher_is_told_of_are_worked_on() {
        loom::model(|| {
            let shared = Arc::new((CombiningQueue::<Count, Done>::new(Done::default()), Flusher::default()));
            let flush = |(combining, flusher): &(Shared, Flusher)| {
                flusher.begin();
                combining.run(|done| work(combining, done));
            };
            assert!(shared.0.push(|queued| queued.0 += 1) == 1 && shared.1.is_first_told());
            let task = thread::spawn({
                let shared = shared.clone();
                move || flush(&shared)
            });
            let wakes = shared.0.push(|queued| queued.0 += 1) == 1 && shared.1.is_first_told();
            task.join().unwrap();
            if wakes {
                flush(&shared);
            }
            assert_eq!(shared.0.state.lock().worked, 2, "something was forgotten");
        });
    }
}
