//! Peers that break the rules of access to memory: each loses its own connection, is told why, and harms nobody else.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use bytes::{Bytes, BytesMut};
use farcall_core::bulk::BulkRead;
use farcall_core::codec::{Postcard, to_payload};
use farcall_core::config::Limits;
use farcall_core::payload::Encoder;
use farcall_core::proto::wire::{
    Access, Accessed, CloseCode, FrameType, Granted, Hello, Operation, Outcome, Target, features,
};
use farcall_core::region::{Region, RemoteRegion, Rights};
use farcall_core::status::{Code, Executed};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;

use support::peer::played;
use support::{ECHO, Setup, call, default, info, plain, setup};

/// The number of an access that a client starts.
const NUMBER: u64 = 1 << 62 | 1;

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> BytesMut {
    let mut out = BytesMut::new();
    encode(&mut out);
    out
}

fn accesses() -> Hello {
    Hello { features: features::ACCESS, ..hello() }
}

async fn greeted(t: &Setup, hello: Hello) -> Peer {
    let (near, far) = memory::pair();
    t.host.serve(far);
    Peer::greeted(near, hello).await
}

/// The content of a handle.
#[derive(serde::Deserialize)]
struct Handle {
    number: u64,
    key: u128,
}

fn target(of: &RemoteRegion) -> Target {
    let payload = to_payload::<Postcard, _>(of).unwrap();
    let mut bytes = farcall_core::payload::Decoder::new(payload);
    let Handle { number, key } = postcard::from_bytes(bytes.rest()).unwrap();
    bytes.advance(bytes.rest().len());
    Target::Region { number, key }
}

fn access(peer: &mut Peer, number: u64, target: Target, offset: u64, operation: Operation) {
    let access = Access { target, offset, operation };
    peer.session_frame(FrameType::ACCESS, number, 0, encoded(|out| access.encode(out)));
}

async fn accessed(peer: &mut Peer, number: u64) -> Accessed {
    let (header, payload) = peer.expect(FrameType::ACCESSED).await;
    assert_eq!(header.call, number);
    Accessed::decode(payload).unwrap()
}

#[tokio::test]
async fn accesses_that_are_not_allowed_do_nothing_and_say_so() {
    let t = default();
    let mut peer = greeted(&t, accesses()).await;
    let region = Region::zeroed(64, Rights::READ | Rights::ATOMICS);
    region.write(0, &[7; 64]).unwrap();
    let here = target(&region.remote());
    let Target::Region { number, key } = here else { unreachable!("it is a region's") };
    // A handle of an earlier process of the owner looks like this, too, so the connection stays.
    let elsewhere = Target::Region { number, key: key ^ 1 };
    let cases = [
        (elsewhere, 0, Operation::Read(1), Outcome::Gone),
        (here, 0, Operation::Write(Bytes::from_static(b"x")), Outcome::Forbidden),
        (here, 64, Operation::Read(1), Outcome::OutOfRange),
        (here, 0, Operation::Read(u32::MAX), Outcome::OutOfRange),
        (here, u64::MAX, Operation::Read(1), Outcome::OutOfRange),
        (here, 4, Operation::FetchAdd(1), Outcome::OutOfRange),
        (here, 64, Operation::FetchAdd(1), Outcome::OutOfRange),
        (here, u64::MAX - 7, Operation::CompareAndSwap { expected: 0, new: 1 }, Outcome::OutOfRange),
    ];
    for (number, (target, offset, operation, outcome)) in (NUMBER..).zip(cases) {
        let name = format!("{target:?} {offset} {operation:?}");
        access(&mut peer, number, target, offset, operation);
        assert_eq!(accessed(&mut peer, number).await, Accessed { outcome, bytes: Bytes::new() }, "{name}");
    }
    access(&mut peer, NUMBER + 100, here, 8, Operation::Read(3));
    let read = accessed(&mut peer, NUMBER + 100).await;
    assert_eq!(read, Accessed { outcome: Outcome::Done, bytes: Bytes::from_static(&[7; 3]) });
    assert_eq!(region.read(..).unwrap(), [7; 64]);
}

