//! A session with one peer: numbered messages each way, exactly once and in order, whichever links they travel by.
//!
//! Everything that a connection sends goes through its [`Sender`]. Calls, streams and handlers see nothing else of the
//! session.

mod acknowledge;
mod busy_poll;
mod combining;
mod flusher;
mod metadata;
mod meter;
mod progress;
mod sender;
mod sending;
mod sent;
mod sources;
mod staging;
mod terms;
mod wait_time;

pub(crate) use self::busy_poll::{BusyPolling, poll_at_once, polls_at_once};
pub(crate) use self::meter::count_fallback;
pub use self::sender::Traffic;
pub(crate) use self::sender::{Owner, Sender};
pub(crate) use self::sending::Sending;
pub(crate) use self::terms::Terms;
#[cfg(all(test, farcall_loom))]
pub(crate) use self::{
    combining::{Absorb, CombiningQueue, Queued},
    sent::SentCalls,
};

/// Proof that the lock of receiving is held. Functions that take it run in the order of the peer's messages, whichever
/// links those came by.
#[derive(Debug)]
pub(crate) struct InOrder(());

impl InOrder {
    /// Returns the proof for one connection, to be kept under its lock of receiving.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// The end of a connection that this side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}
