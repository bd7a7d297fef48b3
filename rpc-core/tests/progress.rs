//! Calls that end because nothing of them has moved for a while, and calls that go on as long as something does.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::future::IntoFuture;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::client::Stub;
use farcall_core::config::Limits;
use farcall_core::payload::{Encoder, Payload};
use farcall_core::proto::wire::{
    Batch, Content, FrameType, Hello, ResponseHead, ResponseKind, Window, features,
};
use farcall_core::status::{Blame, Code, Executed, Result, Status};
use farcall_core::stream::EndReason;
use farcall_core::testing::{Peer, hello};
use tokio::time::{Instant, sleep};

use farcall_core::transport::memory;
use support::peer::{Play, played_to};
use support::streaming::{self, COUNT, FOREVER, FromFn, SUM, items};
use support::{ECHO, HANG, Setup, WAIT, bytes, default, plain, setup, until};

const LIMIT: Duration = Duration::from_secs(8);

/// A while in which a call may be quiet.
const QUIET: Duration = Duration::from_secs(6);

/// Asserts that a call has ended as one does of which nothing has moved since `then`. Its end may be noticed an eighth late.
fn assert_stalled(status: &Status, then: Instant) {
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::Maybe), "{status}");
    assert_eq!(status.blame(), Blame::Peer);
    assert!(status.message().contains("nothing of the call has moved for 8s"), "{status}");
    let after = then.elapsed();
    assert!((LIMIT..=LIMIT + LIMIT / 8 + Duration::from_millis(5)).contains(&after), "after {after:?}");
}

/// A caller whose server the test plays. It bears a server that answers no pings.
fn played_patiently() -> Play {
    let mut settings = plain(Limits::default());
    settings.liveness.ping_ms = 3_600_000;
    played_to(memory::pair, settings)
}

/// Returns an ITEM of one byte.
fn item() -> Bytes {
    let mut batch = Batch::new(Encoder::new());
    batch.put(&Payload::from_body(Bytes::from_static(b"x")));
    let (head, payload) = batch.finish();
    let content = Content { metadata: Bytes::new(), payload };
    let mut item = BytesMut::new();
    head.encode(&content, &mut item).unwrap();
    item.extend_from_slice(&content.payload.into_body());
    item.freeze()
}

