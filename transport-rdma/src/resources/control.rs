//! A device's control threads: where calls run that block.
//!
//! Creating, connecting and destroying queue pairs and registering memory take milliseconds, and `modify_qp` up to a
//! second: too long for a thread that runs tasks. There are two lanes. Taking links down and registering memory for messages run
//! on one thread, one after the other. Setting links up runs on a few threads beside it, which exist while there is such work. So
//! neither a burst of new links nor a device that does not return from a call keeps old links from going. Connecting a link goes before
//! beginning another: a peer waits for it. Tokio's blocking threads register the memory of applications, which may be gigabytes.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io, thread};

use farcall_core::transport::{self, Reason};
use tokio::sync::oneshot;

use crate::device::{DeviceError, Unavailable};

/// How long one call that sets a link up may take: less than `liveness.connect_ms` by default, so that what is said in the end
/// is which call it was.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(2);

/// How many such calls run at once.
const SETUPS: usize = 4;

/// How many of those may be creating something. They wait for each other, and for what is destroyed at the same time.
const CREATIONS: usize = 2;

/// The part of setting a link up that a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The first: a queue pair is created.
    Create,
    /// The last: it is connected with the peer's.
    Connect,
}

type Job = Box<dyn FnOnce() + Send>;

/// A handle to a device's control threads. The first ends after its last job when all handles are gone.
#[derive(Clone)]
pub(crate) struct Control {
    thread: Sender<Job>,
    setups: Arc<Setups>,
}

/// The lane of what sets links up.
struct Setups {
    device: String,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    create: VecDeque<Job>,
    connect: VecDeque<Job>,
    threads: usize,
    creating: usize,
    /// Why no thread could be started the last time.
    refusal: i32,
}

impl Queue {
    fn next(&mut self) -> Option<(Part, Job)> {
        if let Some(job) = self.connect.pop_front() {
            return Some((Part::Connect, job));
        }
        let job = (self.creating < CREATIONS).then(|| self.create.pop_front()).flatten()?;
        self.creating += 1;
        Some((Part::Create, job))
    }

    /// There is no thread for what waits. With the jobs go the senders by which their callers hear of them.
    fn give_up(&mut self, error: &io::Error) {
        self.refusal = error.raw_os_error().unwrap_or(0);
        self.create.clear();
        self.connect.clear();
    }
}

/// Why there is no result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It has panicked.
    Panicked,
    /// No thread could be started for it.
    NoThread(DeviceError),
    /// It has not returned in time. Its result is dropped when it does.
    Hangs { device: String, operation: &'static str },
}

impl Control {
    /// Starts the thread for this device. The thread drops `last` after the last job.
    pub(crate) fn start(device: &str, last: impl Send + 'static) -> Result<Self, DeviceError> {
        let (thread, jobs): (_, Receiver<Job>) = channel();
        spawn(format!("rdma-{device}"), move || {
            jobs.into_iter().for_each(run);
            drop(last);
        })
        .map_err(|error| no_thread(device, error.raw_os_error().unwrap_or(0)))?;
        let setups = Setups { device: device.to_owned(), queue: Mutex::default() };
        Ok(Self { thread, setups: Arc::new(setups) })
    }

    /// Runs a job that nobody waits for, behind those before it.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        // The thread ends when all handles are gone, and this is one.
        let _ = self.thread.send(Box::new(job));
    }

    /// Runs a call that sets a link up, and gives its result. It waits for its turn as long as the caller does, and then has
    /// [`CALL_LIMIT`]. Dropping the future before its turn drops the call; later, its result is dropped when it returns.
    pub(crate) async fn set_up<T: Send + 'static>(
        &self,
        part: Part,
        operation: &'static str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failed> {
        let (start, started) = oneshot::channel();
        let (done, result) = oneshot::channel();
        let job = move || {
            // An error here means that nobody waits any more.
            if start.send(()).is_ok() {
                drop(done.send(call()));
            }
        };
        self.setups.push(part, Box::new(job));
        if started.await.is_err() {
            let refusal = self.setups.queue().refusal;
            return Err(Failed::NoThread(no_thread(&self.setups.device, refusal)));
        }
        match tokio::time::timeout(CALL_LIMIT, result).await {
            Ok(result) => result.map_err(|_| Failed::Panicked),
            Err(_) => Err(Failed::Hangs { device: self.setups.device.clone(), operation }),
        }
    }
}

impl Setups {
    fn push(self: &Arc<Self>, part: Part, job: Job) {
        let mut queue = self.queue();
        match part {
            Part::Create => queue.create.push_back(job),
            Part::Connect => queue.connect.push_back(job),
        }
        if queue.threads == SETUPS {
            return;
        }
        let setups = Arc::clone(self);
        match spawn(format!("setup-{}", self.device), move || setups.work()) {
            Ok(()) => queue.threads += 1,
            Err(error) if queue.threads == 0 => queue.give_up(&error),
            Err(_) => {}
        }
    }

    fn work(&self) {
        let mut queue = self.queue();
        while let Some((part, job)) = queue.next() {
            drop(queue);
            run(job);
            queue = self.queue();
            if part == Part::Create {
                queue.creating -= 1;
            }
        }
        queue.threads -= 1;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel shows fifteen characters of a thread's name.
fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name).spawn(body).map(drop)
}

/// Why something has no thread.
pub(crate) fn no_thread(device: &str, errno: i32) -> DeviceError {
    DeviceError { device: device.to_owned(), operation: "starting a thread", errno }
}

fn run(job: Job) {
    // The panic's message is printed by the hook; other connections need this thread.
    let _ = catch_unwind(AssertUnwindSafe(job));
}

impl From<Failed> for transport::Unavailable {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Panicked => {
                Self::new(Reason::Other, "an RDMA control thread has panicked; report this as a bug")
            }
            Failed::NoThread(error) => Unavailable::Device(error).into(),
            Failed::Hangs { device, operation } => Self::new(
                Reason::TimedOut,
                format!(
                    "{device}: {operation} has not returned within {CALL_LIMIT:?}: the device, its driver or (for the \
                     peer's address) the network does not answer; see the kernel's log"
                ),
            ),
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

/// A reference whose end may block, and therefore happens on the control thread.
#[derive(Debug)]
pub(crate) struct DropOnControlThread<T: ?Sized + Send + Sync + 'static> {
    value: Option<Arc<T>>,
    control: Control,
}

impl<T: ?Sized + Send + Sync + 'static> DropOnControlThread<T> {
    pub(crate) fn new(value: Arc<T>, control: Control) -> Self {
        Self { value: Some(value), control }
    }
}

impl<T: ?Sized + Send + Sync + 'static> std::ops::Deref for DropOnControlThread<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        self.value.as_ref().expect("the value is taken by drop only")
    }
}

impl<T: ?Sized + Send + Sync + 'static> Drop for DropOnControlThread<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.control.spawn(move || drop(value));
        }
    }
}

#[cfg(test)]
mod tests;
