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

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}
