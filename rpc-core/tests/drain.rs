//! Draining servers: calls that have begun are answered, and others go elsewhere.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Context as TaskContext;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::client::Stub;
use farcall_core::config::{Limits, Policy};
use farcall_core::proto::wire::{CloseCode, FrameType, Goaway, Header, Hello, RequestHead, features};
use farcall_core::region::{Region, Rights};
use farcall_core::status::{Code, Executed, Result};
use farcall_core::stream::{EndReason, Stream};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;
use tokio::sync::mpsc;

use support::fabric::{Fabric, with_fabric};
use support::peer::played;
use support::streaming::{self, FromFn};
use support::{BIG, ECHO, HANG, Setup, WAIT, bytes, call, default, host, info, plain, until};

const GRACE: Duration = Duration::from_secs(60);

/// 60 MiB, longer than all buffers on the way.
const LONG: usize = 60 << 20;

async fn a_long_answer_is_delivered(t: Setup) {
    t.caller.connection().await.unwrap();
    let answer = t.spawn(BIG, LONG.to_string());
    until("the handler has run", || t.seen.runs() == 1).await;
    t.host.drain(GRACE).await;
    assert_eq!(answer.await.unwrap().unwrap().len(), LONG);
    assert!(t.host.connections().is_empty());
}

#[tokio::test]
async fn a_long_answer_is_delivered_while_the_server_drains() {
    a_long_answer_is_delivered(default()).await;
}

#[tokio::test]
async fn a_long_answer_by_an_upgraded_link_is_delivered_before_the_close() {
    let fabric = Arc::new(Fabric::default());
    a_long_answer_is_delivered(with_fabric(&fabric, Policy::Auto)).await;
}

#[tokio::test]
async fn a_long_request_that_has_begun_is_answered_before_the_close() {
    let t = default();
    t.caller.connection().await.unwrap();
    let argument = Bytes::from(vec![3; LONG]);
    let answer = t.spawn(ECHO, argument.clone());
    until("it has begun", || t.tap().count(FrameType::FRAGMENT) > 0).await;
    assert_eq!(t.seen.runs(), 0);
    // The call arrives when the server accepts no more, so it is refused. The refusal is its answer, and the call is
    // made again.
    let (second, seen) = host(plain(Limits::default()));
    t.near.hosts.lock().unwrap().push(second);
    t.host.drain(GRACE).await;
    assert_eq!(answer.await.unwrap().unwrap(), argument);
    assert_eq!(t.seen.runs() + seen.runs(), 1);
}

#[tokio::test]
async fn calls_that_cross_the_goaway_are_served() {
    let t = default();
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(&info("test"));
    let host = t.host.clone();
    let drained = tokio::spawn(async move { host.drain(GRACE).await });
    peer.expect(FrameType::GOAWAY).await;
    let (ping, token) = peer.expect(FrameType::PING).await;
    peer.request(1, ECHO, b"x");
    peer.expect(FrameType::RESPONSE).await;
    assert_eq!(t.seen.runs(), 1, "it was refused");
    peer.send(Header::new(FrameType::PONG, ping.call), token);
    let (_, payload) = peer.expect(FrameType::GOAWAY).await;
    assert_eq!(Goaway::decode(payload).unwrap().last_call, 1);
    peer.request(2, ECHO, b"y");
    peer.expect_close(CloseCode::Done, "drained").await;
    drained.await.unwrap();
    assert_eq!(t.seen.runs(), 1, "it came too late");
}

