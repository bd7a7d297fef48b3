//! What has arrived on an endpoint, from the device to the links. Whoever has this receives, for all links: that keeps the
//! messages of each in order.

use std::collections::VecDeque;
use std::sync::Arc;

use farcall_core::transport::LinkEnd;

use super::Shard;
use crate::device::{Completion, Cq, DeviceError, PostError, Slot};
use crate::link::{Arrival, LinkCore};

#[derive(Debug, Default)]
pub(super) struct Intake {
    // Empty between polls; kept for their memory.
    completions: Vec<Completion>,
    slots: Vec<Slot>,
    /// Polled and not delivered.
    arrivals: VecDeque<Arrival>,
    /// Links that have received something in this batch.
    touched: Vec<Arc<LinkCore>>,
}

impl Intake {
    /// Takes up to `max` completions from the device and puts new receives in their place. Says how many there were.
    pub(super) fn poll(&mut self, shard: &Shard, max: usize) -> Result<usize, DeviceError> {
        let polled = shard.queues.poll(Cq::Receive, max, &mut self.completions)?;
        self.take_receives(shard);
        self.replace_receives(shard)?;
        Ok(polled)
    }

    /// The link has failed. It ends when what waits has been delivered.
    pub(super) fn fail(&mut self, link: Arc<LinkCore>, end: LinkEnd) {
        self.arrivals.push_back(Arrival::failure(link, end));
    }

    /// How many messages wait to be delivered.
    pub(super) fn waiting(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether the next message does no more than complete calls.
    pub(super) fn next_is_answer(&self) -> bool {
        self.arrivals.front().is_some_and(Arrival::is_answer)
    }

    /// Delivers the next message. With `Some`, its link is over.
    pub(super) fn accept(&mut self) -> Option<(Arc<LinkCore>, Option<LinkEnd>)> {
        let (link, end) = self.arrivals.pop_front()?.accept();
        if self.touched.last().is_none_or(|last| last.number() != link.number()) {
            self.touched.push(Arc::clone(&link));
        }
        Some((link, end))
    }

    /// Lets leave what came of the messages that were delivered: one flush for all that a link has received.
    pub(super) fn end_batch(&mut self) {
        self.touched.sort_unstable_by_key(|link| link.number());
        self.touched.dedup_by_key(|link| link.number());
        self.touched.drain(..).for_each(|link| link.batch_end());
    }

    fn take_receives(&mut self, shard: &Shard) {
        for completion in self.completions.drain(..) {
            let (qp_num, slot, result) = match completion {
                Completion::Received { qp_num, slot, len } => (qp_num, slot, Ok(len)),
                Completion::ReceiveFailed { qp_num, slot, error } => (qp_num, slot, Err(error)),
                // A receive queue completes no sends.
                _ => continue,
            };
            let Some(link) = shard.links().get(&qp_num).cloned() else {
                self.slots.push(slot);
                continue;
            };
            let arrival = match result {
                Ok(len) => Arrival::take(link, slot, len, shard.memory.receives(), &mut self.slots),
                Err(error) => {
                    self.slots.push(slot);
                    let end = link.explain(error);
                    Arrival::failure(link, end)
                }
            };
            self.arrivals.push_back(arrival);
        }
    }

    fn replace_receives(&mut self, shard: &Shard) -> Result<(), DeviceError> {
        while !self.slots.is_empty() {
            match shard.queues.post_receives(&mut self.slots) {
                Ok(0) => self.slots.clear(),
                Ok(_) => {}
                Err(PostError::Device(error)) => return Err(error),
                Err(_) => self.slots.clear(),
            }
        }
        Ok(())
    }
}
