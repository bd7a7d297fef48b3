//! Peers that break the rules of streams: each loses its own connection, is told why, and harms nobody else.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use bytes::{Bytes, BytesMut};
use farcall_core::config::Limits;
use farcall_core::payload::{Encoder, Payload};
use farcall_core::proto::wire::{
    Batch, CloseCode, Content, EndHead, EndReason, FrameType, Hello, ItemHead, RequestHead, Stop, Window,
    features,
};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;
use support::streaming::{CHAT, COUNT, ECHO, FIRST, FOREVER, SUM, Setup, WAIT, default, setup};
use support::until;

/// Returns a client with small windows that has announced the service.
async fn greeted(t: &Setup) -> Peer {
    let (near, far) = memory::pair();
    t.host.serve(far);
    let hello = Hello { features: features::STREAMS, stream_items: 10, stream_bytes: 1000, ..hello() };
    let mut peer = Peer::greeted(near, hello).await;
    peer.bind(t.stub.service());
    peer
}

fn item(len: usize) -> Bytes {
    items(&[Payload::from_body(vec![7; len].into())])
}

fn items(items: &[Payload]) -> Bytes {
    let mut batch = Batch::new(Encoder::new());
    items.iter().for_each(|item| batch.put(item));
    let (head, payload) = batch.finish();
    whole(Content { metadata: Bytes::new(), payload }, |content, out| head.encode(content, out).unwrap())
}

fn end(reason: EndReason, items: u64) -> Bytes {
    whole(Content::default(), |content, out| EndHead { reason, items }.encode(content, out).unwrap())
}

