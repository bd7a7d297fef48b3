//! The queue of tasks that have more to do than fits in one turn.
//!
//! A runtime gives all its tasks turns one after the other. Where many peers send without a pause, a task that has little to do would
//! wait for the turns of all of them. So tasks that have much to do wait for each other, and the runtime's own queue has at most as many
//! of them as it has threads.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::task::yield_now;

static OF_RUNTIMES: LazyLock<Mutex<HashMap<Id, Weak<Semaphore>>>> = LazyLock::new(Mutex::default);

/// The queue of a runtime.
#[derive(Clone, Debug)]
pub struct Turns(Arc<Semaphore>);

impl Turns {
    /// Returns the queue of the current runtime.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn of_runtime() -> Self {
        let runtime = Handle::current();
        let mut of_runtimes = OF_RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = of_runtimes.get(&runtime.id()).and_then(Weak::upgrade) {
            return Self(turns);
        }
        of_runtimes.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(runtime.metrics().num_workers()));
        of_runtimes.insert(runtime.id(), Arc::downgrade(&turns));
        Self(turns)
    }

    /// Waits for a turn, which comes after those of the tasks that are ready now, and of those that have waited here for longer.
    ///
    /// Cancel safe: a task that gives up loses its place.
    pub async fn next(&self) {
        // Given back when the turn begins: a turn that blocks its thread must not keep others waiting.
        let _place = self.0.acquire().await.expect("the semaphore is never closed");
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
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
                    let turns = Turns::of_runtime();
                    loop {
                        turns.next().await;
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

    #[tokio::test]
    async fn tasks_that_give_up_or_have_their_turn_keep_no_place() {
        let turns = Turns::of_runtime();
        for _ in 0..10 {
            // Polled once: it has its place, and waits for its turn.
            let mut given_up = Box::pin(turns.next());
            assert!(poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx))).await.is_pending());
            assert_eq!(turns.0.available_permits(), 0);
            drop(given_up);
            turns.next().await;
            assert_eq!(turns.0.available_permits(), 1);
        }
    }

    #[test]
    fn runtimes_have_queues_of_their_own() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (one, other) = (runtime(), runtime());
        let of = |runtime: &tokio::runtime::Runtime| {
            let _entered = runtime.enter();
            Turns::of_runtime()
        };
        let (first, second) = (of(&one), of(&other));
        assert!(Arc::ptr_eq(&first.0, &of(&one).0) && !Arc::ptr_eq(&first.0, &second.0));
    }
}
