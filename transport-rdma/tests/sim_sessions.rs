//! Sessions that move to RDMA and back: whatever happens to queue pairs, each call ends as if nothing had.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod near;
mod sessions;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall_core::class::TrafficClass;
use farcall_rdma::testing::sim::{Crossing, Fabric};
use farcall_rdma::{Completion, RdmaConfig};

use near::TEXTS_PER_KEY;
use sessions::{Setup, argument, sealed_by, setup, setup_with};

#[tokio::test]
async fn calls_of_all_sizes_go_by_rdma() {
    let t = setup(1);
    t.load(0..300).await;
    assert_eq!(t.transport(), ("rdma", None));
    let traffic = t.host.connections()[0].traffic();
    assert!(traffic.upgraded.bytes_received > 1_000_000, "{traffic:?}");
}

#[tokio::test]
async fn calls_are_the_same_whatever_waits_for_completions() {
    let modes: [fn(&mut RdmaConfig); 2] =
        [|config| config.completion = Completion::Event, |config| config.completion = Completion::Busy];
    for mode in modes {
        let t = setup_with(2, 0, mode);
        t.load(0..300).await;
        assert_eq!(t.transport(), ("rdma", None));
    }
}

#[tokio::test]
async fn each_class_has_a_queue_pair_with_its_own_marks_at_both_ends() {
    let t = setup_with(2, 0, |config| {
        config.dscp.normal = 26;
        config.dscp.urgent = Some(46);
        config.ecn = true;
        config.service_level.urgent = Some(5);
    });
    for (class, marks) in
        [(TrafficClass::Normal, (106, 0)), (TrafficClass::Urgent, (186, 5)), (TrafficClass::Bulk, (106, 0))]
    {
        let before = t.fabric.paths().len();
        let connection = t.caller.class(class).connection().await.unwrap();
        assert_eq!((connection.class(), connection.transport().name), (class, "rdma"));
        let paths = t.fabric.paths().split_off(before);
        let marked: Vec<_> = paths.iter().map(|path| (path.traffic_class, path.service_level)).collect();
        assert_eq!(marked, [marks, marks], "{class}");
        assert_eq!(t.call(argument(7, 40_000)).class(class).await.unwrap(), argument(7, 40_000));
    }
}

#[tokio::test]
async fn queue_pairs_that_die_under_load_cost_no_call_and_repeat_none() {
    for seed in 0..20 {
        let t = setup(seed);
        t.load(0..20).await;
        assert_eq!(t.transport().0, "rdma");
        let killer = async {
            for _ in 0..seed % 8 {
                tokio::task::yield_now().await;
            }
            let pairs = t.fabric.queue_pairs();
            t.fabric.kill_qp(pairs[seed as usize % pairs.len()]);
        };
        tokio::join!(t.load(20..200), killer);
        t.load(200..210).await;
    }
}

/// Counts what crosses to each queue pair, from now on.
fn count(fabric: &Fabric, of: Crossing) -> Arc<Mutex<HashMap<u32, usize>>> {
    let counts: Arc<Mutex<HashMap<u32, usize>>> = Arc::default();
    let counted = Arc::clone(&counts);
    fabric.tap(move |crossing, to, _| {
        if crossing == of {
            *counted.lock().unwrap().entry(to).or_default() += 1;
        }
    });
    counts
}

#[tokio::test]
async fn sealed_sessions_go_from_key_to_key_under_load_and_from_link_to_link() {
    for (seed, of) in
        [(2, Crossing::Message), (3, Crossing::Message), (2, Crossing::Read), (7, Crossing::Read)]
    {
        let t = setup_with(seed, 1, |_| {});
        let mut next = 0;
        for link in 0..2 {
            let counts = count(&t.fabric, of);
            // Until several keys have followed the first in each direction. A READ brings one text, or several.
            while counts.lock().unwrap().values().filter(|&&count| count > 3 * TEXTS_PER_KEY).count() < 2 {
                t.load(next..next + 70).await;
                next += 70;
                assert_eq!(t.transport().0, "rdma", "{of:?}, link {link}");
            }
            let killer = async {
                tokio::task::yield_now().await;
                assert!(t.fabric.kill_qp(t.fabric.queue_pairs()[link % 2]));
            };
            tokio::join!(t.load(next..next + 70), killer);
            next += 70;
            let up = async {
                while t.transport() != ("rdma", None) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), up).await.expect("it does not come back");
        }
    }
}

