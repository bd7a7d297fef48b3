//! Memory that a client makes a server hold in ways that are easily overlooked. All of it counts.

mod support;

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use farcall_core::config::Limits;
use farcall_core::memory::PeerMemory;
use farcall_core::metadata::Metadata;
use farcall_core::payload::Payload;
use farcall_core::proto::wire::{
    Cancel, Content, FrameType, Hello, ItemHead, RequestHead, encode_metadata, features,
};
use farcall_core::server::ServerCore;
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;

use support::streaming::{self, CHAT};
use support::{HANG, host, info, plain, until};

const KIB: usize = 1 << 10;

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
