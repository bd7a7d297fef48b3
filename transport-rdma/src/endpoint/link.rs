//! A link as a session has it.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use farcall_core::proto::inbox::Described;
use farcall_core::proto::message::Bulk;
use farcall_core::transport::{
    Atomic, BoxFuture, BusyPoll, Counters, Description, DeviceAtomics, DeviceId, DirectMemory, Direction,
    FrameSource, Grant, GrantTerms, Link, LinkHandler, Registered, Words,
};
use tokio::sync::{oneshot, watch};

use super::Endpoint;
use crate::link::{LinkCore, watch_exposed};

/// A link as the session has it. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct RdmaLink {
    pub(super) core: Arc<LinkCore>,
    pub(super) description: Description,
    /// The driver runs as long as there are links.
    pub(super) endpoint: Arc<Endpoint>,
}

impl Link for RdmaLink {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_frame(&self) -> usize {
        self.core.max_frame()
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        if self.core.start(handler) {
            let core = Arc::clone(&self.core);
            self.endpoint.shard().spawn(async move { core.deliver_rest() });
        }
    }

    fn send(&self, source: &mut dyn FrameSource) {
        if self.core.send(source) {
            self.endpoint.shard().spawn(watch_exposed(Arc::downgrade(&self.core)));
        }
    }

    fn round_trip(&self) -> Option<Duration> {
        self.core.round_trip()
    }

    fn credits(&self) -> Option<u32> {
        Some(self.core.credits())
    }

    fn stage(&self, direction: Direction, pieces: &[Bytes]) -> Bulk {
        self.core.stage(direction, pieces)
    }

    fn pull(&self, direction: Direction, described: Described) {
        self.core.pull(direction, described);
    }

    fn pulled_so_far(&self, seq: u32) -> usize {
        self.core.pulled_so_far(seq)
    }

    fn revoke(&self, seq: u32, was_read: bool) {
        self.core.revoke(seq, was_read);
    }

    fn grant(self: Arc<Self>, memory: Words, terms: GrantTerms) -> BoxFuture<Option<Grant>> {
        Box::pin(Arc::clone(&self.core).grant_words(memory, terms))
    }

    fn grant_loan(
        &self,
        len: usize,
        pieces: usize,
        memory: &dyn Fn() -> Vec<DirectMemory>,
        in_effect: watch::Sender<()>,
    ) -> Option<Grant> {
        self.core.grant_loan(len, pieces, memory, in_effect)
    }

    fn read_granted(&self, descriptor: Bytes, offset: usize, len: usize) -> Option<oneshot::Receiver<Bytes>> {
        self.core.read_granted(descriptor, offset, len)
    }

    fn write_granted(&self, descriptor: Bytes, offset: usize, bytes: Bytes) -> Option<oneshot::Receiver<()>> {
        self.core.write_granted(descriptor, offset, bytes)
    }

    fn registrar(&self) -> Option<DeviceId> {
        Some(self.core.registrar())
    }

    fn register(self: Arc<Self>, memory: Words) -> BoxFuture<Option<Arc<dyn Registered>>> {
        Box::pin(Arc::clone(&self.core).register(memory))
    }

    fn read_granted_into(
        &self,
        descriptor: Bytes,
        offset: usize,
        into: &dyn Registered,
        range: Range<usize>,
        in_effect: Box<dyn Any + Send + Sync>,
    ) -> Option<oneshot::Receiver<()>> {
        self.core.read_granted_into(descriptor, offset, into, range, in_effect)
    }

    fn write_granted_from(
        &self,
        descriptor: Bytes,
        offset: usize,
        from: &dyn Registered,
        range: Range<usize>,
        in_effect: Box<dyn Any + Send + Sync>,
    ) -> Option<oneshot::Receiver<()>> {
        self.core.write_granted_from(descriptor, offset, from, range, in_effect)
    }

    fn change_granted(
        &self,
        descriptor: Bytes,
        offset: usize,
        atomic: Atomic,
    ) -> Option<oneshot::Receiver<u64>> {
        self.core.change_granted(descriptor, offset, atomic)
    }

    fn look(&self) -> bool {
        self.endpoint.shard().look()
    }

    fn changes_numbers(&self) -> Option<DeviceId> {
        self.core.changes_numbers()
    }

    fn own_atomics(
        &self,
        memory: Words,
        in_effect: watch::Sender<()>,
    ) -> BoxFuture<Option<Arc<dyn DeviceAtomics>>> {
        Box::pin(self.core.own_atomics(memory, in_effect))
    }

    fn busy_poll(&self, waited: Duration) -> BusyPoll {
        self.endpoint.shard().busy_poll(waited)
    }

    fn close(&self) {
        self.core.close();
    }

    fn is_encrypted(&self) -> bool {
        self.core.seal().is_some()
    }

    fn counters(&self) -> Counters {
        self.core.counters()
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        self.core.close();
    }
}
