//! Calls that end before they are done: by their deadline, by being dropped, or because nobody is there. And long calls
//! that hold up no others.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::{Limits, Policy};
use farcall_core::proto::wire::FrameType;
use farcall_core::status::{Blame, Code, Executed, Result};
use farcall_core::transport::{BoxFuture, Link};
use tokio::time::Instant;

use support::fabric::{Fabric, with_fabric};
use support::tap::Passed;
use support::{BIG, ECHO, HANG, Setup, WAIT, bytes, call, default, info, plain, setup, until};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn few(calls: u32) -> Setup {
    let mut limits = Limits::default();
    limits.concurrent_calls = calls;
    setup(plain(Limits::default()), plain(limits))
}

#[tokio::test(start_paused = true)]
async fn the_server_hears_the_rest_of_a_deadline() {
    let t = few(1);
    let first = t.spawn(WAIT, "");
    t.seen.started.notified().await;
    let second = tokio::spawn(t.call(ECHO, "x").timeout(secs(10)).into_future());
    // It waits for a place.
    tokio::time::sleep(secs(4)).await;
    t.seen.go.notify_one();
    first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().unwrap(), "x");
    let remaining = t.seen.remaining.lock().unwrap().clone();
    assert_eq!(remaining[0], None);
    assert!((5000..=6000).contains(&remaining[1].unwrap()), "{remaining:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_when_it_is_set_and_the_earliest_limit_holds() {
    let t = default();
    let began = Instant::now();
    let deadline = (began + secs(10)).into_std();
    let late = t.call(HANG, "").deadline(deadline);
    let soon = t.call(HANG, "").deadline(deadline).timeout(secs(2));
    tokio::time::sleep(secs(4)).await;
    let (late, soon) = (tokio::spawn(late.into_future()), tokio::spawn(soon.into_future()));
    assert_eq!(soon.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(began.elapsed().as_secs(), 6);
    assert_eq!(late.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(began.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_sets_no_timeout_has_the_channels() {
    let mut client = plain(Limits::default());
    client.calls.timeout_ms = 3000;
    let t = setup(client, plain(Limits::default()));
    let through_middleware = t.caller.intercept(|request, next| async move {
        tokio::time::sleep(secs(1)).await;
        next.run(request).await
    });
    for (caller, call_sets, lasts) in [
        (&t.caller, None, 3),
        (&through_middleware, None, 3),
        (&t.caller, Some(secs(1)), 1),
        (&t.caller, Some(secs(5)), 5),
    ] {
        let began = Instant::now();
        let mut waits = call(caller, &t.info, HANG, "");
        if let Some(timeout) = call_sets {
            waits = waits.timeout(timeout);
        }
        assert_eq!(waits.await.unwrap_err().code(), Code::DeadlineExceeded);
        assert_eq!(began.elapsed().as_secs(), lasts, "{call_sets:?}");
    }
    let began = Instant::now();
    let late = t.call(HANG, "").deadline((began + secs(7)).into_std());
    assert_eq!(late.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(began.elapsed().as_secs(), 7, "a deadline of its own counts");
    for caller in [&t.caller, &through_middleware] {
        let unlimited = tokio::spawn(call(caller, &t.info, HANG, "").timeout(Duration::MAX).into_future());
        tokio::time::sleep(secs(100)).await;
        assert!(!unlimited.is_finished());
        unlimited.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_expired_is_not_sent() {
    let t = default();
    t.caller.connection().await.unwrap();
    let error = t.call(ECHO, "").timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(error.message().contains("not sent"), "{error}");
    assert_eq!((t.seen.runs(), t.tap().count(FrameType::REQUEST)), (0, 0));
}

/// A connector that never connects.
struct Nowhere;

impl Connector for Nowhere {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        Box::pin(pending())
    }

    fn target(&self) -> String {
        "the moon:7400".into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_while_connecting_says_to_whom() {
    let caller = RawChannel::new(Nowhere, plain(Limits::default()));
    let error = call(&caller, &info("test"), ECHO, "").timeout(secs(1)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(error.message().contains("not connected to the moon:7400 after 1.0s"), "{error}");
}

#[tokio::test]
async fn a_long_request_that_is_dropped_gives_its_part_of_the_limits_back() {
    let t = default();
    // Together far more than max_assembly (256 MiB), one after the other and never finished.
    for round in 0..12 {
        let before = t.near.taps.lock().unwrap().last().map_or(0, |tap| tap.count(FrameType::FRAGMENT));
        let long = t.spawn(ECHO, vec![round; 60 << 20]);
        let begun =
            || t.near.taps.lock().unwrap().last().is_some_and(|tap| tap.count(FrameType::FRAGMENT) > before);
        until("it has begun", begun).await;
        long.abort();
        assert!(long.await.unwrap_err().is_cancelled());
        assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
    }
    assert_eq!(t.seen.runs(), 12, "no part of a request reaches a handler");
    assert_eq!(t.tap().count(FrameType::CANCEL), 0, "a call that was never made is not cancelled");
    assert_eq!(t.near.taps.lock().unwrap().len(), 1, "all that on one connection");
}

#[tokio::test]
async fn thousands_of_dropped_calls_leave_nothing_behind() {
    let t = few(64);
    for _ in 0..60 {
        // More than there are places: some are dropped while they wait for one.
        let calls: Vec<_> = (0..100).map(|_| t.spawn(HANG, "")).collect();
        until("all places are taken", || t.seen.hanging() == 64).await;
        calls.iter().for_each(|call| call.abort());
        until("their handlers are dropped", || t.seen.hanging() == 0).await;
        // The places are free, on both sides.
        let calls: Vec<_> = (0..64).map(|i| t.spawn(ECHO, bytes(100, i))).collect();
        for (i, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap().unwrap(), bytes(100, i));
        }
    }
    let connection = Arc::downgrade(&t.caller.connection().await.unwrap());
    let served = Arc::downgrade(&t.host.connections()[0]);
    drop(t.caller);
    until("the connection is gone, on both sides", || connection.strong_count() + served.strong_count() == 0)
        .await;
}

/// Returns the longest time until the silence of a peer is detected.
fn bound() -> Duration {
    let liveness = farcall_core::config::Liveness::default();
    liveness.ping() * (liveness.missed_pings + 2)
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_falls_silent_is_found_in_time() {
    for upgraded in [false, true] {
        let fabric = Arc::<Fabric>::default();
        let t = if upgraded { with_fabric(&fabric, Policy::Auto) } else { default() };
        let hanging = t.spawn(HANG, "");
        t.seen.started.notified().await;
        // Not during the first check of the peer.
        tokio::time::sleep(secs(7)).await;
        t.tap().silence();
        fabric.links.lock().unwrap().iter().for_each(|link| link.silence());
        let began = Instant::now();
        let error = hanging.await.unwrap().unwrap_err();
        assert!(began.elapsed() <= bound(), "{:?}", began.elapsed());
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe));
        assert_eq!(error.blame(), Blame::Peer);
        assert!(error.message().contains("no sign of the peer"), "{error}");
        assert!(error.message().contains("3 pings unanswered"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_its_time_is_not_taken_for_a_silent_one() {
    let t = default();
    let error = t.call(HANG, "").timeout(secs(600)).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(t.tap().count(FrameType::PING) >= 100);
    // No PINGs are sent while no call waits.
    let pings = t.tap().count(FrameType::PING);
    tokio::time::sleep(secs(600)).await;
    assert!(t.tap().count(FrameType::PING) <= pings + 1);
}

const LONG: usize = 60 << 20;

/// Checks that most frames of the long message came after the last short one. The short ones were sent when the long
/// one had begun.
fn passed_by(frames: &[Passed], short: FrameType) {
    let last = frames.iter().rposition(|frame| frame.0 == short).unwrap();
    let long = |frames: &[Passed]| frames.iter().filter(|frame| frame.0 == FrameType::FRAGMENT).count();
    let (before, all) = (long(&frames[..last]), long(frames));
    assert_eq!(all, LONG.div_ceil(128 << 10), "one of its frames has the type of the message");
    assert!(before < all / 2, "{before} of {all} frames went before the short ones");
}

#[tokio::test]
async fn a_long_message_lets_short_ones_through() {
    let t = default();
    t.caller.connection().await.unwrap();
    let long = t.spawn(ECHO, vec![5; LONG]);
    until("it has begun", || t.tap().count(FrameType::FRAGMENT) > 0).await;
    let short: Vec<_> = (0..100).map(|i| t.spawn(ECHO, bytes(50, i))).collect();
    for (i, call) in short.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), bytes(50, i));
    }
    assert_eq!(long.await.unwrap().unwrap(), Bytes::from(vec![5; LONG]));
    passed_by(&t.tap().sent(), FrameType::REQUEST);
}

#[tokio::test]
async fn a_long_answer_lets_short_ones_through() {
    let t = default();
    let long = t.spawn(BIG, LONG.to_string());
    until("it has begun", || t.seen.runs() == 1).await;
    let short: Vec<_> = (0..100).map(|i| t.spawn(ECHO, bytes(50, i))).collect();
    for (i, call) in short.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), bytes(50, i));
    }
    assert_eq!(long.await.unwrap().unwrap().len(), LONG);
    passed_by(&t.tap().arrived(), FrameType::RESPONSE);
}

#[tokio::test]
async fn many_short_ones_do_not_stop_a_long_one() {
    let t = Arc::new(default());
    let long = t.spawn(ECHO, vec![5; 4 << 20]);
    let short: Vec<_> = (0..64)
        .map(|i| {
            let t = t.clone();
            // Without an end of their own, so they run until the long one ends.
            tokio::spawn(async move {
                loop {
                    t.call(ECHO, bytes(50, i)).await.unwrap();
                }
            })
        })
        .collect();
    assert_eq!(long.await.unwrap().unwrap().len(), 4 << 20);
    short.iter().for_each(|task| task.abort());
}