/// An offence by an access of this number.
type Offence = fn(&mut Peer, u64);

/// Offences against either side, with words that its reason must contain.
const OFFENCES: &[(&str, Offence)] = &[
    ("accessed.call: was never an access", |p, number| {
        p.session_frame(FrameType::ACCESSED, number, 0, "\0");
    }),
    ("accessed.outcome: is unknown", |p, number| p.session_frame(FrameType::ACCESSED, number, 0, "\x09")),
    ("accessed: has bytes after its end", |p, number| {
        p.session_frame(FrameType::ACCESSED, number, 0, "\x01x");
    }),
    ("access.call: is not a number", |p, _| {
        let payload = encoded(|out| {
            let (target, operation) = (Target::Loan { call: 1, number: 1 }, Operation::Read(1));
            Access { target, offset: 0, operation }.encode(out);
        });
        p.session_frame(FrameType::ACCESS, 1, 0, payload);
    }),
    ("access.target: is unknown", |p, number| p.session_frame(FrameType::ACCESS, number, 0, "\x07")),
    ("access.operation: is unknown", |p, number| {
        let payload = [&[0; 25][..], &[9]].concat();
        p.session_frame(FrameType::ACCESS, number, 0, payload);
    }),
    ("access.key: the frame ends before it", |p, number| {
        p.session_frame(FrameType::ACCESS, number, 0, [&[1][..], &[0; 10]].concat());
    }),
    ("access.loan: is of a call that was never made", |p, number| {
        access(p, number, Target::Loan { call: 2, number: 1 }, 0, Operation::Write(Bytes::from_static(b"x")));
    }),
    ("access.loan: is of a call that was never made", |p, number| {
        access(p, number, Target::Loan { call: u64::MAX, number: 1 }, u64::MAX, Operation::Read(1 << 20));
    }),
    ("exceeds the limit of 64", |p, first| {
        // Long ones, which are served in tasks. None of these runs meanwhile.
        for number in 0..65 {
            access(p, first + number, Target::Region { number: 0, key: 0 }, 0, Operation::Read(1 << 20));
        }
    }),
];

#[tokio::test]
async fn a_client_that_breaks_a_rule_of_accesses_is_told_which_and_harms_nobody_else() {
    let t = setup(plain(Limits::default()), plain(Limits::default()));
    for (words, offend) in OFFENCES {
        let mut peer = greeted(&t, accesses()).await;
        offend(&mut peer, NUMBER);
        peer.expect_close(CloseCode::Protocol, words).await;
        assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
    }
    for kind in [FrameType::ACCESS, FrameType::ACCESSED] {
        let mut peer = greeted(&t, hello()).await;
        peer.session_frame(kind, NUMBER, 0, "\0");
        peer.expect_close(CloseCode::Protocol, "not one that was agreed on").await;
    }
}

#[tokio::test]
async fn grants_are_given_by_links_that_can_and_to_peers_that_know_them() {
    let t = default();
    let region = Region::zeroed(64, Rights::READ);
    let here = target(&region.remote());
    let mut peer = greeted(&t, Hello { features: features::ACCESS | features::GRANTS, ..hello() }).await;
    for (number, target, operation, outcome) in [
        (NUMBER, here, Operation::Grant, Outcome::NoMemory),
        (NUMBER + 1, Target::Region { number: 0, key: 0 }, Operation::Grant, Outcome::Gone),
        // It has none, so it does not use any.
        (NUMBER + 2, here, Operation::Withdraw, Outcome::Done),
    ] {
        let name = format!("{target:?} {operation:?}");
        access(&mut peer, number, target, 0, operation);
        assert_eq!(accessed(&mut peer, number).await, Accessed { outcome, bytes: Bytes::new() }, "{name}");
    }
    for operation in [Operation::Grant, Operation::Withdraw] {
        let mut peer = greeted(&t, accesses()).await;
        access(&mut peer, NUMBER, here, 0, operation);
        peer.expect_close(CloseCode::Protocol, "access.operation: is not one that was agreed on").await;
    }
}

