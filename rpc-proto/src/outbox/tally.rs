//! Counts of the messages in an outbox.

use crate::message::{Fragmenter, Message};

/// Counts of the messages that have not left, or not wholly, or have not been read. Each method says what has become of a
/// message; nothing else changes a count. Short messages of calls are not in here.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Tally {
    own: usize,
    barriers: usize,
    amid_calls: usize,
    given_up: usize,
    assembling: u64,
    /// The sum of their lengths.
    bytes: u64,
}

impl Tally {
    /// Counts a message in that was queued.
    pub(super) fn queue(&mut self, message: &Message) {
        self.own += usize::from(message.is_own());
        self.amid_calls += usize::from(message.is_amid_call());
        self.bytes += message.len() as u64;
    }

    /// Counts a queued message out that has left whole, or was taken back.
    pub(super) fn unqueue(&mut self, message: &Message) {
        self.own -= usize::from(message.is_own());
        self.amid_calls -= usize::from(message.is_amid_call());
        self.bytes -= message.len() as u64;
    }

    /// Notes that a queued message is too long for a frame.
    pub(super) fn set_aside(&mut self, message: &Message) {
        self.barriers += usize::from(message.call == 0);
    }

    /// Notes that a long message may leave in fragments.
    pub(super) fn begin(&mut self, message: &Message) {
        self.assembling += message.len() as u64;
    }

    /// Counts a message out that had begun: all of it has left, or was read, or it was taken back before a part had left.
    pub(super) fn end(&mut self, message: &Fragmenter) {
        let is_own = usize::from(message.call == 0);
        self.own -= is_own;
        self.barriers -= is_own;
        self.amid_calls -= usize::from(message.is_amid_call());
        self.given_up -= usize::from(message.is_abandoned() && !message.is_amid_call());
        self.assembling -= message.total();
        self.bytes -= message.total();
    }

    /// Abandons the rest of a message: one more frame tells the peer.
    pub(super) fn give_up(&mut self, message: &mut Fragmenter) {
        self.given_up += usize::from(message.abandon());
    }

    /// Returns how many messages are the [session's own](Message::is_own).
    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// Returns whether a long message of the session itself has not left. Messages that were queued after it, such as
    /// calls after their BIND, may not overtake it. Nor may a short message overtake a long one that is queued.
    pub(super) fn has_barrier(&self) -> bool {
        self.barriers > 0
    }

    /// Returns how many messages do not count as calls that wait: the session's own, those [amid
    /// calls](Message::is_amid_call), which have their own limits, and those that are given up.
    pub(super) fn beside_calls(&self) -> usize {
        self.own + self.amid_calls + self.given_up
    }

    /// Returns the sum of the lengths of all messages that are counted, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of the messages that are under way in fragments.
    pub(super) fn assembling(&self) -> u64 {
        self.assembling
    }
}
