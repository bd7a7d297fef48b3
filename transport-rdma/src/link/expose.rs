//! Long messages on their way out: the peer reads them, through a memory window of this queue pair.
//!
//! An exposure begins when a frame describes it and ends with the peer's answer to that frame. A peer that does not
//! answer in time loses the link.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use farcall_core::proto::message::{Bulk, Expose, Exposing, Sealed};
use farcall_core::transport::{Direction, LinkEnd};
use tokio::time::Instant;

use super::LinkCore;
use super::seal::{Unsealable, sealed_len};
use super::send::Sending;
use crate::device::{ExposeError, Exposure, QueuePair, Work};

/// Shorter messages are sent: a window, a READ and the answer to it cost more than a copy.
pub(crate) const LEAST_EXPOSED: usize = 16 << 10;

/// Bytes that one link exposes at once, if that is more than one message.
const MOST: usize = 64 << 20;

/// How long a peer may take to answer for the oldest of what is exposed, beside the time to read, at [`SLOWEST`], all
/// that has been exposed before the answer.
const LEASE: Duration = Duration::from_secs(10);

/// Bytes that a peer reads in a second, at least.
const SLOWEST: u64 = 4 << 20;

/// The exposures of one link.
#[derive(Default)]
pub(super) struct Exposures {
    /// By the number of the frame that describes it.
    open: BTreeMap<u32, Exposure>,
    bytes: usize,
    windows: Windows,
    /// When the oldest must have been answered.
    due: Option<Instant>,
    /// Somebody looks at that.
    watched: bool,
}

/// A queue pair's memory windows, of which there are none before the first long message.
#[derive(Default, PartialEq, Eq)]
enum Windows {
    #[default]
    None,
    /// The control thread allocates them.
    Coming,
    There,
    /// The peer can't read, or the device has no windows, for this reason.
    Never(String),
}

impl Exposures {
    /// The peer can't read, or the device has no windows.
    pub(super) fn forbid(&mut self, why: String) {
        self.windows = Windows::Never(why);
    }

    /// Returns why nothing can be exposed, if that is so.
    pub(super) fn why_not(&self) -> Option<&str> {
        match &self.windows {
            Windows::Never(why) => Some(why),
            _ => None,
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.why_not().is_none()
    }

    /// Whether somebody must begin to [watch] over what is exposed.
    pub(super) fn needs_watch(&mut self) -> bool {
        let needs = self.due.is_some() && !self.watched;
        self.watched |= needs;
        needs
    }

    /// A peer that reads at [`SLOWEST`], in whatever order, is never late; one that leaves the oldest unread is in the
    /// end, however much else it reads and answers meanwhile.
    fn add(&mut self, seq: u32, exposure: Exposure) {
        let due = self.due.unwrap_or_else(|| Instant::now() + LEASE);
        self.due = Some(due + reading(exposure.len()));
        self.bytes += exposure.len();
        self.open.insert(seq, exposure);
    }

    /// The peer has answered. `None` if the link fell and rose between the message and its answer.
    fn remove(&mut self, seq: u32) -> Option<Exposure> {
        let is_oldest = self.open.keys().next() == Some(&seq);
        let exposure = self.open.remove(&seq)?;
        self.bytes -= exposure.len();
        if self.open.is_empty() {
            self.due = None;
        } else if is_oldest {
            self.due = Some(Instant::now() + LEASE + reading(self.bytes));
        }
        Some(exposure)
    }
}

/// How long it takes to read this much at [`SLOWEST`].
fn reading(bytes: usize) -> Duration {
    Duration::from_micros(bytes as u64 * 1_000_000 / SLOWEST)
}

/// Exposes while frames are taken.
pub(super) struct Exposer<'a> {
    pub(super) core: &'a Arc<LinkCore>,
    pub(super) sending: &'a mut Sending,
}

