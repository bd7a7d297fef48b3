//! Peers that break the rules: each loses its own connection, is told why, and harms nobody else.

mod support;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use farcall_core::config::Limits;
use farcall_core::proto::wire::{
    Answer, Close, CloseCode, Done, Down, FrameType, Goaway, Header, Hello, Offer, Ping, Pull, Up, flags,
};
use farcall_core::status::{Blame, Code, Executed};
use farcall_core::testing::{Peer, hello, request};
use farcall_core::transport::memory;

use support::peer::played;
use support::{ECHO, HANG, Setup, call, default, info, plain, setup, until};

/// A raw client of the server.
fn intruder(t: &Setup) -> Peer {
    let (near, far) = memory::pair();
    t.host.serve(far);
    Peer::new(near)
}

async fn greeted(t: &Setup) -> Peer {
    let (near, far) = memory::pair();
    t.host.serve(far);
    Peer::greeted(near, hello()).await
}

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    encode(&mut out);
    out
}

fn offer(epoch: u32) -> BytesMut {
    encoded(|out| Offer { epoch, name: "rdma".into(), data: Bytes::new() }.encode(out))
}

fn down(epoch: u32, rx_seq: u32) -> BytesMut {
    encoded(|out| Down { epoch, rx_seq, reason: 1, pulls: Vec::new(), detail: String::new() }.encode(out))
}

type Offence = fn(&mut Peer);

