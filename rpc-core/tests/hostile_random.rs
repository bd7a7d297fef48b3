//! Peers that send nearly valid frames in any order by either link. This file has only one test, because it counts the
//! panics of the process.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use farcall_core::config::Policy;
use farcall_core::proto::wire::{
    self, Answer, Cancel, Close, CloseCode, Done, Down, FrameType, Goaway, HEADER_LEN, Header, Hello, Offer,
    Ping, Pull, Up, features, flags,
};
use farcall_core::testing::{Peer, hello, request};
use farcall_core::transport::memory;
use fastrand::Rng;

use support::fabric::{Fabric, with_fabric};
use support::reading::{self, Shared};
use support::{BIG, ECHO, HANG, Setup, info, until};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Frame types that a client may send in a session that has begun, the more frequent ones repeated.
const RIGHT: [FrameType; 13] = [
    FrameType::REQUEST,
    FrameType::REQUEST,
    FrameType::REQUEST,
    FrameType::FRAGMENT,
    FrameType::FRAGMENT,
    FrameType::CANCEL,
    FrameType::DONE,
    FrameType::PING,
    FrameType::OFFER,
    FrameType::UP,
    FrameType::DOWN,
    FrameType::ACK,
    FrameType(0xbf),
];

/// Frame types that a client may not send.
const WRONG: [FrameType; 8] = [
    FrameType::BIND,
    FrameType::RESPONSE,
    FrameType::END,
    FrameType::GOAWAY,
    FrameType::HELLO,
    FrameType::ANSWER,
    FrameType::CLOSE,
    FrameType(0x3f),
];

/// Returns a number that is likely to matter.
fn number(rng: &mut Rng) -> u32 {
    match rng.u8(..20) {
        0 => u32::MAX - rng.u32(..3),
        1 => 1 << rng.u8(..32),
        2 => 64 << 20,
        3..10 => rng.u32(..6),
        _ => 1,
    }
}

/// Returns a valid payload for this frame type.
fn payload(kind: FrameType, flags: u8, rng: &mut Rng) -> Vec<u8> {
    let mut out = BytesMut::new();
    match kind {
        FrameType::REQUEST | FrameType::RESPONSE | FrameType::END => {
            let whole = request([ECHO, BIG, HANG][rng.usize(..3)], &b"100000"[..rng.usize(..7)]);
            if flags & flags::FRAGMENTED != 0 {
                out.extend_from_slice(&(whole.len() as u32).wrapping_add(number(rng)).to_le_bytes());
            }
            if flags & flags::DESCRIBED != 0 {
                let len = [8, 8, 8, 64, 65][rng.usize(..5)];
                out.extend_from_slice(&(len as u16).to_le_bytes());
                out.extend_from_slice(&vec![1; len]);
            }
            out.extend_from_slice(&whole);
        }
        FrameType::FRAGMENT => out.extend_from_slice(&vec![5; rng.usize(..100)]),
        FrameType::CANCEL => Cancel { reason: rng.u8(..3) }.encode(&mut out),
        FrameType::DONE => Done { seq: number(rng), outcome: rng.u8(..3) }.encode(&mut out),
        FrameType::GOAWAY => Goaway { last_call: 1, reason: String::new() }.encode(&mut out),
        FrameType::HELLO => hello().encode(&mut out),
        FrameType::PING => Ping { token: rng.u64(..) }.encode(&mut out),
        FrameType::OFFER => {
            let data = Bytes::copy_from_slice(&number(rng).to_le_bytes());
            Offer { epoch: number(rng), name: "fabric".into(), data }.encode(&mut out);
        }
        FrameType::ANSWER => Answer { epoch: number(rng), data: Bytes::new() }.encode(&mut out),
        FrameType::UP => Up { epoch: number(rng), first_seq: number(rng) }.encode(&mut out),
        FrameType::DOWN => {
            let pulls = (0..rng.u32(..4)).map(|_| Pull { seq: number(rng) }).collect();
            let (epoch, rx_seq) = (number(rng), number(rng));
            Down { epoch, rx_seq, reason: rng.u8(..), pulls, detail: String::new() }.encode(&mut out);
        }
        FrameType::CLOSE => Close { code: CloseCode::Done, reason: String::new() }.encode(&mut out),
        _ => {}
    }
    out.to_vec()
}

