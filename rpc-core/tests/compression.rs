//! Compressed calls: when they are compressed, what both sides learn of it, and attacks by a peer.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use farcall_core::client::{Call, RawChannel, Response, Stub};
use farcall_core::codec::Raw;
use farcall_core::compress::Compression::{self, Lz4, Zstd};
use farcall_core::config::{Calls, Limits, Policy};
use farcall_core::context::Context;
use farcall_core::middleware::ServiceExt;
use farcall_core::payload::{Encoder, Payload};
use farcall_core::proto::wire::{
    CloseCode, FrameType, Hello, RequestHead, ResponseHead, ResponseKind, decode_status, features,
};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Executed, Result, Status};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;

use support::fabric::{self, Fabric};
use support::peer::played;
use support::reading::Shared;
use support::{ECHO, HANG, NOTE, Near, WAIT, host, info, plain, until};

const NONE: Compression = Compression::None;

/// Echoes. The method selects the compression of the answer: as configured, LZ4, or none. A trailer names the
/// compression of the request.
struct Echo(Arc<ServiceInfo>);

const AS_SET: usize = 0;
const BY_LZ4: usize = 1;
const NOT: usize = 2;

impl Service for Echo {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        Box::pin(async move {
            let cx = Context::current().unwrap();
            let came = request.context.compression().name();
            cx.reply_trailers(|trailers| trailers.insert("came", came).unwrap());
            match method {
                BY_LZ4 => cx.compress(Lz4).unwrap(),
                NOT => cx.compress(NONE).unwrap(),
                _ => {}
            }
            Reply::Ok(request.payload)
        })
    }
}

fn set(compress: Compression) -> Settings {
    let mut calls = Calls::default();
    calls.compress = compress;
    Settings { calls, ..plain(Limits::default()) }
}

fn caller(client: Settings, service: impl Service, server: Settings) -> RawChannel {
    let host = ServerCore::new(vec![Arc::new(service)], server).unwrap();
    RawChannel::new(Near { hosts: Arc::new(Mutex::new(vec![host])), taps: Arc::default() }, client)
}

fn call(caller: &RawChannel, method: usize, argument: impl Into<Bytes>) -> Call<Result<Bytes>, Raw> {
    Stub::new(caller.clone(), info("test")).call(method, Ok(Payload::from_body(argument.into())))
}

fn zeros(len: usize) -> Bytes {
    vec![0; len].into()
}

/// Returns the compression of the request and of the answer.
fn ways(response: &Response<Bytes>) -> (&str, Compression) {
    (response.trailers.get("came").unwrap(), response.compression)
}

#[tokio::test]
async fn each_side_compresses_as_it_is_set_unless_the_call_or_the_handler_says_otherwise() {
    let echo = || Echo(info("test"));
    let plain = caller(set(NONE), echo(), set(NONE));
    let both = caller(set(Zstd), echo(), set(Zstd));
    let by_service = caller(set(NONE), echo().compress(Zstd), set(Lz4));
    for len in [2000, 9000, 300_000] {
        let sent = zeros(len);
        let call = |caller, method| call(caller, method, sent.clone());
        for (call, expected) in [
            (call(&plain, AS_SET), ("none", NONE)),
            (call(&plain, AS_SET).compress(Zstd), ("zstd", NONE)),
            (call(&plain, BY_LZ4).compress(Lz4), ("lz4", Lz4)),
            (call(&both, AS_SET), ("zstd", Zstd)),
            (call(&both, AS_SET).compress(NONE), ("none", Zstd)),
            (call(&both, NOT), ("zstd", NONE)),
            (call(&by_service, AS_SET), ("none", Zstd)),
            (call(&by_service, BY_LZ4), ("none", Lz4)),
        ] {
            let response = call.with_response().await.unwrap();
            assert_eq!(ways(&response), expected, "{len}");
            assert_eq!(response.value, sent);
        }
    }
}