/// Offences against a server, with words that its reason must contain.
const OF_CLIENTS: &[(&str, Offence)] = &[
    ("comes again", |p| p.hello(&hello())),
    ("is not the next number", |p| {
        let header = Header { seq: 7, ..Header::new(FrameType::BIND, 0) };
        p.send(header, Bytes::new());
    }),
    ("was not begun", |p| p.session_frame(FrameType::FRAGMENT, 1, 0, "x")),
    ("gives up a message that was not begun", |p| {
        p.session_frame(FrameType::FRAGMENT, 1, flags::ABANDONED, "");
    }),
    ("longer than HELLO's max_message", |p| p.begin(FrameType::REQUEST, 1, (1 << 20) + 1, b"x")),
    ("exceeds HELLO's max_assembly", |p| {
        (1..=5).for_each(|call| p.begin(FrameType::REQUEST, call, 1 << 20, b"x"));
    }),
    ("one of too many at once", |p| {
        (1..=(4 << 10) + 1).for_each(|call| p.begin(FrameType::REQUEST, call, 2, b"x"));
    }),
    ("fragmented.total: the frame ends before it", |p| {
        p.session_frame(FrameType::REQUEST, 1, flags::FRAGMENTED, "abc");
    }),
    ("DESCRIBED where nothing can be read", |p| {
        p.session_frame(FrameType::REQUEST, 1, flags::FRAGMENTED | flags::DESCRIBED, "\x0a\0\0\0\0\0x");
    }),
    ("done.seq: names no message that was described", |p| {
        p.session_frame(FrameType::DONE, 0, 0, encoded(|out| Done { seq: 1, outcome: 0 }.encode(out)));
    }),
    ("asks for it", |p| {
        p.link_frame(FrameType::OFFER, offer(1));
        let pulls = vec![Pull { seq: 1 }];
        let down = Down { epoch: 1, rx_seq: 0, reason: 1, pulls, detail: String::new() };
        p.link_frame(FrameType::DOWN, encoded(|out| down.encode(out)));
    }),
    ("no longer than its first frame", |p| p.begin(FrameType::REQUEST, 1, 1, b"x")),
    ("the second at once of its call", |p| {
        p.begin(FrameType::REQUEST, 1, 10, b"x");
        p.begin(FrameType::REQUEST, 1, 10, b"x");
    }),
    ("goes past the end", |p| {
        p.begin(FrameType::REQUEST, 1, 3, b"x");
        p.session_frame(FrameType::FRAGMENT, 1, 0, "yyy");
    }),
    ("before another of its call is finished", |p| {
        p.begin(FrameType::REQUEST, 1, 10, b"x");
        p.request(1, ECHO, b"");
    }),
    ("is in use", |p| {
        p.bind(&info("test"));
        p.request(1, HANG, b"");
        p.request(1, HANG, b"");
    }),
    ("is not a client's", |p| p.request(1 << 63, ECHO, b"")),
    ("is not the next index", |p| {
        p.bind(&info("test"));
        p.bind(&info("test"));
    }),
    ("was never made", |p| p.respond(1, b"")),
    ("comes from a client", |p| {
        let goaway = encoded(|out| Goaway { last_call: 1, reason: String::new() }.encode(out));
        p.session_frame(FrameType::GOAWAY, 0, 0, goaway);
    }),
    ("answer: comes from a client", |p| {
        p.link_frame(FrameType::ANSWER, encoded(|out| Answer { epoch: 1, data: Bytes::new() }.encode(out)));
    }),
    ("up.epoch: was never offered", |p| {
        p.link_frame(FrameType::UP, encoded(|out| Up { epoch: 1, first_seq: 1 }.encode(out)));
    }),
    ("down.epoch: was never offered", |p| p.link_frame(FrameType::DOWN, down(1, 0))),
    ("acknowledges what was never sent", |p| {
        p.link_frame(FrameType::OFFER, offer(1));
        p.link_frame(FrameType::DOWN, down(1, 5));
    }),
    ("offer.epoch: has been used", |p| {
        p.link_frame(FrameType::OFFER, offer(2));
        p.link_frame(FrameType::DOWN, down(2, 0));
        p.link_frame(FrameType::OFFER, offer(1));
    }),
    ("before the last attempt is over", |p| {
        p.link_frame(FrameType::OFFER, offer(1));
        p.link_frame(FrameType::OFFER, offer(2));
    }),
    ("acknowledges what was never sent", |p| {
        p.send(Header { rx_seq: 3, ..Header::new(FrameType::ACK, 0) }, Bytes::new());
    }),
    ("not one that was agreed on", |p| p.session_frame(FrameType::ITEM, 1, 0, "x")),
    ("not one that was agreed on", |p| p.session_frame(FrameType(0x3f), 1, 0, "x")),
    ("not one that was agreed on", |p| p.link_frame(FrameType::PROBE, "x")),
    ("request.service", |p| p.session_frame(FrameType::REQUEST, 1, 0, "")),
    ("cancel", |p| p.session_frame(FrameType::CANCEL, 1, 0, "")),
    ("metadata.key: the frame ends before it", |p| with_metadata(p, b"\x02k")),
    ("metadata.value: the frame ends before it", |p| with_metadata(p, b"\x01k\x02\0v")),
    ("metadata: the key has another character", |p| with_metadata(p, b"\x01K\0\0")),
    ("metadata: the value is not printable", |p| with_metadata(p, b"\x01k\x01\0\n")),
    ("metadata.key: is empty", |p| with_metadata(p, b"\0\x01k\0\0")),
];

/// Sends a call with this metadata block.
fn with_metadata(peer: &mut Peer, block: &[u8]) {
    peer.bind(&info("test"));
    peer.request_with(1, ECHO, block, b"");
}

#[tokio::test]
async fn a_client_that_breaks_a_rule_is_told_which_and_harms_nobody_else() {
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly) = (1 << 20, 4 << 20);
    let t = setup(plain(Limits::default()), plain(limits));
    let hanging = t.spawn(HANG, "");
    t.seen.started.notified().await;
    for (words, offend) in OF_CLIENTS {
        let mut peer = greeted(&t).await;
        offend(&mut peer);
        peer.expect_close(CloseCode::Protocol, words).await;
        assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
    }
    until("only the honest connection is left", || t.host.connections().len() == 1).await;
    assert!(!hanging.is_finished());
}

