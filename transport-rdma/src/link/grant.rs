//! Memory of the application that the peer uses by itself, through a memory window of this queue pair.
//!
//! A grant begins with a bind, in front of the message that tells the peer of it. It ends with an invalidation, after which the window
//! lets go of the memory, or with the queue pair.

use std::sync::{Arc, Weak};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use farcall_core::transport::{
    DeviceAtomics, DeviceId, DirectMemory, Grant, GrantTerms, Hold, Registered, Unavailable, Words,
};
use tokio::sync::{oneshot, watch};

use super::LinkCore;
use super::expose::LEAST_EXPOSED;
use super::send::Sending;
use crate::device::{Exposure, QueuePair, RegisteredWords, RemoteAccess, RemoteRange, Work};
use crate::resources::UsedWords;

/// Regions that a link grants at most: each takes one of the device's windows.
const MOST_REGIONS: usize = 16;

/// Loans that a link grants at most.
const MOST_LOANS: usize = 16;

/// Windows that are allocated at once for loans.
const STEP: usize = 4;

/// The grants of one link.
#[derive(Default)]
pub(super) struct Grants {
    regions: usize,
    loans: usize,
    /// Windows that were allocated for grants.
    windows: usize,
    /// The control thread allocates some for loans, or could not.
    is_growing: bool,
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

/// A place among a link's grants.
#[derive(Debug)]
struct Place {
    link: Weak<LinkCore>,
    kind: Kind,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            *link.sending().grants.count(self.kind) -= 1;
        }
    }
}

/// See [`Hold`].
#[derive(Debug)]
struct Held {
    exposure: Exposure,
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
                sending.requests.push_back(Work::Invalidate(self.exposure));
                link.post(&mut sending);
            }
        }
    }
}

/// Lent bytes as a window keeps them: until the peer can read them through it no more.
struct Lent {
    bytes: Bytes,
    #[expect(dead_code, reason = "it is dropped with the bytes")]
    in_effect: watch::Sender<()>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Where granted memory is, as the peer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GrantedRange {
    from: RemoteRange,
    len: u64,
}

impl GrantedRange {
    fn encode(exposure: &Exposure) -> Bytes {
        let mut out = BytesMut::with_capacity(20);
        out.put_u64_le(exposure.addr());
        out.put_u32_le(exposure.rkey());
        out.put_u64_le(exposure.len() as u64);
        out.freeze()
    }

    pub(super) fn decode(mut descriptor: &[u8]) -> Option<Self> {
        if descriptor.len() != 20 {
            return None;
        }
        let from = RemoteRange { addr: descriptor.get_u64_le(), rkey: descriptor.get_u32_le() };
        Some(Self { from, len: descriptor.get_u64_le() })
    }

    /// Returns where a part begins, if it is within the memory.
    pub(super) fn part(self, offset: usize, len: usize) -> Option<RemoteRange> {
        let end = offset.checked_add(len).filter(|end| *end as u64 <= self.len);
        end.map(|_| RemoteRange { addr: self.from.addr.wrapping_add(offset as u64), ..self.from })
    }
}

impl LinkCore {
    /// See [`farcall_core::transport::Link::grant`].
    pub(crate) async fn grant_words(self: Arc<Self>, words: Words, terms: GrantTerms) -> Option<Grant> {
        let (place, qp, needs_window) = self.begin_grant()?;
        let (sender, exposed) = oneshot::channel();
        let registrations = Arc::clone(&self.resources.registrations);
        let GrantTerms { read, write, atomics, in_effect } = terms;
        let access = RemoteAccess { read, write, atomics };
        // Not on the control thread, on which links are taken down: to pin gigabytes takes seconds.
        let registered =
            tokio::task::spawn_blocking(move || registrations.register(&words, access.changes()));
        let registered = registered.await.ok()?;
        self.resources.rendezvous_pool.control().spawn(move || {
            let exposed = registered.and_then(|words| {
                // Each grant adds a window to those of messages, so that it takes none of these.
                qp.alloc_windows(usize::from(needs_window))?;
                UsedWords::new(words, Box::new(in_effect)).expose(&*qp, access)
            });
            // Nobody waits if the future was dropped. Then the window lets go of the words with its queue pair.
            let _ = sender.send(exposed);
        });
        let exposure = match exposed.await.ok()? {
            Ok(exposure) => exposure?,
            Err(why) => {
                let why = Unavailable::from(why);
                tracing::warn!(link = self.name, %why, "peers can't use a region by themselves: this process does it for them");
                return None;
            }
        };
        self.bind(exposure, place)
    }

    /// See [`farcall_core::transport::Link::grant_loan`].
    pub(crate) fn grant_loan(
        self: &Arc<Self>,
        len: usize,
        memory: &dyn Fn() -> Option<DirectMemory>,
        in_effect: watch::Sender<()>,
    ) -> Option<Grant> {
        if len < LEAST_EXPOSED {
            return None;
        }
        let (place, qp) = self.begin_loan()?;
        let memory = memory()?;
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
        self.bind(exposure.ok()?, place)
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
    fn bind(self: &Arc<Self>, exposure: Exposure, place: Place) -> Option<Grant> {
        let held = Held { exposure, place };
        let mut sending = self.sending();
        if !sending.is_open() {
            return None;
        }
        sending.requests.push_back(Work::Bind(exposure));
        self.post(&mut sending);
        drop(sending);
        Some(Grant { descriptor: GrantedRange::encode(&exposure), hold: Box::new(held) })
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

    /// Takes a place for the grant of a region. Returns it, the queue pair, and whether that needs another window.
    fn begin_grant(self: &Arc<Self>) -> Option<(Place, Arc<dyn QueuePair>, bool)> {
        let mut sending = self.sending();
        let qp = self.may_grant(&sending).filter(|_| sending.grants.regions < MOST_REGIONS)?;
        let grants = &mut sending.grants;
        grants.regions += 1;
        let needs_window = grants.regions + grants.loans > grants.windows;
        grants.windows += usize::from(needs_window);
        Some((Place { link: Arc::downgrade(self), kind: Kind::Region }, qp, needs_window))
    }

    /// Takes a place for the grant of a loan, if there is a window for it.
    fn begin_loan(self: &Arc<Self>) -> Option<(Place, Arc<dyn QueuePair>)> {
        let mut sending = self.sending();
        let qp = self.may_grant(&sending).filter(|_| sending.grants.loans < MOST_LOANS)?;
        let grants = &mut sending.grants;
        if grants.regions + grants.loans < grants.windows {
            grants.loans += 1;
            return Some((Place { link: Arc::downgrade(self), kind: Kind::Loan }, qp));
        }
        if !std::mem::replace(&mut grants.is_growing, true) {
            let link = Arc::downgrade(self);
            self.resources.rendezvous_pool.control().spawn(move || {
                // Without more windows loans are used by messages.
                if let (Ok(()), Some(link)) = (qp.alloc_windows(STEP), link.upgrade()) {
                    let grants = &mut link.sending().grants;
                    grants.windows += STEP;
                    grants.is_growing = false;
                }
            });
        }
        None
    }

    /// Returns the queue pair, if the peer can be let use memory by itself.
    fn may_grant(&self, sending: &Sending) -> Option<Arc<dyn QueuePair>> {
        let is_possible = sending.is_open() && sending.exposures.is_possible() && self.seal().is_none();
        sending.qp().filter(|_| is_possible)
    }
}