#[tokio::test]
async fn long_messages_are_read_from_the_memory_they_lie_in() {
    for seed in 0..4 {
        let t = setup(seed);
        t.load(0..1).await;
        let server = t.host.connections()[0].clone();
        for len in [20_000, 65_536, 1_000_000, 3 << 20] {
            let sent = argument(len as u64, len);
            // While memory grows, messages are copied. It does so on a thread of its own.
            let all_read = async {
                loop {
                    let before = server.traffic().upgraded;
                    assert_eq!(t.call(sent.clone()).await.unwrap(), sent);
                    // Bytes that were read count when the reader has said so, which is after the call has ended there.
                    while server.traffic().upgraded.bytes_sent < before.bytes_sent + len as u64 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let after = server.traffic().upgraded;
                    assert!(after.bytes_received - before.bytes_received >= len as u64);
                    // Sealed bytes are a copy.
                    if after.bytes_copied - before.bytes_copied < 1000 || sealed_by(seed).is_some() {
                        return;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(60), all_read)
                .await
                .expect("in the end nothing is copied");
        }
    }
}

#[tokio::test]
async fn long_messages_are_sent_where_they_can_not_be_read() {
    let t = setup_with(2, 0, |config| config.bulk_memory = 0);
    t.load(0..70).await;
    assert_eq!(t.transport(), ("rdma", None));
}

#[tokio::test]
async fn a_queue_pair_that_dies_again_and_again_is_replaced_and_no_call_is_lost() {
    let deaths = if std::env::var_os("FARCALL_LONG").is_some() { 100 } else { 10 };
    for seed in 0..2 {
        let t = setup_with(seed, 1, |_| {});
        t.load(0..20).await;
        for death in 0..deaths {
            let killer = async {
                for _ in 0..death % 8 {
                    tokio::task::yield_now().await;
                }
                let pairs = t.fabric.queue_pairs();
                if !pairs.is_empty() {
                    t.fabric.kill_qp(pairs[death as usize % pairs.len()]);
                }
            };
            tokio::join!(t.load(100 * death + 100..100 * death + 170), killer);
        }
        let up = async {
            while t.transport().0 != "rdma" {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), up).await.expect("it comes back");
    }
}

#[tokio::test]
async fn messages_that_arrived_though_they_failed_are_not_repeated() {
    for seed in 0..10 {
        let t = setup(seed);
        t.load(0..20).await;
        let loss = async {
            t.fabric.set_acknowledgements(false);
            for _ in 0..3 + seed {
                tokio::task::yield_now().await;
            }
            // As often as it takes: what waits runs out of retries.
            for _ in 0..50 {
                t.fabric.expire();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::join!(t.load(20..100), loss);
        assert_eq!(t.transport().0, "memory");
    }
}

#[tokio::test]
async fn cut_cable_moves_the_session_back() {
    let t = setup(1);
    t.load(0..20).await;
    let cut = async {
        t.fabric.set_traffic(false);
        for _ in 0..50 {
            t.fabric.expire();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::join!(t.load(20..200), cut);
    let (name, why) = t.transport();
    assert_eq!(name, "memory");
    assert!(why.unwrap().contains("did not answer"));
}

#[tokio::test]
async fn closing_a_session_is_no_failure() {
    let t = setup(1);
    t.load(0..50).await;
    let Setup { fabric, caller, host, .. } = t;
    drop(caller);
    let closed = async {
        while !fabric.queue_pairs().is_empty() || !host.connections().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), closed).await.expect("something stays");
}
