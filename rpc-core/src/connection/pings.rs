//! The PINGs that a side sends by the stream link.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Connection;
use crate::proto::wire::{FrameType, Ping};
use crate::transport::RoundTrip;

/// The PINGs of this side, of which the last counts: a peer may answer the last one alone.
#[derive(Debug, Default)]
pub(super) struct Pings {
    /// The last one's token.
    token: u64,
    /// Those who wait for the last one's PONG.
    waiters: Vec<oneshot::Sender<()>>,
    round_trip: RoundTrip,
}

impl Pings {
    /// Begins a PING, in place of those that are on their way.
    fn begin(&mut self) -> Ping {
        self.token += 1;
        self.round_trip.begin();
        Ping { token: self.token }
    }

    /// Returns the last PING, for sending it again.
    pub(super) fn again(&self) -> Ping {
        Ping { token: self.token }
    }

    /// Handles a PONG.
    pub(super) fn answered(&mut self, pong: &Ping) {
        if pong.token == self.token {
            self.round_trip.end();
            for waiter in self.waiters.drain(..) {
                // An error: the waiter has given up.
                let _ = waiter.send(());
            }
        }
    }

    /// Whether anybody waits for a PONG.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_closed())
    }
}

impl Connection {
    /// Sends a PING and waits for its PONG, for ever if there is none. A peer that stays silent is [found](Self::listen) to be so meanwhile.
    pub(super) async fn ping(&self) {
        let (sender, receiver) = oneshot::channel();
        let ping = {
            let mut receiving = self.receiving.lock();
            receiving.pings.waiters.retain(|waiter| !waiter.is_closed());
            receiving.pings.waiters.push(sender);
            receiving.pings.begin()
        };
        self.send_ping(ping);
        self.calls.begun.notify_one();
        let _ = receiver.await;
    }

    /// Returns a number that changes with all that the peer sends.
    #[inline]
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Whether the peer is [suspected](Self::suspect).
    pub(crate) fn is_suspected(&self) -> bool {
        self.is_suspected.load(Ordering::Relaxed)
    }

    /// Suspects the peer to be gone, and asks it for a sign of life. Returns a future that resolves with that, or when the connection has
    /// ended. `None`: it is suspected already. The future must be awaited to its end.
    pub(crate) fn suspect(self: &Arc<Self>) -> Option<impl Future<Output = ()> + Send + use<>> {
        if self.is_suspected.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (this, heard) = (Arc::clone(self), self.heard());
        Some(async move {
            let answered = async {
                let patience = this.settings().liveness.ping();
                let mut ping = std::pin::pin!(this.ping());
                while tokio::time::timeout(patience, ping.as_mut()).await.is_err() && this.heard() == heard {}
            };
            tokio::select! {
                () = answered => {}
                _ = this.closed() => {}
            }
            this.is_suspected.store(false, Ordering::Relaxed);
        })
    }

    pub(super) fn send_ping(&self, ping: Ping) {
        self.sender.send_link(FrameType::PING, |out| ping.encode(out));
    }

    /// Returns how long a PING by the stream link took, and sends another if that was a while ago.
    pub(super) fn round_trip_of_stream(&self) -> Option<Duration> {
        let mut receiving = self.receiving.lock();
        let pings = &mut receiving.pings;
        let took = pings.round_trip.took();
        let next = pings.round_trip.is_due().then(|| pings.begin());
        drop(receiving);
        if let Some(ping) = next {
            self.send_ping(ping);
        }
        took
    }
}
