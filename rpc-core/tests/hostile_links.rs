//! Peers that break the rules of upgrades and of described messages. Each loses its connection or the link, and harms
//! nobody else.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::config::Policy;
use farcall_core::proto::wire::{
    self, CloseCode, Done, Down, FrameType, Header, Hello, Offer, Pull, ResponseKind, Up, features, flags,
};
use farcall_core::testing::{Peer, hello, request};
use farcall_core::transport::{Reason, memory};

use support::fabric::{Fabric, settings, with_fabric};
use support::reading::{self, Shared};
use support::{BIG, ECHO, HANG, Setup, info, setup, until};

/// A client with an upgraded link to the server. It sends whatever a test wants on either link.
struct Hostile {
    stream: Peer,
    link: Peer,
}

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    encode(&mut out);
    out
}

impl Hostile {
    /// Returns a client that has been answered and has received the server's UP.
    async fn answered(t: &Setup, fabric: &Arc<Fabric>, memory: &Arc<Shared>, features: u64) -> Self {
        let (near, far) = memory::pair();
        t.host.serve(far);
        let able = wire::Upgrade { name: "fabric".into(), reason: 0, data: Bytes::new() };
        let hello = Hello { features, upgrades: vec![able], ..hello() };
        let mut stream = Peer::greeted(near, hello).await;
        let (near, far) = memory::pair();
        let [near, far] = reading::over([near, far], memory);
        let (mut link, data) = (Peer::new(near), fabric.place(far));
        link.read();
        let offer = Offer { epoch: 1, name: "fabric".into(), data };
        stream.link_frame(FrameType::OFFER, encoded(|out| offer.encode(out)));
        stream.expect(FrameType::UP).await;
        Self { stream, link }
    }

    /// Returns a client whose frames go by the upgraded link.
    async fn risen(t: &Setup, fabric: &Arc<Fabric>, memory: &Arc<Shared>) -> Self {
        let mut hostile = Self::answered(t, fabric, memory, features::DESCRIBED).await;
        hostile.up(1, 1);
        hostile.link.bind(&info("test"));
        hostile
    }

    fn up(&mut self, epoch: u32, first_seq: u32) {
        self.stream.link_frame(FrameType::UP, encoded(|out| Up { epoch, first_seq }.encode(out)));
    }

    fn down(&mut self, epoch: u32, rx_seq: u32, pulls: &[u32]) {
        let pulls = pulls.iter().map(|&seq| Pull { seq }).collect();
        let down = Down { epoch, rx_seq, reason: 15, pulls, detail: String::new() };
        self.stream.link_frame(FrameType::DOWN, encoded(|out| down.encode(out)));
    }

    fn done(&mut self, seq: u32, outcome: u8) {
        let done = encoded(|out| Done { seq, outcome }.encode(out));
        self.link.session_frame(FrameType::DONE, 0, 0, done);
    }

    /// Begins a REQUEST with `rest` more bytes to be read from where `descriptor` says.
    fn describe(&mut self, call: u64, rest: u32, descriptor: &[u8]) {
        let begin = request(ECHO, b"");
        let total = (begin.len() as u32).wrapping_add(rest).to_le_bytes();
        let len = (descriptor.len() as u16).to_le_bytes();
        let payload = [&total[..], &len, descriptor, &begin].concat();
        self.link.session_frame(FrameType::REQUEST, call, flags::FRAGMENTED | flags::DESCRIBED, payload);
    }

    fn describe_all(&mut self, calls: std::ops::RangeInclusive<u64>) {
        calls.for_each(|call| self.describe(call, 10, &MINE));
    }
}

/// A descriptor for the client's side of the memory.
const MINE: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

type Offence = fn(&mut Hostile);

