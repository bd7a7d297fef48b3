//! The threads that decode long messages: at most one for each CPU, started when they are needed, and kept.
//!
//! Tokio's pool for blocking work starts a thread whenever none is idle at that moment, even if one is about to be. Each thread may
//! take a stack and an arena of glibc's allocator, which is 66 MiB of address space. Few threads let a server live under `ulimit -v`.
//!
//! A current-thread runtime decodes in its own pool all the same: its clock may be paused, and stands still only for that.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

static THREADS: LazyLock<Threads> = LazyLock::new(Threads::new);

type Job = Box<dyn FnOnce() + Send>;

struct Threads {
    most: usize,
    /// A permit for each job that may run at once. More would not be faster, and would take more memory.
    turns: Arc<Semaphore>,
    started: Mutex<usize>,
    jobs: Sender<Job>,
    waiting: Arc<Mutex<Receiver<Job>>>,
}

/// The right to run one job.
pub(super) struct Turn(OwnedSemaphorePermit);

/// Waits for a turn.
pub(super) async fn turn() -> Turn {
    let turn = THREADS.turns.clone().acquire_owned().await;
    Turn(turn.expect("the semaphore is never closed"))
}

impl Turn {
    /// Lets a thread run `job`, and gives the turn back after that. Runs it here if the system lets this process have no thread.
    pub(super) fn run(self, job: impl FnOnce() + Send + 'static) {
        let has_thread = THREADS.start_for_taken_turns();
        let job = self.around(job);
        if !has_thread {
            return job();
        }
        // It is received as long as the process lives.
        let _ = THREADS.jobs.send(Box::new(job));
    }

    /// Lets the runtime's pool for blocking work run `job`, and gives the turn back after that.
    pub(super) fn run_in_pool(self, runtime: &Handle, job: impl FnOnce() + Send + 'static) {
        runtime.spawn_blocking(self.around(job));
    }

    fn around(self, job: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
        let Self(turn) = self;
        move || {
            job();
            drop(turn);
        }
    }
}

impl Threads {
    fn new() -> Self {
        let most = thread::available_parallelism().map_or(1, usize::from);
        let (jobs, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        Self { most, turns: Arc::new(Semaphore::new(most)), started: Mutex::new(0), jobs, waiting }
    }

    /// Starts a thread if more turns are taken than threads run. Returns whether any runs.
    fn start_for_taken_turns(&self) -> bool {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started < self.most - self.turns.available_permits() {
            let waiting = self.waiting.clone();
            let thread = thread::Builder::new().name("farcall-decode".into());
            // Without another thread, jobs wait for those that run.
            *started += usize::from(thread.spawn(move || run_jobs(&waiting)).is_ok());
        }
        *started > 0
    }
}

/// Runs jobs, one after the other.
fn run_jobs(waiting: &Mutex<Receiver<Job>>) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // The sender is never dropped.
        let Ok(job) = job else { return };
        // A value that nobody waits for any more may panic when it is dropped. So may what it panics with.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
            std::mem::forget(panic);
        }
        // The runtime's threads come first. They sleep often, but where they share this processor, the scheduler would let one that wakes
        // wait until this thread's time is up, which is some milliseconds.
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Waker};
    use std::thread::{self, Thread, ThreadId};

    use super::super::apart;
    use crate::memory::HostTurn;

    #[tokio::test]
    async fn a_host_with_many_jobs_keeps_no_other_waiting() {
        let most = super::THREADS.most;
        let mut taken = Vec::new();
        for _ in 0..most {
            taken.push(super::turn().await);
        }
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let (greedy, modest) = (HostTurn::default(), HostTurn::default());
        let job = |name: &'static str, host: &HostTurn| {
            let (order, host) = (Arc::clone(&order), host.clone());
            tokio::spawn(async move {
                let turn = host.wait(super::turn()).await;
                order.lock().unwrap().push(name);
                drop(turn);
            })
        };
        let mut jobs: Vec<_> = (0..50).map(|_| job("greedy", &greedy)).collect();
        tokio::task::yield_now().await;
        jobs.push(job("modest", &modest));
        tokio::task::yield_now().await;
        drop(taken);
        for job in jobs {
            job.await.unwrap();
        }
        let place = order.lock().unwrap().iter().position(|name| *name == "modest").unwrap();
        assert_eq!(place, 1, "one of the others had waited for longer");
    }

    #[tokio::test]
    async fn a_job_that_nobody_polls_holds_up_no_other_of_its_host() {
        let host = HostTurn::default();
        let mut unpolled = Box::pin(apart(Some(host.clone()), || ()));
        let polled = std::pin::Pin::new(&mut unpolled).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        for _ in 0..10 {
            apart(Some(host.clone()), || ()).await;
        }
        unpolled.await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn jobs_that_panic_leave_the_threads_in_place() {
        let here = thread::current().id();
        let mut seen: HashSet<ThreadId> = HashSet::new();
        for _ in 0..100 {
            let job = apart(None, || std::panic::panic_any(thread::current()));
            let panic = tokio::spawn(job).await.unwrap_err().into_panic();
            seen.insert(panic.downcast::<Thread>().unwrap().id());
        }
        seen.insert(apart(None, || thread::current().id()).await);
        assert!(seen.len() <= super::THREADS.most && !seen.contains(&here), "{seen:?}");
    }
}
