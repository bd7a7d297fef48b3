//! Clients call a cluster whose nodes are killed, paused and started again, whose network is cut, whose disks are full and whose
//! clocks jump. Their calls must be linearizable. Disks are filled only where the test may mount some, which root may, and clocks
//! set only where libfaketime is installed. A network by RDMA is cut by its port, in farcall's VM.
//!
//! `RAFT_KV_SECONDS` says for how long; 20 unless set. `RAFT_KV_SEED` repeats the choices of an earlier run.
//! `RAFT_KV_ELECTION_MS` is the shortest election timeout, 200 unless set; a slow machine needs a longer one.

#![expect(clippy::unwrap_used, reason = "a test ends where it can't go on")]

mod checker_tests;
#[path = "../history/mod.rs"]
#[expect(dead_code, reason = "the tests of another program need the rest")]
mod history;
mod nemesis;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "the tests of another program need the rest")]
mod support;

use std::time::Duration;

use history::{check, clients};
use support::Cluster;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long clients use one set of keys, before the history so far is checked.
const ROUND: Duration = Duration::from_secs(5);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_are_linearizable_while_nodes_fail() {
    let length = Duration::from_secs(setting("RAFT_KV_SECONDS").unwrap_or(20));
    let seed = setting("RAFT_KV_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("RAFT_KV_SEED={seed}");
    let election = setting("RAFT_KV_ELECTION_MS").unwrap_or(200);
    let (heartbeat_ms, election_ms) = ((election / 4).to_string(), election.to_string());
    let times = ["--heartbeat-ms", &heartbeat_ms, "--election-ms", &election_ms, "--snapshot-entries", "500"];
    let cluster = Cluster::start_to_fail(3, &times).await;
    if !cluster.has_network() && cluster.port().is_none() {
        println!("the network is not cut: FARCALL_TRANSPORT asks for RDMA, and this is not farcall's VM");
    }
    if !cluster.has_clocks() {
        println!("clocks are not set: libfaketime is not installed");
    }
    if !cluster.has_disks() {
        println!("disks are not filled: only root may mount some");
    }
    let clients = clients::of(&cluster, || cluster.client());
    let (stop, stopped) = watch::channel(false);
    let nemesis = tokio::spawn(nemesis::run(cluster, fastrand::Rng::with_seed(seed), election, stopped));

    let (end, mut round, mut total) = (Instant::now() + length, 0, clients::Tally::default());
    while Instant::now() < end {
        let histories = clients::round(&clients, round, ROUND.min(end - Instant::now()), &mut total).await;
        tokio::task::spawn_blocking(move || check(&histories)).await.unwrap();
        round += 1;
    }
    stop.send_replace(true);
    let (cluster, faults) = nemesis.await.unwrap();
    println!("{total:?}, faults: {faults:?}");
    // Under load and faults most calls end well; else the history says little.
    assert!(total.answered > 100 && total.answered > total.lost, "{total:?}");
    let states = cluster.converged().await;
    println!("term {}, {:?} entries", states[0].term, states[0].applied);
}