#[tokio::test]
async fn grants_of_loans_come_from_peers_that_may_give_them() {
    let t = default();
    let granted = || Granted { epoch: 1, rights: Granted::READ, descriptor: Bytes::from_static(b"there") };
    let loan = |number| Target::Loan { call: 2, number };
    let knows = || Hello { features: features::ACCESS | features::GRANTS | features::LOAN_GRANTS, ..hello() };
    // More than are remembered, for a call that never comes. None is used, and none has an outcome.
    let mut peer = greeted(&t, knows()).await;
    for number in 0..1000 {
        access(&mut peer, NUMBER + number, loan(number), 0, Operation::Offer(granted()));
    }
    let region = Region::zeroed(64, Rights::READ);
    access(&mut peer, NUMBER + 1000, target(&region.remote()), 0, Operation::Read(1));
    assert_eq!(accessed(&mut peer, NUMBER + 1000).await.outcome, Outcome::Done);

    let region = target(&Region::zeroed(64, Rights::READ).remote());
    let described = |len| Operation::Offer(Granted { descriptor: vec![0; len].into(), ..granted() });
    for (hello, target, operation, words) in [
        // It is remembered, so it must be short.
        (knows(), loan(1), described(Granted::MAX_DESCRIPTOR + 1), "granted.descriptor: is too long"),
        (knows(), loan(1), described(100_000), "granted.descriptor: is too long"),
        (accesses(), loan(1), Operation::Offer(granted()), "is not one that was agreed on"),
        (knows(), region, Operation::Offer(granted()), "access.target: is not a loan"),
        // A server lends nothing, so nothing of its is given back.
        (knows(), loan(1), Operation::Return, "is not one that was agreed on"),
    ] {
        let mut peer = greeted(&t, hello).await;
        access(&mut peer, NUMBER, target, 0, operation);
        peer.expect_close(CloseCode::Protocol, words).await;
    }
    let mut peer = greeted(&t, knows()).await;
    // An offer that ends too early.
    let payload = [&[0; 25][..], &[6, 1, 0, 0]].concat();
    peer.session_frame(FrameType::ACCESS, NUMBER, 0, payload);
    peer.expect_close(CloseCode::Protocol, "granted.epoch").await;
}

#[tokio::test]
async fn a_server_that_grants_loans_or_returns_what_is_none_is_told() {
    for (target, operation, words) in [
        (Target::Loan { call: 1, number: 1 }, Operation::Return, None),
        (Target::Region { number: 1, key: 1 }, Operation::Return, Some("access.target: is not a loan")),
        (
            Target::Loan { call: 1, number: 1 },
            Operation::Offer(Granted { epoch: 1, rights: 1, descriptor: Bytes::new() }),
            Some("is not one that was agreed on"),
        ),
    ] {
        let (caller, mut links, _) = played();
        let answer = tokio::spawn(call(&caller, &info("test"), ECHO, "x").into_future());
        let hello =
            Hello { features: features::ACCESS | features::GRANTS | features::LOAN_GRANTS, ..hello() };
        let mut peer = Peer::greeted(links.recv().await.unwrap(), hello).await;
        let (header, _) = peer.expect(FrameType::REQUEST).await;
        access(&mut peer, 1 << 63 | NUMBER, target, 0, operation);
        match words {
            Some(words) => peer.expect_close(CloseCode::Protocol, words).await,
            // It was never lent. The call goes on.
            None => peer.respond(header.call, b"x"),
        }
        assert_eq!(answer.await.unwrap().is_ok(), words.is_none());
    }
}

/// Answers that nobody reads do not pile up.
#[tokio::test]
async fn a_peer_that_reads_no_outcomes_is_closed() {
    let t = default();
    let (near, far) = memory::pair();
    t.host.serve(far);
    let mut peer = Peer::new(near);
    peer.hello(&accesses());
    let region = Region::zeroed(64 << 10, Rights::READ);
    let target = target(&region.remote());
    for number in 0..100_000 {
        access(&mut peer, NUMBER + number, target, 0, Operation::Read(64 << 10));
        tokio::task::yield_now().await;
        if t.host.connections().is_empty() {
            return;
        }
    }
    panic!("{:?}", t.host.memory().peers());
}

