//! The memory that calls in progress lend.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Accesses;
use super::giving::{GivenGrant, Offer};
use super::owner::Memory;
use crate::payload::Loan;
use crate::proto::wire::{Granted, Outcome, Target};
use crate::sync::{Mutex, rank};
use crate::transport::{self, Link};

/// Memory that calls can lend, with a number of its own in this process.
pub(crate) trait LentMemory: Memory {
    /// Returns the number, by which the server names it.
    fn number(&self) -> u64;

    /// Returns its length, in bytes.
    fn len(&self) -> usize;

    /// Notes that a call lends it. Returns false if it can't be lent any more.
    fn begin(&self) -> bool;

    /// Notes that a call has ended that lent it.
    fn end(&self);

    /// Returns what the server may do, as a right of a [`Granted`].
    fn right(&self) -> u8;

    /// Returns in how many pieces it lies.
    fn pieces(&self) -> usize;

    /// Returns the memory's pieces in order, for the server to use by itself through a link, if they are such that the link's device can
    /// write to them if the server may. Else none. Memory that has to be registered first is so for a later call.
    fn shared(&self, link: &Arc<dyn Link>, runtime: &Handle) -> Vec<transport::DirectMemory>;
}

/// Whether a server may write to any of the memory that a call lends.
pub(crate) fn may_write(loans: &[Loan]) -> bool {
    let mut memory = loans.iter().filter_map(|loan| loan.downcast_ref::<Arc<dyn LentMemory>>());
    memory.any(|memory| memory.right() & Granted::WRITE != 0)
}

/// Memory that one call lends.
#[derive(Debug)]
pub(super) struct OnLoan {
    memory: Arc<dyn LentMemory>,
    /// Set before the lock is taken to end the loan, so that a reader of many pieces leaves the lock to that.
    has_ended: AtomicBool,
    /// An access holds the lock, so none goes on when the loan has ended.
    state: Mutex<rank::OnLoan, State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many accesses there were.
    accesses: u64,
    /// The grant by which the server uses the memory by itself, until it gives the grant back.
    grant: Option<GivenGrant>,
    /// Closed when it can do nothing by that any more.
    in_effect: Option<watch::Receiver<()>>,
}

impl OnLoan {
    /// Runs an access, unless the loan has ended.
    pub(super) fn access<R>(
        &self,
        access: impl FnOnce(&dyn Memory) -> Result<R, Outcome>,
    ) -> Result<R, Outcome> {
        let mut state = self.state.lock();
        // The lock orders it: an access that comes after the end sees it.
        if self.has_ended.load(Ordering::Relaxed) {
            return Err(Outcome::Gone);
        }
        state.accesses += 1;
        access(&*self.memory)
    }

    /// Ends what the server has given back.
    pub(super) fn take_back(&self) {
        let grant = self.state.lock().grant.take();
        drop(grant);
    }
}

impl Drop for OnLoan {
    fn drop(&mut self) {
        self.memory.end();
    }
}

/// The use that the server has made so far of memory that a call lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// It has made this many accesses.
    Accesses(u64),
    /// Its device uses the memory by itself, which this side can't see.
    Unseen,
}

/// The loans of a call. They end when this is dropped.
pub(crate) struct Lending {
    to: Weak<Accesses>,
    call: u64,
    loans: Vec<Arc<OnLoan>>,
    /// Offers of grants, by the loan's place. The server is told of them when the call has a number.
    offers: Vec<(usize, Offer)>,
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
        let mut lending = Lending {
            to: self.me.clone(),
            call: 0,
            loans: Vec::with_capacity(loans.len()),
            offers: Vec::new(),
        };
        for memory in loans.iter().filter_map(|loan| loan.downcast_ref::<Arc<dyn LentMemory>>()) {
            if !memory.begin() {
                return None;
            }
            let loan =
                OnLoan { memory: memory.clone(), has_ended: AtomicBool::new(false), state: Mutex::default() };
            lending.offers.extend(self.offer(&**memory).map(|offer| (lending.loans.len(), offer)));
            lending.loans.push(Arc::new(loan));
        }
        Some(lending)
    }
}

impl Lending {
    /// Returns what the server has done so far.
    pub(crate) fn used(&self) -> Used {
        let mut accesses = 0;
        for loan in &self.loans {
            let state = loan.state.lock();
            if state.grant.is_some() {
                return Used::Unseen;
            }
            accesses += state.accesses;
        }
        Used::Accesses(accesses)
    }

    /// Begins the loans, because the call has a number. Its request is not queued yet.
    pub(crate) fn begin(&mut self, call: u64) {
        self.call = call;
        let Some(to) = self.to.upgrade() else { return };
        let mut lent = to.lent.lock();
        lent.extend(self.loans.iter().map(|loan| ((call, loan.memory.number()), loan.clone())));
        drop(lent);
        for (place, offer) in self.offers.drain(..) {
            let loan = &self.loans[place];
            let in_effect = offer.in_effect.clone();
            let grant = to.make(offer, Target::Loan { call, number: loan.memory.number() });
            let mut state = loan.state.lock();
            (state.grant, state.in_effect) = (Some(grant), Some(in_effect));
        }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        let to = self.to.upgrade();
        if let Some(to) = &to {
            let mut lent = to.lent.lock();
            for loan in &self.loans {
                lent.remove(&(self.call, loan.memory.number()));
            }
        }
        // Those of a call that was not made.
        for (place, offer) in self.offers.drain(..) {
            self.loans[place].state.lock().in_effect = Some(offer.in_effect.clone());
        }
        for loan in self.loans.drain(..) {
            loan.has_ended.store(true, Ordering::Relaxed);
            // Waits for an access to at most a mebibyte that is being done.
            let mut state = loan.state.lock();
            let (grant, in_effect) = (state.grant.take(), state.in_effect.take());
            drop(state);
            if let Some(grant) = grant {
                grant.end();
            }
            // The memory comes back when the server's device can't reach it any more.
            if let (Some(to), Some(mut in_effect)) = (&to, in_effect.filter(|end| end.has_changed().is_ok()))
            {
                to.runtime.spawn(async move {
                    let _ = in_effect.changed().await;
                    drop(loan);
                });
            }
        }
    }
}
