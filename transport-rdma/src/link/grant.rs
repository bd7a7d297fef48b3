//! Memory of the application that the peer uses by itself, through a memory window of this queue pair.
//!
//! A grant begins with a bind, in front of the message that tells the peer of it. It ends with an invalidation, after which the window
//! lets go of the memory, or with the queue pair.

use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::transport::{
    DeviceAtomics, DeviceId, DirectMemory, Grant, GrantTerms, Hold, Registered, Unavailable, Words,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::LinkCore;
use super::descriptor::{MAX_PIECES, describe};
use super::expose::LEAST_EXPOSED;
use super::send::Sending;
use crate::device::{Exposure, QueuePair, RegisteredWords, RemoteAccess, Work};
use crate::resources::UsedWords;

/// Regions that a link grants at most: each takes one of the device's windows.
const MOST_REGIONS: usize = 16;

/// Windows that a link uses for loans at most. A loan takes one for each of its pieces.
const MOST_OF_LOANS: usize = 64;

/// Windows for loans are allocated in steps of so many.
const STEP: usize = 4;

/// How long after an attempt to allocate windows for loans that has failed the next one comes, at least.
const PAUSE: Duration = Duration::from_secs(1);

/// The windows that one link uses for grants.
#[derive(Default)]
pub(super) struct Grants {
    regions: usize,
    loans: usize,
    /// How many were allocated.
    allocated: usize,
    /// The control thread allocates some for loans.
    is_growing: bool,
    /// When the control thread may try again, and why its last attempt failed. `None`: it did not fail.
    failed: Option<(Instant, String)>,
    /// The log says why the peer can't use memory by itself.
    has_said_why_not: bool,
}

/// Memory of one of the two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Region,
    Loan,
}

impl Grants {
    fn count(&mut self, of: Kind) -> &mut usize {
        match of {
            Kind::Region => &mut self.regions,
            Kind::Loan => &mut self.loans,
        }
    }
}

/// So many of a link's windows for grants.
#[derive(Debug)]
struct Place {
    link: Weak<LinkCore>,
    kind: Kind,
    windows: usize,
    /// How many of them were counted as allocated, and are not there yet.
    missing: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            let grants = &mut link.sending().grants;
            *grants.count(self.kind) -= self.windows;
            grants.allocated -= self.missing;
        }
    }
}

/// See [`Hold`].
#[derive(Debug)]
struct Held {
    exposures: Vec<Exposure>,
    place: Place,
}

impl Hold for Held {
    fn is_over(&self) -> bool {
        self.place.link.upgrade().is_none_or(|link| !link.sending().is_open())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(link) = self.place.link.upgrade() {
            let mut sending = link.sending();
            if sending.is_open() {
                sending.requests.extend(self.exposures.drain(..).map(Work::Invalidate));
                link.post(&mut sending);
            }
        }
    }
}

