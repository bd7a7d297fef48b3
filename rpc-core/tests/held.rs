//! Memory that a client makes a server hold in ways that are easily overlooked. All of it counts.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use farcall_core::bulk::BulkRead;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::{Encode, Postcard, Raw, from_payload};
use farcall_core::config::Limits;
use farcall_core::memory::PeerMemory;
use farcall_core::metadata::Metadata;
use farcall_core::payload::{Encoder, Payload};
use farcall_core::proto::wire::{
    Bind, Cancel, Content, FrameType, Hello, ItemHead, RequestHead, Upgrade, encode_metadata, features,
};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Service, ServiceInfo};
use farcall_core::status::{Code, Executed, Result};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;

use support::streaming::{self, CHAT};
use support::{ECHO, HANG, Near, host, info, plain, until};
use tokio::sync::mpsc;

const KIB: usize = 1 << 10;

const MIB: usize = 1 << 20;

/// Waits until what is held lies in a range.
async fn until_held(host: &ServerCore, what: fn(&PeerMemory) -> usize, range: RangeInclusive<usize>) {
    let held = || host.memory().peers().iter().map(what).sum::<usize>();
    until("what is held is not counted", || range.contains(&held())).await;
}

/// Returns limits with a budget that no other test uses.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.memory = 1 << 30;
    limits
}

async fn greeted(host: &Arc<ServerCore>) -> Peer {
    let (near, far) = memory::pair();
    host.serve(far);
    // The server may send one item.
    let hello = Hello { features: features::STREAMS, stream_items: 1, stream_bytes: 1000, ..hello() };
    Peer::greeted(near, hello).await
}

fn cancel(peer: &mut Peer, call: u64) {
    let mut payload = BytesMut::new();
    Cancel { reason: 0 }.encode(&mut payload);
    peer.session_frame(FrameType::CANCEL, call, 0, payload);
}

#[tokio::test]
async fn metadata_of_a_call() {
    let (host, _) = host(plain(limits()));
    let mut peer = greeted(&host).await;
    peer.bind(&info("test"));
    let mut metadata = Metadata::new();
    metadata.insert("key", "v".repeat(10_000)).unwrap();
    peer.request_with(1, HANG, &encode_metadata(&metadata), b"");
    until_held(&host, |peer| peer.arguments, 12 * KIB..=16 * KIB).await;
    cancel(&mut peer, 1);
    until_held(&host, |peer| peer.arguments, 0..=0).await;
}

#[tokio::test]
async fn the_list_of_empty_attachments_of_a_call() {
    const COUNT: usize = 30_000;
    let (host, _) = host(plain(limits()));
    let mut peer = greeted(&host).await;
    peer.bind(&info("test"));
    let payload = Payload::new(Bytes::new(), vec![Bytes::new(); COUNT]);
    let head = RequestHead { service: 0, method: HANG as u16, attempt: 1, timeout_us: 0 };
    let mut request = BytesMut::new();
    head.encode(&Content { payload, ..Content::default() }, &mut request).unwrap();
    peer.session_frame(FrameType::REQUEST, 1, 0, request);
    let list = COUNT * size_of::<Bytes>();
    until_held(&host, |peer| peer.arguments, list..=list + 8 * KIB).await;
    cancel(&mut peer, 1);
    until_held(&host, |peer| peer.arguments, 0..=0).await;
}

#[tokio::test]
async fn services_that_a_client_announces() {
    const COUNT: u16 = 1000;
    let (host, _) = host(plain(limits()));
    let mut peer = greeted(&host).await;
    for service in 0..COUNT {
        let bind = Bind { service, name: "x".into(), codec: "raw".into(), methods: Vec::new() };
        let mut payload = BytesMut::new();
        bind.encode(&mut payload);
        peer.session_frame(FrameType::BIND, 0, 0, payload);
    }
    // Each has two texts, and a place in a list that doubles.
    let least = usize::from(COUNT) * 150;
    until_held(&host, |peer| peer.sessions, least..=3 * least).await;
    drop(peer);
    until_held(&host, |peer| peer.sessions, 0..=0).await;
}

