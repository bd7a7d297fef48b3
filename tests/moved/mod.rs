//! The bytes that a server moves to and from memory that its client lends, held against those that went in messages.

use std::iter::Sum;

use farcall::Channel;

use super::over;

/// The bytes of some calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Those of the client's memory that the server has read. A device could do it.
    pub(crate) read: usize,
    /// Those that the server has written there. A device could do it.
    pub(crate) written: usize,
    /// Bytes that the client has sent in messages in any case.
    pub(crate) sent: usize,
    /// Bytes that the server has sent so.
    pub(crate) received: usize,
    /// Those of calls that were given up, which may have gone either way, or not at all.
    pub(crate) given_up: usize,
}

impl Sum for Moved {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            read: sum.read + one.read,
            written: sum.written + one.written,
            sent: sum.sent + one.sent,
            received: sum.received + one.received,
            given_up: sum.given_up + one.given_up,
        })
    }
}

/// Returns how many bytes a client has sent and received in messages. Those that its server's device moves are not among them.
async fn in_messages(channel: &Channel) -> (usize, usize) {
    let traffic = channel.connection().await.unwrap().traffic();
    let both = |of: fn(&farcall::Counters) -> u64| (of(&traffic.stream) + of(&traffic.upgraded)) as usize;
    (both(|counters| counters.bytes_sent), both(|counters| counters.bytes_received))
}

/// Checks how the bytes went. Over RDMA the server's device must have read and written some: a call does not wait for windows or for
/// registered memory, and the slower the machine, the more calls go without. Over TCP messages must have carried all.
/// The channel has made no other calls.
pub(crate) async fn by_device_over_rdma(all: Moved, channel: &Channel) {
    let (sent, received) = in_messages(channel).await;
    let seen = format!("{all:?}, and in messages {sent} sent and {received} received");
    assert!(all.read > 1 << 20 && all.written > 1 << 20, "too little to tell: {seen}");
    if over::transport() == "rdma" {
        assert!(sent < all.sent + all.given_up + all.read / 8 * 7, "the device did not read: {seen}");
        assert!(
            received < all.received + all.given_up + all.written / 8 * 7,
            "the device did not write: {seen}"
        );
    } else {
        assert!(sent >= all.sent + all.read && received >= all.received + all.written, "{seen}");
    }
}