/// Neither side reads metadata above its limit, and both go on.
#[tokio::test]
async fn metadata_over_the_limit_cost_their_call_only() {
    let t = default();
    let mut peer = greeted(&t).await;
    peer.bind(&info("test"));
    peer.request_with(1, ECHO, &[0; (16 << 10) + 1], b"");
    let (_, payload) = peer.expect(FrameType::RESPONSE).await;
    let text = String::from_utf8_lossy(&payload);
    assert!(text.contains("16385 bytes, but the server's limits.max_metadata is 16384"), "{text}");
    assert_eq!(t.seen.runs(), 0);
    peer.request(2, ECHO, b"goes on");
    assert!(peer.expect(FrameType::RESPONSE).await.1.ends_with(b"goes on"));

    let (caller, mut links, _) = played();
    let ask = || tokio::spawn(call(&caller, &info("test"), ECHO, "").into_future());
    let answer = ask();
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.respond_with(header.call, &[0; (16 << 10) + 1], b"");
    let error = answer.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::Maybe), "{error}");
    assert!(
        error.message().contains("16385 bytes, but the client's limits.max_metadata is 16384"),
        "{error}"
    );
    let answer = ask();
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    peer.respond(header.call, b"goes on");
    assert_eq!(answer.await.unwrap().unwrap(), "goes on");
}

#[tokio::test]
async fn a_frame_before_hello_closes() {
    let t = default();
    let mut peer = intruder(&t);
    peer.read();
    peer.request(1, ECHO, b"");
    peer.expect_close(CloseCode::Protocol, "is not the first frame").await;
    let mut peer = intruder(&t);
    peer.read();
    peer.link_frame(FrameType::PING, encoded(|out| Ping { token: 1 }.encode(out)));
    peer.expect_close(CloseCode::Protocol, "is not the first frame").await;
}

