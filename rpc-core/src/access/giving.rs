//! Grants of this side: regions and loans that the peer uses by itself, without this side's program.
//!
//! The peer asks for the grant of a region. The grant of a loan is offered in front of the call's request, if the link can give it at once.

use std::sync::Weak;
use std::time::Duration;

use bytes::BytesMut;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::lending::LentMemory;
use super::owner::{ExportedMemory, Offered};
use super::taking::check_loan;
use super::{Accesses, exports};
use crate::payload::Payload;
use crate::proto::wire::{Granted, Operation, Outcome, Target, WireError};
use crate::transport::{Grant, GrantTerms, Hold, Link, Words};

/// How long a peer may take to say that it uses a grant no more. After that what it does fails, and its link with it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A grant, as its region or loan keeps it. Dropping it ends it, without a word to the peer.
#[derive(Debug)]
pub(crate) struct GivenGrant {
    target: Target,
    to: Weak<Accesses>,
    runtime: Handle,
    hold: Box<dyn Hold>,
    /// Closed when the peer can do nothing any more by it.
    in_effect: watch::Receiver<()>,
}

impl GivenGrant {
    /// Whether the grant has ended, with its link.
    pub(crate) fn is_over(&self) -> bool {
        self.hold.is_over()
    }

    /// Runs this at a time, unless the grant has no effect any more by then.
    pub(crate) fn run_at(&self, time: Instant, run: impl FnOnce() + Send + 'static) {
        let mut in_effect = self.in_effect.clone();
        self.runtime.spawn(async move {
            // Ends early when the channel is closed.
            if tokio::time::timeout_at(time, in_effect.changed()).await.is_err() {
                run();
            }
        });
    }

    /// Ends the grant in a task, when the peer uses it no more, or has had the time for that.
    pub(crate) fn end(self) {
        self.runtime.clone().spawn(async move {
            if let Some(accesses) = self.to.upgrade().filter(|_| !self.is_over()) {
                let withdrawn = accesses.access(self.target, 0, Operation::Withdraw, 0);
                // Whatever the peer says, the grant is over.
                let _ = tokio::time::timeout(PATIENCE, withdrawn).await;
            }
            drop(self.hold);
        });
    }
}

/// A grant of a loan that the server was not told of yet.
pub(super) struct Offer {
    granted: Granted,
    hold: Box<dyn Hold>,
    /// Closed when the server can do nothing by it any more.
    pub(super) in_effect: watch::Receiver<()>,
}

/// The grants of one connection, as long as the peer can do anything by them.
#[derive(Debug, Default)]
pub(super) struct GivenGrants {
    in_effect: Vec<InEffect>,
    /// Set when the connection is about to close, so that the peer gets no more grants of regions.
    is_closing: bool,
}

#[derive(Debug)]
struct InEffect {
    /// The link that it is good for.
    epoch: u32,
    /// The region. `None`: it is of a loan, which ends with its call.
    region: Option<Target>,
    /// Closed when the peer can do nothing any more by it.
    end: watch::Receiver<()>,
}

impl GivenGrants {
    fn add(&mut self, grant: InEffect) {
        self.forget();
        self.in_effect.push(grant);
    }

    /// Forgets those that have no effect any more.
    fn forget(&mut self) {
        self.in_effect.retain(|grant| grant.end.has_changed().is_ok());
    }
}

impl Accesses {
    /// The peer asks to use a region by itself.
    pub(super) fn serve_grant(&self, number: u64, target: Target) -> Result<(), WireError> {
        let Some(this) = self.me.upgrade() else { return Ok(()) };
        self.runtime.spawn(async move {
            let granted = this.granted(target).await;
            this.answer_with(number, granted);
        });
        Ok(())
    }

    async fn granted(&self, target: Target) -> Result<Payload, Outcome> {
        let Target::Region { number, key } = target else { return Err(Outcome::Forbidden) };
        let memory = exports::find(number, key).ok_or(Outcome::Gone)?;
        let Offered { words, read, write, atomics } = memory.offered()?;
        // The peer may have a link that this side is about to use. It may ask again.
        let (epoch, link) = self.sender.upgraded_in_epoch().ok_or(Outcome::NoMemory)?;
        let (in_effect, end) = watch::channel(());
        {
            let mut given = self.given.lock();
            if given.is_closing {
                return Err(Outcome::Forbidden);
            }
            given.add(InEffect { epoch, region: Some(target), end: end.clone() });
        }
        let atomics = atomics && changes_numbers(&*link, &*memory, &words, end.clone()).await;
        let grant = link.grant(words, GrantTerms { read, write, atomics, in_effect }).await;
        let Grant { descriptor, hold } = grant.ok_or(Outcome::Forbidden)?;
        let (to, runtime) = (self.me.clone(), self.runtime.clone());
        let given = GivenGrant { target, to, runtime, hold, in_effect: end };
        memory.keep(given).map_err(|_| Outcome::Gone)?;
        let mut bytes = BytesMut::new();
        let right = |has: bool, right| if has { right } else { 0 };
        let rights =
            right(read, Granted::READ) | right(write, Granted::WRITE) | right(atomics, Granted::ATOMICS);
        Granted { epoch, rights, descriptor }.encode(&mut bytes);
        Ok(Payload::from_body(bytes.freeze()))
    }

