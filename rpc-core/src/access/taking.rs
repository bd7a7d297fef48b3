//! Grants of the peer: regions that this side reads and writes by itself, without the owner's program.
//!
//! The first access to a region goes by messages, and asks for a grant beside it. Further ones use the grant, which is good for one
//! link. What can't be done by a grant is done by messages.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::watch;

use super::Accesses;
use crate::payload::Payload;
use crate::proto::wire::{Granted, Operation, Target, WireError};
use crate::status::{Code, Executed};
use crate::transport::{Atomic, Link};

/// The grants of the peer, all for one link.
#[derive(Debug, Default)]
pub(super) struct TakenGrants {
    /// The link's.
    epoch: u32,
    by_region: HashMap<Target, TakenGrant>,
}

#[derive(Debug)]
enum TakenGrant {
    /// The question of this number was not answered yet.
    Asked(u64),
    Refused,
    Held {
        rights: u8,
        descriptor: Bytes,
        /// Closed when the descriptor has no clone any more.
        in_use: watch::Receiver<()>,
    },
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

impl TakenGrants {
    /// Forgets the grants for another link than this one.
    fn keep_to(&mut self, epoch: u32) -> &mut HashMap<Target, TakenGrant> {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.by_region.clear();
        }
        &mut self.by_region
    }
}

impl Accesses {
    /// Reads memory by a grant. `None`: there is none, or its link has failed.
    pub(super) async fn read_directly(&self, target: Target, offset: u64, len: usize) -> Option<Bytes> {
        let (link, descriptor) = self.taken_grant(target, Granted::READ)?;
        link.read_granted(descriptor, usize::try_from(offset).ok()?, len).await
    }

    /// Writes to memory by a grant. `None`: there is none. False: its link has failed, so the bytes may be there, or may come before the
    /// owner does anything that it is asked for by another link.
    pub(super) async fn write_directly(&self, target: Target, offset: u64, bytes: &Bytes) -> Option<bool> {
        let (link, descriptor) = self.taken_grant(target, Granted::WRITE)?;
        Some(link.write_granted(descriptor, usize::try_from(offset).ok()?, bytes.clone()).await)
    }

    /// Has the owner's device change a number by a grant. Returns the number before, or whether it may have been changed.
    pub(super) async fn change_directly(
        &self,
        target: Target,
        offset: u64,
        atomic: Atomic,
    ) -> Result<u64, Executed> {
        self.change_by_right(target, offset, atomic, Granted::ATOMICS).await
    }

    /// Reads a number by a grant, whole: a device that only reads need not. `None`: there is no grant for that, or its link has failed.
    pub(super) async fn load_directly(&self, target: Target, offset: u64) -> Option<u64> {
        let rights = Granted::READ | Granted::ATOMICS;
        self.change_by_right(target, offset, Atomic::FetchAdd(0), rights).await.ok()
    }

    async fn change_by_right(
        &self,
        target: Target,
        offset: u64,
        atomic: Atomic,
        rights: u8,
    ) -> Result<u64, Executed> {
        let (link, descriptor) = self.taken_grant(target, rights).ok_or(Executed::No)?;
        let offset = usize::try_from(offset).map_err(|_| Executed::No)?;
        link.change_granted(descriptor, offset, atomic).await
    }

    /// Returns a grant with these rights, and its link. Asks for one if that was not done yet.
    fn taken_grant(&self, target: Target, needed: u8) -> Option<(Arc<dyn Link>, Bytes)> {
        let (Target::Region { .. }, true) = (target, self.grants()) else { return None };
        let (epoch, link) = self.sender.upgraded_in_epoch()?;
        let descriptor = match self.taken.lock().keep_to(epoch).entry(target) {
            Entry::Occupied(grant) => match grant.get() {
                TakenGrant::Held { rights, descriptor, .. } if rights & needed == needed => {
                    Some(descriptor.clone())
                }
                TakenGrant::Held { .. } | TakenGrant::Asked(_) | TakenGrant::Refused => None,
            },
            Entry::Vacant(entry) => {
                static QUESTIONS: AtomicU64 = AtomicU64::new(0);
                let question = QUESTIONS.fetch_add(1, Ordering::Relaxed);
                entry.insert(TakenGrant::Asked(question));
                let this = self.me.upgrade()?;
                self.runtime.spawn(async move { this.ask(target, epoch, question).await });
                None
            }
        };
        Some((link, descriptor?))
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
        let grants = &mut taken.by_region;
        // It may have been withdrawn before this task has run.
        let is_asked = |grant: &TakenGrant| matches!(grant, TakenGrant::Asked(asked) if *asked == question);
        if !grants.get(&target).is_some_and(is_asked) {
            return;
        }
        match answer {
            Ok(Ok(granted)) if granted.epoch == epoch => {
                let (sender, in_use) = watch::channel(());
                let descriptor = Bytes::from_owner(Descriptor(granted.descriptor, sender));
                grants.insert(target, TakenGrant::Held { rights: granted.rights, descriptor, in_use });
            }
            // One of the sides has the link, and the other does not have it yet, or has it no more. The next access asks again.
            Ok(Ok(_)) => drop(grants.remove(&target)),
            Err(status) if status.code() == Code::ResourceExhausted => drop(grants.remove(&target)),
            Ok(Err(_)) | Err(_) => {
                if grants.len() >= MOST_REFUSED {
                    grants.retain(|_, grant| !matches!(grant, TakenGrant::Refused));
                }
                drop(grants.insert(target, TakenGrant::Refused));
            }
        }
    }

    /// The owner takes a grant back. It is answered when nothing is done by the grant any more.
    pub(super) fn serve_withdrawal(&self, number: u64, target: Target) -> Result<(), WireError> {
        let held = self.taken.lock().by_region.remove(&target);
        let (Some(TakenGrant::Held { descriptor, mut in_use, .. }), Some(this)) = (held, self.me.upgrade())
        else {
            self.answer_with(number, Ok(Payload::default()));
            return Ok(());
        };
        drop(descriptor);
        self.runtime.spawn(async move {
            // Fails when the last clone of the descriptor is gone.
            let _ = in_use.changed().await;
            this.answer_with(number, Ok(Payload::default()));
        });
        Ok(())
    }
}
