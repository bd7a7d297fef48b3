//! Grants of the peer: regions and loans that this side uses by itself, without the owner's program.
//!
//! The first access to a region goes by messages, and asks for a grant beside it. Further ones use the grant. The grant of a loan comes in
//! front of the request of its call, and is given back when the handler has dropped all its handles of the loan. A grant is good for one
//! link. Accesses that can't use a grant go by messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Accesses;
use super::awaiting::Begun;
use crate::payload::Payload;
use crate::proto::wire::{Access, Granted, Operation, Target, WireError};
use crate::session::Role;
use crate::status::Code;
use crate::transport::{Atomic, Link};

/// The grants of the peer, all for one link.
#[derive(Debug, Default)]
pub(super) struct TakenGrants {
    /// The link's.
    epoch: u32,
    by_target: BTreeMap<Target, TakenGrant>,
}

#[derive(Debug)]
enum TakenGrant {
    /// The question of this number was not answered yet.
    Asked(u64),
    /// The time of the refusal.
    Refused(Instant),
    Held {
        rights: u8,
        descriptor: Bytes,
        /// Closed when the descriptor has no clone any more.
        in_use: watch::Receiver<()>,
    },
    /// No access begins by it any more. Closed when none goes on.
    Ending(watch::Receiver<()>),
}

impl TakenGrant {
    fn new(granted: Granted) -> Self {
        let (sender, in_use) = watch::channel(());
        let descriptor = Bytes::from_owner(Descriptor(granted.descriptor, sender));
        Self::Held { rights: granted.rights, descriptor, in_use }
    }
}

