//! Streams of all kinds over the in-memory link, by a service written by hand.

mod support;

use std::future::{Future, IntoFuture, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Connector, RawChannel, Stub};
use farcall_core::config::Limits;
use farcall_core::proto::wire::{EndHead, FrameType, Hello, ItemHead, features};
use farcall_core::status::{Code, Executed, Result, Status};
use farcall_core::stream::EndReason;
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::{BoxFuture, Link};
use support::direct::{self, Direct};
use support::peer::{played, played_by};
use support::streaming::{
    COUNT, FAIL, FIRST, FOREVER, FromFn, PANIC, REFUSE, SUM, Setup, all, default, info, items, setup,
};
use support::tap::Passed;
use support::{bytes, plain, until};
use tokio::sync::{Notify, mpsc};

fn with_streams() -> Hello {
    Hello { features: features::STREAMS, stream_items: 10, stream_bytes: 1000, ..hello() }
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

const LENGTHS: [usize; 9] = [0, 1, 100, 1000, 8191, 70_000, 131_073, 600_000, 3 << 20];

#[tokio::test]
async fn a_server_streams_items_of_all_lengths() {
    let t = default();
    for len in LENGTHS {
        for count in [0, 1, 2, 50] {
            let items = all(t.watch(COUNT, format!("{count} {len}")).await.unwrap()).await;
            assert_eq!(items.len(), count);
            for (i, item) in items.iter().enumerate() {
                assert_eq!(*item, bytes(len, i), "item {i} of {len} bytes");
            }
        }
    }
    let many = all(t.watch(COUNT, "100000 30").await.unwrap()).await;
    assert!(many.len() == 100_000 && many.iter().enumerate().all(|(i, item)| *item == bytes(30, i)));
}

#[tokio::test]
async fn a_client_streams_items_of_all_lengths() {
    let t = default();
    for len in LENGTHS {
        for count in [0, 1, 2, 50] {
            let answer = t.load(SUM, items(count, len, None)).await.unwrap();
            assert_eq!(answer, format!("{count} {}", count * len));
        }
    }
    assert_eq!(t.load(SUM, items(100_000, 30, None)).await.unwrap(), "100000 3000000");
}

#[tokio::test]
async fn both_stream_at_once() {
    let t = default();
    for len in LENGTHS {
        let items = all(t.chat(items(50, len, None)).await.unwrap()).await;
        assert_eq!(items, (0..50).map(|i| bytes(len, i)).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_conversation_goes_to_and_fro() {
    let t = default();
    let (say, mut said) = mpsc::unbounded_channel::<Bytes>();
    let mut answers = t
        .chat(FromFn(move |cx: &mut TaskContext<'_>| said.poll_recv(cx).map(|item| item.map(Ok))))
        .await
        .unwrap();
    for i in 0..100 {
        say.send(bytes(i, i)).unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap(), bytes(i, i));
    }
    drop(say);
    assert_eq!(answers.message().await.unwrap(), None);
    t.idle().await;
}

/// Connects by this link.
struct By(Arc<Direct>);

impl Connector for By {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let link = self.0.clone();
        Box::pin(async { Ok(link as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "a server of this test".into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_sent_although_the_answer_begins_before_it() {
    let [near, far] = direct::pair();
    let t = Setup {
        stub: Stub::new(RawChannel::new(By(near.clone()), plain(Limits::default())), info()),
        ..default()
    };
    let mut peer = Peer::new(far);
    peer.read();
    peer.hello(&with_streams());
    let (give_back, mut given_back) = mpsc::unbounded_channel();
    // Runs in the poll that makes the call, before anything else happens.
    near.at_next_poll(move || {
        peer.respond(1, b"");
        give_back.send(peer).ok().unwrap();
    });
    let answers = t.chat(items(3, 10, None)).await.unwrap();
    let mut peer = given_back.recv().await.unwrap();
    let (_, payload) = peer.expect(FrameType::ITEM).await;
    assert_eq!(ItemHead::count(&payload), Ok(3));
    let (_, payload) = peer.expect(FrameType::END).await;
    assert_eq!(EndHead::decode(payload).unwrap().0.items, 3);
    drop(answers);
}

#[tokio::test]
async fn a_stream_that_fails_gives_what_came_before_and_then_why() {
    let t = default();
    let mut stream = t.watch(FAIL, "3").await.unwrap();
    for i in 0..3 {
        assert_eq!(stream.message().await.unwrap().unwrap(), bytes(10, i));
    }
    let error = stream.message().await.unwrap_err();
    assert_eq!(
        (error.code(), error.message(), error.executed()),
        (Code::DataLoss, "as it was told to", Executed::Yes)
    );
    assert_eq!(stream.end_reason(), Some(EndReason::Status));
    assert_eq!(stream.message().await.unwrap(), None);

    let mut stream = t.watch(PANIC, "3").await.unwrap();
    let mut count = 0;
    let error = loop {
        match stream.message().await {
            Ok(Some(_)) => count += 1,
            Ok(None) => panic!("a short stream was taken for a whole one"),
            Err(error) => break error,
        }
    };
    assert!(count <= 3 && error.code() == Code::Internal, "{error}");
    t.echo("still here").await;
}

#[tokio::test]
async fn a_stream_may_be_refused_before_it_begins() {
    let t = default();
    let error = t.watch(REFUSE, "").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::PermissionDenied, "not for you"));
    t.echo("still here").await;
}

#[tokio::test]
async fn dropping_a_stream_cancels_its_call() {
    let t = default();
    for taken in [0, 1, 5000] {
        let mut stream = t.watch(FOREVER, "").await.unwrap();
        for _ in 0..taken {
            stream.message().await.unwrap().unwrap();
        }
        drop(stream);
        t.idle().await;
    }
    let call = t.watch(FOREVER, "").into_future();
    drop(call);
    t.echo("still here").await;
}

#[tokio::test]
async fn dropping_a_call_whose_stream_has_begun_unseen_cancels_it() {
    let t = default();
    t.echo("the first call").await;
    let mut call = Box::pin(t.watch(FOREVER, "").into_future());
    let waits = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
    assert!(waits);
    let tap = t.near.taps.lock().unwrap()[0].clone();
    let has_come = |(kind, call, _): &Passed| (*kind, *call) == (FrameType::RESPONSE, 2);
    until("the stream has begun", || tap.arrived().iter().any(has_come)).await;
    drop(call);
    tokio::time::timeout(Duration::from_secs(60), t.idle()).await.expect("the handler is dropped");
}

#[tokio::test]
async fn a_server_that_has_enough_stops_its_client() {
    let t = default();
    let polled = Arc::new(AtomicUsize::new(0));
    let count = polled.clone();
    let endless = FromFn(move |_: &mut TaskContext<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(bytes(1000, 0))))
    });
    assert_eq!(t.load(FIRST, endless).await.unwrap(), bytes(1000, 0));
    t.idle().await;
    assert!(polled.load(Ordering::Relaxed) < 1000, "its window held it back");
    t.echo("still here").await;
}

/// Otherwise the END would report the number of items before the last of them has arrived.
#[tokio::test]
async fn a_sender_stopped_amid_a_long_item_says_its_end_after_it() {
    let (caller, mut links, taps) = played();
    let t = Setup { stub: Stub::new(caller, info()), ..default() };
    let given_up = Arc::new(Notify::new());
    let notify = NotifyOnDrop(given_up.clone());
    let endless = FromFn(move |_: &mut TaskContext<'_>| {
        let _ = &notify;
        Poll::Ready(Some(Ok(bytes(3 << 20, 0))))
    });
    let _call = tokio::spawn(t.load(SUM, endless).into_future());
    let mut peer = Peer::new(links.recv().await.unwrap());
    peer.hello(&with_streams());
    let left = |kind| taps.lock().unwrap()[0].count(kind);
    // The link holds a part of the item, because nobody reads.
    until("the item has begun", || left(FrameType::FRAGMENT) > 0).await;
    peer.session_frame(FrameType::STOP, 1, 0, "\0");
    given_up.notified().await;
    peer.read();
    let mut arrived = 0;
    let items = loop {
        let (header, payload) = peer.next().await.unwrap();
        match header.kind {
            FrameType::ITEM | FrameType::FRAGMENT => arrived += payload.len(),
            FrameType::END => break EndHead::decode(payload).unwrap().0.items,
            _ => {}
        }
    };
    assert!(items == 1 && arrived > 3 << 20, "the END of {items} items came after {arrived} bytes");
}

#[tokio::test]
async fn a_sender_stopped_while_it_makes_items_does_not_send_them() {
    // Frames that the test sends are delivered at once.
    let (caller, mut links, _) = played_by(|| {
        let [near, far] = direct::pair();
        (near, far)
    });
    let t = Setup { stub: Stub::new(caller, info()), ..default() };
    let (give, mut given) = mpsc::unbounded_channel::<Peer>();
    let (give_back, mut given_back) = mpsc::unbounded_channel();
    let mut made = 0;
    let endless = FromFn(move |cx: &mut TaskContext<'_>| {
        if made == 0 {
            let mut peer = ready!(given.poll_recv(cx)).unwrap();
            peer.session_frame(FrameType::STOP, 1, 0, "\0");
            give_back.send(peer).ok().unwrap();
        }
        made += 1;
        Poll::Ready(Some(Ok(bytes(10, 0))))
    });
    let call = tokio::spawn(t.load(SUM, endless).into_future());
    give.send(Peer::greeted(links.recv().await.unwrap(), with_streams()).await).ok().unwrap();
    let mut peer = given_back.recv().await.unwrap();
    let (_, payload) = peer.expect(FrameType::END).await;
    assert_eq!(EndHead::decode(payload).unwrap().0.items, 0);
    peer.respond(1, b"enough");
    assert_eq!(call.await.unwrap().unwrap(), "enough");
}

#[tokio::test]
async fn a_clients_stream_that_fails_ends_its_call() {
    let t = default();
    let error = Status::new(Code::Aborted, "no more of this");
    for count in [0, 1, 100] {
        let ended = t.load(SUM, items(count, 10, Some(error.clone()))).await.unwrap_err();
        assert_eq!((ended.code(), ended.message()), (Code::Aborted, "no more of this"));
        t.idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_stream_on_both_sides() {
    let t = default();
    let mut stream = t.watch(FOREVER, "").timeout(Duration::from_millis(50)).await.unwrap();
    // The stream's window is full.
    tokio::time::sleep(Duration::from_millis(60)).await;
    t.idle().await;
    let error = loop {
        match stream.message().await {
            Ok(item) => assert!(item.is_some(), "a short stream was taken for a whole one"),
            Err(error) => break error,
        }
    };
    assert_eq!((error.code(), stream.end_reason()), (Code::DeadlineExceeded, Some(EndReason::Deadline)));

    let (say, mut said) = mpsc::unbounded_channel::<Bytes>();
    let silent = FromFn(move |cx: &mut TaskContext<'_>| said.poll_recv(cx).map(|item| item.map(Ok)));
    let error = t.load(SUM, silent).timeout(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    t.idle().await;
    drop(say);
}

#[tokio::test]
async fn a_lost_connection_cuts_streams_short_and_says_so() {
    let t = default();
    let mut stream = t.watch(FOREVER, "").await.unwrap();
    stream.message().await.unwrap().unwrap();
    t.near.taps.lock().unwrap()[0].cut();
    let error = loop {
        match stream.message().await {
            Ok(item) => assert!(item.is_some(), "a short stream was taken for a whole one"),
            Err(error) => break error,
        }
    };
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe));
    assert_eq!(stream.end_reason(), Some(EndReason::ConnectionLost));
    t.idle().await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_stops_and_holds_up_nobody() {
    let t = default();
    let stalled: Vec<_> = {
        let mut stalled = Vec::new();
        for _ in 0..100 {
            stalled.push(t.watch(FOREVER, "").await.unwrap());
        }
        stalled
    };
    for _ in 0..100 {
        t.echo("and on").await;
    }
    let items = all(t.watch(COUNT, "1000 1000").await.unwrap()).await;
    assert_eq!(items.len(), 1000);
    drop(stalled);
    t.idle().await;
}

#[tokio::test]
async fn streams_count_as_calls_until_they_have_ended() {
    let mut two = Limits::default();
    two.concurrent_calls = 2;
    let t = setup(Limits::default(), two);
    let streams = [t.watch(FOREVER, "").await.unwrap(), t.watch(FOREVER, "").await.unwrap()];
    let mut third = Box::pin(t.watch(COUNT, "1 1").into_future());
    let waits = poll_fn(|cx| Poll::Ready(third.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "there is no place");
    let [first, _second] = streams;
    drop(first);
    assert_eq!(all(third.await.unwrap()).await.len(), 1);
    t.echo("the place is free again").await;
}

#[tokio::test]
async fn an_item_over_the_limit_ends_its_stream_and_names_the_setting() {
    let mut small = Limits::default();
    small.max_message = 50_000;
    let t = setup(small.clone(), Limits::default());
    let mut stream = t.watch(COUNT, "1 60000").await.unwrap();
    let error = stream.message().await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.message().contains("the client's limits.max_message is 50000"), "{error}");

    let t = setup(Limits::default(), small);
    let error = t.load(SUM, items(1, 60_000, None)).await.unwrap_err();
    assert!(error.message().contains("the server's limits.max_message is 50000"), "{error}");
    assert_eq!(t.load(SUM, items(3, 40_000, None)).await.unwrap(), "3 120000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_at_once_come_whole() {
    let t = Arc::new(default());
    let streams: Vec<_> = (0..1000)
        .map(|i| {
            let t = t.clone();
            tokio::spawn(async move {
                let count = i % 300;
                let items = all(t.watch(COUNT, format!("{count} {i}")).await.unwrap()).await;
                assert_eq!(items.len(), count);
                assert!(items.iter().enumerate().all(|(n, item)| *item == bytes(i, n)));
            })
        })
        .collect();
    for stream in streams {
        stream.await.unwrap();
    }
    t.idle().await;
}
