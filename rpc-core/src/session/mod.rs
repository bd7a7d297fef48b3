//! A session with one peer: numbered messages each way, exactly once and in order, whichever of its links they travel by.
//!
//! Everything that a connection sends goes through its [`Sender`], which is all that calls, streams and handlers see of
//! the session.

mod acknowledge;
mod combining;
mod flusher;
mod metadata;
mod meter;
mod progress;
mod sender;
mod sent;
mod sources;
mod staging;
mod terms;

pub(crate) use self::meter::count_fallback;
pub use self::sender::Traffic;
pub(crate) use self::sender::{Owner, Sender, Sending};
pub(crate) use self::terms::Terms;
#[cfg(all(test, farcall_loom))]
pub(crate) use self::{
    combining::{Absorb, CombiningQueue, Queued},
    sent::SentCalls,
};

/// Proof that the lock of receiving is held. Functions that take it are called in the order in which the peer's messages
/// came, whichever links they came by.
#[derive(Debug)]
pub(crate) struct InOrder(());

impl InOrder {
    /// The proof of one connection, to be kept under its lock of receiving.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}