impl Expose for Exposer<'_> {
    fn expose(&mut self, seq: u32, bulk: &Bulk) -> Exposing {
        let (bytes, number) = match (bulk, self.core.seal()) {
            (Bulk::Plain(bytes), None) => (bytes, None),
            (Bulk::Sealed(sealed), Some(seal)) if sealed.link == seal.id() => {
                (&sealed.bytes, Some(sealed.number))
            }
            // Staged for another link, which has failed since.
            _ => return Exposing::Never,
        };
        let Sending { exposures, qp: Some(qp), requests, blocked, shares, .. } = &mut *self.sending else {
            return Exposing::Never;
        };
        match exposures.windows {
            Windows::Never(_) => return Exposing::Never,
            Windows::There => {}
            Windows::Coming | Windows::None => {
                if exposures.windows == Windows::None {
                    exposures.windows = Windows::Coming;
                    self.core.allocate_windows(Arc::clone(qp), shares.windows);
                }
                *blocked = true;
                return Exposing::Later;
            }
        }
        if !self.core.resources.rendezvous_pool.contains(bytes) {
            return Exposing::Never;
        }
        let is_full = !exposures.open.is_empty() && exposures.bytes + bytes.len() > MOST;
        let exposure = match (!is_full).then(|| qp.expose(bytes)) {
            Some(Ok(exposure)) => exposure,
            Some(Err(ExposeError::NoWindow)) | None => {
                *blocked = true;
                return Exposing::Later;
            }
            Some(Err(ExposeError::NotInArena | ExposeError::Refused(_))) => return Exposing::Never,
        };
        requests.push_back(Work::Bind(exposure));
        exposures.add(seq, exposure);
        let mut descriptor = BytesMut::with_capacity(24);
        descriptor.put_u64_le(exposure.addr());
        descriptor.put_u32_le(exposure.rkey());
        descriptor.put_u32_le(bulk.len() as u32);
        if let Some(number) = number {
            descriptor.put_u64_le(number);
        }
        Exposing::Described(descriptor.freeze())
    }
}

impl LinkCore {
    /// See [`farcall_core::transport::Link::stage`].
    pub(crate) fn stage(&self, direction: Direction, pieces: &[Bytes]) -> Bulk {
        let len = pieces.iter().map(Bytes::len).sum();
        if len < LEAST_EXPOSED || !self.sending().exposures.is_possible() {
            return Bulk::None;
        }
        let pool = &self.resources.rendezvous_pool;
        if let ([only], None) = (pieces, self.seal())
            && pool.contains(only)
        {
            return Bulk::Plain(only.clone());
        }
        let needed = self.seal().map_or(len, |_| sealed_len(len));
        let Some(mut extent) = pool.take(direction, needed) else {
            pool.grow(direction, needed, None);
            return Bulk::None;
        };
        self.copied.fetch_add(len as u64, Ordering::Relaxed);
        let Some(seal) = self.seal() else {
            let mut rest = &mut extent[..];
            pieces.iter().for_each(|piece| rest.put_slice(piece));
            return Bulk::Plain(extent.freeze(0..len));
        };
        match seal.seal_chunks(pieces, &mut extent[..needed]) {
            Ok(number) => {
                let bytes = extent.freeze(0..needed);
                Bulk::Sealed(Sealed { len, bytes, number, link: seal.id() })
            }
            Err(Unsealable) => Bulk::None,
        }
    }

    /// See [`farcall_core::transport::Link::revoke`].
    pub(crate) fn revoke(&self, seq: u32, was_read: bool) {
        let mut sending = self.sending();
        let Sending { exposures, requests, .. } = &mut *sending;
        let Some(exposure) = exposures.remove(seq) else { return };
        if was_read {
            self.sent.fetch_add(exposure.len() as u64, Ordering::Relaxed);
        }
        requests.push_back(Work::Invalidate(exposure));
        self.post(&mut sending);
    }

    fn allocate_windows(self: &Arc<Self>, qp: Arc<dyn QueuePair>, count: usize) {
        let link = Arc::downgrade(self);
        self.resources.rendezvous_pool.control().spawn(move || {
            let result = qp.alloc_windows(count);
            let Some(link) = link.upgrade() else { return };
            match result {
                Ok(()) => link.sending().exposures.windows = Windows::There,
                Err(error) => {
                    tracing::warn!(link = link.name(), %error, "no memory windows: long messages are copied");
                    link.sending().exposures.forbid(format!("there are no memory windows: {error}"));
                }
            }
            link.resources.mailbox.changed(link.number);
        });
    }

    /// When to look again; `None`: nothing is exposed. If the peer is late, the link is given up.
    fn look_after(&self) -> Option<Instant> {
        let mut sending = self.sending();
        let Some(due) = sending.exposures.due.filter(|_| sending.is_open()) else {
            sending.exposures.watched = false;
            return None;
        };
        if due > Instant::now() {
            return Some(due);
        }
        let count = sending.exposures.open.len();
        sending.end();
        let end = LinkEnd::failed(format!(
            "{}: the peer has neither read nor declined the oldest of {count} long messages within its lease of {LEASE:?} \
             and a second for every {SLOWEST} bytes; its process may be stopped, or the network drops RDMA packets",
            self.name
        ));
        self.resources.mailbox.failed(self.number, end);
        None
    }
}

/// Ends a link whose peer does not answer for what is exposed to it. Returns when nothing is exposed.
pub(crate) async fn watch(link: Weak<LinkCore>) {
    while let Some(due) = link.upgrade().and_then(|link| link.look_after()) {
        tokio::time::sleep_until(due).await;
    }
}
