//! Frames that arrive together are handled together, with the same outcome as one by one.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::BytesMut;
use farcall_core::config::Limits;
use farcall_core::payload::Payload;
use farcall_core::proto::wire::{Cancel, CloseCode, FrameType, Header, Ping, ResponseHead, ResponseKind};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Reply, Service, ServiceInfo};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;

use support::{ECHO, HANG, PANIC, host, info, plain, until};

/// Returns a peer that has made no call yet. Frames that it sends without waiting arrive together.
async fn connected(host: &Arc<ServerCore>) -> Peer {
    let (near, far) = memory::pair();
    host.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(&info("test"));
    peer
}

fn ping(peer: &mut Peer, token: u64) {
    let mut payload = BytesMut::new();
    Ping { token }.encode(&mut payload);
    peer.link_frame(FrameType::PING, payload);
}

#[tokio::test]
async fn more_requests_than_a_batch_takes_and_others_between_them_are_all_answered() {
    let (host, seen) = host(plain(Limits::default()));
    let mut peer = connected(&host).await;
    for call in 1..=300 {
        peer.request(call, ECHO, b"x");
        if call % 70 == 0 {
            ping(&mut peer, call);
        }
    }
    let (mut answered, mut pongs) = (BTreeSet::new(), 0);
    while answered.len() < 300 || pongs < 4 {
        match peer.next().await.unwrap() {
            (Header { kind: FrameType::RESPONSE, call, .. }, _) => assert!(answered.insert(call)),
            (Header { kind: FrameType::PONG, .. }, _) => pongs += 1,
            (header, _) => panic!("{header:?}"),
        }
    }
    assert_eq!((seen.runs(), answered.last()), (300, Some(&300)));
}

#[tokio::test]
async fn a_panic_ends_its_call_and_not_those_that_came_with_it() {
    let (host, seen) = host(plain(Limits::default()));
    let mut peer = connected(&host).await;
    let panics = |call: u64| call.is_multiple_of(3);
    for call in 1..=10 {
        peer.request(call, if panics(call) { PANIC } else { ECHO }, b"x");
    }
    let mut answered = BTreeSet::new();
    while answered.len() < 10 {
        let (Header { call, .. }, response) = peer.expect(FrameType::RESPONSE).await;
        let (head, _) = ResponseHead::decode(response).unwrap();
        assert_eq!(head.kind, if panics(call) { ResponseKind::Status } else { ResponseKind::Ok }, "{call}");
        assert!(answered.insert(call));
    }
    assert_eq!(seen.runs(), 10);
}

#[tokio::test]
async fn a_cancel_drops_the_handler_whose_request_it_came_with() {
    let (host, seen) = host(plain(Limits::default()));
    let mut peer = connected(&host).await;
    peer.request(1, HANG, b"");
    let mut payload = BytesMut::new();
    Cancel { reason: 0 }.encode(&mut payload);
    peer.session_frame(FrameType::CANCEL, 1, 0, payload);
    // The number is free again.
    peer.request(1, ECHO, b"x");
    let (header, _) = peer.expect(FrameType::RESPONSE).await;
    assert_eq!((header.call, seen.runs()), (1, 2));
    until("the handler is dropped", || seen.hanging() == 0).await;
}

#[tokio::test]
async fn requests_before_a_broken_frame_are_served() {
    let (host, seen) = host(plain(Limits::default()));
    let mut peer = connected(&host).await;
    peer.request(1, ECHO, b"x");
    peer.request(2, ECHO, b"x");
    // The number is in use.
    peer.request(2, ECHO, b"x");
    peer.request(3, ECHO, b"x");
    peer.expect_close(CloseCode::Protocol, "request.call: is in use").await;
    assert_eq!(seen.runs(), 2);
}

/// A service whose handlers answer at once. Those of the method `panic` panic when they are dropped.
struct Falling {
    info: Arc<ServiceInfo>,
}

struct Fall;

impl Future for Fall {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Reply> {
        Poll::Ready(Reply::Ok(Payload::default()))
    }
}

impl Drop for Fall {
    fn drop(&mut self) {
        panic!("what a handler has left panics");
    }
}

impl Service for Falling {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, _: IncomingCall) -> HandlerFuture {
        if method == PANIC {
            Box::pin(Fall)
        } else {
            Box::pin(std::future::ready(Reply::Ok(Payload::default())))
        }
    }
}

#[tokio::test]
async fn a_handler_that_panics_when_it_is_dropped_ends_its_call_alone() {
    let host =
        ServerCore::new(vec![Arc::new(Falling { info: info("test") })], plain(Limits::default())).unwrap();
    let mut peer = connected(&host).await;
    let panics = |call: u64| call == 2;
    for call in 1..=3 {
        peer.request(call, if panics(call) { PANIC } else { ECHO }, b"");
    }
    for _ in 1..=3 {
        let (Header { call, .. }, response) = peer.expect(FrameType::RESPONSE).await;
        let (head, _) = ResponseHead::decode(response).unwrap();
        assert_eq!(head.kind, if panics(call) { ResponseKind::Status } else { ResponseKind::Ok }, "{call}");
    }
}

struct Closing {
    info: Arc<ServiceInfo>,
    host: Arc<OnceLock<Arc<ServerCore>>>,
    runs: Arc<AtomicU32>,
}

impl Service for Closing {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, _: usize, _: IncomingCall) -> HandlerFuture {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.host.get().unwrap().close();
        Box::pin(std::future::ready(Reply::Ok(Payload::default())))
    }
}

#[tokio::test]
async fn nothing_is_served_after_the_connection_has_closed() {
    let (place, runs) = (Arc::new(OnceLock::new()), Arc::new(AtomicU32::new(0)));
    let service = Closing { info: info("test"), host: place.clone(), runs: runs.clone() };
    let host = ServerCore::new(vec![Arc::new(service)], plain(Limits::default())).unwrap();
    place.set(host.clone()).unwrap();
    let mut peer = connected(&host).await;
    peer.request(1, ECHO, b"");
    peer.request(2, ECHO, b"");
    peer.expect_close(CloseCode::Done, "the server was closed").await;
    host.finished().await;
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}
