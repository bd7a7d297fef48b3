//! Long messages that are not sent but read: the sender describes where they are, the receiver's link reads them and
//! says DONE (WIRE.md section 3.6).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Connection, Role, lock};
use crate::payload::BY_REFERENCE;
use crate::proto::inbox::{Described, Pulled};
use crate::proto::message::Message;
use crate::proto::wire::{Done, FrameType, WireError};
use crate::transport::{Direction, Link};

/// A message is described only if what is sent of it, all but its bulk, is at most so long.
const MAX_BEGIN: usize = 4096;

impl Connection {
    /// Has the link read the rest of a message. If it is gone, DOWN has said that the rest must be sent.
    pub(super) fn pull(&self, link: &dyn Link, described: Described) {
        let direction = match self.role {
            Role::Client => Direction::Response,
            Role::Server => Direction::Request,
        };
        link.pull(direction, described);
    }

    /// The link whose peer may read this side's memory, if there is one.
    pub(super) fn set_better(&self, link: Option<Arc<dyn Link>>) {
        *lock(&self.better) = link;
    }

    pub(super) fn better(&self) -> Option<Arc<dyn Link>> {
        lock(&self.better).clone()
    }

    /// Puts the end of a long message where the peer can read it, before the message is queued: a copy, if one must be
    /// made, is made by who sends it, and holds up nobody else.
    pub(super) fn stage(&self, message: &mut Message) {
        if message.payload.len() <= BY_REFERENCE {
            return;
        }
        let Some(link) = self.better() else { return };
        let direction = match self.role {
            Role::Client => Direction::Request,
            Role::Server => Direction::Response,
        };
        let (len, payload) = (message.len(), &mut message.payload);
        if let Some(last) = payload.attachments().last()
            && len - last.len() <= MAX_BEGIN
        {
            if let Some(bulk) = link.stage(direction, std::slice::from_ref(last)) {
                payload.pop_attachment();
                message.bulk = bulk;
            }
        } else if message.head.len() <= MAX_BEGIN {
            let pieces: Vec<Bytes> = payload.clone().into_pieces().collect();
            if let Some(bulk) = link.stage(direction, &pieces) {
                message.payload = Default::default();
                message.bulk = bulk;
            }
        }
    }

    /// A message that was to be read is whole, or can't be read.
    pub(super) fn on_pulled(&self, seq: u32, whole: Option<Bytes>) -> Result<(), WireError> {
        let outcome = if whole.is_some() { Done::READ } else { Done::SEND };
        self.take_in(|receiving, batch| {
            let arrived = match receiving.inbox.pulled(seq, whole) {
                Pulled::Stale => return Ok(()),
                Pulled::Nothing => None,
                Pulled::Message(arrived) => Some(arrived),
            };
            // Before what the message asks for: an answer must not leave the peer waiting to reuse its memory.
            self.send_message(FrameType::DONE, 0, |out| Done { seq, outcome }.encode(out));
            arrived.map_or(Ok(()), |arrived| self.interpret(receiving, batch, arrived))
        })
    }

    /// The peer has read what a frame described, or wants it sent. Under the lock of `receiving`: the REQUEST that comes
    /// next may have the place of the call that this ends.
    pub(super) fn on_done(&self, done: Done) -> Result<(), WireError> {
        let known = self.sending(|sending| {
            let known = sending.outbox.done(&done);
            self.backlog.store(sending.outbox.waiting(), Ordering::Release);
            known
        });
        known.map_err(|_| WireError::new("done.seq", "is of nothing that was described"))?;
        // There may be more to send now; it leaves at the end of the batch.
        self.sending.want();
        if let Some(link) = self.better() {
            link.conceal(done.seq, done.outcome == Done::READ);
        }
        Ok(())
    }
}
