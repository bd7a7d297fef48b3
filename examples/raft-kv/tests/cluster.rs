//! A cluster of processes, as an operator has it: failover, members that come and go, stops and restarts.

#![expect(clippy::unwrap_used, reason = "a test ends where it can't go on")]

#[expect(dead_code, reason = "the tests of another program need the rest")]
mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use farcall::health::{HealthClient, Serving};
use farcall::{Bytes, Channel, Executed};
use raft_kv::client::Client;
use raft_kv::node::SERVICE;
use raft_kv::service::KvError;
use raft_kv::types::{NodeId, RequestId};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{Cluster, until};
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

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
        let node = cluster.node(leader);
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
    client.add_voter(new).await.unwrap();
    assert!(client.remove(leaver).await.unwrap());
    cluster.kill(leaver);
    let after = client.status_of(cluster.address(leader)).await.unwrap();
    assert_eq!(after.voters.iter().map(|member| member.id).collect::<BTreeSet<_>>(), voters);

    // Without the old leader, the new node is one of the two that make a majority.
    cluster.kill(leader);
    assert_eq!(client.get("key-199").await.unwrap().map(|value| value.len()), Some(50_000));
}

async fn voters(client: &Client, leader: &str) -> BTreeSet<NodeId> {
    client.status_of(leader).await.unwrap().voters.iter().map(|member| member.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_added_at_once_all_vote_and_voters_and_learners_can_leave() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(1, &[]).await;
    let new: Vec<_> = (0..3).map(|_| cluster.start_another()).collect();
    let client = cluster.client();
    let mut adding = JoinSet::new();
    for id in new {
        let (client, address) = (client.clone(), cluster.address(id).to_owned());
        adding.spawn(async move {
            client.add_learner(id, &address).await.unwrap();
            client.add_voter(id).await.unwrap();
        });
    }
    adding.join_all().await;
    let leader = cluster.leader().await;
    let leader = cluster.address(leader);
    assert_eq!(voters(&client, leader).await, BTreeSet::from([1, 2, 3, 4]));

    let learner = 5;
    client.add_learner(learner, "127.0.0.1:1").await.unwrap();
    let status = client.status_of(leader).await.unwrap();
    assert!(status.learners.iter().any(|member| member.id == learner), "{status:?}");
    assert!(client.remove(learner).await.unwrap());
    assert!(!client.remove(learner).await.unwrap());
    assert!(client.remove(4).await.unwrap());
    assert_eq!(voters(&client, leader).await, BTreeSet::from([1, 2, 3]));
    assert_eq!(client.status_of(leader).await.unwrap().learners, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_belongs_to_a_cluster_makes_no_other() {
    let _alone = alone().await;
    let cluster = Cluster::start(1, &[]).await;
    let again = cluster.client().init([(1, cluster.address(1).to_owned())].into()).await;
    assert_eq!(again, Err(KvError::Exists));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_1024_open_requests_at_most() {
    let _alone = alone().await;
    let cluster = Cluster::start(1, &[]).await;
    cluster.leader().await;
    let node = cluster.node(1);
    node.open(1).await.unwrap();
    let put = async |number, first_open| {
        node.put(RequestId { session: 1, number, first_open }, "k", Bytes::new()).await
    };
    assert_eq!(put(1024, 1).await, Ok(()));
    assert!(matches!(put(1025, 1).await, Err(KvError::Invalid(_))));
    assert!(matches!(put(1026, 1027).await, Err(KvError::Invalid(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_says_whether_a_leader_may_have_made_it() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(1, &[]).await;
    let client = cluster.client();
    client.put("k", "a".into()).await.unwrap();
    let executed = async || match client.put("k", "b".into()).await {
        Err(KvError::Rpc(status)) => status.executed(),
        other => panic!("{other:?}"),
    };
    // It may have come before the process stood still.
    cluster.pause(1);
    assert_eq!(executed().await, Executed::Maybe);
    cluster.kill(1);
    assert_eq!(executed().await, Executed::No);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_majority_refuses_commands_when_64_mib_of_them_wait() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(3, &[]).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader);
    node.open(1).await.unwrap();
    for id in cluster.ids().into_iter().filter(|id| *id != leader) {
        cluster.kill(id);
    }
    let mut puts = JoinSet::new();
    for number in 1..=80 {
        let (node, value) = (node.clone(), Bytes::from(vec![7; 1 << 20]));
        let request = RequestId { session: 1, number, first_open: 1 };
        puts.spawn(async move { node.put(request, "k", value).timeout(Duration::from_secs(5)).await });
    }
    let refused = |put: &Result<(), KvError>| matches!(put, Err(KvError::Rpc(status)) if status.message().contains("wait for a majority"));
    assert!(puts.join_all().await.iter().filter(|put| refused(put)).count() >= 80 - 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_to_stop_ends_in_order_and_loses_no_call() {
    let _alone = alone().await;
    let mut cluster = Cluster::start(3, &[]).await;
    let client = cluster.client();
    let (end, told) = watch::channel(false);
    let load = tokio::spawn({
        let client = client.clone();
        async move {
            let mut count = 0;
            while !*told.borrow() {
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
    // The load goes on until the node is back.
    cluster.answers(leader).await;
    end.send_replace(true);
    assert!(load.await.unwrap() > 0);
    cluster.converged().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_answers_no_read_and_the_others_go_on() {
    let _alone = alone().await;
    let cluster = Cluster::start_to_fail(3, &[]).await;
    if !cluster.has_network() {
        println!("skipped: FARCALL_TRANSPORT asks for another network than TCP");
        return;
    }
    let client = cluster.client();
    client.put("k", "old".into()).await.unwrap();
    let leader = cluster.leader().await;
    let others = cluster.ids().into_iter().filter(|id| *id != leader);
    cluster.cut(others.flat_map(|other| [(leader, other), (other, leader)]).collect());
    cluster.next_leader(leader).await;
    client.put("k", "new".into()).await.unwrap();
    // It does not know yet that another one leads, and must not answer from what it has.
    let status = client.status_of(cluster.address(leader)).await.unwrap();
    assert_eq!(status.role, "Leader");
    let read = cluster.node(leader).get("k").timeout(Duration::from_secs(5)).await;
    assert!(matches!(read, Err(KvError::NoQuorum(_))), "{read:?}");

    cluster.cut(BTreeSet::new());
    cluster.converged().await;
    assert_eq!(client.get("k").await.unwrap(), Some("new".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_is_full_ends_and_comes_back_when_there_is_room() {
    let _alone = alone().await;
    let mut cluster = Cluster::start_to_fail(3, &[]).await;
    if !cluster.has_disks() {
        println!("skipped: only root may mount a disk to fill");
        return;
    }
    let client = cluster.client();
    client.put("k", "v".into()).await.unwrap();
    let leader = cluster.leader().await;
    let full = cluster.ids().into_iter().find(|id| *id != leader).unwrap();
    cluster.fill_disk(full);
    // The others go on.
    let value = Bytes::from(vec![7; 10_000]);
    let mut puts = 0;
    let ended = loop {
        client.put("k", value.clone()).await.unwrap();
        if let Some(ended) = cluster.ended(full) {
            break ended;
        }
        puts += 1;
        assert!(puts < 3000, "the node takes 30 MB on a full disk");
    };
    assert!(!ended.success(), "{ended}");
    cluster.empty_disk(full);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_node_that_is_stopping_at_once() {
    let _alone = alone().await;
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("farcall.toml");
    std::fs::write(&config, "[server]\ndrain_delay_ms = 3_600_000\n").unwrap();
    let mut cluster = Cluster::start(1, &["--config", config.to_str().unwrap()]).await;
    let channel = Channel::connect(&format!("tcp://{}", cluster.address(1))).await.unwrap();
    let health = &HealthClient::new(&channel);
    cluster.signal(1, Signal::TERM);
    until("the node is stopping", || async move {
        (health.check("").await.ok()? == Serving::NotServing).then_some(())
    })
    .await;
    let ended = timeout(Duration::from_secs(60), cluster.stop(1)).await.expect("the node ends");
    assert_eq!(ended.code(), Some(1));
}

/// Returns a port that is free now, like the `count - 1` after it.
fn free_ports(count: u16) -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if (0..count).all(|further| TcpListener::bind(("127.0.0.1", first + further)).is_ok()) {
            return first;
        }
    }
}

fn raft_kv(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_raft-kv"));
    command.args(arguments);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_readme_make_a_cluster_and_call_it() {
    let _alone = alone().await;
    let directory = tempfile::tempdir().unwrap();
    let first = free_ports(3);
    let mut command = raft_kv(&["cluster", "--port", &(first - 1).to_string(), "--data"]);
    let mut cluster = command.arg(directory.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(cluster.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "the cluster serves; Ctrl-C stops it"));
    let nodes = [0, 1, 2].map(|further| format!("127.0.0.1:{}", first + further)).join(",");
    let said = |arguments: &[&str]| {
        let output = raft_kv(arguments).env("RAFT_KV_NODES", &nodes).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    said(&["put", "greeting", "hello"]);
    assert_eq!(said(&["get", "greeting"]), "hello\n");
    let status = said(&["status"]);
    assert_eq!(status.matches("127.0.0.1:").count(), 3, "{status}");
    kill_process(Pid::from_raw(cluster.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert!(cluster.wait().unwrap().success());
}

#[cfg(feature = "metrics")]
#[tokio::test(flavor = "multi_thread")]
async fn prometheus_gets_metrics_of_calls_and_of_raft() {
    let _alone = alone().await;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = format!("127.0.0.1:{}", free_ports(1));
    let cluster = Cluster::start(1, &["--metrics", &address]).await;
    cluster.client().put("k", "v".into()).await.unwrap();
    let metrics = || async {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let has = |line: &str| answer.lines().any(|found| found.starts_with(line));
        let call = r#"farcall_server_calls_total{service="raftkv.v1.Kv",method="put",code="OK"} 1"#;
        (has(call) && has("raft_kv_leads 1") && has("raft_kv_term 1")).then_some(())
    };
    until("metrics tell of the put and of the leader", metrics).await;
}

#[test]
fn a_cluster_on_one_machine_that_is_told_to_stop_takes_its_nodes_along() {
    let directory = tempfile::tempdir().unwrap();
    let free = free_ports(1);
    let mut command = raft_kv(&["cluster", "--nodes", "1", "--port", &(free - 1).to_string(), "--data"]);
    let mut cluster = command.arg(directory.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(cluster.stdout.take().unwrap()).lines().map(Result::unwrap);
    let node = lines.next().unwrap();
    let (_, node) = node.split_once(" is process ").unwrap();
    let pid = |number| Pid::from_raw(number).unwrap();
    let node = pid(node.parse().unwrap());
    kill_process(pid(cluster.id().cast_signed()), Signal::TERM).unwrap();
    assert!(cluster.wait().unwrap().success());
    assert_eq!(test_kill_process(node), Err(Errno::SRCH), "the node still runs");
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
            cluster.next_leader(leader).await;
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
