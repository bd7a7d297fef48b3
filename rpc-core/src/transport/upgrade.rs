//! The move of a session to another kind of link.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Attempt, BoxFuture, Link, Unavailable};

/// A link that is not proven yet, and the data about it for the peer, of up to 512 bytes. If they are longer, the attempt fails.
pub type PreparedUpgrade = (Box<dyn Candidate>, Bytes);

/// Another kind of link that a session can move to.
///
/// Client and server go through the same steps, each with its own [`Candidate`]. The client calls
/// [`offer`](Self::offer), the server [`answer`](Self::answer), and both [`complete`](Candidate::complete).
pub trait Upgrade: Send + Sync + fmt::Debug + 'static {
    /// Returns the name in HELLO and OFFER, at most 255 bytes.
    fn name(&self) -> &'static str;

    /// Returns the data for HELLO, or why this side can't use this kind of link. Data above 65,535 bytes is not sent,
    /// and sessions stay on the stream link.
    fn announce(&self) -> BoxFuture<Result<Bytes, Unavailable>>;

    /// Client: prepares a link, and the data for an OFFER. `announced` is from the server's HELLO.
    fn offer(&self, announced: Bytes, attempt: &Attempt) -> BoxFuture<Result<PreparedUpgrade, Unavailable>>;

    /// Server: prepares a link as the OFFER of this epoch asks, ready to receive, and the data for the ANSWER.
    fn answer(
        &self,
        epoch: u32,
        offer: Bytes,
        attempt: &Attempt,
    ) -> BoxFuture<Result<PreparedUpgrade, Unavailable>>;

    /// Returns a reason of this side with what else is found on this machine that keeps this kind of link from being used. It may take
    /// seconds, and is asked where nothing else will do.
    fn diagnose(&self, why: Unavailable) -> BoxFuture<Unavailable> {
        Box::pin(async { why })
    }
}

/// A link that is not proven yet. Dropping it abandons it.
pub trait Candidate: Send {
    /// Finishes the link, with the data of the ANSWER on the client, and exchanges probes. Returns the link once the
    /// peer's probe has arrived, within a time limit of its own. Frames that arrive after the probe wait for
    /// [`Link::start`].
    fn complete(
        self: Box<Self>,
        epoch: u32,
        answer: Option<Bytes>,
    ) -> BoxFuture<Result<Arc<dyn Link>, Unavailable>>;
}
