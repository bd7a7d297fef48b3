//! The calls of the peer that are in progress on this side.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::task::{AbortHandle, JoinHandle};

use super::lock;

/// The calls of the peer that have been taken in and neither answered nor cancelled. In here from the moment that their
/// order is known: what comes after a REQUEST finds it, whichever link and thread it comes by.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Whose handlers have not been polled yet, or are being polled the first time: few, and most never become tasks.
    new: Vec<u64>,
    tasks: HashMap<u64, AbortHandle>,
}

impl Running {
    /// Adds a call, and gives how many there were; `None`: it is one of them.
    pub(super) fn begin(&self, call: u64) -> Option<usize> {
        let mut table = lock(&self.0);
        let known = table.new.contains(&call) || !table.tasks.is_empty() && table.tasks.contains_key(&call);
        let count = table.count();
        (!known).then(|| {
            table.new.push(call);
            count
        })
    }

    /// The handler of a call has become a task. False: the call has ended meanwhile.
    pub(super) fn has_task(&self, call: u64, task: &JoinHandle<()>) -> bool {
        let mut table = lock(&self.0);
        let is_new = table.take_new(call);
        if is_new {
            table.tasks.insert(call, task.abort_handle());
        }
        is_new
    }

    /// A call has ended. If it had become a task, gives its handle: the handler is dropped when no lock is held. `None`: it
    /// had ended before.
    pub(super) fn take(&self, call: u64) -> Option<Option<AbortHandle>> {
        let mut table = lock(&self.0);
        if table.take_new(call) { Some(None) } else { table.tasks.remove(&call).map(Some) }
    }

    /// The handler of a call is done: has `answer` queue the answer, unless the call has ended before. Under the lock,
    /// because a call is to be found here or in the queue, and not in both.
    pub(super) fn end_with<R>(&self, call: u64, answer: impl FnOnce() -> R) -> Option<R> {
        let mut table = lock(&self.0);
        let was_there = table.take_new(call) || table.tasks.remove(&call).is_some();
        was_there.then(answer)
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.0).count()
    }

    /// Whether no handler runs.
    pub(super) fn is_idle(&self) -> bool {
        self.count() == 0
    }

    /// Drops every handler: the connection is gone.
    pub(super) fn drop_all(&self) {
        let Table { tasks, .. } = std::mem::take(&mut *lock(&self.0));
        tasks.into_values().for_each(|task| task.abort());
    }
}

impl Table {
    fn count(&self) -> usize {
        self.new.len() + self.tasks.len()
    }

    fn take_new(&mut self, call: u64) -> bool {
        let at = self.new.iter().position(|new| *new == call);
        at.map(|at| self.new.swap_remove(at)).is_some()
    }
}
