//! Connections that become too old: no call is lost, and load comes back at different times.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall_core::config::Limits;
use farcall_core::proto::wire::{CloseCode, FrameType};
use farcall_core::status::{Code, Executed};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;
use tokio::time::{Instant, sleep};

use support::{ECHO, HANG, Setup, WAIT, bytes, host, info, plain, setup, until};

/// Connections of this server live for 10 s.
fn aging(set: impl FnOnce(&mut Limits)) -> Setup {
    let mut limits = aged(10_000);
    set(&mut limits);
    setup(plain(Limits::default()), plain(limits))
}

fn aged(ms: u64) -> Limits {
    let mut limits = Limits::default();
    limits.max_connection_age_ms = ms;
    limits
}

fn connections(t: &Setup) -> usize {
    t.near.taps.lock().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn a_client_connects_again_and_again_and_loses_no_call() {
    let t = aging(|_| {});
    for call in 0..1000 {
        assert_eq!(t.call(ECHO, bytes(100, call)).await.unwrap(), bytes(100, call));
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(t.seen.runs(), 1000);
    // In 100 s.
    assert!((9..=12).contains(&connections(&t)), "{} connections", connections(&t));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_meet_the_end_of_their_connection_do_not_fail() {
    let t = Arc::new(aging(|limits| limits.max_connection_age_ms = 20));
    let calls = Arc::new(AtomicU32::new(0));
    let callers = (0..8).map(|i| {
        let (t, calls) = (t.clone(), calls.clone());
        tokio::spawn(async move {
            let argument = bytes(i * 40_000, i);
            while connections(&t) < 20 {
                assert_eq!(t.call(ECHO, argument.clone()).await.unwrap(), argument);
                calls.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert_eq!(t.seen.runs(), calls.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn connections_that_came_together_end_at_different_times() {
    let (server, _) = host(plain(aged(100_000)));
    let began = Instant::now();
    let ended = (0..50).map(|_| {
        let server = server.clone();
        tokio::spawn(async move {
            let (near, far) = memory::pair();
            server.serve(far);
            let mut peer = Peer::greeted(near, hello()).await;
            sleep(Duration::from_secs(89)).await;
            let (_, goaway) = peer.expect(FrameType::GOAWAY).await;
            assert!(goaway.windows(21).any(|text| text == b"max_connection_age_ms"), "{goaway:?}");
            began.elapsed()
        })
    });
    let mut seconds = Vec::new();
    for ended in ended.collect::<Vec<_>>() {
        seconds.push(ended.await.unwrap().as_secs());
    }
    assert!(seconds.iter().all(|age| (90..=110).contains(age)), "{seconds:?}");
    assert!(seconds.iter().any(|age| *age < 97) && seconds.iter().any(|age| *age > 103), "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_on_while_others_use_the_next_connection() {
    let t = aging(|_| {});
    let waiting = t.spawn(WAIT, "long");
    until("it runs", || t.seen.runs() == 1).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(t.call(ECHO, "new").await.unwrap(), "new");
    assert_eq!(connections(&t), 2);
    t.seen.go.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap(), "long");
}

#[tokio::test(start_paused = true)]
async fn calls_that_go_on_for_longer_than_the_grace_are_cut_off() {
    let t = aging(|limits| limits.max_connection_age_grace_ms = 5000);
    let began = Instant::now();
    let status = t.call(HANG, "").await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe));
    assert!(status.message().contains("limits.max_connection_age_grace_ms"), "{status}");
    let after = began.elapsed().as_secs();
    assert!((14..=16).contains(&after), "{after}");
}

#[tokio::test(start_paused = true)]
async fn an_old_connection_without_calls_is_closed() {
    let (server, _) = host(plain(aged(10_000)));
    let (near, far) = memory::pair();
    server.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(&info("test"));
    peer.expect_close(CloseCode::Done, "limits.max_connection_age_ms").await;
    server.finished().await;
}
