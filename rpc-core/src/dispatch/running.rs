//! The calls of the peer that are in progress on this side.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};

use crate::freeing::Pace;
use crate::memory::Account;
use crate::sync::{Mutex, MutexGuard, rank};

/// The calls of the peer that were received and neither answered nor cancelled. A call is added as soon as its order is
/// known. So whatever follows its REQUEST finds it, by whichever link and thread.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<rank::Running, Table>);

#[derive(Debug, Default)]
pub(super) struct Table {
    /// Calls whose handlers are not polled yet, or are in their first poll. They are few, most never become tasks, and
    /// they mostly end in the order in which they came.
    new: VecDeque<u64>,
    tasks: HashMap<u64, AbortHandle>,
    /// The highest number that was ever in here.
    last: u64,
}

impl Running {
    /// Locks the table, for several calls at once. An ending call is found either here or in the send queue, and never
    /// in both, because its answer is queued under this lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, rank::Running, Table> {
        self.0.lock()
    }

    /// Records the task that a call's handler has become. Returns false if the call has ended meanwhile.
    pub(super) fn has_task(&self, call: u64, task: &JoinHandle<()>) -> bool {
        let mut table = self.0.lock();
        let is_new = table.take_new(call);
        if is_new {
            table.tasks.insert(call, task.abort_handle());
        }
        is_new
    }

    /// Removes a call that has ended. Returns the handle of its task, if any: the handler must be dropped when no lock
    /// is held. `None` if the call had ended before.
    pub(super) fn take(&self, call: u64) -> Option<Option<AbortHandle>> {
        let mut table = self.0.lock();
        if table.take_new(call) { Some(None) } else { table.tasks.remove(&call).map(Some) }
    }

    /// Removes a call whose handler is done, and makes `answer` queue the answer, unless the call has ended before.
    /// This happens under the lock, so that the call is found either here or in the queue.
    pub(super) fn end_with<R>(&self, call: u64, answer: impl FnOnce() -> R) -> Option<R> {
        let mut table = self.0.lock();
        table.end(call).then(answer)
    }

    /// Whether no handler runs.
    pub(super) fn is_idle(&self) -> bool {
        self.0.lock().count() == 0
    }

    /// Drops every handler, because the connection is gone. They are dropped bit by bit: each takes a turn of the runtime, and other
    /// connections would wait for all of them.
    pub(super) fn drop_all(&self, runtime: &Handle, account: &Arc<Account>) {
        let mut table = self.0.lock();
        table.new.clear();
        let mut tasks = std::mem::take(&mut table.tasks).into_values();
        drop(table);
        tasks.next().inspect(AbortHandle::abort);
        if tasks.len() == 0 {
            return;
        }
        let account = account.clone();
        runtime.spawn(async move {
            let mut pace = Pace::new(&account);
            while tasks.len() > 0 {
                let now = pace.turn(tasks.len()).await;
                tasks.by_ref().take(now).for_each(|task| task.abort());
            }
        });
    }
}

impl Table {
    /// Adds a call. Returns false if it is there already.
    pub(super) fn begin(&mut self, call: u64) -> bool {
        if call <= self.last && (self.new.contains(&call) || self.tasks.contains_key(&call)) {
            return false;
        }
        self.last = self.last.max(call);
        self.new.push_back(call);
        true
    }

    /// Removes a call whose handler is done. Returns false if the call has ended before.
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
