//! A device's control thread: where calls run that block.
//!
//! Creating, connecting and destroying queue pairs and registering memory take milliseconds, and `modify_qp` up to a second:
//! too long for a thread that runs tasks. They run here, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{fmt, io, thread};

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// A handle to the thread, which ends after its last job when all handles are gone.
#[derive(Clone)]
pub(crate) struct Control(Sender<Job>);

/// The job has panicked, and so has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

impl Control {
    /// Starts the thread for this device. What is in `last` is dropped there, after the last job.
    pub(super) fn start(device: &str, last: impl Send + 'static) -> io::Result<Self> {
        let (sender, jobs): (_, Receiver<Job>) = channel();
        // The kernel shows fifteen characters.
        let name = format!("rdma-{device}");
        thread::Builder::new().name(name).spawn(move || {
            for job in jobs {
                // The panic's message is printed by the hook; other connections need this thread.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
            drop(last);
        })?;
        Ok(Self(sender))
    }

    /// Runs a job, and gives its result. Dropping the future does not stop the job; its result is dropped then, on the
    /// thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (done, result) = oneshot::channel();
        self.spawn(move || drop(done.send(job())));
        result.await.map_err(|_| Panicked)
    }

    /// Runs a job that nobody waits for.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        // The thread ends when all handles are gone, and this is one.
        let _ = self.0.send(Box::new(job));
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

/// A reference whose end may block, and therefore happens on the control thread.
#[derive(Debug)]
pub(crate) struct Offload<T: ?Sized + Send + Sync + 'static> {
    value: Option<Arc<T>>,
    control: Control,
}

impl<T: ?Sized + Send + Sync + 'static> Offload<T> {
    pub(crate) fn new(value: Arc<T>, control: Control) -> Self {
        Self { value: Some(value), control }
    }
}

impl<T: ?Sized + Send + Sync + 'static> std::ops::Deref for Offload<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        self.value.as_ref().expect("the value is taken by drop only")
    }
}

impl<T: ?Sized + Send + Sync + 'static> Drop for Offload<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.control.spawn(move || drop(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::ThreadId;

    use super::*;

    #[tokio::test]
    async fn jobs_run_in_order_on_one_thread_of_their_own() {
        let control = Control::start("test", ()).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        for i in 0..100 {
            let log = Arc::clone(&log);
            control.spawn(move || log.lock().unwrap().push((i, thread::current().id())));
        }
        let here = control.run(|| thread::current().id()).await.unwrap();
        assert_ne!(here, thread::current().id());
        let expected: Vec<(i32, ThreadId)> = (0..100).map(|i| (i, here)).collect();
        assert_eq!(*log.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn offloaded_value_is_dropped_on_the_thread() {
        struct Witness(std::sync::mpsc::Sender<ThreadId>);
        impl Drop for Witness {
            fn drop(&mut self) {
                let _ = self.0.send(thread::current().id());
            }
        }
        let control = Control::start("test", ()).unwrap();
        let there = control.run(|| thread::current().id()).await.unwrap();
        let (sender, dropped) = channel();
        drop(Offload::new(Arc::new(Witness(sender)), control));
        assert_eq!(dropped.recv().unwrap(), there);
    }

    #[tokio::test]
    async fn panic_of_a_job_is_told_to_those_who_wait() {
        let control = Control::start("test", ()).unwrap();
        assert_eq!(control.run(|| panic!("on purpose")).await, Err(Panicked));
        assert_eq!(control.run(|| 1).await, Ok(1));
    }
}
