//! Servers that use what a call lends as they may not: beyond its end, in the wrong direction, or by another connection. The client checks
//! each access by itself, whatever the server says of lengths.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use bytes::{Bytes, BytesMut};
use farcall_core::bulk::{BulkRead, BulkWrite, Lend, Loan};
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::{Encode, Postcard, Raw};
use farcall_core::payload::{Decoder, Encoder};
use farcall_core::proto::wire::{
    Access, Accessed, CloseCode, FrameType, Hello, Operation, Outcome, RequestHead, Target, features,
};
use farcall_core::status::{Code, Result};
use farcall_core::testing::{Peer, hello};
use tokio::task::JoinHandle;

use support::peer::played;
use support::{ECHO, info};

/// The number of the first access that a server starts.
const NUMBER: u64 = 3 << 62 | 1;

/// So much that an outcome with all of it is one frame.
const LEN: usize = 100_000;

/// The payload of a frame.
const FRAME: usize = 64 << 10;

const CANARY: usize = 64;

/// Two pieces of memory that are lent as one, with canaries around each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Guarded([Vec<u8>; 2]);

impl Guarded {
    const SPLIT: usize = 30_001;

    fn new() -> Self {
        Self([Self::SPLIT, LEN - Self::SPLIT].map(|len| vec![0xc5; CANARY + len + CANARY]))
    }

    /// Writes as an honest owner would.
    fn write(&mut self, mut offset: usize, bytes: &[u8]) {
        let mut bytes = bytes.iter();
        for part in self.parts() {
            let from = offset.min(part.len());
            part[from..].iter_mut().zip(&mut bytes).for_each(|(old, new)| *old = *new);
            offset -= from;
        }
    }
}

impl Lend for Guarded {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        self.0
            .iter_mut()
            .map(|whole| {
                let end = whole.len() - CANARY;
                &mut whole[CANARY..end]
            })
            .collect()
    }
}

fn readable() -> Vec<u8> {
    (0..LEN).map(|at| (at % 251) as u8).collect()
}

/// A call that lends memory, and the server that it is made to.
struct Lending {
    peer: Peer,
    caller: RawChannel,
    call: u64,
    /// To read from, and to write to.
    from: Target,
    into: Target,
    answer: JoinHandle<Result<Bytes>>,
    loan: Loan<Guarded>,
    last: u64,
}

/// Makes a call that lends memory.
fn lend(caller: &RawChannel) -> (JoinHandle<Result<Bytes>>, Loan<Guarded>) {
    let pages = readable();
    let parts = vec![Bytes::copy_from_slice(&pages[..9]), Bytes::copy_from_slice(&pages[9..])];
    let (from, _) = BulkRead::lend(parts);
    let (into, loan) = BulkWrite::lend(Guarded::new());
    let mut arguments = Encoder::new().lending();
    Postcard::encode(&(from, into), &mut arguments).unwrap();
    let call: Call<Result<Bytes>, Raw> =
        Stub::new(caller.clone(), info("test")).call(ECHO, Ok(arguments.finish()));
    (tokio::spawn(call.into_future()), loan)
}

/// Returns the call and the loans of a request.
async fn lent(peer: &mut Peer) -> (u64, [Target; 2]) {
    let (header, payload) = peer.expect(FrameType::REQUEST).await;
    let (_, content) = RequestHead::decode(payload).unwrap();
    let mut body = Decoder::new(content.payload);
    let loans: [(u64, u64); 2] = postcard::from_bytes(body.rest()).unwrap();
    body.advance(body.rest().len());
    (header.call, loans.map(|(number, _)| Target::Loan { call: header.call, number }))
}

impl Lending {
    async fn new() -> Self {
        let (caller, mut links, _) = played();
        let (answer, loan) = lend(&caller);
        let hello = Hello { features: features::ACCESS | features::GRANTS, ..hello() };
        let mut peer = Peer::greeted(links.recv().await.unwrap(), hello).await;
        let (call, [from, into]) = lent(&mut peer).await;
        Self { peer, caller, call, from, into, answer, loan, last: NUMBER }
    }

