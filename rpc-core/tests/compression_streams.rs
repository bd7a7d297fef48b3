//! Compressed streams: by side and by item, and attacks by a peer.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use farcall_core::__private::{self as private, Items, StreamCall, Streaming};
use farcall_core::client::{RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::compress::Compression::{self, Lz4, Zstd};
use farcall_core::config::{Calls, Limits, Policy};
use farcall_core::context::Context;
use farcall_core::middleware::ServiceExt;
use farcall_core::payload::Payload;
use farcall_core::proto::wire::{
    CloseCode, Content, EndHead, EndReason, FrameType, Hello, ResponseHead, features,
};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Result, Status};
use farcall_core::stream::{self, Stream};
use farcall_core::testing::{Peer, hello, request};
use farcall_core::transport::memory;
use tokio::sync::Notify;
use tokio::time::sleep;

use support::fabric::{self, Fabric};
use support::peer::played;
use support::reading::Shared;
use support::streaming::{CHAT, COUNT, FromFn, SUM, info, items, numbers, streamed};
use support::{Near, bytes, plain, until};

const NONE: Compression = Compression::None;

/// A service with these methods:
///
/// - count("N LEN") streams N items, compressed as configured. With a third number, LZ4 and no compression take turns.
/// - sum(stream) returns the compressions of its items. After the first item it waits for `go`.
/// - chat(stream) returns each item.
struct Test {
    info: Arc<ServiceInfo>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    began: AtomicUsize,
    waits: bool,
    go: Notify,
}

fn in_turns(cx: Context, count: usize, len: usize) -> impl Stream<Item = Result<Bytes>> + Send {
    let mut next = 0;
    FromFn(move |_: &mut TaskContext<'_>| {
        if next == count {
            return Poll::Ready(None);
        }
        cx.compress([Lz4, NONE][next % 2]).unwrap();
        next += 1;
        Poll::Ready(Some(Ok(bytes(len, next - 1))))
    })
}

async fn sum(mut rows: Streaming<Bytes>, seen: &Seen) -> Reply {
    let mut came = Vec::new();
    loop {
        match rows.message().await {
            Ok(Some(row)) => assert_eq!(row, bytes(row.len(), came.len())),
            Ok(None) => break Reply::Ok(Payload::from_body(came.join(" ").into())),
            Err(status) => break Reply::Status(status),
        }
        came.push(rows.compression().name());
        if came.len() == 1 && seen.waits {
            seen.began.fetch_add(1, Ordering::Relaxed);
            seen.go.notified().await;
        }
    }
}

impl Service for Test {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let (info, seen) = (self.info.clone(), self.seen.clone());
        Box::pin(async move {
            let cx = Context::current().unwrap();
            let streams = request.streams;
            let requests =
                |streams| private::requests(streams, &info, CHAT, private::argument::<Raw, Bytes>()).unwrap();
            match method {
                COUNT => match numbers(&request.payload)[..] {
                    [n, len] => private::answer(streams, &info, COUNT, items(n, len, None), streamed()).await,
                    [n, len, _] => {
                        private::answer(streams, &info, COUNT, in_turns(cx, n, len), streamed()).await
                    }
                    _ => Reply::Status(Status::new(Code::InvalidArgument, "two numbers, or three")),
                },
                SUM => sum(requests(streams.as_ref()), &seen).await,
                _ => {
                    let rows = requests(streams.as_ref());
                    private::answer(streams, &info, CHAT, rows, streamed()).await
                }
            }
        })
    }
}

fn set(compress: Compression) -> Settings {
    let mut calls = Calls::default();
    calls.compress = compress;
    Settings { calls, ..plain(Limits::default()) }
}

fn test() -> Test {
    Test { info: info(), seen: Arc::default() }
}

fn stub(client: Settings, service: impl Service, server: Settings) -> Stub {
    let host = ServerCore::new(vec![Arc::new(service)], server).unwrap();
    let near = Near { hosts: Arc::new(Mutex::new(vec![host])), taps: Arc::default() };
    Stub::new(RawChannel::new(near, client), info())
}

fn count(stub: &Stub, arguments: &'static str) -> StreamCall<Result<Streaming<Bytes>>> {
    let arguments = Ok(Payload::from_body(arguments.into()));
    private::call_for_stream(stub, COUNT, arguments, None, streamed())
}

