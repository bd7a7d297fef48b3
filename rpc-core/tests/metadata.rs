//! Metadata between peers of all versions, and when a link is lost. The application's view is tested through the
//! facade.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::__private as private;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::{Limits, Policy};
use farcall_core::context::Context;
use farcall_core::metadata::Metadata;
use farcall_core::payload::Payload;
use farcall_core::proto::wire::{
    self, CloseCode, Content, EndHead, FrameType, Hello, encode_metadata, features,
};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Blame, Code, Executed, Result};
use farcall_core::stream::EndReason;
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;
use tokio::sync::Notify;
use tokio::time::sleep;

use support::fabric::{Fabric, settings};
use support::peer::played;
use support::reading::Shared;
use support::{ECHO, Near, WAIT, bytes, info, plain, streaming};

/// Returns its arguments and metadata: as initial metadata before it waits, and as trailing ones after that.
struct Mirror {
    info: Arc<ServiceInfo>,
    started: Arc<Notify>,
    go: Arc<Notify>,
}

impl Mirror {
    fn new() -> Self {
        Self { info: info("test"), started: Arc::default(), go: Arc::default() }
    }
}

impl Service for Mirror {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let (started, go) = (self.started.clone(), self.go.clone());
        Box::pin(async move {
            let sent = request.context.metadata().clone();
            Context::current().unwrap().reply_metadata(|metadata| metadata.extend(&sent));
            if method == WAIT {
                started.notify_one();
                go.notified().await;
            }
            Context::current().unwrap().reply_trailers(|trailers| trailers.extend(&sent));
            Reply::Ok(request.payload)
        })
    }
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("user", "ann").unwrap();
    metadata.insert_bin("id-bin", [7; 200]).unwrap();
    metadata
}

fn call(caller: &RawChannel, method: usize, argument: Bytes) -> Call<Result<Bytes>, Raw> {
    Stub::new(caller.clone(), info("test")).call(method, Ok(Payload::from_body(argument)))
}

fn near(mirror: Mirror, settings: Settings) -> Near {
    let host = ServerCore::new(vec![Arc::new(mirror)], settings).unwrap();
    Near { hosts: Arc::new(Mutex::new(vec![host])), taps: Arc::default() }
}

/// The link is lost while it reads the request. The caller moves up again, and the link is lost while it reads the
/// answer.
#[tokio::test(start_paused = true)]
async fn metadata_survive_a_fall_back() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let mirror = Mirror::new();
    let (started, go) = (mirror.started.clone(), mirror.go.clone());
    let near = near(mirror, settings(&fabric, Policy::Auto));
    let caller = RawChannel::new(near, settings(&fabric, Policy::Auto));
    let connection = caller.connection().await.unwrap();

    let cut_while_read = async || {
        while memory.exposed() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        fabric.links.lock().unwrap().last().unwrap().cut();
    };
    memory.stall.store(true, Ordering::Relaxed);
    let sent = metadata();
    let call = call(&caller, WAIT, bytes(300_000, 1)).with_metadata(sent.clone()).with_response();
    let call = tokio::spawn(call);
    cut_while_read().await;
    started.notified().await;
    while connection.transport().why_not_rdma.is_some() {
        sleep(Duration::from_millis(10)).await;
    }
    go.notify_one();
    cut_while_read().await;
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.value, bytes(300_000, 1));
    assert_eq!((&response.metadata, &response.trailers), (&sent, &sent));
}

#[tokio::test]
async fn a_call_with_metadata_is_not_made_at_a_server_that_takes_none() {
    let (caller, mut links, _) = played();
    let task = tokio::spawn(call(&caller, ECHO, Bytes::new()).with_metadata(metadata()).into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    let error = task.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::FailedPrecondition, Executed::No), "{error}");
    assert_eq!(error.blame(), Blame::Environment);
    assert!(error.message().contains("test/echo") && error.message().contains("upgrade it"), "{error}");

    // A call without metadata is executed.
    let task = tokio::spawn(call(&caller, ECHO, "x".into()).with_metadata(Metadata::new()).into_future());
    let (header, payload) = peer.expect(FrameType::REQUEST).await;
    assert!(payload.ends_with(b"\0x"));
    peer.respond(header.call, b"y");
    assert_eq!(task.await.unwrap().unwrap(), "y");
}

#[tokio::test]
async fn an_answer_goes_without_metadata_to_a_client_that_takes_none() {
    let near = near(Mirror::new(), plain(Limits::default()));
    let host = near.hosts.lock().unwrap()[0].clone();
    let block = encode_metadata(&metadata());
    for (features, takes) in [(0, false), (features::METADATA, true)] {
        let (near, far) = memory::pair();
        host.serve(far);
        let mut peer = Peer::greeted(near, Hello { features, ..hello() }).await;
        peer.bind(&info("test"));
        peer.request_with(1, ECHO, &block, b"x");
        let (_, payload) = peer.expect(FrameType::RESPONSE).await;
        assert!(payload.ends_with(b"x"));
        let count = payload.windows(block.len()).filter(|window| *window == block).count();
        assert_eq!(count, if takes { 2 } else { 0 });
    }
}