#[tokio::test]
async fn absurd_hellos_are_refused_and_strict_ones_are_kept_to() {
    let t = default();
    type Absurdity = (CloseCode, &'static str, fn(&mut Hello));
    let absurd: [Absurdity; 6] = [
        (CloseCode::Version, "upgrade the older side", |h| (h.version_min, h.version_max) = (2, 9)),
        (CloseCode::Required, "secured", |h| h.security = 3),
        (CloseCode::Protocol, "max_frame", |h| h.max_frame = 1023),
        (CloseCode::Protocol, "max_message", |h| h.max_message = 0),
        (CloseCode::Protocol, "max_assembly", |h| h.max_assembly = 1024),
        (CloseCode::Protocol, "version_min", |h| h.version_min = 2),
    ];
    for (code, words, spoil) in absurd {
        let mut peer = intruder(&t);
        peer.read();
        let mut said = hello();
        spoil(&mut said);
        peer.hello(&said);
        peer.expect_close(code, words).await;
    }

    let mut peer = intruder(&t);
    peer.read();
    peer.hello(&Hello { max_frame: 1024, max_message: 1024, max_assembly: 1024, ..hello() });
    peer.expect(FrameType::HELLO).await;
    peer.bind(&info("test"));
    peer.request(1, ECHO, &[5; 1015]);
    let (header, _) = peer.expect(FrameType::RESPONSE).await;
    assert_eq!((header.flags, header.len), (0, 1024), "what fits comes whole");
    peer.request(2, ECHO, &[5; 1016]);
    let (_, payload) = peer.expect(FrameType::RESPONSE).await;
    assert!(payload.len() <= 1024);
    let text = String::from_utf8_lossy(&payload);
    assert!(text.contains("the client's limits.max_message is 1024"), "{text}");

    let mut peer = intruder(&t);
    peer.read();
    peer.hello(&Hello { max_frame: 1024, ..hello() });
    peer.expect(FrameType::HELLO).await;
    peer.bind(&info("test"));
    peer.request(1, ECHO, &[5; 5000]);
    let (first, _) = peer.expect(FrameType::RESPONSE).await;
    assert_eq!((first.flags, first.len), (flags::FRAGMENTED, 1024));
    let (next, _) = peer.expect(FrameType::FRAGMENT).await;
    assert_eq!(next.len, 1024);
}

/// A peer that keeps asking without reading the answers is answered once, or closed. Its answers do not pile up.
#[tokio::test]
async fn floods_do_not_fill_memory() {
    let t = default();

    // Only the last PING is answered. The peer begins to read when the server has received all of them.
    let mut peer = intruder(&t);
    peer.hello(&hello());
    for token in 1..=200_000 {
        peer.link_frame(FrameType::PING, encoded(|out| Ping { token }.encode(out)));
        if token % 1000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    peer.read();
    let mut pongs = 0;
    loop {
        let (_, payload) = peer.expect(FrameType::PONG).await;
        pongs += 1;
        if Ping::decode(payload).unwrap().token == 200_000 {
            break;
        }
    }
    // As many as the link holds, and the one that waited.
    assert!(pongs < 20_000, "{pongs} answers were kept");

    let mut peer = greeted(&t).await;
    for i in 0..200_000_u32 {
        peer.session_frame(FrameType::BIND, 0, 0, bind(i as u16));
        if i % 1000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    peer.expect_close(CloseCode::Protocol, "1 MiB").await;
    assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
}

fn bind(service: u16) -> BytesMut {
    let bind = farcall_core::proto::wire::Bind {
        service,
        name: "a service that nobody has".into(),
        codec: "raw".into(),
        methods: Vec::new(),
    };
    encoded(|out| bind.encode(out))
}

/// WIRE.md section 3.5: the call ends like one of a service that was not announced, and harms no other.
#[tokio::test]
async fn a_request_before_its_bind_is_whole_is_not_implemented() {
    let t = default();
    let mut peer = greeted(&t).await;
    let bind = bind(0);
    peer.begin(FrameType::BIND, 0, bind.len() as u32, &bind[..9]);
    peer.request(1, ECHO, b"");
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    let words = String::from_utf8_lossy(&payload);
    assert!(header.call == 1 && words.contains("was not announced"), "{words}");
    peer.session_frame(FrameType::FRAGMENT, 0, 0, bind.freeze().slice(9..));
    peer.request(2, ECHO, b"");
    let (header, payload) = peer.expect(FrameType::RESPONSE).await;
    let words = String::from_utf8_lossy(&payload);
    assert!(header.call == 2 && words.contains("a service that nobody has"), "{words}");
}

#[tokio::test]
async fn offers_whose_answers_are_not_read_end_the_connection() {
    let t = default();
    let mut peer = intruder(&t);
    peer.hello(&hello());
    // Fill the link first.
    peer.bind(&info("test"));
    (1..=9).for_each(|call| peer.request(call, support::BIG, b"100000"));
    tokio::task::yield_now().await;
    for epoch in 1..=1000 {
        peer.link_frame(FrameType::OFFER, offer(epoch));
        peer.link_frame(FrameType::DOWN, down(epoch, 0));
    }
    until("the connection is closed", || t.host.connections().is_empty()).await;
}

#[tokio::test]
async fn requests_whose_answers_are_not_read_are_refused_and_then_end_the_connection() {
    let mut few = Limits::default();
    few.concurrent_calls = 10;
    let t = setup(plain(Limits::default()), plain(few));
    let mut peer = intruder(&t);
    peer.hello(&hello());
    peer.bind(&info("test"));
    for call in 1..=5000 {
        peer.request(call, support::BIG, b"100000");
        if call % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    until("the connection is closed", || t.host.connections().is_empty()).await;
    // As many as the link holds and ten, but not thousands.
    let runs = t.seen.runs();
    assert!((10..=100).contains(&runs), "{runs} answers of 100 KB were made");
}

/// Returns the next answer to a call with a higher number.
async fn answer_after(call: u64, peer: &mut Peer) -> Bytes {
    loop {
        let (header, payload) = peer.expect(FrameType::RESPONSE).await;
        if header.call > call {
            return payload;
        }
    }
}

/// Returns how many calls the server has run, once no more are on their way to it.
async fn settled(t: &Setup) -> u32 {
    // On one thread, frames that were sent are received while this yields.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    t.seen.runs()
}

/// The answer may wait with so many others that it is not searched for at once.
#[tokio::test]
async fn a_cancel_gives_the_place_of_an_answer_that_waits_to_the_next_call() {
    let mut few = Limits::default();
    few.concurrent_calls = 200;
    let t = setup(plain(Limits::default()), plain(few));
    let mut peer = intruder(&t);
    peer.hello(&hello());
    peer.bind(&info("test"));
    // The first answer fills the link, because nobody reads. Some answers are sent beside it.
    peer.request(1, support::BIG, b"1000000");
    let mut last = 1;
    while settled(&t).await == last {
        last += 1;
        peer.request(last.into(), ECHO, b"");
    }
    // The refusal waits, too.
    let cancel = |peer: &mut Peer, call: u32| peer.session_frame(FrameType::CANCEL, call.into(), 0, "\0");
    cancel(&mut peer, last);
    let taken = last - 1;
    for gone in 1..=60 {
        cancel(&mut peer, last - gone);
        peer.request(u64::from(last + gone), ECHO, b"");
        until("it has the place", || t.seen.runs() == taken + gone).await;
    }
    peer.request(u64::from(last + 61), ECHO, b"");
    assert_eq!(settled(&t).await, taken + 60, "there is no other place");
}

/// Refusals that wait to be sent do not count as calls.
#[tokio::test]
async fn a_refusal_counts_calls_and_no_other_refusals() {
    let mut few = Limits::default();
    few.concurrent_calls = 2;
    let t = setup(plain(Limits::default()), plain(few));
    let mut peer = intruder(&t);
    peer.hello(&hello());
    peer.bind(&info("test"));
    // The first answer fills the link, because nobody reads.
    peer.request(1, support::BIG, b"1000000");
    peer.request(2, HANG, b"");
    until("both run", || t.seen.runs() == 2).await;
    (3..=9).for_each(|call| peer.request(call, ECHO, b""));
    peer.read();
    for _ in 3..=9 {
        let payload = answer_after(2, &mut peer).await;
        let words = String::from_utf8_lossy(&payload);
        assert!(words.contains("2 calls are in progress"), "{words}");
    }
}

/// Offences against a client that waits for the answer to call 1, with words that its reason must contain.
const OF_SERVERS: &[(&str, Offence)] = &[
    ("was never made", |p| p.respond(2, b"")),
    ("goes to a side that serves nothing", |p| p.bind(&info("test"))),
    ("goes to a side that serves nothing", |p| {
        let payload = request(ECHO, b"");
        p.session_frame(FrameType::REQUEST, 1, 0, payload);
    }),
    ("cancel: comes from a server", |p| p.session_frame(FrameType::CANCEL, 1, 0, "\0")),
    ("offer: comes from a server", |p| p.link_frame(FrameType::OFFER, offer(1))),
    ("answer.epoch: was never offered", |p| {
        p.link_frame(FrameType::ANSWER, encoded(|out| Answer { epoch: 1, data: Bytes::new() }.encode(out)));
    }),
    ("response", |p| p.session_frame(FrameType::RESPONSE, 1, 0, "x")),
    ("metadata.trailing: are none", |p| p.respond_with(1, b"\0", b"")),
    ("metadata.trailing: begin again", |p| p.respond_with(1, b"\0\x01k\0\0\0\x01k\0\0", b"")),
    ("metadata.value", |p| p.respond_with(1, b"\x01k\0", b"")),
    ("longer than HELLO's max_message", |p| p.begin(FrameType::RESPONSE, 1, u32::MAX, b"x")),
    ("is not the next number", |p| {
        let header = Header { seq: 2, ..Header::new(FrameType::GOAWAY, 0) };
        p.send(header, Bytes::new());
    }),
];

#[tokio::test]
async fn a_server_that_breaks_a_rule_costs_its_callers_one_connection() {
    for (words, offend) in OF_SERVERS {
        let (caller, mut links, _) = played();
        let answer = tokio::spawn(call(&caller, &info("test"), ECHO, "x").into_future());
        let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
        peer.expect(FrameType::REQUEST).await;
        offend(&mut peer);
        peer.expect_close(CloseCode::Protocol, words).await;
        let error = answer.await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
        assert!(error.message().contains(words), "{error}");

        let answer = tokio::spawn(call(&caller, &info("test"), ECHO, "x").into_future());
        let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
        let (header, _) = peer.expect(FrameType::REQUEST).await;
        peer.respond(header.call, b"well");
        assert_eq!(answer.await.unwrap().unwrap(), "well");
    }
}

#[tokio::test]
async fn a_server_that_takes_no_calls_is_an_error_and_no_eternal_wait() {
    let (caller, mut links, _) = played();
    let answer = tokio::spawn(call(&caller, &info("test"), ECHO, "x").into_future());
    let mut peer = Peer::new(links.recv().await.unwrap());
    peer.read();
    peer.hello(&Hello { max_calls: 0, ..hello() });
    let error = answer.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    assert!(error.message().contains("max_calls 0"), "{error}");
    peer.expect_close(CloseCode::Required, "max_calls 0").await;
}

#[tokio::test]
async fn a_server_with_small_limits_is_kept_to() {
    let (caller, mut links, _) = played();
    let caller = &caller;
    let ask =
        |method, argument: Bytes| tokio::spawn(call(caller, &info("test"), method, argument).into_future());
    let answer = ask(ECHO, vec![1; 1003].into());
    let mut peer = Peer::new(links.recv().await.unwrap());
    peer.read();
    peer.hello(&Hello { max_frame: 1024, max_message: 1024, max_assembly: 1024, ..hello() });
    let (header, _) = peer.expect(FrameType::REQUEST).await;
    assert_eq!((header.flags, header.len), (0, 1024));
    peer.respond(header.call, b"");
    answer.await.unwrap().unwrap();
    let error = ask(ECHO, vec![1; 1004].into()).await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::No), "{error}");

    // A service whose BIND is too long for this server.
    let mut long = (*info("long")).clone();
    let method = long.methods[0].clone();
    long.methods.resize(100, method);
    let error = call(caller, &Arc::new(long), ECHO, "").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::No), "{error}");
    assert!(error.message().contains("`long`"), "{error}");
}