    async fn access(&mut self, target: Target, offset: u64, operation: Operation) -> u64 {
        self.last += 1;
        let mut out = BytesMut::new();
        Access { target, offset, operation }.encode(&mut out);
        let message = out.freeze();
        if message.len() <= FRAME {
            self.peer.session_frame(FrameType::ACCESS, self.last, 0, message);
            return self.last;
        }
        let mut frames = message.chunks(FRAME);
        let first = frames.next().unwrap_or_default();
        self.peer.begin(FrameType::ACCESS, self.last, message.len() as u32, first);
        for next in frames {
            // So that the link has room again.
            tokio::task::yield_now().await;
            self.peer.session_frame(FrameType::FRAGMENT, self.last, 0, message.slice_ref(next));
        }
        self.last
    }

    async fn accessed(&mut self, target: Target, offset: u64, operation: Operation) -> Accessed {
        let number = self.access(target, offset, operation).await;
        let (header, payload) = self.peer.expect(FrameType::ACCESSED).await;
        assert_eq!(header.call, number);
        Accessed::decode(payload).unwrap()
    }
}

/// Offsets and lengths, and whether they are within the memory.
const RANGES: &[(u64, u32, bool)] = &[
    (0, 0, true),
    (0, 1, true),
    (Guarded::SPLIT as u64 - 1, 2, true),
    (5, 80_000, true),
    (0, LEN as u32, true),
    (LEN as u64 - 1, 1, true),
    (LEN as u64, 0, true),
    (LEN as u64, 1, false),
    (LEN as u64 + 1, 0, false),
    (LEN as u64 - 1, 2, false),
    (0, LEN as u32 + 1, false),
    (1, LEN as u32, false),
    (LEN as u64 - 1, 80_000, false),
    (Guarded::SPLIT as u64, LEN as u32, false),
    (0, 1 << 20, false),
    (u32::MAX as u64 + 1, 1, false),
    (i64::MAX as u64, 1, false),
    (u64::MAX, 0, false),
    (u64::MAX, 1, false),
    (u64::MAX - 7, 8, false),
    // These sums wrap into the memory.
    (u64::MAX, 2, false),
    (u64::MAX - 9, 10 + 100, false),
    (u64::MAX - 80_000 + 1, 80_000 + 8, false),
];

#[tokio::test]
async fn a_loan_is_read_within_its_bounds_only() {
    let mut t = Lending::new().await;
    let from = t.from;
    let lengths =
        [(0, u32::MAX), (1, u32::MAX), (u64::MAX, u32::MAX), (u64::MAX - u64::from(u32::MAX) + 1, u32::MAX)];
    for (offset, len, fits) in RANGES.iter().copied().chain(lengths.map(|(offset, len)| (offset, len, false)))
    {
        let Accessed { outcome, bytes } = t.accessed(from, offset, Operation::Read(len)).await;
        let name = format!("{len} bytes at {offset}");
        if fits {
            assert_eq!(outcome, Outcome::Done, "{name}");
            assert!(bytes[..] == readable()[offset as usize..][..len as usize], "{name}");
        } else {
            assert_eq!((outcome, bytes), (Outcome::OutOfRange, Bytes::new()), "{name}");
        }
    }
}

#[tokio::test]
async fn a_loan_is_written_within_its_bounds_only() {
    let mut t = Lending::new().await;
    let (into, mut expected) = (t.into, Guarded::new());
    for (byte, (offset, len, fits)) in (1..).zip(RANGES) {
        let bytes = vec![byte; *len as usize];
        let done = t.accessed(into, *offset, Operation::Write(bytes.clone().into())).await;
        let outcome = if *fits { Outcome::Done } else { Outcome::OutOfRange };
        assert_eq!(done, Accessed { outcome, bytes: Bytes::new() }, "{len} bytes at {offset}");
        if *fits {
            expected.write(*offset as usize, &bytes);
        }
    }
    t.peer.respond(t.call, b"");
    t.answer.await.unwrap().unwrap();
    assert!(t.loan.reclaim().await == expected, "something was written outside of what is lent");
}