/// The trailers of a stream are checked against the limit. A malformed block ends the connection.
#[tokio::test]
async fn an_end_with_bad_metadata_is_no_good_end() {
    let (caller, mut links, _) = played();
    let stub = Stub::new(caller, streaming::info());
    let watch = || {
        let arguments = Ok(Payload::from_body("1 1".into()));
        private::call_for_stream(&stub, streaming::COUNT, arguments, None, streaming::streamed())
    };
    let begin = tokio::spawn(watch().into_future());
    let features = features::STREAMS | features::METADATA;
    let hello = Hello { features, stream_items: 10, stream_bytes: 1000, ..hello() };
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello).await;
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.respond(header.call, b"");
    let mut stream = begin.await.unwrap().unwrap();
    peer.session_frame(FrameType::END, header.call, 0, end_with(&[0; (16 << 10) + 1]));
    let error = stream.message().await.unwrap_err();
    assert_eq!((error.code(), error.blame()), (Code::ResourceExhausted, Blame::Peer), "{error}");
    assert_eq!((stream.end_reason(), stream.trailers().len()), (Some(EndReason::Status), 0));

    let begin = tokio::spawn(watch().into_future());
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.respond(header.call, b"");
    let mut stream = begin.await.unwrap().unwrap();
    peer.session_frame(FrameType::END, header.call, 0, end_with(b"\0"));
    peer.expect_close(CloseCode::Protocol, "metadata.trailing: are none").await;
    assert_eq!(stream.message().await.unwrap_err().blame(), Blame::Peer);
    assert_eq!(stream.end_reason(), Some(EndReason::ConnectionLost));
}

/// Streams items after initial metadata of a given length; the argument is `"LEN ITEMS"`.
struct Rows(Arc<ServiceInfo>);

impl Service for Rows {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        let info = self.0.clone();
        Box::pin(async move {
            let n = streaming::numbers(&request.payload);
            // By the time the answer begins, the handler is a task.
            tokio::task::yield_now().await;
            let initial = vec![7; n[0]];
            Context::current()
                .unwrap()
                .reply_metadata(|metadata| metadata.insert_bin("id-bin", initial).unwrap());
            let mut left = n[1];
            let rows = streaming::FromFn(move |_: &mut TaskContext<'_>| {
                let Some(less) = left.checked_sub(1) else { return Poll::Pending };
                left = less;
                Poll::Ready(Some(Ok(bytes(10, less))))
            });
            streaming::answer(request.streams, &info, rows).await
        })
    }
}

/// Returns a client of [`Rows`], and the server, which must be kept alive.
async fn reader(hello: Hello) -> (Peer, Arc<ServerCore>) {
    let host = ServerCore::new(vec![Arc::new(Rows(streaming::info()))], plain(Limits::default())).unwrap();
    let (near, far) = memory::pair();
    host.serve(far);
    let features = features::STREAMS | features::METADATA;
    let hello = Hello { features, stream_items: 10, stream_bytes: 1000, ..hello };
    let mut peer = Peer::greeted(near, hello).await;
    peer.bind(&streaming::info());
    (peer, host)
}

/// Frames of the least length are too short for the beginning, but not for the items after it.
#[tokio::test]
async fn items_do_not_overtake_the_metadata_before_them() {
    let (mut peer, _host) = reader(Hello { max_frame: 1024, ..hello() }).await;
    peer.request(1, streaming::COUNT, b"5000 3");
    let mut kinds = Vec::new();
    while kinds.last() != Some(&FrameType::ITEM) {
        kinds.push(peer.next().await.unwrap().0.kind);
    }
    let parts = kinds.len() - 2;
    assert_eq!((kinds[0], parts), (FrameType::RESPONSE, 4), "{kinds:?}");
    assert!(kinds[1..=parts].iter().all(|kind| *kind == FrameType::FRAGMENT), "{kinds:?}");
}

#[tokio::test]
async fn a_stream_begins_before_its_first_item_is_there() {
    let (mut peer, _host) = reader(hello()).await;
    for len in [10, 5000] {
        peer.request(len, streaming::COUNT, format!("{len} 0").as_bytes());
        assert_eq!(peer.expect(FrameType::RESPONSE).await.0.call, len);
    }
}

#[tokio::test]
async fn metadata_that_make_the_beginning_of_a_stream_too_long_end_its_call() {
    let (mut peer, _host) = reader(Hello { max_message: 1024, max_assembly: 1024, ..hello() }).await;
    peer.request(1, streaming::COUNT, b"2000 1");
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    let words = String::from_utf8_lossy(&payload);
    assert_eq!((header.flags, payload[0]), (0, wire::ResponseKind::Status as u8), "{words}");
    assert!(words.contains("limits.max_message is 1024"), "{words}");
}

fn end_with(metadata: &'static [u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let head = EndHead { reason: wire::EndReason::Completed, items: 0 };
    let content = Content { metadata: Bytes::from_static(metadata), payload: Payload::default() };
    head.encode(&content, &mut out).unwrap();
    out
}