/// Offences, with words that the reason must contain.
const OFFENCES: &[(&str, Offence)] = &[
    ("up: was said before", |h| h.up(1, 2)),
    ("up.epoch: was never offered", |h| h.up(2, 2)),
    ("comes by the old link after UP", |h| h.stream.session_frame(FrameType::BIND, 0, 0, "")),
    ("is not the next number", |h| {
        let header = Header { seq: 9, ..Header::new(FrameType::BIND, 0) };
        h.link.send(header, Bytes::new());
    }),
    ("does not belong on this link", |h| h.link.link_frame(FrameType::DOWN, "")),
    ("does not belong on this link", |h| h.link.link_frame(FrameType::UP, "")),
    ("acknowledges what was never sent", |h| h.down(1, 50, &[])),
    ("asks for it", |h| h.down(1, 0, &[1])),
    ("down.epoch: was never offered", |h| h.down(2, 0, &[])),
    ("down: was said before", |h| (0..2).for_each(|_| h.down(1, 0, &[]))),
    ("names no message that was described", |h| h.done(1, Done::READ)),
    ("names no message that was described", |h| h.done(u32::MAX, Done::SEND)),
    ("done.outcome", |h| h.done(1, 2)),
    ("is one of too many at once", |h| h.describe_all(1..=126)),
    ("is longer than a descriptor may be", |h| h.describe(1, 10, &[0; 65])),
    ("described.descriptor: the frame ends before it", |h| {
        let payload: &[u8] = &[100, 0, 0, 0, 60, 0, 1, 2, 3];
        h.link.session_frame(FrameType::REQUEST, 1, flags::FRAGMENTED | flags::DESCRIBED, payload);
    }),
    ("is no longer than its first frame", |h| h.describe(1, 0, &MINE)),
    ("longer than HELLO's max_message", |h| h.describe(1, 64 << 20, &MINE)),
    ("exceeds HELLO's max_assembly", |h| {
        (1..=5).for_each(|call| h.describe(call, (64 << 20) - 100, &MINE));
    }),
    ("goes on with a message that is described", |h| {
        h.describe_all(1..=1);
        h.link.session_frame(FrameType::FRAGMENT, 1, 0, "x");
    }),
    ("before another of its call is finished", |h| {
        h.describe_all(1..=1);
        h.link.request(1, ECHO, b"");
    }),
    ("is the second at once of its call", |h| {
        h.describe_all(1..=1);
        h.describe(1, 10, &MINE);
    }),
];

#[tokio::test]
async fn a_client_that_breaks_a_rule_of_links_is_told_which_and_harms_nobody_else() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    let hanging = t.spawn(HANG, "");
    t.seen.started.notified().await;
    // Nothing is read, so descriptions stay open.
    memory.stall.store(true, Ordering::Relaxed);
    for (words, offend) in OFFENCES {
        let mut hostile = Hostile::risen(&t, &fabric, &memory).await;
        offend(&mut hostile);
        hostile.stream.expect_close(CloseCode::Protocol, words).await;
        assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
    }
    until("only the honest connection is left", || t.host.connections().len() == 1).await;
    let transport = t.caller.connection().await.unwrap().transport();
    assert!(transport.why_not_rdma.is_none(), "the honest one keeps its link: {transport:?}");
    assert!(!hanging.is_finished());
}

#[tokio::test]
async fn as_many_may_be_described_as_a_down_can_name_and_all_are_asked_for() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    memory.stall.store(true, Ordering::Relaxed);
    let mut hostile = Hostile::risen(&t, &fabric, &memory).await;
    hostile.describe_all(1..=125);
    // The first frame is the BIND.
    while hostile.stream.expect(FrameType::ACK).await.0.rx_seq < 126 {}
    hostile.down(1, 0, &[]);
    let (_, down) = hostile.stream.expect(FrameType::DOWN).await;
    let down = Down::decode(down).unwrap();
    let asked: Vec<u32> = down.pulls.iter().map(|pull| pull.seq).collect();
    assert_eq!((asked, down.rx_seq), ((2..=126).collect(), 126));
}

#[tokio::test]
async fn a_message_is_not_described_without_agreement() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    let mut hostile = Hostile::answered(&t, &fabric, &memory, 0).await;
    hostile.up(1, 1);
    hostile.link.bind(&info("test"));
    hostile.link.request(1, BIG, b"200000");
    let (header, _) = hostile.link.expect(FrameType::RESPONSE).await;
    assert_eq!((header.flags, memory.exposed()), (flags::FRAGMENTED, 0));
    hostile.describe_all(2..=2);
    hostile.stream.expect_close(CloseCode::Protocol, "DESCRIBED where nothing can be read").await;
}

#[tokio::test]
async fn an_up_that_does_not_go_on_where_the_session_is_closes() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    for first_seq in [0, 2, u32::MAX] {
        let mut hostile = Hostile::answered(&t, &fabric, &memory, features::DESCRIBED).await;
        hostile.up(1, first_seq);
        hostile.stream.expect_close(CloseCode::Protocol, "up.first_seq: is not the next number").await;
    }
}

/// Frames that a peer sends by a link before UP are kept, but only up to a limit.
#[tokio::test]
async fn too_much_before_an_up_costs_the_link_and_the_session_goes_on() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    let mut hostile = Hostile::answered(&t, &fabric, &memory, features::DESCRIBED).await;
    for i in 1..=400 {
        let header = Header { seq: i, ..Header::new(FrameType::BIND, 0) };
        hostile.link.send(header, vec![0; 100_000]);
        if i % 4 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let (_, down) = hostile.stream.expect(FrameType::DOWN).await;
    let down = Down::decode(down).unwrap();
    assert_eq!((down.reason, down.rx_seq), (Reason::Other as u8, 0), "{}", down.detail);
    assert!(down.detail.contains("too much before its UP"), "{}", down.detail);
    hostile.down(1, 0, &[]);
    hostile.stream.bind(&info("test"));
    hostile.stream.request(1, ECHO, b"by the stream");
    hostile.stream.expect(FrameType::RESPONSE).await;
}