/// The bytes of a descriptor, and what tells that they are used no more.
struct Descriptor(Bytes, #[expect(dead_code, reason = "for its drop")] watch::Sender<()>);

impl AsRef<[u8]> for Descriptor {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// How many regions are remembered of which the owner gives no grant. After that it may be asked again.
const MOST_REFUSED: usize = 256;

/// After how long the owner is asked again. All its windows may have been in use, or its limit on locked memory may have been reached.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// How many grants of loans are remembered. Memory that is lent by further ones is used by messages.
const MOST_LOANS: usize = 64;

impl TakenGrants {
    /// Forgets the grants for another link than this one.
    fn keep_to(&mut self, epoch: u32) -> &mut BTreeMap<Target, TakenGrant> {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.by_target.clear();
        }
        &mut self.by_target
    }
}

impl Accesses {
    /// Begins to read memory by a grant. `None`: there is none that serves.
    pub(super) fn read_directly(&self, target: Target, offset: u64, len: usize) -> Option<Begun<Bytes>> {
        let (link, descriptor) = self.taken_grant(target, Granted::READ)?;
        let read = link.read_granted(descriptor, usize::try_from(offset).ok()?, len)?;
        Some(Begun::new(link, read, len))
    }

    /// Begins to write to memory by a grant. `None`: there is none that serves. If the link fails, the bytes may be there, or may come
    /// before the owner does anything that it is asked for by another link.
    pub(super) fn write_directly(&self, target: Target, offset: u64, bytes: &Bytes) -> Option<Begun<()>> {
        let (link, descriptor) = self.taken_grant(target, Granted::WRITE)?;
        let written = link.write_granted(descriptor, usize::try_from(offset).ok()?, bytes.clone())?;
        Some(Begun::new(link, written, bytes.len()))
    }

    /// Has the owner's device change a number by a grant with these rights. `None`: there is none that serves. If the link fails, the
    /// number may have been changed.
    pub(super) fn change_directly(
        &self,
        target: Target,
        offset: u64,
        atomic: Atomic,
        rights: u8,
    ) -> Option<Begun<u64>> {
        let (link, descriptor) = self.taken_grant(target, rights)?;
        let before = link.change_granted(descriptor, usize::try_from(offset).ok()?, atomic)?;
        Some(Begun::new(link, before, size_of::<u64>()))
    }

    /// Returns a grant with these rights, and its link. Asks for one if that was not done yet.
    pub(super) fn taken_grant(&self, target: Target, needed: u8) -> Option<(Arc<dyn Link>, Bytes)> {
        let (epoch, link) = self.sender.upgraded_in_epoch().filter(|_| self.grants())?;
        let mut taken = self.taken.lock();
        let grants = taken.keep_to(epoch);
        match (grants.get(&target), target) {
            (Some(TakenGrant::Held { rights, descriptor, .. }), _) if rights & needed == needed => {
                Some((link, descriptor.clone()))
            }
            (Some(TakenGrant::Refused(since)), _) if since.elapsed() < ASK_AGAIN => None,
            (None | Some(TakenGrant::Refused(_)), Target::Region { .. }) => {
                static QUESTIONS: AtomicU64 = AtomicU64::new(0);
                let question = QUESTIONS.fetch_add(1, Ordering::Relaxed);
                grants.insert(target, TakenGrant::Asked(question));
                drop(taken);
                let this = self.me.upgrade()?;
                self.runtime.spawn(async move { this.ask(target, epoch, question).await });
                None
            }
            (Some(_), _) | (None, Target::Loan { .. }) => None,
        }
    }

    /// Takes what has no outcome, before the request or the answer that it is for is handled. Returns any other access.
    pub(crate) fn noted(&self, access: Access) -> Result<Option<Access>, WireError> {
        let Access { target, operation, .. } = access;
        match (operation, self.sender.terms().role) {
            (Operation::Offer(granted), Role::Server) if self.loan_grants() => {
                self.take_offer(target, granted)?;
            }
            (Operation::Return, Role::Client) if self.loan_grants() => self.take_back(target)?,
            (Operation::Offer(_) | Operation::Return, _) => {
                return Err(WireError::new("access.operation", "is not one that was agreed on"));
            }
            (operation, _) => return Ok(Some(Access { operation, ..access })),
        }
        Ok(None)
    }

    fn take_offer(&self, target: Target, granted: Granted) -> Result<(), WireError> {
        check_loan(target)?;
        let mut taken = self.taken.lock();
        // One for an earlier link was sent again by this one.
        if granted.epoch < taken.epoch {
            return Ok(());
        }
        let grants = taken.keep_to(granted.epoch);
        let loans = grants.keys().filter(|target| matches!(target, Target::Loan { .. })).count();
        if loans < MOST_LOANS {
            grants.entry(target).or_insert_with(|| TakenGrant::new(granted));
        }
        Ok(())
    }

    /// Asks for a grant.
    async fn ask(self: Arc<Self>, target: Target, epoch: u32, question: u64) {
        let answer = match self.start(target, 0, Operation::Grant, 0..=Granted::MAX_LEN).await {
            Ok(answer) => self.outcome(target, answer).await,
            Err(status) => Err(status),
        };
        let answer = answer.map(Granted::decode);
        let mut taken = self.taken.lock();
        if taken.epoch != epoch {
            // Another link has come meanwhile, for which there may be grants already.
            return;
        }
        let grants = &mut taken.by_target;
        // It may have been withdrawn before this task has run.
        let is_asked = |grant: &TakenGrant| matches!(grant, TakenGrant::Asked(asked) if *asked == question);
        if !grants.get(&target).is_some_and(is_asked) {
            return;
        }
        match answer {
            Ok(Ok(granted)) if granted.epoch == epoch => {
                grants.insert(target, TakenGrant::new(granted));
            }
            // One of the sides has the link, and the other does not have it yet, or has it no more. The next access asks again.
            Ok(Ok(_)) => drop(grants.remove(&target)),
            Err(status) if status.code() == Code::ResourceExhausted => drop(grants.remove(&target)),
            Ok(Err(_)) | Err(_) => {
                if grants.len() >= MOST_REFUSED {
                    grants.retain(|_, grant| !matches!(grant, TakenGrant::Refused(_)));
                }
                drop(grants.insert(target, TakenGrant::Refused(Instant::now())));
            }
        }
    }

    /// The owner takes a grant back. It is answered when nothing is done by the grant any more.
    pub(super) fn serve_withdrawal(&self, number: u64, target: Target) -> Result<(), WireError> {
        let (Some(mut in_use), Some(this)) = (self.stop_using(target), self.me.upgrade()) else {
            self.answer_with(number, Ok(Payload::default()));
            return Ok(());
        };
        self.runtime.spawn(async move {
            // Fails when the last clone of the descriptor is gone.
            let _ = in_use.changed().await;
            this.forget(target);
            this.answer_with(number, Ok(Payload::default()));
        });
        Ok(())
    }

    /// Gives the grant of a loan back, because its handler is done with it.
    pub(crate) fn give_back(&self, target: Target) {
        let Some(mut in_use) = self.stop_using(target) else { return };
        if in_use.has_changed().is_err() {
            self.forget(target);
            return self.notify(target, Operation::Return);
        }
        let Some(this) = self.me.upgrade() else { return };
        self.runtime.spawn(async move {
            let _ = in_use.changed().await;
            this.forget(target);
            this.notify(target, Operation::Return);
        });
    }

    /// Begins nothing by a grant any more. Returns what is closed when nothing goes on. `None`: there is no grant.
    fn stop_using(&self, target: Target) -> Option<watch::Receiver<()>> {
        let mut taken = self.taken.lock();
        let grant = taken.by_target.get_mut(&target)?;
        let in_use = match grant {
            TakenGrant::Held { in_use, .. } | TakenGrant::Ending(in_use) => in_use.clone(),
            TakenGrant::Asked(_) | TakenGrant::Refused(_) => {
                taken.by_target.remove(&target);
                return None;
            }
        };
        let held = std::mem::replace(grant, TakenGrant::Ending(in_use.clone()));
        drop(taken);
        drop(held);
        Some(in_use)
    }

    /// Removes a grant that nothing is done by any more.
    fn forget(&self, target: Target) {
        let mut taken = self.taken.lock();
        if matches!(taken.by_target.get(&target), Some(TakenGrant::Ending(_))) {
            taken.by_target.remove(&target);
        }
    }
}

/// Checks that a grant is of a loan.
pub(super) fn check_loan(target: Target) -> Result<(u64, u64), WireError> {
    match target {
        Target::Loan { call, number } => Ok((call, number)),
        Target::Region { .. } => Err(WireError::new("access.target", "is not a loan")),
    }
}