#[tokio::test]
async fn a_server_that_breaks_a_rule_of_accesses_is_told_which() {
    for (words, offend) in OFFENCES {
        let (caller, mut links, _) = played();
        let answer = tokio::spawn(call(&caller, &info("test"), ECHO, "x").into_future());
        let mut peer = Peer::greeted(links.recv().await.unwrap(), accesses()).await;
        peer.expect(FrameType::REQUEST).await;
        offend(&mut peer, 1 << 63 | NUMBER);
        peer.expect_close(CloseCode::Protocol, words).await;
        let error = answer.await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
    }
}

#[tokio::test]
async fn an_outcome_of_another_length_ends_the_connection() {
    let (caller, mut links, _) = played();
    let region = Region::zeroed(64, Rights::READ);
    let reading = {
        let memory = region.remote().on(caller.clone());
        tokio::spawn(async move { memory.read(..10).await })
    };
    let mut peer = Peer::greeted(links.recv().await.unwrap(), accesses()).await;
    let (header, payload) = peer.expect(FrameType::ACCESS).await;
    assert_eq!(header.call, NUMBER);
    let access = Access::decode(payload).unwrap();
    assert_eq!((access.offset, access.operation), (0, Operation::Read(10)));
    peer.session_frame(FrameType::ACCESSED, NUMBER, 0, "\0eleven bytes");
    peer.expect_close(CloseCode::Protocol, "have another length than was asked for").await;
    let error = reading.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
}

#[tokio::test]
async fn a_write_that_may_have_been_done_in_part_says_so() {
    let (caller, mut links, _) = played();
    let region = Region::zeroed(3 << 20, Rights::WRITE);
    let write = |len: usize| {
        let memory = region.remote().on(caller.clone());
        tokio::spawn(async move { memory.write(0, vec![1; len]).await })
    };
    let mut writing = write(10);
    let mut peer = Peer::greeted(links.recv().await.unwrap(), accesses()).await;
    for (pieces, executed) in [(1, Executed::No), (3, Executed::Maybe)] {
        let mut numbers = Vec::new();
        while numbers.len() < pieces {
            let (header, _) = peer.next().await.unwrap();
            numbers.extend((header.kind == FrameType::ACCESS).then_some(header.call));
        }
        for (i, number) in numbers.into_iter().enumerate() {
            peer.session_frame(FrameType::ACCESSED, number, 0, if i == 0 { "\x01" } else { "\0" });
        }
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::NotFound, executed), "{error}");
        writing = write(5 << 19);
    }
}

#[tokio::test]
async fn a_peer_that_is_too_old_is_named_and_gets_nothing() {
    let (caller, mut links, _) = played();
    let region = Region::zeroed(64, Rights::READ);
    let reading = {
        let memory = region.remote().on(caller.clone());
        tokio::spawn(async move { memory.read(..10).await })
    };
    let mut peer = Peer::greeted(links.recv().await.unwrap(), hello()).await;
    let error = reading.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unimplemented, Executed::No), "{error}");
    assert!(error.message().contains("too old"), "{error}");

    let mut arguments = Encoder::new().lending();
    let (from, loan) = BulkRead::lend(Bytes::from_static(b"page"));
    <Postcard as farcall_core::codec::Encode<_>>::encode(&from, &mut arguments).unwrap();
    let stub = farcall_core::client::Stub::new(caller.clone(), info("test"));
    let call: farcall_core::client::Call<farcall_core::status::Result<Bytes>, farcall_core::codec::Raw> =
        stub.call(ECHO, Ok(arguments.finish()));
    let error = call.await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unimplemented, Executed::No), "{error}");
    assert_eq!(loan.reclaim().await, "page");
    drop((caller, stub));
    while let Some((header, _)) = peer.next().await {
        assert_ne!(header.kind, FrameType::REQUEST);
    }
}
