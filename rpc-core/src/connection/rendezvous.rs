//! Long messages that the receiver reads instead of being sent them. The sender describes where they are; the
//! receiver's link reads them and says DONE (WIRE.md section 3.6).

use std::sync::Arc;

use bytes::Bytes;

use super::receive::Receiving;
use super::{Connection, Role};
use crate::proto::inbox::{Described, Pulled};
use crate::proto::wire::{Done, FrameType, WireError};
use crate::transport::{Direction, Link};

impl Connection {
    /// Makes the link read the rest of a message. If the link is gone, our DOWN has asked the peer to send the rest.
    pub(super) fn pull(&self, link: &dyn Link, described: Described) {
        let direction = match self.role() {
            Role::Client => Direction::Response,
            Role::Server => Direction::Request,
        };
        link.pull(direction, described);
    }

    /// Makes the link read the rest of a message when the connection no longer holds more than its share of memory. If that
    /// takes too long, the rest is not read, and the call is refused.
    #[cold]
    pub(super) fn pull_later(&self, link: Arc<dyn Link>, described: Box<Described>) {
        let Some(this) = self.me() else { return };
        self.runtime.spawn(async move {
            let account = this.sender.account();
            account.clone().until_modest().await;
            let mut receiving = this.receiving.lock();
            let is_wanted = !account.refuses() && receiving.inbox.resume(described.seq);
            receiving.measure();
            drop(receiving);
            if is_wanted {
                this.pull(&*link, *described);
            } else {
                // There is no memory for the fragments that come now. They are dropped as they arrive.
                let _ = this.on_pulled(described.seq, None);
            }
        });
    }

    /// Handles a message that was read whole, or can't be read.
    pub(super) fn on_pulled(&self, seq: u32, whole: Option<Bytes>) -> Result<(), WireError> {
        let outcome = if whole.is_some() { Done::READ } else { Done::SEND };
        self.take_in(|receiving, batch| {
            let arrived = match receiving.inbox.pulled(seq, whole) {
                Pulled::Stale => return Ok(()),
                Pulled::Nothing => None,
                Pulled::Message(arrived) => Some(arrived),
            };
            // Queued before the message is handled: an answer must not leave the peer waiting to reuse its memory.
            self.sender.send_message(FrameType::DONE, 0, |out| Done { seq, outcome }.encode(out));
            arrived.map_or(Ok(()), |arrived| self.interpret(receiving, batch, arrived))
        })
    }

    /// Handles the peer's DONE: it has read what a frame described, or wants it sent. This needs the order of messages,
    /// because the next REQUEST may take the place of the call that this ends.
    pub(super) fn on_done(&self, _: &mut Receiving, done: Done) -> Result<(), WireError> {
        let known = self.sender.inspect(|sending| {
            let known = sending.outbox.done(&done);
            self.sender.note_backlog(&sending.outbox);
            known
        });
        known.map_err(|_| WireError::new("done.seq", "names no message that was described"))?;
        // This may allow more to be sent, at the end of the batch.
        self.sender.flush_at_end();
        if let Some(link) = self.sender.upgraded() {
            link.revoke(done.seq, done.outcome == Done::READ);
        }
        Ok(())
    }
}