#[tokio::test]
async fn a_session_that_is_established_meanwhile_is_drained_too() {
    let t = default();
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::new(near);
    peer.read();
    let host = t.host.clone();
    let stopped = tokio::spawn(async move {
        host.drain(GRACE).await;
        host.close();
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!stopped.is_finished());
    peer.hello(&hello());
    peer.expect(FrameType::HELLO).await;
    peer.bind(&info("test"));
    peer.request(1, ECHO, b"x");
    peer.expect(FrameType::RESPONSE).await;
    assert_eq!(t.seen.runs(), 1, "it was refused");
    peer.expect_close(CloseCode::Done, "drained").await;
    stopped.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_does_not_outlast_the_grace() {
    let t = default();
    let (_near, far) = memory::pair();
    t.host.serve(far);
    let begun = tokio::time::Instant::now();
    t.host.drain(Duration::from_millis(10)).await;
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
}

/// Many callers, while their server is replaced again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_and_repeats_no_call() {
    const CALLS: u32 = 3000;
    let t = Arc::new(default());
    let begun = Arc::new(AtomicU32::new(0));
    let callers: Vec<_> = (0..8)
        .map(|i| {
            let (t, begun) = (t.clone(), begun.clone());
            tokio::spawn(async move {
                let argument = bytes(i * 40_000, i);
                while begun.fetch_add(1, Ordering::Relaxed) < CALLS {
                    assert_eq!(t.call(ECHO, argument.clone()).await.unwrap(), argument);
                }
            })
        })
        .collect();
    let mut runs = vec![t.seen.clone()];
    // Each draining server may refuse a call, and a call is made four times at most.
    for restart in 1..=3 {
        until("some more calls", || begun.load(Ordering::Relaxed) > restart * CALLS / 4).await;
        let (next, seen) = host(plain(Limits::default()));
        runs.push(seen);
        let last = {
            let mut hosts = t.near.hosts.lock().unwrap();
            hosts.push(next);
            hosts[hosts.len() - 2].clone()
        };
        last.drain(GRACE).await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(runs.iter().map(|seen| seen.runs()).sum::<u32>(), CALLS);
}

fn go_away(peer: &mut Peer, last_call: u64) {
    let mut payload = BytesMut::new();
    Goaway { last_call, reason: "upgrade".into() }.encode(&mut payload);
    peer.session_frame(FrameType::GOAWAY, 0, 0, payload);
}

#[tokio::test]
async fn calls_above_the_last_one_go_elsewhere_and_the_others_finish() {
    let (caller, mut links, _) = played();
    let ask =
        |argument: &'static str| tokio::spawn(call(&caller, &info("test"), ECHO, argument).into_future());
    let first = ask("first");
    let mut old = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    assert_eq!(old.expect(FrameType::REQUEST).await.0.call, 1);
    let second = ask("second");
    assert_eq!(old.expect(FrameType::REQUEST).await.0.call, 2);
    let third = ask("third");
    assert_eq!(old.expect(FrameType::REQUEST).await.0.call, 3);

    // No more calls here.
    go_away(&mut old, u64::MAX >> 1);
    tokio::task::yield_now().await;
    let fourth = ask("fourth");
    let mut new = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    let (header, payload) = new.expect(FrameType::REQUEST).await;
    assert_eq!(RequestHead::decode(payload).unwrap().0.attempt, 1);
    new.respond(header.call, b"4");
    assert_eq!(fourth.await.unwrap().unwrap(), "4");

    // The third is not executed here.
    go_away(&mut old, 2);
    let (header, payload) = new.expect(FrameType::REQUEST).await;
    let (head, content) = RequestHead::decode(payload).unwrap();
    assert_eq!((head.attempt, content.payload.len()), (2, "third".len()));
    new.respond(header.call, b"3");
    assert_eq!(third.await.unwrap().unwrap(), "3");
    assert!(!first.is_finished() && !second.is_finished());

    old.respond(2, b"2");
    assert_eq!(second.await.unwrap().unwrap(), "2");
    old.respond(1, b"1");
    assert_eq!(first.await.unwrap().unwrap(), "1");
    old.expect_close(CloseCode::Done, "the server is draining").await;
    let last = ask("last");
    let (header, _) = new.expect(FrameType::REQUEST).await;
    new.respond(header.call, b"5");
    assert_eq!(last.await.unwrap().unwrap(), "5");
}

#[tokio::test]
async fn messages_that_have_not_begun_are_taken_back_and_the_others_go_on() {
    let (caller, mut links, taps) = played();
    let ask = |argument: Bytes| tokio::spawn(call(&caller, &info("test"), ECHO, argument).into_future());
    let long = ask(bytes(2 << 20, 1));
    let mut old = Peer::new(links.recv().await.unwrap());
    old.hello(&hello());
    // The link holds a part of the long request, because nobody reads. The short ones wait behind it.
    let left = |kind| taps.lock().unwrap()[0].count(kind);
    until("a part has left", || left(FrameType::FRAGMENT) > 0).await;
    let short: Vec<_> = (0..100).map(|_| ask(bytes(10_000, 2))).collect();
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    go_away(&mut old, u64::MAX >> 1);
    let mut new = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    old.read();
    // Each arrives once, here or there. The long one arrives where it had begun.
    let (mut here, mut there) = (0, 0);
    let mut arrived = 0;
    while arrived < 2 << 20 {
        let (header, payload) = old.next().await.unwrap();
        match header.kind {
            FrameType::REQUEST if header.flags == 0 => {
                old.respond(header.call, b"");
                here += 1;
            }
            FrameType::REQUEST | FrameType::FRAGMENT => arrived += payload.len(),
            _ => {}
        }
    }
    while here + there < 100 {
        let (header, _) = new.expect(FrameType::REQUEST).await;
        new.respond(header.call, b"");
        there += 1;
    }
    assert!(there > 0, "all had begun: the test shows nothing");
    for call in short {
        call.await.unwrap().unwrap();
    }
    assert!(!long.is_finished());
    old.respond(1, b"done");
    assert_eq!(long.await.unwrap().unwrap(), "done");
}

#[tokio::test]
async fn a_call_that_waits_for_its_turn_does_not_wait_for_a_server_that_goes() {
    let (caller, mut links, _) = played();
    let ask =
        |argument: &'static str| tokio::spawn(call(&caller, &info("test"), ECHO, argument).into_future());
    let first = ask("first");
    let mut old = Peer::greeted(links.recv().await.unwrap(), Hello { max_calls: 1, ..hello() }).await;
    old.expect(FrameType::REQUEST).await;
    let second = ask("second");
    tokio::task::yield_now().await;
    go_away(&mut old, u64::MAX >> 1);
    let mut new = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    let (header, _) = new.expect(FrameType::REQUEST).await;
    new.respond(header.call, b"2");
    assert_eq!(second.await.unwrap().unwrap(), "2");
    old.respond(1, b"1");
    assert_eq!(first.await.unwrap().unwrap(), "1");
}

#[tokio::test]
async fn a_session_that_comes_after_the_close_is_closed() {
    let t = default();
    let (near, far) = memory::pair();
    t.host.serve(far);
    t.host.close();
    let mut peer = Peer::new(near);
    peer.read();
    peer.hello(&hello());
    peer.expect_close(CloseCode::Done, "the server was closed").await;
}

#[tokio::test]
async fn a_handler_that_is_polled_for_the_first_time_counts_as_running() {
    // The handler waits for the test on the thread that received its request. The drain finds it neither among the
    // tasks nor among the answers.
    let t = default();
    let waiting = t.spawn(WAIT, "x");
    t.seen.started.notified().await;
    let host = t.host.clone();
    let drained = tokio::spawn(async move { host.drain(GRACE).await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!drained.is_finished());
    t.seen.go.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap(), "x");
    drained.await.unwrap();
}

#[tokio::test]
async fn a_drained_server_is_not_executed_and_says_so() {
    let t = default();
    let hanging = t.spawn(HANG, "");
    t.seen.started.notified().await;
    t.host.drain(Duration::ZERO).await;
    assert_eq!(hanging.await.unwrap().unwrap_err().executed(), Executed::Maybe);
    // The host that connections go to is closed for good.
    let error = t.call(ECHO, "").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
}

/// Returns a sender, and a stream of what it sends.
fn spoken() -> (mpsc::UnboundedSender<Bytes>, impl Stream<Item = Result<Bytes>> + Send) {
    let (say, mut said) = mpsc::unbounded_channel();
    (say, FromFn(move |cx: &mut TaskContext<'_>| said.poll_recv(cx).map(|item| item.map(Ok))))
}

/// Replaces the server of these streams by another one.
fn replaced(t: &streaming::Setup) -> Arc<streaming::Seen> {
    let (host, seen) = streaming::host(plain(Limits::default()));
    t.near.hosts.lock().unwrap().push(host);
    seen
}

#[tokio::test]
async fn a_drain_waits_for_streams_and_new_ones_go_elsewhere() {
    let t = streaming::default();
    let ((say, said), (tell, told)) = (spoken(), spoken());
    let mut chat = t.chat(said).await.unwrap();
    let load = tokio::spawn(t.load(streaming::SUM, told).into_future());
    tell.send(bytes(10, 0)).unwrap();
    until("both are at work", || t.seen.running() == 2).await;

    let elsewhere = replaced(&t);
    let host = t.host.clone();
    let drained = tokio::spawn(async move { host.drain(GRACE).await });
    until("the client was told", || {
        t.near.taps.lock().unwrap()[0].arrived().iter().any(|(kind, ..)| *kind == FrameType::GOAWAY)
    })
    .await;
    for _ in 0..3 {
        assert_eq!(streaming::all(t.watch(streaming::COUNT, "5 10").await.unwrap()).await.len(), 5);
        assert_eq!(t.load(streaming::SUM, streaming::items(3, 10, None)).await.unwrap(), "3 30");
    }
    assert_eq!((t.seen.runs(), elsewhere.runs()), (2, 6));

    // Streams that had begun go on for as long as they like.
    drop(tell);
    assert_eq!(load.await.unwrap().unwrap(), "1 10");
    for i in 0..100 {
        say.send(bytes(i, i)).unwrap();
        assert_eq!(chat.message().await.unwrap().unwrap(), bytes(i, i));
    }
    assert!(!drained.is_finished());
    drop(say);
    assert_eq!(chat.message().await.unwrap(), None);
    drained.await.unwrap();
    assert!(t.host.connections().is_empty());
}

#[tokio::test]
async fn a_stream_that_outlasts_the_servers_patience_is_cut_short_and_says_so() {
    let t = streaming::default();
    let mut watched = t.watch(streaming::FOREVER, "").await.unwrap();
    watched.message().await.unwrap().unwrap();
    let (_tell, told) = spoken();
    let load = tokio::spawn(t.load(streaming::SUM, told).into_future());
    until("both are at work", || t.seen.running() == 2).await;
    t.host.drain(Duration::ZERO).await;
    let error = loop {
        match watched.message().await {
            Ok(item) => assert!(item.is_some(), "a short stream was taken for a whole one"),
            Err(error) => break error,
        }
    };
    for error in [error, load.await.unwrap().unwrap_err()] {
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
        assert!(error.message().contains("the server was closed"), "{error}");
    }
    assert_eq!(watched.end_reason(), Some(EndReason::ConnectionLost));
    t.idle().await;
}

/// Items that a client's stream has yielded can't be yielded again.
#[tokio::test]
async fn a_refused_stream_is_made_again_elsewhere_only_if_nothing_of_it_was_taken() {
    let (caller, mut links, _) = played();
    let t = streaming::Setup { stub: Stub::new(caller, streaming::info()), ..streaming::default() };
    let with_streams =
        || Hello { features: features::STREAMS, stream_items: 10, stream_bytes: 1000, ..hello() };
    let watched = t.watch(streaming::COUNT, "");
    let watched = tokio::spawn(watched.into_future());
    let mut old = Peer::greeted(links.recv().await.unwrap(), with_streams()).await;
    old.expect(FrameType::REQUEST).await;
    let load = tokio::spawn(t.load(streaming::SUM, streaming::items(3, 10, None)).into_future());
    old.expect(FrameType::ITEM).await;
    // Neither is executed here.
    go_away(&mut old, 0);
    let mut new = Peer::greeted(links.recv().await.unwrap(), with_streams()).await;
    let (header, payload) = new.expect(FrameType::REQUEST).await;
    assert_eq!(RequestHead::decode(payload).unwrap().0.attempt, 2);
    new.respond(header.call, b"");
    assert_eq!(watched.await.unwrap().unwrap().end_reason(), None);
    let error = load.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
}

#[tokio::test]
async fn accesses_that_had_not_begun_when_the_connection_ended_are_made_by_the_next() {
    /// As many as a connection has under way.
    const MOST: usize = 64;

    let (caller, mut links, _) = played();
    let region = Region::zeroed(64, Rights::READ);
    let memory = region.remote().on(caller.clone());
    let read = || {
        let memory = memory.clone();
        tokio::spawn(async move { memory.read(..1).await })
    };
    let begun: Vec<_> = (0..MOST).map(|_| read()).collect();
    let hello = Hello { features: features::ACCESS, ..hello() };
    let mut old = Peer::greeted(links.recv().await.unwrap(), hello.clone()).await;
    for _ in 0..MOST {
        old.expect(FrameType::ACCESS).await;
    }
    let waits = read();
    tokio::task::yield_now().await;
    drop(old);
    let link = tokio::time::timeout(GRACE, links.recv()).await.expect("it must connect again");
    let mut new = Peer::greeted(link.unwrap(), hello).await;
    let (header, _) = new.expect(FrameType::ACCESS).await;
    new.session_frame(FrameType::ACCESSED, header.call, 0, "\x007");
    assert_eq!(waits.await.unwrap().unwrap(), "7");
    for read in begun {
        assert_eq!(read.await.unwrap().unwrap_err().executed(), Executed::Maybe);
    }
}