#[tokio::test]
async fn middleware_sees_what_is_said_and_passes_on_how() {
    let echo = Echo(info("test")).intercept(|request, next| {
        assert_eq!(request.size(), 5000);
        async move { next.run(request).await }
    });
    let caller = caller(set(NONE), echo.compress(Zstd), set(NONE)).intercept(|request, next| async move {
        let response = next.run(request).await?;
        assert_eq!(response.size(), 5000);
        Ok(response)
    });
    for (method, by) in [(AS_SET, Zstd), (BY_LZ4, Lz4), (NOT, NONE)] {
        let response = call(&caller, method, zeros(5000)).compress(Lz4).with_response().await.unwrap();
        assert_eq!(ways(&response), ("lz4", by));
    }
}

#[tokio::test]
async fn a_payload_that_is_short_or_does_not_become_shorter_goes_as_it_is() {
    let caller = caller(set(Zstd), Echo(info("test")), set(Zstd));
    let mut rng = fastrand::Rng::with_seed(1);
    let noise: Bytes = (0..100_000).map(|_| rng.u8(..)).collect();
    for sent in [zeros(1023), noise] {
        let response = call(&caller, AS_SET, sent.clone()).with_response().await.unwrap();
        assert_eq!(ways(&response), ("none", NONE), "{}", sent.len());
        assert_eq!(response.value, sent);
    }
}

fn compressing(features: u64) -> Hello {
    Hello { features: features | features::METADATA, ..hello() }
}

#[tokio::test]
async fn a_server_that_does_not_read_it_gets_plain_messages() {
    for (features, expected) in [(0, 0), (features::LZ4, 0), (features::ZSTD, 1)] {
        let (caller, mut links, _) = played();
        let call = tokio::spawn(call(&caller, ECHO, zeros(5000)).compress(Zstd).into_future());
        let mut peer = Peer::greeted(links.recv().await.unwrap(), compressing(features)).await;
        let (header, request) = peer.expect(FrameType::REQUEST).await;
        assert_eq!((request[5], request.len() > 5000), (expected, expected == 0));
        peer.respond(header.call, b"plain");
        assert_eq!(call.await.unwrap().unwrap(), "plain");
    }
}

/// Returns a client of the tests' service, with these limits and features.
async fn client(limits: Limits, features: u64) -> (Peer, Arc<support::Seen>) {
    let (host, seen) = host(Settings { calls: set(Zstd).calls, ..plain(limits) });
    let (near, far) = memory::pair();
    host.serve(far);
    let mut peer = Peer::greeted(near, compressing(features)).await;
    peer.bind(&info("test"));
    (peer, seen)
}

#[tokio::test]
async fn a_client_that_does_not_read_it_gets_plain_messages() {
    for (features, expected) in [(0, 0), (features::ZSTD, 1)] {
        let (mut peer, _) = client(Limits::default(), features).await;
        peer.request(1, ECHO, &zeros(5000));
        let (_, response) = peer.expect(FrameType::RESPONSE).await;
        assert_eq!((response[1], response.len() > 5000), (expected, expected == 0));
    }
}

/// Returns a REQUEST that claims this compression and this unpacked length.
fn request(method: usize, by: u8, len: u32, packed: &[u8]) -> Bytes {
    let head = RequestHead { service: 0, method: method as u16, attempt: 1, timeout_us: 0 };
    said(|content, out| head.encode(content, out).unwrap(), 5, 16, by, len, packed)
}

/// Returns a RESPONSE that claims this compression and this unpacked length.
fn response(kind: ResponseKind, by: u8, len: u32, packed: &[u8]) -> Bytes {
    said(|content, out| ResponseHead { kind }.encode(content, out).unwrap(), 1, 4, by, len, packed)
}

fn said(
    head: impl FnOnce(&farcall_core::proto::wire::Content, &mut BytesMut),
    by_at: usize,
    len_at: usize,
    by: u8,
    len: u32,
    packed: &[u8],
) -> Bytes {
    let mut message = BytesMut::new();
    head(&Default::default(), &mut message);
    message[by_at] = by;
    message[len_at..len_at + 4].copy_from_slice(&len.to_le_bytes());
    message.extend_from_slice(packed);
    message.freeze()
}

/// Returns `len` zeros, compressed by Zstandard.
fn packed_zeros(len: usize) -> Vec<u8> {
    zstd::bulk::compress(&vec![0; len], 3).unwrap()
}