    /// Has the link let the server use memory that a call is about to lend. `None`: it uses it by messages.
    pub(super) fn offer(&self, memory: &dyn LentMemory) -> Option<Offer> {
        let (epoch, link) = self.sender.upgraded_in_epoch().filter(|_| self.loan_grants())?;
        let (end, in_effect) = watch::channel(());
        let Grant { descriptor, hold } =
            link.grant_loan(memory.len(), memory.pieces(), &|| memory.shared(&link, &self.runtime), end)?;
        self.given.lock().add(InEffect { epoch, region: None, end: in_effect.clone() });
        Some(Offer { granted: Granted { epoch, rights: memory.right(), descriptor }, hold, in_effect })
    }

    /// Queues an offer, before the request of its call.
    pub(super) fn make(&self, offer: Offer, target: Target) -> GivenGrant {
        let Offer { granted, hold, in_effect } = offer;
        self.notify(target, Operation::Offer(granted));
        GivenGrant { target, to: self.me.clone(), runtime: self.runtime.clone(), hold, in_effect }
    }

    /// The server gives the grant of a loan back.
    pub(super) fn take_back(&self, target: Target) -> Result<(), WireError> {
        let loan = self.lent.lock().get(&check_loan(target)?).cloned();
        if let Some(loan) = loan {
            loan.take_back();
        }
        Ok(())
    }

    /// Whether the peer may be using memory of this side by itself.
    pub(crate) fn may_be_used_unseen(&self) -> bool {
        let mut given = self.given.lock();
        given.forget();
        !given.in_effect.is_empty()
    }

    /// Takes the grants of regions back, and gives no more, because the connection is about to close. Returns whether there were any, when
    /// the peer uses them no more, or has had the time for that.
    pub(crate) async fn withdraw_grants(&self) -> bool {
        let regions: Vec<_> = {
            let mut given = self.given.lock();
            given.is_closing = true;
            given.forget();
            given.in_effect.iter().filter_map(|grant| grant.region).collect()
        };
        let withdrawn = async {
            let mut answers = Vec::with_capacity(regions.len());
            for region in &regions {
                answers.push((*region, self.start(*region, 0, Operation::Withdraw, 0..=0).await));
            }
            for (region, answer) in answers {
                if let Ok(answer) = answer {
                    // Whatever the peer says, the connection closes.
                    let _ = self.outcome(region, answer).await;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, withdrawn).await;
        !regions.is_empty()
    }

    /// Returns the grants for links that the session has left, by which the peer may still do something. A write that the peer
    /// repeats must not be done before the end of the first attempt.
    pub(super) fn grants_for_earlier_links(&self) -> Vec<watch::Receiver<()>> {
        let has_given = !self.given.lock().in_effect.is_empty();
        if !has_given {
            return Vec::new();
        }
        let now = self.sender.upgraded_in_epoch().map(|(epoch, _)| epoch);
        let mut given = self.given.lock();
        given.forget();
        let earlier = given.in_effect.iter().filter(|grant| Some(grant.epoch) != now);
        earlier.map(|grant| grant.end.clone()).collect()
    }
}

/// Whether the link's device may change the memory's numbers for the peer, until that end. If so, it changes them for everybody.
async fn changes_numbers(
    link: &dyn Link,
    memory: &dyn ExportedMemory,
    words: &Words,
    end: watch::Receiver<()>,
) -> bool {
    let Some(device) = link.changes_numbers() else { return false };
    let mut ends = vec![end];
    let atomics = match memory.device() {
        Some(atomics) => Some(atomics),
        None => {
            let (in_effect, end) = watch::channel(());
            ends.push(end);
            link.own_atomics(words.clone(), in_effect).await
        }
    };
    atomics.filter(|atomics| atomics.device() == device).is_some_and(|atomics| memory.entrust(atomics, ends))
}
