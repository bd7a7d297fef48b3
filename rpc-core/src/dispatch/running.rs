//! The calls of the peer that are in progress on this side.

use std::collections::{HashMap, VecDeque};

use tokio::task::{AbortHandle, JoinHandle};

use crate::sync::{Mutex, MutexGuard, rank};

/// The calls of the peer that have been taken in and neither answered nor cancelled. In here from the moment that their
/// order is known: what comes after a REQUEST finds it, whichever link and thread it comes by.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<rank::Running, Table>);

#[derive(Debug, Default)]
pub(super) struct Table {
    /// Whose handlers have not been polled yet, or are being polled the first time: few, and most never become tasks. Mostly
    /// they are done in the order in which they came.
    new: VecDeque<u64>,
    tasks: HashMap<u64, AbortHandle>,
    /// The highest number that was ever in here.
    last: u64,
}

impl Running {
    /// For several calls at once. A call that ends is to be found in here or in the queue of what is sent, and not in both:
    /// its answer is queued under this lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, rank::Running, Table> {
        self.0.lock()
    }

    /// The handler of a call has become a task. False: the call has ended meanwhile.
    pub(super) fn has_task(&self, call: u64, task: &JoinHandle<()>) -> bool {
        let mut table = self.0.lock();
        let is_new = table.take_new(call);
        if is_new {
            table.tasks.insert(call, task.abort_handle());
        }
        is_new
    }

    /// A call has ended. If it had become a task, gives its handle: the handler is dropped when no lock is held. `None`: it
    /// had ended before.
    pub(super) fn take(&self, call: u64) -> Option<Option<AbortHandle>> {
        let mut table = self.0.lock();
        if table.take_new(call) { Some(None) } else { table.tasks.remove(&call).map(Some) }
    }

    /// The handler of a call is done: has `answer` queue the answer, unless the call has ended before. Under the lock,
    /// because a call is to be found here or in the queue, and not in both.
    pub(super) fn end_with<R>(&self, call: u64, answer: impl FnOnce() -> R) -> Option<R> {
        let mut table = self.0.lock();
        table.end(call).then(answer)
    }

    /// Whether no handler runs.
    pub(super) fn is_idle(&self) -> bool {
        self.0.lock().count() == 0
    }

    /// Drops every handler: the connection is gone.
    pub(super) fn drop_all(&self) {
        let mut table = self.0.lock();
        table.new.clear();
        let tasks = std::mem::take(&mut table.tasks);
        drop(table);
        tasks.into_values().for_each(|task| task.abort());
    }
}

impl Table {
    /// Adds a call. False: it is there already.
    pub(super) fn begin(&mut self, call: u64) -> bool {
        if call <= self.last && (self.new.contains(&call) || self.tasks.contains_key(&call)) {
            return false;
        }
        self.last = self.last.max(call);
        self.new.push_back(call);
        true
    }

    /// The handler of a call is done. False: the call has ended before.
    #[inline]
    pub(super) fn end(&mut self, call: u64) -> bool {
        self.take_new(call) || self.tasks.remove(&call).is_some()
    }

    pub(super) fn count(&self) -> usize {
        self.new.len() + self.tasks.len()
    }

    #[inline]
    fn take_new(&mut self, call: u64) -> bool {
        if self.new.front() == Some(&call) {
            self.new.pop_front();
            return true;
        }
        self.take_later(call)
    }

    #[cold]
    fn take_later(&mut self, call: u64) -> bool {
        let at = self.new.iter().position(|new| *new == call);
        at.map(|at| self.new.remove(at)).is_some()
    }
}