fn status(response: Bytes) -> Status {
    let (head, content) = ResponseHead::decode(response).unwrap();
    assert_eq!(head.kind, ResponseKind::Status);
    decode_status(support::text(&content.payload)).unwrap()
}

#[tokio::test]
async fn arguments_that_would_be_too_long_are_refused_unread() {
    let mut limits = Limits::default();
    limits.max_message = 1 << 20;
    let (mut peer, seen) = client(limits, 0).await;
    let bomb = packed_zeros(100 << 20);
    assert!(bomb.len() < 20_000);
    let len = 100 << 20;
    let message = request(ECHO, 1, len, &bomb);
    let used = allocation_counter::measure(|| peer.session_frame(FrameType::REQUEST, 1, 0, message));
    assert!(used.bytes_max < 1 << 20, "{}", used.bytes_max);
    let (_, refused) = peer.expect(FrameType::RESPONSE).await;
    let refused = status(refused);
    assert_eq!((refused.code(), refused.executed()), (Code::ResourceExhausted, Executed::No));
    let said = "104857600 bytes when unpacked, but the server's limits.max_message is 1048576";
    assert!(refused.message().contains(said), "{refused}");
    assert_eq!(seen.runs(), 0);
}

#[tokio::test]
async fn a_wrong_length_or_damage_is_the_end_of_its_call_alone() {
    let (mut peer, seen) = client(Limits::default(), 0).await;
    let good = packed_zeros(5000);
    let damaged = [&good[..9], b"?"].concat();
    for (call, (by, len, bytes)) in (1..).zip([
        (1, 4999, &good),
        (1, 5001, &good),
        (1, 60_000_000, &good),
        (2, 5000, &good),
        (1, 5000, &damaged),
        (2, 5000, &damaged),
        (2, 60_000_000, &damaged),
    ]) {
        peer.session_frame(FrameType::REQUEST, call, 0, request(ECHO, by, len, bytes));
        let (_, refused) = peer.expect(FrameType::RESPONSE).await;
        let refused = status(refused);
        assert_eq!((refused.code(), refused.executed()), (Code::Internal, Executed::No), "{call}: {refused}");
    }
    assert_eq!(seen.runs(), 0);
    peer.session_frame(FrameType::REQUEST, 100, 0, request(ECHO, 1, 5000, &good));
    let (_, answer) = peer.expect(FrameType::RESPONSE).await;
    let (_, content) = ResponseHead::decode(answer).unwrap();
    assert_eq!(content.payload.len(), 5000);
}

#[tokio::test]
async fn unknown_numbers_and_a_compressed_status_close() {
    let (mut peer, _) = client(Limits::default(), 0).await;
    peer.session_frame(FrameType::REQUEST, 1, 0, request(ECHO, 3, 10, b"?"));
    peer.expect_close(CloseCode::Protocol, "content.compression").await;

    let (caller, mut links, _) = played();
    let call = tokio::spawn(call(&caller, ECHO, "").into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), compressing(0)).await;
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.session_frame(FrameType::RESPONSE, header.call, 0, response(ResponseKind::Status, 1, 10, b"?"));
    peer.expect_close(CloseCode::Protocol, "response.compression").await;
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_bad_answer_is_the_end_of_its_call_alone() {
    let (caller, mut links, _) = played();
    let first = tokio::spawn(call(&caller, ECHO, "").into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), compressing(features::ZSTD)).await;
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    let too_long = response(ResponseKind::Ok, 1, 100 << 20, &packed_zeros(100 << 20));
    peer.session_frame(FrameType::RESPONSE, header.call, 0, too_long);
    let error = first.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::Maybe));
    assert!(error.message().contains("the client's limits.max_message"), "{error}");

    for (len, code) in [(4999, Some(Code::Internal)), (5000, None)] {
        let call = tokio::spawn(call(&caller, ECHO, "").into_future());
        let (header, _) = peer.expect(FrameType::REQUEST).await;
        let answer = response(ResponseKind::Ok, 1, len, &packed_zeros(5000));
        peer.session_frame(FrameType::RESPONSE, header.call, 0, answer);
        assert_eq!(call.await.unwrap().err().map(|error| error.code()), code, "{len}");
    }
}

