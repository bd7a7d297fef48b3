//! Links of one process to itself, or to another simulated machine.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use farcall_core::class::TrafficClass;
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::{FrameType, Header};
use farcall_core::testing::conformance::Pair;
use farcall_core::testing::{self, conformance};
use farcall_core::transport::{Attempt, Cipher, Description, Link, LinkEnd, Unavailable, Upgrade};
use farcall_rdma::RdmaUpgrade;

/// Against hanging only.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A side of links to be, with the address of its end of the TCP connection.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    pub(crate) upgrade: RdmaUpgrade,
    pub(crate) address: IpAddr,
    /// The cipher of the stream link's TLS session. `None`: it is not encrypted.
    pub(crate) cipher: Option<Cipher>,
}

impl Side {
    /// Returns what an attempt of a session is about.
    pub(crate) fn attempt(&self) -> Attempt {
        let mut attempt = Attempt::plain(stream(self.address), TrafficClass::Normal);
        if let Some(cipher) = self.cipher {
            attempt.allows_plaintext = false;
            attempt.secret = farcall_tcp::tls::exported(cipher, &[7; 32]);
        }
        attempt
    }
}

/// A TCP connection with this local address.
fn stream(local: IpAddr) -> Description {
    let local = Some(SocketAddr::new(local, 7400));
    Description { transport: "tcp", local, peer: None, device: String::new(), busy_polls: false }
}

/// Makes a link from `near` to `far`, as a session does.
pub(crate) async fn try_pair(near: &Side, far: &Side) -> Result<Pair, Unavailable> {
    const EPOCH: u32 = 3;
    let announced = far.upgrade.announce().await?;
    let (client, offer) = near.upgrade.offer(announced, &near.attempt()).await?;
    let (server, answer) = far.upgrade.answer(EPOCH, offer, &far.attempt()).await?;
    tokio::try_join!(client.complete(EPOCH, Some(answer)), server.complete(EPOCH, None))
}

pub(crate) async fn pair(near: &Side, far: &Side) -> Pair {
    tokio::time::timeout(LIMIT, try_pair(near, far)).await.expect("hangs").unwrap()
}

/// One end of a link. Dropping it drops the link.
pub(crate) struct End(testing::End);

/// Starts both ends.
pub(crate) fn start((near, far): Pair) -> [End; 2] {
    [near, far].map(|link| End(testing::End::start(link)))
}

impl End {
    pub(crate) fn link(&self) -> &Arc<dyn Link> {
        self.0.link()
    }

    /// Sends frames of these numbers, all of this length and kind.
    pub(crate) fn send(&self, numbers: impl IntoIterator<Item = u32>, len: usize, kind: FrameType) {
        self.0.send(numbers.into_iter().map(|n| frame(n, len, kind)));
    }

    pub(crate) async fn frame(&mut self) -> (Header, Bytes) {
        self.0.frame().await
    }

    /// Takes frames until the end.
    pub(crate) async fn end(&mut self) -> LinkEnd {
        self.0.end().await
    }

    /// Checks that frames 1 to `count` arrive in order, as they were sent.
    pub(crate) async fn expect(&mut self, count: u32, len: usize) {
        for number in 1..=count {
            let (header, payload) = self.frame().await;
            assert_eq!((header.seq, payload), (number, content(number, len)));
        }
    }
}

pub(crate) fn content(number: u32, len: usize) -> Bytes {
    (0..len).map(|i| (i as u32 ^ number) as u8).collect()
}

fn frame(number: u32, len: usize, kind: FrameType) -> Frame {
    let mut frame = Frame::link(kind, content(number, len));
    frame.header.seq = number;
    frame.header.call = 1;
    frame
}

pub(crate) mod scenarios {
    use super::*;

    pub(crate) async fn conforms(near: Side, far: Side) {
        conformance::check(|| pair(&near, &far)).await;
    }

    pub(crate) async fn more_than_the_window_arrives_both_ways(near: Side, far: Side) {
        let longest = longest(&near);
        for (len, count) in [(0, 500), (64, 1000), (200, 500), (3000, 500), (longest, 300)] {
            let mut ends = start(pair(&near, &far).await);
            for end in &ends {
                assert_eq!(
                    (end.link().max_frame(), end.link().is_encrypted()),
                    (longest, near.cipher.is_some())
                );
                end.send(1..=count, len, FrameType::ITEM);
            }
            for end in &mut ends {
                end.expect(count, len).await;
            }
        }
    }

    pub(crate) async fn one_way_traffic_is_granted_by_credit_frames(near: Side, far: Side) {
        let [near, mut far] = start(pair(&near, &far).await);
        near.send(1..=2000, 500, FrameType::ITEM);
        far.expect(2000, 500).await;
    }

    /// The longest payload of a frame: a sealed message has its tag in the same buffer.
    fn longest(side: &Side) -> usize {
        if side.cipher.is_some() { 8144 } else { 8160 }
    }

    pub(crate) async fn longest_frames_arrive(near: Side, far: Side) {
        let longest = longest(&near);
        let [near, mut far] = start(pair(&near, &far).await);
        near.send(1..=50, longest, FrameType::FRAGMENT);
        far.expect(50, longest).await;
        assert!(near.link().counters().bytes_sent > 50 * longest as u64);
    }

    pub(crate) async fn reader_that_keeps_everything_stops_nobody(near: Side, far: Side) {
        let [near, mut far] = start(pair(&near, &far).await);
        near.send(1..=2000, 4000, FrameType::ITEM);
        let mut kept = Vec::new();
        for number in 1..=2000 {
            let (header, payload) = far.frame().await;
            assert_eq!(header.seq, number);
            kept.push(payload);
        }
        drop((near, far));
        // Nothing that is kept is written over.
        for (payload, number) in kept.iter().zip(1..) {
            assert_eq!(*payload, content(number, 4000));
        }
    }

    pub(crate) async fn closing_is_seen_as_an_orderly_end(near: Side, far: Side) {
        let [mut near, mut far] = start(pair(&near, &far).await);
        // As many as the least window takes at once.
        near.send(1..=3, 5000, FrameType::ITEM);
        near.link().close();
        near.send(4..=20, 5000, FrameType::ITEM);
        far.expect(3, 5000).await;
        let end = far.end().await;
        assert!(!end.failed, "{end}");
        assert!(!near.end().await.failed);
    }

    /// Made, used, and closed or dropped over and over, several at once.
    pub(crate) async fn links_come_and_go(near: Side, far: Side, rounds: u32) {
        for round in 0..rounds {
            let mut ends = Vec::new();
            for _ in 0..1 + round % 5 {
                ends.push(start(pair(&near, &far).await));
            }
            for [near, far] in &ends {
                near.send(1..=70, 1500, FrameType::ITEM);
                far.send(1..=70, 100, FrameType::ITEM);
            }
            let mut left = Vec::new();
            for [mut near, mut far] in ends {
                far.expect(70, 1500).await;
                near.expect(70, 100).await;
                if round % 2 == 0 {
                    near.link().close();
                }
                left.push(far);
            }
            for mut far in left {
                let end = far.end().await;
                assert!(!end.failed, "{end}");
            }
        }
    }
}
