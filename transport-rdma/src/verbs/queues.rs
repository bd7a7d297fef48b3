//! A shard's queues.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cq::{CompletionChannel, CompletionQueue};
use super::device::Hca;
use super::events::VerbsChannel;
use super::inflight::InFlight;
use super::qp::VerbsQp;
use super::srq::SharedReceiveQueue;
use crate::device::{
    Channel, Completion, Cq, CreateQpError, DeviceError, PostError, QpSize, QueuePair, QueueSize, Queues,
};
use crate::dma::Slot;

/// See [`Queues`].
#[derive(Debug)]
pub(super) struct VerbsQueues(Arc<Inner>);

/// The queues that queue pairs keep. The fields are dropped in this order, which is the one the kernel asks for.
#[derive(Debug)]
pub(super) struct Inner {
    srq: SharedReceiveQueue,
    receive_cq: CompletionQueue,
    send_cq: CompletionQueue,
    channel: CompletionChannel,
    size: QueueSize,
    ids: [u64; 3],
    budget: Mutex<Budget>,
    hca: Arc<Hca>,
}

/// The part of the send completion queue that is spoken for. The lock is held while queue pairs are created and destroyed,
/// so that a number which comes back into use is not taken for its former bearer.
#[derive(Debug, Default)]
pub(super) struct Budget {
    reserved: u32,
}

impl VerbsQueues {
    pub(super) fn new(hca: Arc<Hca>, size: QueueSize) -> Result<Self, DeviceError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let ids = [(); 3].map(|()| NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let channel = CompletionChannel::new(&hca)?;
        let send_cq = CompletionQueue::new(&hca, &channel, size.sends, ids[0])?;
        let receive_cq = CompletionQueue::new(&hca, &channel, size.receives, ids[1])?;
        let srq = SharedReceiveQueue::new(&hca, size.receives, ids[2])?;
        let budget = Mutex::default();
        Ok(Self(Arc::new(Inner { srq, receive_cq, send_cq, channel, size, ids, budget, hca })))
    }
}

impl Queues for VerbsQueues {
    fn post_receives(&self, slots: &mut Vec<Slot>) -> Result<usize, PostError> {
        self.0.srq.post(&self.0.hca, slots)
    }

    fn receives_posted(&self) -> usize {
        self.0.in_flight().receives().len()
    }

    fn poll(&self, cq: Cq, max: usize, out: &mut Vec<Completion>) -> Result<usize, DeviceError> {
        let in_flight = self.0.in_flight();
        let polled = self.0.cq(cq).poll(&self.0.hca, max, |raw| out.extend(in_flight.resolve(raw)));
        polled.map_err(|errno| self.0.hca.error("ibv_poll_cq", errno))
    }

    fn awaits_sends(&self) -> bool {
        self.0.in_flight().awaits_sends()
    }

    fn arm(&self, cq: Cq, solicited_only: bool) -> Result<(), DeviceError> {
        let armed = self.0.cq(cq).arm(&self.0.hca, solicited_only);
        armed.map_err(|errno| self.0.hca.error("ibv_req_notify_cq", errno))
    }

    fn channel(&self) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(VerbsChannel::new(Arc::clone(&self.0))?))
    }

    fn owns(&self, queue_id: u64) -> bool {
        self.0.ids.contains(&queue_id)
    }

    fn create_qp(&self, size: QpSize) -> Result<Arc<dyn QueuePair>, CreateQpError> {
        Ok(Arc::new(VerbsQp::new(Arc::clone(&self.0), size)?))
    }
}

impl Inner {
    pub(super) fn hca(&self) -> &Hca {
        &self.hca
    }

    pub(super) fn srq(&self) -> &SharedReceiveQueue {
        &self.srq
    }

    pub(super) fn cq(&self, cq: Cq) -> &CompletionQueue {
        match cq {
            Cq::Receive => &self.receive_cq,
            Cq::Send => &self.send_cq,
        }
    }

    pub(super) fn in_flight(&self) -> &InFlight {
        self.srq.in_flight()
    }

    pub(super) fn channel_fd(&self) -> RawFd {
        self.channel.fd()
    }

    pub(super) fn read_events(&self, max: usize) -> Result<usize, i32> {
        self.channel.read_events([&self.receive_cq, &self.send_cq], max)
    }

    pub(super) fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the send completion queue has room for another queue pair.
    pub(super) fn fits(&self, budget: &Budget, size: QpSize) -> bool {
        budget.reserved.checked_add(size.reserve()).is_some_and(|sum| sum <= self.size.sends)
    }
}

impl Budget {
    pub(super) fn take(&mut self, size: QpSize) {
        self.reserved += size.reserve();
    }

    pub(super) fn give_back(&mut self, size: QpSize) {
        self.reserved -= size.reserve();
    }
}