/// The caller's thread may be that which reads the connection.
#[test]
fn a_long_answer_is_unpacked_on_another_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut peer, call, asked) = runtime.block_on(async {
        let (caller, mut links, _) = played();
        let call = tokio::spawn(call(&caller, ECHO, "").into_future());
        let mut peer = Peer::greeted(links.recv().await.unwrap(), compressing(features::ZSTD)).await;
        let (header, _) = peer.expect(FrameType::REQUEST).await;
        (peer, call, header.call)
    });
    let long = response(ResponseKind::Ok, 1, 60 << 20, &packed_zeros(60 << 20));
    let mut answer = Bytes::new();
    let used = allocation_counter::measure(|| {
        peer.session_frame(FrameType::RESPONSE, asked, 0, long);
        answer = runtime.block_on(call).unwrap().unwrap();
    });
    assert_eq!(answer.len(), 60 << 20);
    assert!(used.bytes_max < 1 << 20, "{} bytes in the caller's thread", used.bytes_max);
}

/// Four calls of 1 MiB fit. The others wait compressed until handlers are done.
#[tokio::test]
async fn no_more_is_unpacked_at_once_than_may_be_assembled() {
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly) = (1 << 20, 4 << 20);
    let (mut peer, seen) = client(limits, 0).await;
    let bomb = packed_zeros(1 << 20);
    for call in 1..=20 {
        peer.session_frame(FrameType::REQUEST, call, 0, request(WAIT, 1, 1 << 20, &bomb));
    }
    until("as many run as there is room for", || seen.runs() == 4).await;
    // Let everything else that is ready run.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.runs(), 4);
    // A plain message needs no room, and does not wait.
    peer.request(100, ECHO, b"short");
    let (header, _) = peer.expect(FrameType::RESPONSE).await;
    assert_eq!((header.call, seen.runs()), (100, 5));
    for done in 1..=20 {
        until("all that have room run", || seen.runs() == (4 + done).min(21)).await;
        seen.go.notify_one();
        peer.expect(FrameType::RESPONSE).await;
    }
}

/// Two calls for one of which there is room. The other waits compressed.
#[tokio::test]
async fn arguments_count_as_they_came_and_as_they_are_unpacked() {
    // The link has room for two that are half as long.
    const LEN: usize = 256 << 10;
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly, limits.memory) = (LEN as u64, LEN as u64, 1 << 30);
    let (host, _) = host(Settings { calls: set(Zstd).calls, ..plain(limits) });
    let (near, far) = memory::pair();
    host.serve(far);
    let mut peer = Peer::greeted(near, compressing(0)).await;
    peer.bind(&info("test"));
    let packed = zstd::bulk::compress(&half_noise(LEN, 1), 3).unwrap();
    let request = request(HANG, 1, LEN as u32, &packed);
    for call in 1..=2 {
        peer.begin(FrameType::REQUEST, call, request.len() as u32, b"");
        for part in request.chunks(100 << 10) {
            peer.session_frame(FrameType::FRAGMENT, call, 0, Bytes::copy_from_slice(part));
        }
    }
    let held = || host.memory().peers().iter().map(|peer| peer.arguments).sum::<usize>();
    for (calls, unpacked) in [(2, LEN), (1, LEN), (0, 0)] {
        let least = calls * packed.len() + unpacked;
        until("other than expected is counted", || (least..=least + (32 << 10)).contains(&held())).await;
        if calls > 0 {
            let runs = 3 - calls as u64;
            peer.session_frame(FrameType::CANCEL, runs, 0, &[0][..]);
        }
    }
}