#[tokio::test]
async fn a_message_is_answered_once() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    for outcomes in [[Done::READ, Done::READ], [Done::READ, Done::SEND], [Done::SEND, Done::READ]] {
        let mut hostile = Hostile::risen(&t, &fabric, &memory).await;
        hostile.link.request(1, BIG, b"200000");
        let (header, _) = hostile.link.expect(FrameType::RESPONSE).await;
        assert_eq!((header.flags, memory.exposed()), (flags::FRAGMENTED | flags::DESCRIBED, 1));
        for outcome in outcomes {
            hostile.done(header.seq, outcome);
        }
        hostile.stream.expect_close(CloseCode::Protocol, "names no message that was described").await;
        assert_eq!(memory.exposed(), 0);
        assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
    }
}

/// The end of a connection also ends what it has described.
#[tokio::test]
async fn a_message_described_to_a_peer_that_goes_is_forgotten() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    let mut hostile = Hostile::risen(&t, &fabric, &memory).await;
    (1..=200).for_each(|call| hostile.link.request(call, BIG, b"200000"));
    for _ in 0..125 {
        let (header, _) = hostile.link.expect(FrameType::RESPONSE).await;
        assert_eq!(header.flags, flags::FRAGMENTED | flags::DESCRIBED);
    }
    assert_eq!(memory.exposed(), 125, "no more at once");
    hostile.stream.link().close();
    until("the server sees it go", || t.host.connections().is_empty()).await;
    assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
}

/// Returns a client to which a long answer is described, and the number of its frame.
async fn described(t: &Setup, fabric: &Arc<Fabric>, memory: &Arc<Shared>) -> (Hostile, u32) {
    let mut hostile = Hostile::risen(t, fabric, memory).await;
    hostile.link.request(1, BIG, b"200000");
    let (header, _) = hostile.link.expect(FrameType::RESPONSE).await;
    assert_eq!(header.flags, flags::FRAGMENTED | flags::DESCRIBED);
    (hostile, header.seq)
}

#[tokio::test(start_paused = true)]
async fn messages_that_a_fallen_link_leaves_exposed_are_answered_for_in_time_or_the_connection_ends() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    for is_answered in [true, false] {
        let (mut hostile, seq) = described(&t, &fabric, &memory).await;
        hostile.down(1, seq, &[]);
        hostile.stream.expect(FrameType::DOWN).await;
        if is_answered {
            let done = Done { seq, outcome: Done::READ };
            // The BIND and the REQUEST went by the link.
            hostile.stream.skip(2);
            hostile.stream.session_frame(FrameType::DONE, 0, 0, encoded(|out| done.encode(out)));
            tokio::time::sleep(Duration::from_secs(60)).await;
            hostile.stream.request(2, ECHO, b"goes on");
            hostile.stream.expect(FrameType::RESPONSE).await;
            hostile.stream.link().close();
        } else {
            let words = "has neither read nor asked for 1 long messages within 10s";
            hostile.stream.expect_close(CloseCode::Silent, words).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_down_is_answered_in_time_or_the_connection_ends() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    let (mut hostile, _) = described(&t, &fabric, &memory).await;
    hostile.link.link().close();
    hostile.stream.expect(FrameType::DOWN).await;
    hostile.stream.expect_close(CloseCode::Silent, "has not answered DOWN within 10s").await;
}

#[tokio::test(start_paused = true)]
async fn a_side_that_bears_a_longer_silence_waits_longer_for_a_down() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let mut patient = settings(&fabric, Policy::Auto);
    patient.liveness.missed_pings = 20;
    let t = setup(settings(&fabric, Policy::Auto), patient);
    let (mut hostile, _) = described(&t, &fabric, &memory).await;
    hostile.link.link().close();
    hostile.stream.expect(FrameType::DOWN).await;
    let fall = tokio::time::Instant::now();
    hostile.stream.expect_close(CloseCode::Silent, "has not answered DOWN within 44s").await;
    assert_eq!(fall.elapsed().as_secs(), 44);
}

#[tokio::test]
async fn a_call_whose_answer_is_not_read_is_in_progress() {
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let mut few = settings(&fabric, Policy::Auto);
    few.limits.concurrent_calls = 1;
    let t = setup(settings(&fabric, Policy::Auto), few);
    let (mut hostile, seq) = described(&t, &fabric, &memory).await;
    hostile.link.request(2, ECHO, b"one too many");
    let (_, refusal) = hostile.link.expect(FrameType::RESPONSE).await;
    assert_eq!(refusal[0], ResponseKind::Status as u8);
    hostile.done(seq, Done::READ);
    hostile.link.request(3, ECHO, b"the next");
    let (_, answer) = hostile.link.expect(FrameType::RESPONSE).await;
    assert_eq!(answer[0], ResponseKind::Ok as u8);
}