#[tokio::test]
async fn the_reason_of_a_close_reaches_the_caller() {
    let (caller, mut links, _) = played();
    let answer = tokio::spawn(call(&caller, &info("test"), ECHO, "x").into_future());
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    peer.expect(FrameType::REQUEST).await;
    let close = Close { code: CloseCode::Internal, reason: "out of paper".into() };
    peer.link_frame(FrameType::CLOSE, encoded(|out| close.encode(out)));
    let error = answer.await.unwrap().unwrap_err();
    assert!(error.message().contains("out of paper"), "{error}");
    assert_eq!(error.blame(), Blame::Peer);
    while let Some((header, _)) = peer.next().await {
        assert_ne!(header.kind, FrameType::CLOSE, "no CLOSE answers a CLOSE");
    }
}

/// A call that only waited was not answered, so the connection counts as useless.
#[tokio::test(start_paused = true)]
async fn a_server_that_ends_every_connection_when_it_is_called_is_not_tried_without_a_pause() {
    let (caller, mut links, _) = played();
    for _ in 0..2 {
        let answer = tokio::spawn(call(&caller, &info("test"), ECHO, "x").into_future());
        let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
        peer.expect(FrameType::REQUEST).await;
        let close = Close { code: CloseCode::Done, reason: "again".into() };
        peer.link_frame(FrameType::CLOSE, encoded(|out| close.encode(out)));
        answer.await.unwrap().unwrap_err();
    }
    call(&caller, &info("test"), ECHO, "x").await.unwrap_err();
    assert!(links.try_recv().is_err(), "another connection was made at once");
}
