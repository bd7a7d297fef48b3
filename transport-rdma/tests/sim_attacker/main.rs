//! Somebody on the network who reads and changes what sealed links send.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod captured;
#[path = "../near/mod.rs"]
mod near;
#[path = "../sessions/mod.rs"]
mod sessions;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use farcall_rdma::testing::sim::Crossing;

use sessions::{Setup, setup};

const BOTH: [Crossing; 2] = [Crossing::Message, Crossing::Read];

/// Returns how many messages and READs crossed, and how many of each had the mark that all calls have.
async fn overheard(seed: u64) -> [[usize; 2]; 2] {
    const MARK: &[u8] = b"for your eyes only";
    let counts: Arc<[[AtomicUsize; 2]; 2]> = Arc::default();
    let t = setup(seed);
    t.load(0..1).await;
    let counted = Arc::clone(&counts);
    t.fabric.tap(move |crossing, _, bytes| {
        let [all, marked] = &counted[crossing as usize];
        all.fetch_add(1, Ordering::Relaxed);
        let has_mark = bytes.windows(MARK.len()).any(|part| part == MARK);
        marked.fetch_add(has_mark.into(), Ordering::Relaxed);
    });
    for len in [100, 5000, 100_000, 1 << 20] {
        let argument = Bytes::from(MARK.repeat(len / MARK.len()));
        // Long messages are read when there is memory for them. It grows on a thread of its own.
        for _ in 0..20 {
            assert_eq!(t.call(argument.clone()).await.unwrap(), argument);
        }
    }
    assert_eq!(t.transport(), ("rdma", None));
    BOTH.map(|crossing| counts[crossing as usize].each_ref().map(|count| count.load(Ordering::Relaxed)))
}

#[tokio::test]
async fn an_eavesdropper_learns_nothing_that_is_said() {
    for sealed in [2, 3] {
        let [[messages, marked], [reads, marked_reads]] = overheard(sealed).await;
        assert!(messages > 100 && reads > 0, "{messages} messages, {reads} reads");
        assert_eq!((marked, marked_reads), (0, 0));
    }
    // The ear is good enough to hear what is not sealed.
    let [[_, marked], [reads, marked_reads]] = overheard(0).await;
    assert!(marked > 50 && marked_reads > 0 && marked_reads == reads, "{marked} {marked_reads} of {reads}");
}

/// Makes something else of the bytes that cross, given those that crossed before.
type Attack = fn(before: &[u8], bytes: &mut Vec<u8>);

const ATTACKS: [(&str, Attack); 5] = [
    ("one bit is changed", |_, bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
    }),
    ("the tag is changed", |_, bytes| *bytes.last_mut().unwrap() ^= 0x80),
    ("the former one comes again", |before, bytes| {
        // A READ brings as many bytes as it asked for.
        bytes.iter_mut().zip(before).for_each(|(byte, before)| *byte = *before);
    }),
    ("all is zero", |_, bytes| bytes.fill(0)),
    ("a header of farcall comes in the clear", |_, bytes| {
        bytes.iter_mut().for_each(|byte| *byte = 0);
        bytes[0] = 1;
    }),
];

/// Returns two connections between two hosts, and the ends of the first one's link.
async fn two_connections(seed: u64) -> (Setup, Setup, HashSet<u32>) {
    let t = setup(seed);
    let ends = Arc::<Mutex<HashSet<u32>>>::default();
    let heard = Arc::clone(&ends);
    t.fabric.tap(move |_, to, _| {
        heard.lock().unwrap().insert(to);
    });
    t.load(0..70).await;
    assert_eq!(t.transport(), ("rdma", None));
    let ends = std::mem::take(&mut *ends.lock().unwrap());
    assert_eq!(ends.len(), 2);
    let beside = t.beside();
    beside.load(10_000..10_070).await;
    assert_eq!(beside.caller.connection().await.unwrap().transport().name, "rdma");
    (t, beside, ends)
}

/// Has a crossing of this kind to these ends attacked, some time after the next.
fn attack(t: &Setup, ends: HashSet<u32>, of: Crossing, skip: usize, attack: Attack) -> Arc<AtomicUsize> {
    let seen = Arc::new(AtomicUsize::new(0));
    let (count, before) = (Arc::clone(&seen), Mutex::new(Vec::new()));
    t.fabric.tap(move |crossing, to, bytes| {
        if crossing != of || !ends.contains(&to) {
            return;
        }
        let mut before = before.lock().unwrap();
        let original = bytes.clone();
        if count.fetch_add(1, Ordering::Relaxed) == skip + 1 {
            attack(&before, bytes);
        }
        *before = original;
    });
    seen
}

#[tokio::test]
async fn changed_bytes_cost_the_link_and_no_call() {
    for (seed, (name, change)) in (0..).zip(ATTACKS) {
        for (crossing, skip) in BOTH.into_iter().flat_map(|crossing| [(crossing, 0), (crossing, 5)]) {
            let (t, beside, ends) = two_connections(4 * seed + 2 + seed % 2).await;
            let other = beside.caller.connection().await.unwrap();
            let received = other.traffic().upgraded.bytes_received;
            let seen = attack(&t, ends, crossing, skip, change);
            let mut next = 100;
            while seen.load(Ordering::Relaxed) < skip + 2 {
                tokio::join!(t.load(next..next + 70), beside.load(20_000 + next..20_070 + next));
                next += 70;
            }
            tokio::join!(t.load(next..next + 20), beside.load(20_000 + next..20_020 + next));
            let (transport, why) = t.transport();
            let why = why.unwrap_or_default();
            assert_eq!(transport, "memory", "{crossing:?}: {name}");
            // The side that finds it out says so; the peer repeats it.
            assert!(why.contains("what the peer has sealed"), "{crossing:?}: {name}: {why}");
            // The other connection goes on by its link.
            assert_eq!(other.transport().name, "rdma", "{crossing:?}: {name}");
            assert!(other.traffic().upgraded.bytes_received > received + 500_000, "{crossing:?}: {name}");
            assert_eq!(t.host.connections().len(), 2, "{crossing:?}: {name}: a connection was lost");
        }
    }
}