fn whole(content: Content, encode: impl FnOnce(&Content, &mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    encode(&content, &mut out);
    out.extend_from_slice(&content.payload_bytes());
    out.freeze()
}

trait Whole {
    fn payload_bytes(&self) -> Vec<u8>;
}

impl Whole for Content {
    fn payload_bytes(&self) -> Vec<u8> {
        let body = support::text(&self.payload);
        let attachments = self.payload.attachments().iter().flat_map(|a| a.to_vec());
        body.iter().copied().chain(attachments).collect()
    }
}

fn window(items: u64, bytes: u64) -> BytesMut {
    let mut out = BytesMut::new();
    Window { items, bytes }.encode(&mut out);
    out
}

fn stop() -> BytesMut {
    let mut out = BytesMut::new();
    Stop { reason: 0 }.encode(&mut out);
    out
}

type Offence = fn(&mut Peer);

/// Offences against a server, with words that its reason must contain.
const OFFENCES: &[(&str, Offence)] = &[
    ("beyond the window", |p| {
        p.request(1, FIRST, b"");
        (0..2).for_each(|_| p.session_frame(FrameType::ITEM, 1, 0, item(64 << 10)));
    }),
    ("beyond the window", |p| {
        p.request(1, FIRST, b"");
        let many = vec![Payload::default(); 1025];
        p.session_frame(FrameType::ITEM, 1, 0, items(&many));
    }),
    ("after the END", |p| {
        p.request(1, FIRST, b"");
        p.session_frame(FrameType::END, 1, 0, end(EndReason::Completed, 0));
        p.session_frame(FrameType::ITEM, 1, 0, item(1));
    }),
    ("comes twice", |p| {
        p.request(1, CHAT, b"");
        p.session_frame(FrameType::ITEM, 1, 0, item(1));
        (0..2).for_each(|_| p.session_frame(FrameType::END, 1, 0, end(EndReason::Completed, 1)));
    }),
    ("not how many have come", |p| {
        p.request(1, SUM, b"");
        p.session_frame(FrameType::END, 1, 0, end(EndReason::Completed, 1));
    }),
    ("is not a client's", |p| {
        p.request(1, SUM, b"");
        p.session_frame(FrameType::END, 1, 0, end(EndReason::Deadline, 0));
    }),
    ("a direction without a stream", |p| {
        p.request(1, FOREVER, b"");
        p.session_frame(FrameType::ITEM, 1, 0, item(1));
    }),
    ("a direction without a stream", |p| {
        p.request(1, SUM, b"");
        p.session_frame(FrameType::WINDOW, 1, 0, window(1 << 20, 1 << 20));
    }),
    ("a direction without a stream", |p| {
        p.request(1, SUM, b"");
        p.session_frame(FrameType::STOP, 1, 0, stop());
    }),
    ("takes back", |p| {
        p.request(1, FOREVER, b"");
        p.session_frame(FrameType::WINDOW, 1, 0, window(9, 1000));
    }),
    ("was never made", |p| p.session_frame(FrameType::ITEM, 1, 0, item(1))),
    ("was never made", |p| p.session_frame(FrameType::WINDOW, 7, 0, window(1, 1))),
    ("end.body", |p| {
        p.request(1, SUM, b"");
        let payload = Payload::new(Bytes::new(), vec![Bytes::new(); 30_000]);
        let end = EndHead { reason: EndReason::Completed, items: 0 };
        let end = whole(Content { payload, ..Content::default() }, |content, out| {
            end.encode(content, out).unwrap();
        });
        p.session_frame(FrameType::END, 1, 0, end);
    }),
    ("end.reason", |p| {
        p.request(1, SUM, b"");
        p.session_frame(FrameType::END, 1, 0, "\x05");
    }),
    ("item.more", |p| {
        p.request(1, SUM, b"");
        p.session_frame(FrameType::ITEM, 1, 0, "\x05");
    }),
    ("item.body", |p| {
        p.request(1, SUM, b"");
        // Decoded by the reader of the items, not where they arrive.
        p.session_frame(FrameType::ITEM, 1, 0, "\x01\0\0\0\x06\0\0\0\0\x10\0\0\0\0\0");
    }),
];

#[tokio::test]
async fn a_client_that_breaks_a_rule_of_streams_is_told_which_and_harms_nobody_else() {
    let t = default();
    let mut stream = t.watch(FOREVER, "").await.unwrap();
    for (words, offend) in OFFENCES {
        let mut peer = greeted(&t).await;
        offend(&mut peer);
        peer.expect_close(CloseCode::Protocol, words).await;
        t.echo("others go on").await;
        stream.message().await.unwrap().unwrap();
    }
}

/// WIRE.md section 5.4: a server treats such a call like one that has ended.
#[tokio::test]
async fn frames_of_streams_for_a_unary_call_are_ignored() {
    let t = default();
    let mut peer = greeted(&t).await;
    for when in ["while it runs", "when it has ended"] {
        if when == "while it runs" {
            peer.request(1, WAIT, b"");
            until(when, || t.seen.runs() == 1).await;
        }
        peer.session_frame(FrameType::ITEM, 1, 0, item(1));
        peer.session_frame(FrameType::END, 1, 0, end(EndReason::Completed, 7));
        peer.session_frame(FrameType::WINDOW, 1, 0, window(1, 1));
        peer.session_frame(FrameType::STOP, 1, 0, stop());
        if when == "while it runs" {
            t.seen.go();
            let (header, payload) = peer.expect(FrameType::RESPONSE).await;
            assert_eq!((header.call, payload[0]), (1, 0));
        }
    }
    peer.request(2, ECHO, b"goes on");
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    assert_eq!((header.call, &payload[payload.len() - 7..]), (2, &b"goes on"[..]));
}

#[tokio::test]
async fn frames_that_cross_the_end_of_a_call_are_ignored() {
    let t = default();
    let mut peer = greeted(&t).await;
    peer.request(1, FIRST, b"");
    peer.session_frame(FrameType::ITEM, 1, 0, item(1));
    peer.expect(FrameType::RESPONSE).await;
    peer.session_frame(FrameType::ITEM, 1, 0, item(1));
    peer.session_frame(FrameType::END, 1, 0, end(EndReason::Completed, 2));
    peer.request(2, COUNT, b"2 10");
    peer.expect(FrameType::END).await;
    peer.session_frame(FrameType::WINDOW, 2, 0, window(1 << 20, 1 << 20));
    peer.session_frame(FrameType::STOP, 2, 0, stop());
    peer.request(3, ECHO, b"on it goes");
    peer.expect(FrameType::RESPONSE).await;
}

#[tokio::test]
async fn a_window_is_kept_to_and_one_item_of_any_length_goes_beyond() {
    let t = default();
    let mut peer = greeted(&t).await;
    peer.request(1, COUNT, b"100 10");
    peer.expect(FrameType::RESPONSE).await;
    let (_, payload) = peer.expect(FrameType::ITEM).await;
    assert_eq!(ItemHead::count(&payload), Ok(10), "all that there is room for");
    peer.request(2, COUNT, b"1 5000");
    let (header, payload) = peer.expect(FrameType::ITEM).await;
    assert_eq!((header.call, payload.len() > 5000), (2, true));
    peer.session_frame(FrameType::WINDOW, 1, 0, window(15, 2000));
    let (header, payload) = peer.expect(FrameType::ITEM).await;
    assert_eq!((header.call, ItemHead::count(&payload)), (1, Ok(5)));
}

/// The client may have no timer of its own for the call.
#[tokio::test(start_paused = true)]
async fn a_client_is_told_that_the_deadline_has_ended_a_stream() {
    let t = default();
    let mut peer = greeted(&t).await;
    let head = RequestHead { service: 0, method: FOREVER as u16, attempt: 1, timeout_us: 50_000 };
    let request = whole(Content::default(), |content, out| head.encode(content, out).unwrap());
    peer.session_frame(FrameType::REQUEST, 1, 0, request);
    let (_, payload) = peer.expect(FrameType::END).await;
    let (head, content) = EndHead::decode(payload).unwrap();
    assert_eq!((head.reason, support::text(&content.payload).len()), (EndReason::Deadline, 0));
}

#[tokio::test]
async fn a_peer_without_streams_is_told_so() {
    let t = default();
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(t.stub.service());
    peer.request(1, COUNT, b"1 1");
    let (_, payload) = peer.expect(FrameType::RESPONSE).await;
    assert!(String::from_utf8_lossy(&payload).contains("too old for streams"));
    peer.request(2, ECHO, b"the rest it has");
    peer.expect(FrameType::RESPONSE).await;
}

#[tokio::test]
async fn streams_whose_ends_are_not_read_are_refused_and_then_end_the_connection() {
    let mut few = Limits::default();
    few.concurrent_calls = 10;
    let t = setup(Limits::default(), few);
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::new(near);
    peer.hello(&Hello { features: features::STREAMS, stream_items: 10, stream_bytes: 1000, ..hello() });
    peer.bind(t.stub.service());
    for call in 1..=5000 {
        // One by one, so that each finds room while there is some.
        peer.request(call, COUNT, b"9 90");
        tokio::task::yield_now().await;
    }
    until("the connection is closed", || t.host.connections().is_empty()).await;
    // As many as the link holds, and ten.
    let runs = t.seen.runs();
    assert!((10..=1000).contains(&runs), "{runs} streams of 1 KB were made");
}

/// The beginning of a stream does not count as an answer: its call has a place already.
#[tokio::test]
async fn as_many_streams_may_begin_as_there_are_places() {
    let mut few = Limits::default();
    few.concurrent_calls = 10;
    let t = setup(Limits::default(), few);
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::new(near);
    peer.hello(&Hello { features: features::STREAMS, stream_items: 10, stream_bytes: 1000, ..hello() });
    peer.bind(t.stub.service());
    // The first answer fills the link, because nobody reads.
    peer.request(1, COUNT, b"1 600000");
    for call in 2..=10 {
        peer.request(call, FOREVER, b"");
        until("it runs", || t.seen.runs() == call as usize).await;
    }
    peer.read();
    let mut begun = 0;
    while begun < 9 {
        let (header, payload) = peer.expect(FrameType::RESPONSE).await;
        if header.call > 1 {
            assert_eq!(payload[0], 0, "call {} is refused: {payload:?}", header.call);
            begun += 1;
        }
    }
}
