//! The memory that calls in progress lend.

use std::fmt;
use std::sync::{Arc, Weak};

use super::Accesses;
use super::owner::Memory;
use crate::payload::Loan;
use crate::proto::wire::Outcome;
use crate::sync::{Mutex, rank};

/// Memory that calls can lend, with a number of its own in this process.
pub(crate) trait LentMemory: Memory {
    /// Returns the number, by which the server names it.
    fn number(&self) -> u64;

    /// Notes that a call lends it. Returns false if it can't be lent any more.
    fn begin(&self) -> bool;

    /// Notes that a call has ended that lent it.
    fn end(&self);
}

/// Memory that one call lends.
#[derive(Debug)]
pub(super) struct OnLoan {
    memory: Arc<dyn LentMemory>,
    /// Whether the call has ended. An access holds the lock, so none goes on when the loan has ended.
    ended: Mutex<rank::OnLoan, bool>,
}

impl OnLoan {
    /// Runs an access, unless the loan has ended.
    pub(super) fn access<R>(
        &self,
        access: impl FnOnce(&dyn Memory) -> Result<R, Outcome>,
    ) -> Result<R, Outcome> {
        let ended = self.ended.lock();
        if *ended { Err(Outcome::Gone) } else { access(&*self.memory) }
    }
}

/// The loans of a call. They end when this is dropped.
pub(crate) struct Lending {
    to: Weak<Accesses>,
    call: u64,
    loans: Vec<Arc<OnLoan>>,
}

impl fmt::Debug for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} loans", self.loans.len())
    }
}

impl Accesses {
    /// Takes memory for the loans that the arguments of a call name. `None`: something was reclaimed already, so the call can't be
    /// made.
    pub(crate) fn lend(&self, loans: &[Loan]) -> Option<Lending> {
        let mut lending = Lending { to: self.me.clone(), call: 0, loans: Vec::with_capacity(loans.len()) };
        for memory in loans.iter().filter_map(|loan| loan.downcast_ref::<Arc<dyn LentMemory>>()) {
            if !memory.begin() {
                return None;
            }
            lending.loans.push(Arc::new(OnLoan { memory: memory.clone(), ended: Mutex::default() }));
        }
        Some(lending)
    }
}

impl Lending {
    /// Begins the loans, because the call has a number.
    pub(crate) fn begin(&mut self, call: u64) {
        self.call = call;
        if let Some(to) = self.to.upgrade() {
            let mut lent = to.lent.lock();
            lent.extend(self.loans.iter().map(|loan| ((call, loan.memory.number()), loan.clone())));
        }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        if let Some(to) = self.to.upgrade() {
            let mut lent = to.lent.lock();
            for loan in &self.loans {
                lent.remove(&(self.call, loan.memory.number()));
            }
        }
        for loan in &self.loans {
            // Waits for an access to at most a mebibyte that is being done.
            *loan.ended.lock() = true;
            loan.memory.end();
        }
    }
}
