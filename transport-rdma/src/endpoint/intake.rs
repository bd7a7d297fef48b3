//! Arrivals on an endpoint, from the device to the links. The holder receives for all links. This keeps the messages of
//! each in order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use farcall_core::transport::{LinkEnd, SHORT_PAYLOADS_SHARE};

use super::Shard;
use crate::device::{Completion, Cq, DeviceError, PostError, Slot};
use crate::link::{Arrival, Delivered, LinkCore, ReceivedSend};

#[derive(Debug)]
pub(super) struct Intake {
    // Empty between polls; kept for their memory.
    completions: Vec<Completion>,
    slots: Vec<Slot>,
    arrivals: Vec<Arrival>,
    scratch: VecDeque<ReceivedSend>,
    /// Where messages are copied to that are short, or find no other slot.
    copies: BytesMut,
    /// Links that have something to deliver.
    ready: VecDeque<Arc<LinkCore>>,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self {
            completions: Vec::new(),
            slots: Vec::new(),
            arrivals: Vec::new(),
            scratch: VecDeque::new(),
            copies: BytesMut::with_capacity(SHORT_PAYLOADS_SHARE),
            ready: VecDeque::new(),
        }
    }

    /// Takes up to `max` completions from the device, puts new receives in their place, and gives what has arrived to
    /// its links. Returns how many there were.
    pub(super) fn poll(&mut self, shard: &Shard, max: usize) -> Result<usize, DeviceError> {
        let polled = shard.queues.poll(Cq::Receive, max, &mut self.completions)?;
        // The rest of a failed posting is tried again.
        if polled == 0 && self.slots.is_empty() && self.arrivals.is_empty() {
            return Ok(0);
        }
        self.take_receives(shard);
        self.replace_receives(shard)?;
        self.ready.extend(self.arrivals.drain(..).filter_map(Arrival::take_in));
        Ok(polled)
    }

    /// The link has failed. It ends when what waits has been delivered.
    pub(super) fn fail(&mut self, link: Arc<LinkCore>, end: LinkEnd) {
        self.ready.extend(Arrival::failure(link, end).take_in());
    }

    /// The link has been started. Messages may have come before.
    pub(super) fn started(&mut self, link: &Arc<LinkCore>) {
        if link.list_rest() {
            self.ready.push_back(Arc::clone(link));
        }
    }

    /// Whether a link has something to deliver.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next link that has something to deliver, if that does no more than complete calls.
    pub(super) fn next_with_answers(&mut self) -> Option<Arc<LinkCore>> {
        let is_mine = self.ready.front().is_some_and(|link| link.has_only_answers());
        is_mine.then(|| self.next()).flatten()
    }

    /// The next link that has something to deliver.
    pub(super) fn next(&mut self) -> Option<Arc<LinkCore>> {
        self.ready.pop_front()
    }

    /// Delivers up to `most` messages of a link's, and lists it again if it has more.
    pub(super) fn deliver(&mut self, link: &Arc<LinkCore>, most: usize) -> Delivered {
        // Not with this if the handler panics.
        let mut scratch = std::mem::take(&mut self.scratch);
        let delivered = link.deliver(&mut scratch, most);
        self.scratch = scratch;
        if delivered.unfinished {
            self.ready.push_back(Arc::clone(link));
        }
        delivered
    }

    fn take_receives(&mut self, shard: &Shard) {
        let links = shard.links();
        for completion in self.completions.drain(..) {
            let (qp_num, slot, result) = match completion {
                Completion::Received { qp_num, slot, len } => (qp_num, slot, Ok(len)),
                Completion::ReceiveFailed { qp_num, slot, error } => (qp_num, slot, Err(error)),
                // A receive queue completes no sends.
                _ => continue,
            };
            let Some(link) = links.get(&qp_num).cloned() else {
                self.slots.push(slot);
                continue;
            };
            let arrival = match result {
                Ok(len) => {
                    let receives = shard.resources.memory.receives();
                    Arrival::take(link, slot, len, receives, &mut self.slots, &mut self.copies)
                }
                Err(error) => {
                    self.slots.push(slot);
                    let end = link.explain(error);
                    Arrival::failure(link, end)
                }
            };
            self.arrivals.push(arrival);
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
