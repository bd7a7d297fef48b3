//! Memory of the peer that this side uses by itself: regions and loans, as far as the peer has granted them.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use farcall_core::transport::{Atomic, DeviceId, Direction, Registered};
use tokio::sync::oneshot;

use super::LinkCore;
use super::descriptor::GrantedPart;
use super::transfers::{Local, Purpose};
use crate::device::{NUMBER, ReadTarget, SharesWords, Source};
use crate::resources::UsedWords;

impl LinkCore {
    /// See [`farcall_core::transport::Link::read_granted`].
    pub(crate) fn read_granted(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        len: usize,
    ) -> Option<oneshot::Receiver<Bytes>> {
        let remote = GrantedPart::of(descriptor, offset, len).filter(|_| len > 0)?;
        let into = Local::Into(self.resources.rendezvous_pool.target(len)?);
        let (reader, read) = oneshot::channel();
        let purpose = Purpose::Read { reader };
        self.use_granted(purpose, into, 0, remote, len).then_some(read)
    }

    /// See [`farcall_core::transport::Link::read_granted_into`].
    pub(crate) fn read_granted_into(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        into: &dyn Registered,
        range: Range<usize>,
        in_effect: Box<dyn Any + Send + Sync>,
    ) -> Option<oneshot::Receiver<()>> {
        let remote = GrantedPart::of(descriptor, offset, range.len())?;
        let into = ReadTarget::within(Arc::new(UsedWords::new(self.registered(into)?, in_effect)));
        into.address(range.start, range.len()).filter(|_| !range.is_empty())?;
        let (mover, moved) = oneshot::channel();
        let purpose = Purpose::Move { mover };
        self.use_granted(purpose, Local::Into(into), range.start, remote, range.len()).then_some(moved)
    }

    /// See [`farcall_core::transport::Link::write_granted_from`].
    pub(crate) fn write_granted_from(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        from: &dyn Registered,
        range: Range<usize>,
        in_effect: Box<dyn Any + Send + Sync>,
    ) -> Option<oneshot::Receiver<()>> {
        let len = range.len();
        let remote = GrantedPart::of(descriptor, offset, len).filter(|_| len > 0)?;
        let from = Source::Words(Arc::new(UsedWords::new(self.registered(from)?, in_effect)), range);
        from.address()?;
        let (mover, moved) = oneshot::channel();
        let purpose = Purpose::Move { mover };
        self.write_out(purpose, from, remote, len).then_some(moved)
    }

    /// Writes, and counts that. False if the link can't.
    fn write_out(self: &Arc<Self>, purpose: Purpose, from: Source, remote: GrantedPart, len: usize) -> bool {
        let begun = self.use_granted(purpose, Local::From(from), 0, remote, len);
        if begun {
            self.sent.fetch_add(len as u64, Ordering::Relaxed);
        }
        begun
    }

    /// See [`farcall_core::transport::Link::registrar`].
    pub(crate) fn registrar(&self) -> DeviceId {
        self.resources.registrations.id()
    }

    /// Returns the words of the application that this link's device has registered.
    pub(crate) fn registered(&self, memory: &dyn Registered) -> Option<Arc<dyn SharesWords>> {
        self.resources.registrations.words(memory)
    }

    /// See [`farcall_core::transport::Link::change_granted`].
    pub(crate) fn change_granted(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        atomic: Atomic,
    ) -> Option<oneshot::Receiver<u64>> {
        if !offset.is_multiple_of(NUMBER) || self.resources.own_atomics.device().is_none() {
            return None;
        }
        let on = GrantedPart::of(descriptor, offset, NUMBER).filter(GrantedPart::begins_with_number)?;
        let local = Local::Changed(self.resources.rendezvous_pool.target(NUMBER)?, atomic);
        let (changer, changed) = oneshot::channel();
        let purpose = Purpose::Change { changer };
        self.use_granted(purpose, local, 0, on, NUMBER).then_some(changed)
    }

    /// See [`farcall_core::transport::Link::write_granted`].
    pub(crate) fn write_granted(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        bytes: Bytes,
    ) -> Option<oneshot::Receiver<()>> {
        let len = bytes.len();
        let remote = GrantedPart::of(descriptor, offset, len).filter(|_| len > 0)?;
        let pool = &self.resources.rendezvous_pool;
        let is_inline = len <= self.sending().inline;
        let bytes = if is_inline || pool.contains(&bytes) {
            bytes
        } else if let Some(mut extent) = pool.take(Direction::Request, len) {
            extent[..len].copy_from_slice(&bytes);
            self.copied.fetch_add(len as u64, Ordering::Relaxed);
            extent.freeze(0..len)
        } else {
            pool.grow(Direction::Request, len, None);
            return None;
        };
        let (mover, moved) = oneshot::channel();
        let purpose = Purpose::Move { mover };
        self.write_out(purpose, bytes.into(), remote, len).then_some(moved)
    }
}