/// Lent bytes as a window keeps them: until the peer can read them through it no more.
struct Lent {
    bytes: Bytes,
    #[expect(dead_code, reason = "it is dropped with the bytes")]
    in_effect: Arc<watch::Sender<()>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl LinkCore {
    /// See [`farcall_core::transport::Link::grant`].
    pub(crate) async fn grant_words(self: Arc<Self>, words: Words, terms: GrantTerms) -> Option<Grant> {
        let (mut place, qp) = self.begin_grant()?;
        let (sender, exposed) = oneshot::channel();
        let registrations = Arc::clone(&self.resources.registrations);
        let GrantTerms { read, write, atomics, in_effect } = terms;
        let access = RemoteAccess { read, write, atomics };
        // Not on the control thread, on which links are taken down: to pin gigabytes takes seconds.
        let registered =
            tokio::task::spawn_blocking(move || registrations.register(&words, access.changes()));
        let registered = registered.await.ok()?;
        let missing = place.missing;
        self.resources.rendezvous_pool.control().spawn(move || {
            // Each grant adds a window to those of messages, so that it takes none of these.
            let allocated = qp.alloc_windows(missing);
            let has_windows = allocated.is_ok();
            let expose = || -> Result<Option<Exposure>, crate::Unavailable> {
                allocated?;
                UsedWords::new(registered?, Box::new(in_effect)).expose(&*qp, access)
            };
            // Nobody waits if the future was dropped. Then the window lets go of the words with its queue pair.
            let _ = sender.send((has_windows, expose()));
        });
        let (has_windows, exposed) = exposed.await.ok()?;
        if has_windows {
            place.missing = 0;
        }
        let exposure = match exposed {
            Ok(exposure) => exposure?,
            Err(why) => {
                let why = Unavailable::from(why);
                tracing::warn!(link = self.name, %why, "peers can't use a region by themselves: this process does it for them");
                return None;
            }
        };
        self.bind(Held { exposures: vec![exposure], place })
    }

    /// See [`farcall_core::transport::Link::grant_loan`].
    pub(crate) fn grant_loan(
        self: &Arc<Self>,
        len: usize,
        pieces: usize,
        memory: &dyn Fn() -> Vec<DirectMemory>,
        in_effect: watch::Sender<()>,
    ) -> Option<Grant> {
        // Many small pieces are copied sooner than a window is bound for each.
        if pieces == 0 || pieces > MAX_PIECES || len / pieces < LEAST_EXPOSED {
            return None;
        }
        let (place, qp) = self.begin_loan(pieces)?;
        let memory = memory();
        if memory.len() != pieces || memory.iter().map(DirectMemory::len).sum::<usize>() != len {
            return None;
        }
        // If one piece can't be exposed, dropping this lets go of the others.
        let mut held = Held { exposures: Vec::with_capacity(pieces), place };
        let in_effect = Arc::new(in_effect);
        for piece in memory {
            held.exposures.push(self.expose_piece(&*qp, piece, Arc::clone(&in_effect))?);
        }
        self.bind(held)
    }

    /// Takes a window for a piece of a loan. `None`: the device can't use the memory, or has no window.
    fn expose_piece(
        &self,
        qp: &dyn QueuePair,
        memory: DirectMemory,
        in_effect: Arc<watch::Sender<()>>,
    ) -> Option<Exposure> {
        let pool = &self.resources.rendezvous_pool;
        let exposure = match memory {
            DirectMemory::Read(bytes) if pool.contains(&bytes) => {
                qp.expose(&Bytes::from_owner(Lent { bytes, in_effect }))
            }
            DirectMemory::Write(words, len) => {
                let start = (*words).as_ref().as_ptr() as usize;
                if !pool.contains_range(start..start + len) {
                    return None;
                }
                let words =
                    UsedWords::new(Arc::new(RegisteredWords::within_arena(words, len)), Box::new(in_effect));
                qp.expose_words(Arc::new(words), RemoteAccess::WRITE)
            }
            DirectMemory::Registered { memory, range, write } => {
                let words = UsedWords::of_part(self.registered(&*memory)?, &range, Box::new(in_effect))?;
                let access = if write { RemoteAccess::WRITE } else { RemoteAccess::READ };
                qp.expose_words(Arc::new(words), access)
            }
            DirectMemory::Read(_) => return None,
        };
        exposure.ok()
    }

    /// See [`farcall_core::transport::Link::register`].
    pub(crate) async fn register(self: Arc<Self>, words: Words) -> Option<Arc<dyn Registered>> {
        let registrations = Arc::clone(&self.resources.registrations);
        // Not on the control thread, on which links are taken down: to pin gigabytes takes seconds.
        let registered = tokio::task::spawn_blocking(move || registrations.register_to_move(&words));
        match registered.await.ok()? {
            Ok(registered) => Some(registered),
            Err(why) => {
                let why = Unavailable::from(why);
                tracing::warn!(link = self.name, %why, "the device can't use a region of this process: its bytes are copied");
                None
            }
        }
    }

    /// Lets the peer use what is exposed, until the grant is dropped.
    fn bind(self: &Arc<Self>, held: Held) -> Option<Grant> {
        let mut sending = self.sending();
        if !sending.is_open() {
            // `held` takes the lock.
            drop(sending);
            return None;
        }
        sending.requests.extend(held.exposures.iter().copied().map(Work::Bind));
        self.post(&mut sending);
        drop(sending);
        Some(Grant { descriptor: describe(&held.exposures), hold: Box::new(held) })
    }

    /// See [`farcall_core::transport::Link::changes_numbers`].
    pub(crate) fn changes_numbers(&self) -> Option<DeviceId> {
        let may_grant = self.sending().exposures.is_possible() && self.seal().is_none();
        self.resources.own_atomics.device().filter(|_| may_grant)
    }

    /// See [`farcall_core::transport::Link::own_atomics`].
    pub(crate) fn own_atomics(
        &self,
        words: Words,
        in_effect: watch::Sender<()>,
    ) -> impl Future<Output = Option<Arc<dyn DeviceAtomics>>> + use<> {
        Arc::clone(&self.resources.own_atomics).of(words, self.path, in_effect)
    }

    /// Takes a place for the grant of a region. Returns it with the queue pair.
    fn begin_grant(self: &Arc<Self>) -> Option<(Place, Arc<dyn QueuePair>)> {
        let (mut sending, qp) = self.may_grant()?;
        let grants = &mut sending.grants;
        if grants.regions >= MOST_REGIONS {
            return None;
        }
        grants.regions += 1;
        let missing = usize::from(grants.regions + grants.loans > grants.allocated);
        grants.allocated += missing;
        Some((Place { link: Arc::downgrade(self), kind: Kind::Region, windows: 1, missing }, qp))
    }

    /// Takes a place for the grant of a loan, if there are so many windows for it.
    fn begin_loan(self: &Arc<Self>, windows: usize) -> Option<(Place, Arc<dyn QueuePair>)> {
        let (mut sending, qp) = self.may_grant()?;
        let grants = &mut sending.grants;
        if grants.loans + windows > MOST_OF_LOANS {
            return None;
        }
        let needed = grants.regions + grants.loans + windows;
        if needed <= grants.allocated {
            grants.loans += windows;
            return Some((Place { link: Arc::downgrade(self), kind: Kind::Loan, windows, missing: 0 }, qp));
        }
        let may_grow = grants.failed.as_ref().is_none_or(|(again, _)| Instant::now() >= *again);
        if may_grow && !std::mem::replace(&mut grants.is_growing, true) {
            self.grow(qp, (needed - grants.allocated).div_ceil(STEP));
        }
        self.say_why_not(sending);
        None
    }

    /// Has the control thread allocate more windows for loans. Until then loans are used by messages.
    fn grow(self: &Arc<Self>, qp: Arc<dyn QueuePair>, steps: usize) {
        let (link, again) = (Arc::downgrade(self), Instant::now() + PAUSE);
        self.resources.rendezvous_pool.control().spawn(move || {
            for _ in 0..steps {
                let allocated = qp.alloc_windows(STEP);
                let Some(link) = link.upgrade() else { return };
                let grants = &mut link.sending().grants;
                grants.failed = allocated.err().map(|error| (again, error.to_string()));
                if grants.failed.is_some() {
                    break;
                }
                grants.allocated += STEP;
            }
            if let Some(link) = link.upgrade() {
                link.sending().grants.is_growing = false;
            }
        });
    }

    /// Locks the link for a grant. Returns the lock and the queue pair, or says once why this link grants nothing.
    fn may_grant(&self) -> Option<(MutexGuard<'_, Sending>, Arc<dyn QueuePair>)> {
        let sending = self.sending();
        let is_possible = sending.is_open() && sending.exposures.is_possible() && self.seal().is_none();
        let Some(qp) = sending.qp().filter(|_| is_possible) else {
            self.say_why_not(sending);
            return None;
        };
        Some((sending, qp))
    }

    /// Says once why the peer can't use memory by itself, if windows are the reason.
    fn say_why_not(&self, mut sending: MutexGuard<'_, Sending>) {
        let Sending { exposures, grants, .. } = &mut *sending;
        let failed = grants.failed.as_ref().map(|(_, why)| why.as_str());
        let Some(why) = exposures.why_not().or(failed).filter(|_| !grants.has_said_why_not) else { return };
        if self.seal().is_some() {
            return;
        }
        let why = why.to_owned();
        grants.has_said_why_not = true;
        // A slow log must not hold the lock.
        drop(sending);
        tracing::warn!(
            link = self.name,
            why,
            "the peer can't use some regions or lent memory by itself: this process does it for the peer"
        );
    }
}