fn rows(stub: &Stub, count: usize, len: usize) -> Items {
    Items::of(stub.service(), SUM, items(count, len, None), private::argument::<Raw, Bytes>())
}

fn load(stub: &Stub, rows: Items) -> StreamCall<Result<Bytes>> {
    let returned = private::returned::<Result<Bytes>, Raw, Raw, Status>().0;
    private::call_with_stream(stub, SUM, Ok(Payload::default()), rows, returned)
}

/// Returns the compressions of the items, and checks that there are `count` of them.
async fn ways(mut stream: Streaming<Bytes>, count: usize, len: usize) -> Vec<Compression> {
    let mut ways = Vec::new();
    while let Some(item) = stream.message().await.unwrap() {
        assert_eq!(item, bytes(len, ways.len()));
        ways.push(stream.compression());
    }
    assert_eq!(ways.len(), count);
    ways
}

#[tokio::test]
async fn each_side_of_a_stream_is_compressed_as_it_is_set() {
    let both = stub(set(Zstd), test(), set(Lz4));
    let by_service = stub(set(NONE), test().compress(Zstd), set(NONE));
    let plain = stub(set(NONE), test(), set(NONE));
    for (n, len, what) in [(500, 100, "500 100"), (20, 9000, "20 9000"), (3, 300_000, "3 300000")] {
        assert_eq!(ways(count(&both, what).await.unwrap(), n, len).await, vec![Lz4; n]);
        assert_eq!(ways(count(&by_service, what).await.unwrap(), n, len).await, vec![Zstd; n]);
        assert_eq!(ways(count(&plain, what).await.unwrap(), n, len).await, vec![NONE; n]);
        assert_eq!(load(&both, rows(&both, n, len)).await.unwrap(), vec!["zstd"; n].join(" "));
        assert_eq!(load(&plain, rows(&plain, n, len)).await.unwrap(), vec!["none"; n].join(" "));
        let by_call = load(&plain, rows(&plain, n, len)).compress(Lz4);
        assert_eq!(by_call.await.unwrap(), vec!["lz4"; n].join(" "));
        let not = load(&both, rows(&both, n, len)).compress(NONE);
        assert_eq!(not.await.unwrap(), vec!["none"; n].join(" "));
        let there = rows(&both, n, len);
        let chat = private::call_for_stream(&both, CHAT, Ok(Payload::default()), Some(there), streamed());
        assert_eq!(ways(chat.await.unwrap(), n, len).await, vec![Lz4; n]);
    }
}

#[tokio::test]
async fn a_handler_has_each_item_compressed_as_it_likes() {
    for service in [test().compress(Zstd), test().intercept(|request, next| next.run(request)).compress(Zstd)]
    {
        let stub = stub(set(NONE), service, set(Zstd));
        for (len, what) in [(2000, "10 2000 1"), (9000, "10 9000 1")] {
            let ways = ways(count(&stub, what).await.unwrap(), 10, len).await;
            assert_eq!(ways, [Lz4, NONE].repeat(5));
        }
    }
}

/// Returns zeros, compressed by Zstandard.
fn packed_zeros(len: usize) -> Vec<u8> {
    zstd::bulk::compress(&vec![0; len], 3).unwrap()
}

/// Returns an ITEM that claims this number of further items, this compression and this unpacked length.
fn item(more: u16, by: u8, len: usize, packed: &[u8]) -> Bytes {
    let mut message = BytesMut::new();
    message.put_u16_le(more);
    message.put_u16_le(0);
    message.put_u32_le(len as u32);
    message.put_slice(&[1, by]);
    message.put_slice(packed);
    message.freeze()
}

fn greeting(features: u64) -> Hello {
    let features = features | features::STREAMS | features::METADATA;
    Hello { features, stream_items: 1000, stream_bytes: 1 << 20, ..hello() }
}

