//! A cluster of processes, as an operator has it: failover, members that come and go, stops and restarts.

#![expect(clippy::unwrap_used, reason = "a test ends where it can't go on")]

#[expect(dead_code, reason = "the tests of another program need the rest")]
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use farcall::health::{HealthClient, Serving};
use farcall::{Bytes, Channel};
use raft_kv::client::Client;
use raft_kv::network::farcall_address;
use raft_kv::node::SERVICE;
use raft_kv::service::{KvClient, KvError};
use raft_kv::types::NodeId;
use support::{Cluster, until};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Locked by each test: a cluster must not miss heartbeats because of another one.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

async fn put_all(client: &Client, count: u64, value: &Bytes) {
    for number in 0..count {
        client.put(&format!("key-{number}"), value.clone()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_put_read_compared_and_removed() {
    let _alone = alone().await;
    let cluster = Cluster::start(3, &[]).await;
    let client = cluster.client();
    assert_eq!(client.get("k").await.unwrap(), None);
    client.put("k", "a".into()).await.unwrap();
    // Another client sees it at once.
    assert_eq!(cluster.client().get("k").await.unwrap(), Some("a".into()));
    assert!(!client.compare_and_set("k", Some("b".into()), Some("c".into())).await.unwrap());
    assert!(client.compare_and_set("k", Some("a".into()), Some("c".into())).await.unwrap());
    assert!(client.delete("k").await.unwrap());
    assert!(!client.delete("k").await.unwrap());
    assert!(client.compare_and_set("k", None, Some("d".into())).await.unwrap());
    let error = client.put("", "a".into()).await.unwrap_err();
    assert!(matches!(error, KvError::Invalid(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_crashes_as_a_whole_has_all_that_it_confirmed() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(3, &["--snapshot-entries", "50"]).await;
    let client = cluster.client();
    put_all(&client, 200, &"v".into()).await;
    for id in cluster.ids() {
        cluster.kill(id);
    }
    for id in cluster.ids() {
        cluster.run(id);
    }
    for number in 0..200 {
        assert_eq!(client.get(&format!("key-{number}")).await.unwrap(), Some("v".into()));
    }
}

/// The state is not synced with each entry, so a crash takes it back. Nobody stands for election meanwhile, so the node leads on.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_starts_again_answers_no_read_from_an_older_state() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(3, &["--election-ms", "5000"]).await;
    let client = cluster.client();
    for round in 0..5u64 {
        let value = Bytes::from(vec![round as u8; 100_000]);
        put_all(&client, 200, &value).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.run(leader);
        let node = KvClient::new(&Channel::connect_lazy(&farcall_address(cluster.address(leader))).unwrap());
        let node = &node;
        let read = until("the node answers a read", || async move {
            node.get("key-199").wait_for_ready(true).timeout(Duration::from_secs(5)).await.ok()
        });
        assert!(read.await == Some(value), "round {round}: the node answers from an older state");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_gets_a_snapshot_and_a_vote_and_another_one_leaves() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(3, &["--snapshot-entries", "50"]).await;
    let client = cluster.client();
    // Several blocks of a snapshot, and more entries than the log keeps.
    put_all(&client, 200, &Bytes::from(vec![7; 50_000])).await;
    let leader = cluster.leader().await;
    let status = client.status_of(cluster.address(leader)).await.unwrap();
    assert!(status.purged > Some(0), "the log still has all entries: {status:?}");

    let new = cluster.start_another();
    client.add_learner(new, cluster.address(new)).await.unwrap();
    let learner = client.status_of(cluster.address(new)).await.unwrap();
    assert_eq!(learner.role, "Learner");
    // It never had these entries: their state came by a snapshot.
    assert!(learner.purged > Some(0), "{learner:?}");

    let leaver = (1..=3).find(|id| *id != leader).unwrap();
    let voters: BTreeSet<NodeId> = cluster.ids().into_iter().filter(|id| *id != leaver).collect();
    client.set_voters(&voters).await.unwrap();
    cluster.kill(leaver);
    let after = client.status_of(cluster.address(leader)).await.unwrap();
    assert_eq!(after.voters.iter().map(|member| member.id).collect::<BTreeSet<_>>(), voters);

    // Without the old leader, the new node is one of the two that make a majority.
    cluster.kill(leader);
    assert_eq!(client.get("key-199").await.unwrap().map(|value| value.len()), Some(50_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_to_stop_ends_in_order_and_loses_no_call() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(3, &[]).await;
    let client = cluster.client();
    let load = tokio::spawn({
        let client = client.clone();
        async move {
            let end = Instant::now() + Duration::from_secs(6);
            let mut count = 0;
            while Instant::now() < end {
                client.put("k", "v".into()).await.unwrap();
                count += 1;
            }
            count
        }
    });
    let leader = cluster.leader().await;
    assert!(cluster.stop(leader).await.success());
    let next = until("another node leads", || {
        let client = &client;
        async move { client.status().await.ok()?.leader.map(|next| next.id).filter(|next| *next != leader) }
    });
    assert_ne!(next.await, leader);
    cluster.run(leader);
    assert!(load.await.unwrap() > 0);
    cluster.converged().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_says_whether_there_is_a_leader() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(3, &[]).await;
    let channel = Channel::connect(&format!("tcp://{}", cluster.address(1))).await.unwrap();
    let health = &HealthClient::new(&channel);
    let is = |wanted: Serving| {
        until(
            "health says so",
            move || async move { (health.check(SERVICE).await.ok()? == wanted).then_some(()) },
        )
    };
    is(Serving::Serving).await;
    // Alone it can't elect a leader, and says so when it has missed the others.
    cluster.kill(2);
    cluster.kill(3);
    is(Serving::NotServing).await;
    assert_eq!(health.check("").await.unwrap(), Serving::Serving);
    cluster.run(2);
    is(Serving::Serving).await;
}

/// Prints how long each put took, which `README.md` tells. `RAFT_KV_ROUNDS` says how often the leader is killed; 2 unless set.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_outlives_the_leader() {
    let _alone = alone().await;
    let rounds = std::env::var("RAFT_KV_ROUNDS").map_or(2, |text| text.parse().unwrap());
    let mut cluster = Cluster::start(3, &[]).await;
    let client = cluster.client();
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        client.put("k", "v".into()).await.unwrap();
        let leader = cluster.leader().await;
        let killed = Instant::now();
        cluster.kill(leader);
        let put = async {
            client.put("k", "v".into()).await.unwrap();
            killed.elapsed()
        };
        let elected = async {
            next_leader(&cluster, leader).await;
            killed.elapsed()
        };
        gaps.push(tokio::join!(elected, put));
        cluster.run(leader);
        cluster.converged().await;
    }
    gaps.sort_unstable();
    for (elected, answered) in gaps {
        println!("from the kill to the election {elected:.2?}, to the next answer {answered:.2?}");
    }
}

/// Returns when one of the other nodes says of itself that it leads.
async fn next_leader(cluster: &Cluster, killed: NodeId) {
    let client = cluster.client();
    let others: Vec<_> = cluster.ids().into_iter().filter(|id| *id != killed).collect();
    loop {
        for id in &others {
            let status = client.status_of(cluster.address(*id)).await.unwrap();
            if status.role == "Leader" {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
