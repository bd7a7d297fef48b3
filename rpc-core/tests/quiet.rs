//! Peers that go quiet: before their HELLO, in the middle of a message, or with nothing to do.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farcall_core::config::Limits;
use farcall_core::proto::wire::{CloseCode, FrameType};
use farcall_core::server::ServerCore;
use farcall_core::testing::{Peer, hello, request};
use farcall_core::transport::{Link, memory};
use tokio::time::Instant;

use support::{ECHO, HANG, Setup, WAIT, host, info, plain, setup, until};

/// The reason that a client is told when it stops in the middle of a message.
const STOPPED: &str = "in the middle of a message for 20s (limits.stall_ms)";

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn limits(set: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    set(&mut limits);
    limits
}

/// A server that watches its connections.
fn watching(limits: Limits) -> Arc<ServerCore> {
    let (server, _) = host(plain(limits));
    let watched = server.clone();
    tokio::spawn(async move { watched.watch().await });
    server
}

async fn greeted(server: &Arc<ServerCore>) -> Peer {
    let (near, far) = memory::pair();
    server.serve(far);
    Peer::greeted(near, hello()).await
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_in_the_middle_of_a_message_is_closed() {
    let server = watching(limits(|limits| limits.stall_ms = 20_000));
    let mut peer = greeted(&server).await;
    peer.bind(&info("test"));
    peer.begin(FrameType::REQUEST, 1, 100_000, &[0; 10]);
    tokio::time::sleep(secs(19)).await;
    // So much is progress.
    peer.session_frame(FrameType::FRAGMENT, 1, 0, vec![0; 4096]);
    let begun = Instant::now();
    peer.expect_close(CloseCode::Silent, STOPPED).await;
    let after = begun.elapsed().as_secs();
    assert!((20..=30).contains(&after), "{after}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_all_but_stops_in_the_middle_of_a_message_is_closed() {
    type Step = fn(&mut Peer, u64);
    let drops: Step = |peer, _| peer.session_frame(FrameType::FRAGMENT, 1, 0, vec![0; 100]);
    let pings: Step = |peer, _| {
        for _ in 0..100 {
            peer.link_frame(FrameType::PING, vec![0; 8]);
        }
    };
    let calls: Step = |peer, call| peer.session_frame(FrameType::REQUEST, call, 0, request(ECHO, &[1; 4096]));
    for step in [drops, pings, calls] {
        let server = watching(limits(|limits| limits.stall_ms = 20_000));
        let mut peer = greeted(&server).await;
        peer.bind(&info("test"));
        peer.begin(FrameType::REQUEST, 1, 100_000, &[0; 10]);
        let begun = Instant::now();
        for call in 2.. {
            tokio::time::sleep(secs(1)).await;
            if server.connections().is_empty() {
                break;
            }
            step(&mut peer, call);
        }
        assert!((20..=30).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        peer.expect_close(CloseCode::Silent, STOPPED).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_is_not_closed() {
    let server = watching(limits(|limits| limits.stall_ms = 20_000));
    let mut peer = greeted(&server).await;
    peer.bind(&info("test"));
    let message = request(ECHO, &[1; 99_000]);
    let mut pieces = message.chunks(1000);
    peer.begin(FrameType::REQUEST, 1, message.len() as u32, pieces.next().unwrap());
    for piece in pieces {
        tokio::time::sleep(secs(3)).await;
        peer.session_frame(FrameType::FRAGMENT, 1, 0, piece.to_vec());
    }
    peer.expect(FrameType::RESPONSE).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_its_call_is_not_closed() {
    let server = watching(limits(|limits| (limits.stall_ms, limits.idle_ms) = (2000, 1000)));
    let mut peer = greeted(&server).await;
    peer.bind(&info("test"));
    peer.session_frame(FrameType::REQUEST, 1, 0, request(HANG, b""));
    tokio::time::sleep(secs(600)).await;
    assert_eq!(server.connections().len(), 1);
    // When the call is over, it is idle.
    peer.session_frame(FrameType::CANCEL, 1, 0, vec![0]);
    let (_, goaway) = peer.expect(FrameType::GOAWAY).await;
    assert!(goaway.windows(14).any(|text| text == b"limits.idle_ms"), "{goaway:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_and_no_call_is_lost() {
    let t = setup(plain(Limits::default()), plain(limits(|limits| limits.idle_ms = 10_000)));
    let server = t.host.clone();
    tokio::spawn(async move { server.watch().await });
    let works = async |t: &Setup| assert_eq!(t.call(ECHO, "x").await.unwrap(), "x");
    works(&t).await;
    tokio::time::sleep(secs(60)).await;
    assert!(t.host.connections().is_empty());
    works(&t).await;
    let waiting = t.spawn(WAIT, "y");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(t.host.connections().len(), 1);
    t.seen.go.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap(), "y");
    assert_eq!(t.seen.runs.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_client_only_pings_is_idle() {
    let server = watching(limits(|limits| limits.idle_ms = 10_000));
    let mut peer = greeted(&server).await;
    for _ in 0..20 {
        tokio::time::sleep(secs(1)).await;
        peer.link_frame(FrameType::PING, vec![0; 8]);
    }
    while let Some((header, payload)) = peer.next().await {
        if header.kind == FrameType::GOAWAY {
            assert!(payload.windows(14).any(|text| text == b"limits.idle_ms"), "{payload:?}");
            return;
        }
    }
    panic!("the link ended without a GOAWAY");
}

#[tokio::test(start_paused = true)]
async fn unfinished_handshakes_make_room_for_others() {
    // A budget of its own, in which no other test's connections are counted.
    let server = watching(limits(|limits| (limits.handshakes, limits.memory) = (8, 64 << 20)));
    let silent: Vec<Arc<dyn Link>> = (0..100)
        .map(|_| {
            let (near, far) = memory::pair();
            server.serve(far);
            near as Arc<dyn Link>
        })
        .collect();
    let begun = Instant::now();
    let _honest = greeted(&server).await;
    assert!(begun.elapsed() < secs(1));
    // The others were closed at once, without waiting for their HELLO.
    let mut first = Peer::new(silent[0].clone());
    first.read();
    first.expect_close(CloseCode::Overloaded, "limits.handshakes").await;
    assert!(begun.elapsed() < secs(1));
    // The last ones have their time, and no more.
    let open = || server.memory().peers().iter().map(|peer| peer.connections).sum::<usize>();
    until("those that were closed are gone", || (7..=9).contains(&open())).await;
    assert!(begun.elapsed() < secs(1));
    tokio::time::sleep(secs(20)).await;
    assert_eq!(open(), 1, "only the one with a HELLO stays");
}
