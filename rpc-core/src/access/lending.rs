//! The memory that calls in progress lend.

use std::collections::hash_map;
use std::fmt;
use std::sync::{Arc, Weak};

use super::Accesses;
use super::owner::Memory;
use crate::payload::Loan;

/// Memory that calls can lend, with a number of its own in this process.
pub(crate) trait LentMemory: Memory {
    /// Returns the number, by which the server names it.
    fn number(&self) -> u64;

    /// Notes that a call lends it. Returns false if it can't be lent any more.
    fn begin(&self) -> bool;

    /// Notes that a call has ended that lent it.
    fn end(&self);
}

/// Memory that is lent, and how many loans there are of it.
#[derive(Debug)]
pub(super) struct Entry {
    memory: Arc<dyn LentMemory>,
    count: usize,
}

impl Entry {
    pub(super) fn memory(&self) -> Arc<dyn LentMemory> {
        self.memory.clone()
    }
}

/// The loans of a call. They end when this is dropped.
pub(crate) struct Lending {
    to: Weak<Accesses>,
    lent: Vec<Arc<dyn LentMemory>>,
}

impl fmt::Debug for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} loans", self.lent.len())
    }
}

impl Accesses {
    /// Lends what the arguments of a call say. `None`: something was taken back already, so the call can't be made.
    pub(crate) fn lend(&self, loans: &[Loan]) -> Option<Lending> {
        let mut lending = Lending { to: self.me.clone(), lent: Vec::with_capacity(loans.len()) };
        for memory in loans.iter().filter_map(|loan| loan.downcast_ref::<Arc<dyn LentMemory>>()) {
            if !memory.begin() {
                return None;
            }
            lending.lent.push(memory.clone());
            let mut lent = self.lent.lock();
            let entry = || Entry { memory: memory.clone(), count: 0 };
            lent.entry(memory.number()).or_insert_with(entry).count += 1;
        }
        Some(lending)
    }

    fn take_back(&self, number: u64) {
        if let hash_map::Entry::Occupied(mut entry) = self.lent.lock().entry(number) {
            entry.get_mut().count -= 1;
            if entry.get().count == 0 {
                entry.remove();
            }
        }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        let to = self.to.upgrade();
        for memory in &self.lent {
            if let Some(to) = &to {
                to.take_back(memory.number());
            }
            memory.end();
        }
    }
}