/// Returns a frame that is valid more often than not.
fn frame(seq: &mut u32, rng: &mut Rng) -> Option<(Header, Vec<u8>)> {
    let kind =
        if rng.u8(..30) == 0 { WRONG[rng.usize(..WRONG.len())] } else { RIGHT[rng.usize(..RIGHT.len())] };
    let flags = match rng.u8(..8) {
        0 => rng.u8(..),
        1 | 2 => flags::FRAGMENTED,
        3 | 4 => flags::FRAGMENTED | flags::DESCRIBED,
        5 => flags::ABANDONED,
        _ => 0,
    };
    let mut payload = payload(kind, flags, rng);
    if rng.u8(..30) == 0 {
        payload.truncate(rng.usize(..=payload.len()));
    }
    if rng.u8(..30) == 0 && !payload.is_empty() {
        let at = rng.usize(..payload.len());
        payload[at] ^= 1 << rng.u8(..8);
    }
    let call = if kind.is_link() || matches!(kind, FrameType::BIND | FrameType::DONE | FrameType::GOAWAY) {
        0
    } else {
        rng.u64(1..5)
    };
    let mut header = Header { flags, len: payload.len() as u32, ..Header::new(kind, call) };
    if !kind.is_link() {
        header.seq = if rng.u8(..50) == 0 { number(rng) } else { *seq + 1 };
    }
    if rng.u8(..50) == 0 {
        header.rx_seq = number(rng);
    }
    // A link rejects headers that are malformed in themselves before the session sees them.
    let bytes: [u8; HEADER_LEN] = header.encode();
    let header = Header::decode(&bytes).ok()?;
    *seq += u32::from(!kind.is_link());
    Some((header, payload))
}

async fn speak(t: &Setup, fabric: &Arc<Fabric>, memory: &Arc<Shared>, rng: &mut Rng) {
    let (near, far) = memory::pair();
    t.host.serve(far);
    let able = wire::Upgrade { name: "fabric".into(), reason: 0, data: Bytes::new() };
    let hello = Hello { features: features::DESCRIBED, upgrades: vec![able], ..hello() };
    let mut stream = Peer::greeted(near, hello).await;
    let (near, far) = memory::pair();
    let [near, far] = reading::over([near, far], memory);
    let (mut link, data) = (Peer::new(near), fabric.place(far));
    link.read();
    let (mut out, mut seq) = (BytesMut::new(), 0);
    Offer { epoch: 1, name: "fabric".into(), data }.encode(&mut out);
    stream.link_frame(FrameType::OFFER, out.split());
    stream.expect(FrameType::UP).await;
    Up { epoch: 1, first_seq: 1 }.encode(&mut out);
    stream.link_frame(FrameType::UP, out);
    link.bind(&info("test"));
    seq += 1;
    for _ in 0..rng.usize(1..40) {
        let Some((header, payload)) = frame(&mut seq, rng) else { continue };
        // Session frames go mostly by the link that they belong on, link frames mostly by the other.
        let by_stream = header.kind.is_link() != (rng.u8(..50) == 0);
        if by_stream { &mut stream } else { &mut link }.send(header, payload);
        if rng.bool() {
            tokio::task::yield_now().await;
        }
    }
    stream.link().close();
}

#[tokio::test]
async fn whatever_a_client_says_nobody_else_is_harmed() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // A called handler may panic on purpose.
        if info.payload().downcast_ref() != Some(&"as it was told to") {
            PANICS.fetch_add(1, Ordering::Relaxed);
            report(info);
        }
    }));
    let memory = Arc::new(Shared::default());
    let fabric = Arc::new(Fabric::readable(&memory));
    let t = with_fabric(&fabric, Policy::Auto);
    t.caller.connection().await.unwrap();
    memory.stall.store(true, Ordering::Relaxed);
    let seeds = if std::env::var_os("FARCALL_LONG").is_some() { 100_000 } else { 2000 };
    for seed in 0..seeds {
        speak(&t, &fabric, &memory, &mut Rng::with_seed(seed)).await;
        assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on", "seed {seed}");
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "seed {seed}");
    }
    until("only the honest connection is left", || t.host.connections().len() == 1).await;
    assert_eq!(
        (t.seen.hanging(), PANICS.load(Ordering::Relaxed)),
        (0, 0),
        "handlers that nobody waits for end"
    );
}