/// A HELLO may have 128 KiB. The server copies the parts that it uses.
#[tokio::test]
async fn nothing_of_a_hello() {
    let (host, _) = host(plain(limits()));
    let (near, far) = memory::pair();
    host.serve(far);
    let upgrade = |name: &str| Upgrade { name: name.into(), reason: 0, data: vec![7; 30_000].into() };
    let upgrades = vec![upgrade("other"), upgrade("rdma"), upgrade("rdma")];
    let mut payload = BytesMut::new();
    Hello { upgrades, auth: vec![7; 30_000].into(), ..hello() }.encode(&mut payload);
    let hello = payload.freeze();
    let mut peer = Peer::new(near);
    peer.link_frame(FrameType::HELLO, hello.clone());
    assert!(!hello.is_unique());
    peer.read();
    peer.expect(FrameType::HELLO).await;
    until("the session begins", || !host.connections().is_empty()).await;
    until("the HELLO is kept", || hello.is_unique()).await;
}

/// A message of a stream counts until all of its items are read, because it is kept until then.
#[tokio::test]
async fn items_that_are_not_read_or_not_all_of_them() {
    let t = streaming::setup(Limits::default(), limits());
    let mut peer = greeted(&t.host).await;
    peer.bind(t.stub.service());
    peer.request(1, CHAT, b"");
    // One message of three items, of which one can be answered and another one is read ahead. Then one message more.
    let entry = |len: u32| [&len.to_le_bytes()[..], &[0; 2], &vec![7; len as usize]].concat();
    let three = [entry(1024), entry(1024), entry(1024)].concat();
    for (more, body) in [(2, three), (0, vec![7; 1024])] {
        let content = Content { payload: Payload::from_body(body.clone().into()), ..Content::default() };
        let mut item = BytesMut::new();
        ItemHead { more }.encode(&content, &mut item).unwrap();
        item.extend_from_slice(&body);
        peer.session_frame(FrameType::ITEM, 1, 0, item);
    }
    until_held(&t.host, |peer| peer.items, 128 * KIB..=136 * KIB).await;
    peer.expect(FrameType::ITEM).await;
    // Let everything else that is ready run.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    until_held(&t.host, |peer| peer.items, 128 * KIB..=136 * KIB).await;
    cancel(&mut peer, 1);
    until_held(&t.host, |peer| peer.items, 0..=0).await;
}

/// A service whose calls do not end. It hands what they lend to the test.
struct Borrower {
    info: Arc<ServiceInfo>,
    lent: mpsc::UnboundedSender<BulkRead>,
}

impl Service for Borrower {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        self.lent.send(from_payload::<Postcard, _>(request.payload).unwrap()).unwrap();
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn reads_of_lent_memory_until_they_are_dropped() {
    let (lent, mut arrived) = mpsc::unbounded_channel();
    let mut limits = limits();
    limits.memory = 64 * MIB as u64;
    let host = ServerCore::new(vec![Arc::new(Borrower { info: info("test"), lent })], plain(limits)).unwrap();
    let held = || host.memory().peers().iter().map(|peer| peer.arguments).sum::<usize>();
    let near = Near { hosts: Arc::new(Mutex::new(vec![host.clone()])), taps: Arc::default() };
    let stub = Stub::new(RawChannel::new(near, plain(Limits::default())), info("test"));
    let mut arguments = Encoder::new().lending();
    Postcard::encode(&BulkRead::from(Bytes::from(vec![1; 32 * MIB])), &mut arguments).unwrap();
    let call: Call<Result<Bytes>, Raw> = stub.call(ECHO, Ok(arguments.finish()));
    let _call = tokio::spawn(call.into_future());
    let lent = arrived.recv().await.unwrap();
    let of_call = held();

    let read = lent.read(..MIB).await.unwrap();
    let view = read.slice(..1);
    drop(read);
    assert!((MIB..MIB + MIB / 8).contains(&(held() - of_call)), "{} besides {of_call}", held());
    drop(view);
    assert_eq!(held(), of_call);

    // Half the budget: below five eighths, no connection is greedy.
    let mut reads = Vec::new();
    for at in 0..32 {
        reads.push(lent.read(at * MIB..(at + 1) * MIB).await.unwrap());
    }
    let refusal = lent.read(..).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.executed()), (Code::ResourceExhausted, Executed::No), "{refusal}");
    assert!(refusal.message().contains("limits.memory"), "{refusal}");
    drop(reads);
    assert_eq!(lent.read(..MIB).await.unwrap(), vec![1; MIB]);
}