#[tokio::test]
async fn a_loan_is_used_in_its_direction_only() {
    let mut t = Lending::new().await;
    let bytes = || Operation::Write(Bytes::from_static(&[7; 8]));
    let swap = Operation::CompareAndSwap { expected: u64::from_ne_bytes([0xc5; 8]), new: 7 };
    let cases = [
        (t.from, bytes()),
        (t.from, Operation::Write(vec![7; LEN].into())),
        (t.from, Operation::FetchAdd(1)),
        (t.from, swap.clone()),
        (t.from, Operation::Grant),
        (t.into, Operation::Read(8)),
        (t.into, Operation::Read(LEN as u32)),
        (t.into, Operation::FetchAdd(1)),
        (t.into, swap),
    ];
    for (target, operation) in cases {
        for offset in [0, 8, LEN as u64, u64::MAX] {
            let done = t.accessed(target, offset, operation.clone()).await;
            let forbidden = Accessed { outcome: Outcome::Forbidden, bytes: Bytes::new() };
            assert_eq!(done, forbidden, "{operation:?} at {offset}");
        }
    }
    let from = t.from;
    let all = t.accessed(from, 0, Operation::Read(LEN as u32)).await;
    assert!(all.bytes[..] == readable(), "memory to read was written");
    t.peer.respond(t.call, b"");
    t.answer.await.unwrap().unwrap();
    assert!(t.loan.reclaim().await == Guarded::new(), "a refused access had an effect");
}

#[tokio::test]
async fn a_write_that_is_too_long_closes_the_connection_and_changes_nothing() {
    let mut t = Lending::new().await;
    t.access(t.into, 0, Operation::Write(vec![7; (1 << 20) + 1].into())).await;
    t.peer.expect_close(CloseCode::Protocol, "access.bytes: are more than 1 MiB").await;
    assert_eq!(t.answer.await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert!(t.loan.reclaim().await == Guarded::new());
}

/// The server may be honest: a request names its loans in bytes, which its caller may have had from somebody else.
#[tokio::test]
async fn a_loan_that_a_call_does_not_lend_is_gone() {
    let mut t = Lending::new().await;
    for number in [0, u64::MAX] {
        let made_up = Target::Loan { call: t.call, number };
        for operation in [Operation::Read(1), Operation::Write(Bytes::from_static(b"x"))] {
            assert_eq!(t.accessed(made_up, 0, operation).await.outcome, Outcome::Gone);
        }
    }
    t.peer.respond(t.call, b"");
    (&mut t.answer).await.unwrap().unwrap();
    // It has ended with its call.
    let stale = t.into;
    // The rest of the call is done when the connection is used again.
    let (another, loan) = lend(&t.caller);
    let (call, _) = lent(&mut t.peer).await;
    assert_eq!(t.accessed(stale, 0, Operation::Write(Bytes::from_static(b"x"))).await.outcome, Outcome::Gone);
    t.peer.respond(call, b"");
    another.await.unwrap().unwrap();
    for loan in [t.loan, loan] {
        assert!(loan.reclaim().await == Guarded::new());
    }
}

#[tokio::test]
async fn a_loan_is_of_its_connection_only() {
    let lender = Lending::new().await;
    // Another connection of this process, whose first call has the number of the first call of the other one.
    let mut other = Lending::new().await;
    assert_eq!(other.call, lender.call);
    for (target, operation) in
        [(lender.from, Operation::Read(1)), (lender.into, Operation::Write(Bytes::from_static(b"x")))]
    {
        let refused = Accessed { outcome: Outcome::Gone, bytes: Bytes::new() };
        assert_eq!(other.accessed(target, 0, operation).await, refused);
    }
    // One by whose number this connection has made no call.
    let Target::Loan { number, .. } = lender.into else { unreachable!("it is a loan") };
    let elsewhere = Target::Loan { call: other.call + 1, number };
    other.access(elsewhere, 0, Operation::Write(Bytes::from_static(b"x"))).await;
    other.peer.expect_close(CloseCode::Protocol, "access.loan: is of a call that was never made").await;
    assert_eq!(other.answer.await.unwrap().unwrap_err().code(), Code::Unavailable);
    // The lender's own connection goes on.
    let Lending { mut peer, call, answer, loan, .. } = lender;
    peer.respond(call, b"");
    answer.await.unwrap().unwrap();
    for loan in [loan, other.loan] {
        assert!(loan.reclaim().await == Guarded::new(), "something was written");
    }
}