#[tokio::test]
async fn a_server_that_does_not_read_it_gets_plain_items() {
    for (features, is_packed) in [(features::LZ4, false), (features::ZSTD, true)] {
        let (caller, mut links, _) = played();
        let stub = Stub::new(caller, info());
        let call = tokio::spawn(load(&stub, rows(&stub, 1, 5000)).compress(Zstd).into_future());
        let mut peer = Peer::greeted(links.recv().await.unwrap(), greeting(features)).await;
        let (header, _) = peer.expect(FrameType::REQUEST).await;
        let (_, item) = peer.expect(FrameType::ITEM).await;
        assert_eq!(item.len() < 5000, is_packed);
        peer.respond(header.call, b"done");
        assert_eq!(call.await.unwrap().unwrap(), "done");
    }
}

/// Returns a client of the service with `calls` calls of `sum`, which wait for `go`.
async fn client(limits: Limits, calls: u64) -> (Peer, Arc<Seen>) {
    let seen = Arc::new(Seen { waits: calls > 1, ..Seen::default() });
    let host =
        ServerCore::new(vec![Arc::new(Test { info: info(), seen: seen.clone() })], plain(limits)).unwrap();
    let (near, far) = memory::pair();
    host.serve(far);
    let mut peer = Peer::greeted(near, greeting(0)).await;
    peer.bind(&info());
    for call in 1..=calls {
        peer.session_frame(FrameType::REQUEST, call, 0, request(SUM, b""));
    }
    (peer, seen)
}

async fn refused(peer: &mut Peer) -> Status {
    let (_, response) = peer.expect(FrameType::RESPONSE).await;
    let (_, content) = ResponseHead::decode(response).unwrap();
    farcall_core::proto::wire::decode_status(support::text(&content.payload)).unwrap()
}

#[tokio::test]
async fn a_bad_item_is_the_end_of_its_stream_alone() {
    let good = packed_zeros(5000);
    let mut limits = Limits::default();
    limits.max_message = 1 << 20;
    for (bytes, code, words) in [
        (
            item(0, 1, 100 << 20, &packed_zeros(100 << 20)),
            Code::ResourceExhausted,
            "the server's limits.max_message",
        ),
        (item(0, 1, 4999, &good), Code::Internal, "compressed bytes are malformed"),
        (item(0, 2, 5000, &good), Code::Internal, "compressed bytes are malformed"),
        (item(0, 1, 1_000_000, b"?"), Code::Internal, "compressed bytes are malformed"),
    ] {
        let (mut peer, _) = client(limits.clone(), 1).await;
        peer.session_frame(FrameType::ITEM, 1, 0, bytes);
        let status = refused(&mut peer).await;
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(words), "{status}");
        peer.session_frame(FrameType::REQUEST, 2, 0, request(COUNT, b"1 10"));
        peer.expect(FrameType::END).await;
    }
    for (bytes, words) in [
        (item(0, 3, 10, b"?"), "content.compression"),
        // The unpacked bytes do not have the form of several items.
        (item(7, 1, 5000, &good), "item"),
    ] {
        let (mut peer, _) = client(limits.clone(), 1).await;
        peer.session_frame(FrameType::ITEM, 1, 0, bytes);
        peer.expect_close(CloseCode::Protocol, words).await;
    }
}

#[tokio::test]
async fn a_bad_item_of_an_answer_is_an_error_of_the_stream() {
    let (caller, mut links, _) = played();
    let stub = Stub::new(caller, info());
    let call = tokio::spawn(count(&stub, "").into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), greeting(0)).await;
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.respond(header.call, b"");
    let mut stream = call.await.unwrap().unwrap();
    peer.session_frame(FrameType::ITEM, header.call, 0, item(0, 1, 5000, &packed_zeros(5000)));
    peer.session_frame(FrameType::ITEM, header.call, 0, item(0, 1, 100 << 20, &packed_zeros(100 << 20)));
    assert_eq!(stream.message().await.unwrap().unwrap().len(), 5000);
    assert_eq!(stream.compression(), Zstd);
    let error = stream.message().await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.message().contains("the client's limits.max_message"), "{error}");
    assert_eq!(stream.end_reason(), Some(stream::EndReason::Status));
    peer.expect(FrameType::CANCEL).await;
}