fn with_streams() -> Hello {
    Hello { features: features::STREAMS, stream_items: 10, stream_bytes: 1000, ..hello() }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_which_nothing_moves_ends_and_its_handler_is_dropped() {
    let t = default();
    let began = Instant::now();
    let late = t.call(HANG, "").progress_timeout(LIMIT).await.unwrap_err();
    assert_stalled(&late, began);
    assert!(late.message().contains("no part of an answer has come"), "{late}");
    until("the handler is dropped", || t.seen.hanging() == 0).await;
    // The connection has shown signs of life meanwhile, and the server was told.
    assert!(t.tap().count(FrameType::PING) > 0);
    assert_eq!(t.tap().count(FrameType::CANCEL), 1);
    assert_eq!(t.call(ECHO, "x").progress_timeout(LIMIT).await.unwrap(), "x");
}

#[tokio::test(start_paused = true)]
async fn a_channel_sets_the_limit_of_calls_that_set_none() {
    let mut client = plain(Limits::default());
    client.calls.progress_timeout_ms = 8000;
    let t = setup(client, plain(Limits::default()));
    let through_middleware = t.caller.intercept(|request, next| next.run(request));
    for caller in [&t.caller, &through_middleware] {
        let began = Instant::now();
        let late = support::call(caller, &t.info, HANG, "").await.unwrap_err();
        assert_stalled(&late, began);
    }
    let ages = t.call(ECHO, "x").progress_timeout(Duration::MAX - Duration::from_secs(1));
    assert_eq!(ages.await.unwrap(), "x");
    let began = Instant::now();
    let limited = t.call(HANG, "").progress_timeout(Duration::MAX).timeout(Duration::from_secs(100));
    assert_eq!(limited.await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(began.elapsed().as_secs(), 100);
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_both_limits_holds() {
    let t = default();
    let began = Instant::now();
    let call = t.call(HANG, "").progress_timeout(LIMIT).timeout(Duration::from_secs(3));
    let late = call.await.unwrap_err();
    assert!(!late.message().contains("progress"), "{late}");
    assert_eq!(began.elapsed().as_secs(), 3);
    let began = Instant::now();
    let call = t.call(HANG, "").progress_timeout(LIMIT).timeout(Duration::from_secs(30));
    assert_stalled(&call.await.unwrap_err(), began);
}

#[tokio::test(start_paused = true)]
async fn many_calls_are_watched_at_once_each_by_its_own_limit() {
    let t = default();
    let began = Instant::now();
    let mut calls = Vec::new();
    for n in 1..=50 {
        let call = t.call(HANG, "").progress_timeout(Duration::from_secs(n));
        calls.push(tokio::spawn(async move { (call.await.unwrap_err(), n, began.elapsed().as_secs()) }));
    }
    for call in calls {
        let (status, n, after) = call.await.unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!((n..=n + n / 8 + 1).contains(&after), "{n} s: after {after} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_place_ends_unexecuted() {
    let mut limits = Limits::default();
    limits.concurrent_calls = 1;
    let t = setup(plain(Limits::default()), plain(limits));
    let first = t.spawn(WAIT, "");
    t.seen.started.notified().await;
    let began = Instant::now();
    let late = t.call(ECHO, "").progress_timeout(LIMIT).await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(late.message().contains("waiting for a place"), "{late}");
    assert_eq!(began.elapsed(), LIMIT);
    t.seen.go.notify_one();
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_take_as_long_as_parts_of_it_come() {
    const BODY: usize = 9990;
    let (caller, mut links, _) = played_patiently();
    let t = Setup { caller, ..default() };
    let call = tokio::spawn(t.call(ECHO, "").progress_timeout(LIMIT).into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    peer.expect(FrameType::REQUEST).await;
    let began = Instant::now();
    let mut body = BytesMut::new();
    let content = Content { payload: Payload::from_body(vec![7; BODY].into()), ..Content::default() };
    ResponseHead { kind: ResponseKind::Ok }.encode(&content, &mut body).unwrap();
    body.resize(body.len() + BODY, 7);
    let total = body.len() as u32;
    peer.begin(FrameType::RESPONSE, 1, total, &body[..1000]);
    for part in body[1000..9000].chunks(1000) {
        sleep(QUIET).await;
        peer.session_frame(FrameType::FRAGMENT, 1, 0, part.to_vec());
    }
    sleep(QUIET).await;
    assert!(!call.is_finished(), "{:?}", began.elapsed());
    peer.session_frame(FrameType::FRAGMENT, 1, 0, body[9000..].to_vec());
    assert_eq!(call.await.unwrap().unwrap().len(), BODY);
    assert_eq!(began.elapsed(), 9 * QUIET);

    // And one that stops in its middle ends.
    let call = tokio::spawn(t.call(ECHO, "").progress_timeout(LIMIT).into_future());
    let call_number = peer.expect(FrameType::REQUEST).await.0.call;
    sleep(QUIET).await;
    peer.begin(FrameType::RESPONSE, call_number, total, &body[..1000]);
    let then = Instant::now();
    // Frames that keep a connection alive are no progress.
    for _ in 0..3 {
        sleep(Duration::from_secs(2)).await;
        peer.link_frame(FrameType::PING, [0; 8].to_vec());
    }
    let late = call.await.unwrap().unwrap_err();
    assert_stalled(&late, then);
    assert!(late.message().contains(&format!("1000 of {total} bytes of a message have come")), "{late}");
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_as_long_as_parts_of_it_leave() {
    let mut settings = plain(Limits::default());
    settings.liveness.ping_ms = 3_600_000;
    let t = setup(settings, plain(Limits::default()));
    t.call(ECHO, "").await.unwrap();
    t.tap().take(0);
    let call = t.call(ECHO, bytes(4 << 20, 0)).progress_timeout(LIMIT);
    let call = tokio::spawn(call.into_future());
    for _ in 0..10 {
        sleep(QUIET).await;
        t.tap().take(1);
    }
    let then = Instant::now();
    let late = call.await.unwrap().unwrap_err();
    assert_stalled(&late, then);
    assert!(late.message().contains("of 4194"), "{late}");
    assert!(late.message().contains("bytes of a message were sent"), "{late}");
    assert_eq!(t.seen.runs(), 1, "the server has got a part of the request");
    t.tap().take(usize::MAX);
    assert_eq!(t.call(ECHO, "x").await.unwrap(), "x");
}

#[tokio::test(start_paused = true)]
async fn a_stream_may_take_as_long_as_items_come() {
    let (caller, mut links, _) = played_patiently();
    let t = streaming::Setup { stub: Stub::new(caller, streaming::info()), ..streaming::default() };
    let call = tokio::spawn(t.watch(COUNT, "").progress_timeout(LIMIT).into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), with_streams()).await;
    peer.expect(FrameType::REQUEST).await;
    sleep(QUIET).await;
    peer.respond(1, b"");
    let mut stream = call.await.unwrap().unwrap();
    let reader = tokio::spawn(async move {
        let mut count = 0;
        loop {
            match stream.message().await {
                Ok(Some(_)) => count += 1,
                end => break (end, stream.end_reason(), count),
            }
        }
    });
    for _ in 0..10 {
        sleep(QUIET).await;
        peer.session_frame(FrameType::ITEM, 1, 0, item());
    }
    let then = Instant::now();
    let (end, reason, count) = reader.await.unwrap();
    assert_stalled(&end.unwrap_err(), then);
    assert_eq!((reason, count), (Some(EndReason::Deadline), 10));
    assert_eq!(peer.expect(FrameType::CANCEL).await.1[0], 1, "the reason is a deadline");
}

#[tokio::test(start_paused = true)]
async fn an_application_that_reads_late_has_not_let_its_stream_stall() {
    let t = streaming::default();
    let mut stream = t.watch(FOREVER, "").progress_timeout(LIMIT).await.unwrap();
    for _ in 0..3000 {
        stream.message().await.unwrap().unwrap();
    }
    sleep(10 * LIMIT).await;
    // The server was held up meanwhile, and goes on.
    for _ in 0..3000 {
        stream.message().await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_arguments_goes_on_as_long_as_its_reader_gives_it_room() {
    let (caller, mut links, _) = played_patiently();
    let t = streaming::Setup { stub: Stub::new(caller, streaming::info()), ..streaming::default() };
    let endless = FromFn(|_: &mut TaskContext<'_>| Poll::Ready(Some(Ok(bytes(10, 0)))));
    let call = tokio::spawn(t.load(SUM, endless).progress_timeout(LIMIT).into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), with_streams()).await;
    for n in 2..10_u64 {
        sleep(QUIET).await;
        let mut window = BytesMut::new();
        Window { items: 10 * n, bytes: 1000 * n }.encode(&mut window);
        peer.session_frame(FrameType::WINDOW, 1, 0, window.freeze());
    }
    let then = Instant::now();
    let late = call.await.unwrap().unwrap_err();
    assert_stalled(&late, then);
    let seen = "90 items of a stream were sent, and its reader has no room for more";
    assert!(late.message().contains(seen), "{late}");
    peer.expect(FrameType::CANCEL).await;
}

#[tokio::test(start_paused = true)]
async fn arguments_that_nobody_takes_end_a_call_whose_answer_has_begun() {
    let (caller, mut links, _) = played_patiently();
    let t = streaming::Setup { stub: Stub::new(caller, streaming::info()), ..streaming::default() };
    let endless = FromFn(|_: &mut TaskContext<'_>| Poll::Ready(Some(Ok(bytes(10, 0)))));
    let call = tokio::spawn(t.chat(endless).progress_timeout(LIMIT).into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), with_streams()).await;
    peer.expect(FrameType::ITEM).await;
    peer.respond(1, b"");
    let then = Instant::now();
    let mut answers = call.await.unwrap().unwrap();
    // Nobody reads the answers. The task that sends the arguments gives the call up.
    peer.expect(FrameType::CANCEL).await;
    let late = answers.message().await.unwrap_err();
    assert_stalled(&late, then);
    assert_eq!(answers.end_reason(), Some(EndReason::Deadline));
}

#[tokio::test(start_paused = true)]
async fn arguments_that_are_made_slowly_end_no_call_that_is_not_read() {
    let t = streaming::default();
    let mut timer = Box::pin(sleep(5 * LIMIT));
    let mut left = 3;
    let slow = FromFn(move |cx: &mut TaskContext<'_>| {
        if left == 0 {
            return Poll::Ready(None::<Result<Bytes>>);
        }
        std::task::ready!(timer.as_mut().poll(cx));
        timer.as_mut().reset(Instant::now() + 5 * LIMIT);
        left -= 1;
        Poll::Ready(Some(Ok(bytes(10, 0))))
    });
    let mut answers = t.chat(slow).progress_timeout(LIMIT).await.unwrap();
    sleep(20 * LIMIT).await;
    for _ in 0..3 {
        answers.message().await.unwrap().unwrap();
    }
    assert_eq!(answers.message().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_always_busy_does_not_end() {
    let t = streaming::default();
    let answer = t.load(SUM, items(100_000, 100, None)).progress_timeout(Duration::from_millis(1)).await;
    assert_eq!(answer.unwrap(), "100000 10000000");
}
