//! Frames that arrive by two links at a time. Each link has its own thread, and one thread may act on its frames before
//! the other has acted on earlier ones. The links here deliver on the test's thread, which stands for both.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use farcall_core::config::Policy;
use farcall_core::proto::wire::{
    self, Cancel, CloseCode, Down, FrameType, Hello, Offer, ResponseKind, Up, features, flags,
};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Service, ServiceInfo};
use farcall_core::testing::{Peer, hello, request};
use farcall_core::transport::LinkEnd;

use support::direct::{self, Direct};
use support::fabric::{Fabric, settings};
use support::{ECHO, HANG, Seen, Test, info, until};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// The tests' service, with an interruption while its first handler is polled.
struct Interrupted {
    inner: Test,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

impl Service for Interrupted {
    fn info(&self) -> &ServiceInfo {
        self.inner.info()
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        meanwhile.into_iter().for_each(|act| act());
        self.inner.call(method, request)
    }
}

/// A server, and a client that has received UP and holds back its own. So the server holds back what the client sends
/// by the link.
struct World {
    _host: Arc<ServerCore>,
    fabric: Arc<Fabric>,
    seen: Arc<Seen>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
    stream: Peer,
    link: Peer,
    /// The server's end of the link.
    far: Arc<Direct>,
}

impl World {
    async fn new(concurrent_calls: u32) -> Self {
        let fabric = Arc::new(Fabric::default());
        let inner = Test::new();
        let (seen, meanwhile) = (inner.seen.clone(), Arc::default());
        let service = Interrupted { inner, meanwhile: Arc::clone(&meanwhile) };
        let mut settings = settings(&fabric, Policy::Auto);
        settings.limits.concurrent_calls = concurrent_calls;
        let host = ServerCore::new(vec![Arc::new(service)], settings).unwrap();

        let [near, far] = direct::pair();
        host.serve(far);
        let able = wire::Upgrade { name: "fabric".into(), reason: 0, data: Bytes::new() };
        let hello = Hello { features: features::DESCRIBED, upgrades: vec![able], ..hello() };
        let mut stream = Peer::greeted(near, hello).await;
        let [near, far] = direct::pair();
        let mut link = Peer::new(near);
        link.read();
        offer(&mut stream, 1, &fabric, &far);
        stream.expect(FrameType::UP).await;
        until("what is sent is delivered on this thread", || far.has_started()).await;
        link.bind(&info("test"));
        Self { _host: host, fabric, seen, meanwhile, stream, link, far }
    }

    fn meanwhile(&self, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(act));
    }

    /// Sends UP, so that the server handles the frames that it has held back.
    fn up(&mut self) {
        self.stream.link_frame(FrameType::UP, encoded(|out| Up { epoch: 1, first_seq: 1 }.encode(out)));
    }
}

fn offer(stream: &mut Peer, epoch: u32, fabric: &Fabric, far: &Arc<Direct>) {
    let data = fabric.place(far.clone());
    let offer = Offer { epoch, name: "fabric".into(), data };
    stream.link_frame(FrameType::OFFER, encoded(|out| offer.encode(out)));
}

/// Returns the DOWN by which the client gives up the first link.
fn down() -> BytesMut {
    let down = Down { epoch: 1, rx_seq: 0, reason: 15, pulls: Vec::new(), detail: String::new() };
    encoded(|out| down.encode(out))
}

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    encode(&mut out);
    out
}

#[tokio::test]
async fn a_cancel_finds_the_call_whose_handler_has_not_begun() {
    let mut w = World::new(9).await;
    w.link.request(1, ECHO, b"first");
    w.link.request(2, HANG, b"");
    let mut link = Peer::new(w.link.link().clone());
    link.skip(3);
    w.meanwhile(move || {
        link.session_frame(FrameType::CANCEL, 2, 0, encoded(|out| Cancel { reason: 0 }.encode(out)));
    });
    w.up();
    w.link.expect(FrameType::RESPONSE).await;
    until("the handler is dropped", || w.seen.hanging() == 0).await;
}

#[tokio::test]
async fn bytes_that_are_no_frame_end_the_session_unless_their_link_was_given_up_before() {
    let malformed = || LinkEnd::malformed("the third byte is wrong");
    let mut w = World::new(9).await;
    w.far.end(malformed());
    w.stream.expect_close(CloseCode::Protocol, "the third byte is wrong").await;

    let mut w = World::new(9).await;
    w.stream.link_frame(FrameType::DOWN, down());
    w.far.end(malformed());
    w.stream.bind(&info("test"));
    w.stream.request(1, ECHO, b"goes on");
    w.stream.expect(FrameType::RESPONSE).await;
}

#[tokio::test]
async fn a_call_is_in_use_from_when_it_was_taken_in() {
    let mut w = World::new(9).await;
    w.link.request(1, HANG, b"");
    w.link.request(1, HANG, b"");
    w.up();
    w.stream.expect_close(CloseCode::Protocol, "request.call: is in use").await;
    until("the handler is dropped", || w.seen.hanging() == 0).await;
}

#[tokio::test]
async fn a_call_counts_from_when_it_was_taken_in() {
    let mut w = World::new(1).await;
    w.link.request(1, HANG, b"");
    w.link.request(2, HANG, b"");
    w.up();
    let (header, refusal) = w.link.expect(FrameType::RESPONSE).await;
    assert_eq!((header.call, refusal[0]), (2, ResponseKind::Status as u8));
    assert_eq!(w.seen.runs(), 1);
}

#[tokio::test]
async fn a_call_that_was_cancelled_counts_no_more() {
    let mut w = World::new(1).await;
    w.link.request(1, HANG, b"");
    w.link.session_frame(FrameType::CANCEL, 1, 0, encoded(|out| Cancel { reason: 0 }.encode(out)));
    w.link.request(2, ECHO, b"in its place");
    w.up();
    let (header, answer) = w.link.expect(FrameType::RESPONSE).await;
    assert_eq!((header.call, answer[0]), (2, ResponseKind::Ok as u8));
    until("the handler is dropped", || w.seen.hanging() == 0).await;
}

/// The link by which a message was described falls before the READ, and there is another link. The other link must read
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_message_is_read_by_the_link_that_it_was_described_on() {
    let mut w = World::new(9).await;
    w.link.request(1, ECHO, b"first");
    let begin = request(ECHO, b"");
    let total = (begin.len() as u32 + 10).to_le_bytes();
    let described = [&total[..], &[8, 0], &[0; 8], &begin].concat();
    w.link.session_frame(FrameType::REQUEST, 2, flags::FRAGMENTED | flags::DESCRIBED, described);

    let [near, second] = direct::pair();
    Peer::new(near).read();
    let (first, later) = (w.far.clone(), second.clone());
    let (mut stream, fabric) = (Peer::new(w.stream.link().clone()), w.fabric.clone());
    w.meanwhile(move || {
        first.end(LinkEnd::failed("as the test wants it"));
        stream.link_frame(FrameType::DOWN, down());
        offer(&mut stream, 2, &fabric, &later);
        let began = Instant::now();
        while !later.has_started() {
            assert!(began.elapsed() < Duration::from_secs(60), "the second link is not used");
            std::thread::yield_now();
        }
    });
    w.up();
    assert_eq!((w.far.pulled(), second.pulled()), (vec![3], vec![]));
}