/// Returns the bytes of two items of the same length, with the contents that `bytes` makes.
fn two_items(len: usize) -> Bytes {
    let mut body = BytesMut::new();
    for i in 0..2 {
        body.put_u32_le(len as u32);
        body.put_u16_le(0);
        body.put_slice(&bytes(len, i));
    }
    item(1, 1, body.len(), &zstd::bulk::compress(&body, 3).unwrap())
}

#[tokio::test]
async fn no_more_items_are_unpacked_at_once_than_may_be_assembled() {
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly) = (1 << 20, 2 << 20);
    let (mut peer, seen) = client(limits, 8).await;
    for call in 1..=8 {
        peer.session_frame(FrameType::ITEM, call, 0, two_items(300_000));
        let mut end = BytesMut::new();
        let head = EndHead { reason: EndReason::Completed, items: 2 };
        head.encode(&Content::default(), &mut end).unwrap();
        peer.session_frame(FrameType::END, call, 0, end);
    }
    let began = || seen.began.load(Ordering::Relaxed);
    until("as many are read as there is room for", || began() == 3).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(began(), 3);
    for done in 1..=8 {
        until("those that have room are read", || began() == (3 + done - 1).min(8)).await;
        seen.go.notify_one();
        let (_, answer) = peer.expect(FrameType::RESPONSE).await;
        let (_, content) = ResponseHead::decode(answer).unwrap();
        assert_eq!(support::text(&content.payload), "zstd zstd");
    }
}

/// Items that have arrived are read although their connection is gone.
#[tokio::test]
async fn items_outlive_their_connection() {
    let stub = stub(set(NONE), test(), set(Zstd));
    let mut stream = count(&stub, "10 9000").await.unwrap();
    let connection = Arc::downgrade(&stub.channel().connection().await.unwrap());
    assert_eq!(stream.message().await.unwrap().unwrap(), bytes(9000, 0));
    // The END arrives soon. After that the connection has nothing more to do.
    drop(stub);
    until("the connection is gone", || connection.upgrade().is_none()).await;
    for i in 1..10 {
        assert_eq!(stream.message().await.unwrap().unwrap(), bytes(9000, i));
        assert_eq!(stream.compression(), Zstd);
    }
    assert_eq!(stream.message().await.unwrap(), None);
}

/// Returns items of which half can be compressed, so that long ones are still long.
fn half_noise(count: usize, len: usize) -> impl Stream<Item = Result<Bytes>> + Send {
    let (mut rng, mut left) = (fastrand::Rng::with_seed(1), count);
    FromFn(move |_: &mut TaskContext<'_>| {
        left = match left.checked_sub(1) {
            Some(left) => left,
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok((0..len).map(|i| if i % 2000 < 1000 { rng.u8(..) } else { 0 }).collect())))
    })
}

#[tokio::test(start_paused = true)]
async fn streams_go_on_when_links_die() {
    let fabric = Arc::new(Fabric::readable(&Arc::new(Shared::default())));
    let settings = || {
        let mut settings = Settings { calls: set(Zstd).calls, ..fabric::settings(&fabric, Policy::Auto) };
        settings.liveness.retry_ms = 1;
        settings
    };
    let stub = stub(settings(), test(), settings());
    let streams = async {
        for (count, len) in [(300, 1500), (200, 9000), (50, 200_000)] {
            let rows =
                Items::of(stub.service(), CHAT, half_noise(count, len), private::argument::<Raw, Bytes>());
            let chat = private::call_for_stream(&stub, CHAT, Ok(Payload::default()), Some(rows), streamed());
            let (mut back, mut sent) = (chat.await.unwrap(), half_noise(count, len));
            for n in 0..count {
                let sent =
                    std::future::poll_fn(|cx| Pin::new(&mut sent).poll_next(cx)).await.unwrap().unwrap();
                assert_eq!(back.message().await.unwrap().unwrap(), sent, "{n}");
                if n % 10 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            assert_eq!((back.message().await.unwrap(), back.compression()), (None, Zstd));
        }
    };
    let deaths = async {
        loop {
            sleep(Duration::from_millis(3)).await;
            // The list is empty until the first link is made.
            fabric.links.lock().unwrap().last().inspect(|link| link.cut());
        }
    };
    tokio::select! {
        () = streams => {}
        () = deaths => {}
    }
    assert!(fabric.links.lock().unwrap().len() > 5);
}