#[tokio::test]
async fn a_call_that_waits_to_be_unpacked_can_be_given_up() {
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly) = (1 << 20, 1 << 20);
    let (mut peer, seen) = client(limits, 0).await;
    let whole = packed_zeros(1 << 20);
    peer.session_frame(FrameType::REQUEST, 1, 0, request(HANG, 1, 1 << 20, &whole));
    until("the first hangs", || seen.hanging() == 1).await;
    peer.session_frame(FrameType::REQUEST, 2, 0, request(HANG, 1, 1 << 20, &whole));
    peer.session_frame(FrameType::REQUEST, 3, 0, request(ECHO, 1, 1 << 20, &whole));
    peer.session_frame(FrameType::CANCEL, 2, 0, &[0][..]);
    peer.session_frame(FrameType::CANCEL, 1, 0, &[0][..]);
    let (header, _) = peer.expect(FrameType::RESPONSE).await;
    assert_eq!((header.call, seen.runs()), (3, 2));
}

/// Both are received together. The handler of the short one begins before the long one is unpacked.
#[tokio::test]
async fn a_long_message_holds_up_no_other_while_it_is_unpacked() {
    let (mut peer, seen) = client(Limits::default(), 0).await;
    peer.session_frame(FrameType::REQUEST, 1, 0, request(NOTE, 1, 1 << 20, &packed_zeros(1 << 20)));
    peer.request(2, NOTE, b"short");
    peer.expect(FrameType::RESPONSE).await;
    peer.expect(FrameType::RESPONSE).await;
    let lens: Vec<_> = seen.notes.lock().unwrap().iter().map(Bytes::len).collect();
    assert_eq!(lens, [5, 1 << 20]);
}

#[tokio::test]
async fn attachments_are_compressed_with_the_body() {
    let (caller, mut links, _) = played();
    let mut arguments = Encoder::new();
    arguments.put_slice(b"body");
    arguments.attach(zeros(100_000));
    arguments.attach(zeros(3));
    let arguments = arguments.finish();
    let call = Stub::new(caller.clone(), info("test")).call(ECHO, Ok(arguments.clone()));
    let call: Call<Result<Bytes>, Raw> = call.compress(Lz4);
    let call = tokio::spawn(call.into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), compressing(features::LZ4)).await;
    let (header, request) = peer.expect(FrameType::REQUEST).await;
    assert!(request.len() < 1000, "{}", request.len());
    assert_eq!((request[5], &request[6..8], &request[16..20]), (2, &[2, 0][..], &[4, 0, 0, 0][..]));
    let lens = [100_000_u32.to_le_bytes(), 3_u32.to_le_bytes()].concat();
    assert_eq!(request[21..29], lens);
    let whole = lz4_flex::block::decompress(&request[29..], 100_007).unwrap();
    assert_eq!(whole, [&b"body"[..], &zeros(100_003)].concat());
    peer.respond(header.call, b"done");
    call.await.unwrap().unwrap();
}

/// Returns bytes of which half can be compressed, so that the result is still long.
fn half_noise(len: usize, seed: usize) -> Bytes {
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    (0..len).map(|i| if i % 2000 < 1000 { rng.u8(..) } else { 0 }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_survive_links_that_die_again_and_again() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let settings = || {
        let mut settings = Settings { calls: set(Zstd).calls, ..fabric::settings(&fabric, Policy::Auto) };
        settings.liveness.retry_ms = 1;
        settings
    };
    let t = Arc::new(support::setup(settings(), settings()));
    let connection = t.caller.connection().await.unwrap();
    let callers: Vec<_> = (0..4)
        .map(|task| {
            let (t, fabric, connection) = (t.clone(), fabric.clone(), connection.clone());
            tokio::spawn(async move {
                let mut calls = 0;
                while fabric.links.lock().unwrap().len() <= 10 {
                    let content = half_noise([1500, 150_000, 700_000][calls % 3], task + calls);
                    let response = t.call(ECHO, content.clone()).with_response().await.unwrap();
                    assert_eq!((response.value, response.compression), (content, Zstd));
                    if task == 0 && connection.transport().why_not_rdma.is_none() {
                        fabric.links.lock().unwrap().last().unwrap().cut();
                    }
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for caller in callers {
        calls += caller.await.unwrap();
    }
    assert_eq!(t.seen.runs() as usize, calls, "each handler ran once");
    assert!(memory.reads.load(std::sync::atomic::Ordering::Relaxed) > 0, "long ones were read");
}
