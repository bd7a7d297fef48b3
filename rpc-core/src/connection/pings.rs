//! The PINGs that a side sends by the stream link.

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
    waiter: Option<oneshot::Sender<()>>,
    round_trip: RoundTrip,
}

impl Pings {
    /// Begins a PING, in place of those that are on their way.
    fn begin(&mut self, waiter: Option<oneshot::Sender<()>>) -> Ping {
        self.token += 1;
        self.waiter = waiter;
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
            // An error: the waiter has given up.
            let _ = self.waiter.take().map(|waiter| waiter.send(()));
        }
    }
}

impl Connection {
    /// Sends a PING and waits for its PONG, for ever if there is none.
    pub(super) async fn ping(&self) {
        let (sender, receiver) = oneshot::channel();
        let ping = self.receiving.lock().pings.begin(Some(sender));
        self.send_ping(ping);
        let _ = receiver.await;
    }

    pub(super) fn send_ping(&self, ping: Ping) {
        self.sender.send_link(FrameType::PING, |out| ping.encode(out));
    }

    /// Returns how long a PING by the stream link took, and sends another if that was a while ago.
    pub(super) fn round_trip_of_stream(&self) -> Option<Duration> {
        let mut receiving = self.receiving.lock();
        let pings = &mut receiving.pings;
        let took = pings.round_trip.took();
        let next = pings.round_trip.is_due().then(|| pings.begin(None));
        drop(receiving);
        if let Some(ping) = next {
            self.send_ping(ping);
        }
        took
    }
}
