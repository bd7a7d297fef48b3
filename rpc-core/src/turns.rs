//! The queue of tasks that have more to do than fits in one turn.
//!
//! A runtime gives all its tasks turns one after the other. Where many peers send without a pause, a task that has little to do would
//! wait for the turns of all of them. So tasks that have much to do wait for each other, and the runtime's own queue has at most as many
//! of them as it has threads. Hosts share the time, however many connections each has.

mod fair_queue;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use self::fair_queue::FairQueue;
use crate::origin::Origin;

static OF_RUNTIMES: LazyLock<Mutex<HashMap<Id, Weak<Queue>>>> = LazyLock::new(Mutex::default);

/// The turns that a host's tasks take in a runtime.
#[derive(Clone, Debug)]
pub struct Turns {
    queue: Arc<Queue>,
    origin: Origin,
}

/// The queue of a runtime.
#[derive(Debug)]
struct Queue(Mutex<Waiting>);

#[derive(Debug)]
struct Waiting {
    free_places: usize,
    tasks: FairQueue<oneshot::Sender<Place>>,
}

/// A place in the runtime's own queue. Goes to the next task that waits when it is dropped.
#[derive(Debug)]
struct Place(Option<Arc<Queue>>);

/// A turn of a host's task, which lasts until this is dropped.
#[derive(Debug)]
#[must_use = "the turn ends when this is dropped"]
pub struct Turn {
    of: Turns,
    began: Instant,
}

impl Turns {
    /// Returns the turns in the current runtime of what is done for this host.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn of_runtime(origin: Origin) -> Self {
        let runtime = Handle::current();
        let mut of_runtimes = OF_RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = of_runtimes.get(&runtime.id()).and_then(Weak::upgrade) {
            return Self { queue, origin };
        }
        of_runtimes.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Queue::new(runtime.metrics().num_workers()));
        of_runtimes.insert(runtime.id(), Arc::downgrade(&queue));
        Self { queue, origin }
    }

    /// Waits for a turn, which comes after those of the tasks that are ready now. Of the tasks that wait here, the one comes first whose
    /// host's turns have taken least time.
    ///
    /// Cancel safe: a task that gives up loses its place.
    pub async fn next(&self) -> Turn {
        // Given back when the turn begins: a turn that blocks its thread must not keep others waiting.
        let _place = self.queue.place(self.origin).await;
        yield_now().await;
        Turn { of: self.clone(), began: Instant::now() }
    }
}

impl Queue {
    fn new(places: usize) -> Self {
        let waiting = Waiting { free_places: places, tasks: FairQueue::default() };
        Self(Mutex::new(waiting))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, or waits until one is given.
    async fn place(self: &Arc<Self>, origin: Origin) -> Place {
        let given = {
            let mut waiting = self.lock();
            if waiting.free_places > 0 {
                waiting.free_places -= 1;
                waiting.tasks.begin(origin);
                return Place(Some(self.clone()));
            }
            let (give, given) = oneshot::channel();
            waiting.tasks.push(origin, give);
            given
        };
        given.await.expect("a task is in the queue until it is given a place")
    }

    /// Gives a place to the task whose turn it is.
    fn pass_on(self: Arc<Self>) {
        let mut place = Place(Some(self.clone()));
        loop {
            let next = {
                let mut waiting = self.lock();
                let next = waiting.tasks.pop_wanted(|task| !task.is_closed());
                waiting.free_places += usize::from(next.is_none());
                next
            };
            let Some(next) = next else {
                place.0 = None;
                return;
            };
            match next.send(place) {
                Ok(()) => return,
                // The task has just given up.
                Err(back) => place = back,
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Turns { queue, origin } = &self.of;
        queue.lock().tasks.end(*origin, self.began.elapsed());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::rc::Rc;
    use std::task::Poll;

    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    /// Between two turns of a task that has little to do, one of the others has its turn, and not all.
    #[tokio::test]
    async fn tasks_with_much_to_do_wait_for_each_other() {
        const TASKS: usize = 10;
        let turns: Rc<Cell<usize>> = Rc::default();
        let counted = turns.clone();
        let tasks = LocalSet::new();
        let little = async move {
            for _ in 0..TASKS {
                let counted = counted.clone();
                spawn_local(async move {
                    let turns = Turns::of_runtime(Origin::NONE);
                    loop {
                        drop(turns.next().await);
                        counted.set(counted.get() + 1);
                    }
                });
            }
            let mut most = 0;
            for _ in 0..100 {
                let before = turns.get();
                yield_now().await;
                most = most.max(turns.get() - before);
            }
            (most, turns.get())
        };
        let (most, all) = tasks.run_until(little).await;
        assert!(most <= 2 && all > 50, "{most} turns at once, {all} in 100 rounds");
    }

    /// A host that has one task here has every other turn, although another host has ten.
    #[tokio::test]
    async fn hosts_take_turns() {
        const TURNS: usize = 100;
        let of_host = |n: u8| Turns::of_runtime(Origin::of(Some([10, 0, 0, n].into())));
        let of_others: Rc<Cell<usize>> = Rc::default();
        let counted = of_others.clone();
        let one = async move {
            for _ in 0..10 {
                let (turns, counted) = (of_host(1), counted.clone());
                spawn_local(async move {
                    loop {
                        drop(turns.next().await);
                        counted.set(counted.get() + 1);
                    }
                });
            }
            yield_now().await;
            let turns = of_host(2);
            for _ in 0..TURNS {
                drop(turns.next().await);
            }
        };
        LocalSet::new().run_until(one).await;
        let others = of_others.get();
        // Hosts have equal times, so the numbers differ where the thread loses its processor within turns. In turn by tasks it would be ten
        // times as many.
        assert!((TURNS - 1..=6 * TURNS).contains(&others), "{others} turns beside {TURNS}");
    }

    #[tokio::test]
    async fn tasks_that_give_up_or_have_their_turn_keep_no_place() {
        let turns = Turns::of_runtime(Origin::NONE);
        for _ in 0..10 {
            // Polled once: it has its place, and waits for its turn.
            let mut given_up = Box::pin(turns.next());
            assert!(poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx))).await.is_pending());
            assert_eq!(turns.queue.lock().free_places, 0);
            drop(given_up);
            drop(turns.next().await);
            assert_eq!(turns.queue.lock().free_places, 1);
        }
    }

    #[tokio::test]
    async fn tasks_that_give_up_in_the_queue_keep_no_place() {
        async fn is_pending(task: Pin<&mut impl Future<Output = Turn>>) -> bool {
            let mut task = task;
            poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx).is_pending())).await
        }
        let turns = Turns::of_runtime(Origin::NONE);
        let free = || turns.queue.lock().free_places;
        let mut first = Box::pin(turns.next());
        let mut others = [Box::pin(turns.next()), Box::pin(turns.next())];
        assert!(is_pending(first.as_mut()).await);
        for other in &mut others {
            assert!(is_pending(other.as_mut()).await);
        }
        let [gives_up, is_given] = others;
        drop(gives_up);
        drop(first);
        // The place is on its way to the last one, which does not look.
        assert_eq!(free(), 0);
        drop(is_given);
        assert_eq!(free(), 1);
    }

    #[test]
    fn runtimes_have_queues_of_their_own() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (one, other) = (runtime(), runtime());
        let of = |runtime: &tokio::runtime::Runtime| {
            let _entered = runtime.enter();
            Turns::of_runtime(Origin::NONE)
        };
        let (first, second) = (of(&one), of(&other));
        assert!(Arc::ptr_eq(&first.queue, &of(&one).queue) && !Arc::ptr_eq(&first.queue, &second.queue));
    }
}
