//! A cluster goes from an earlier build of the store to this one and back, node after node, while clients of both builds call it.
//!
//! `RAFT_KV_EARLIER` is the program of the earlier build. `cargo xtask test raft-kv` builds and names it. `cargo test` leaves this out
//! unless it is named.

#![expect(clippy::unwrap_used, reason = "a test ends where it can't go on")]

mod history;
#[expect(dead_code, reason = "the tests of another program need the rest")]
mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use history::clients::{self, Caller, Clients, Failed, Tally};
use history::program::Program;
use history::{Histories, check};
use raft_kv::client::Client;
use raft_kv::types::NodeId;
use support::{Cluster, PATIENCE, THIS_BUILD, until};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// How many writes of each client that writes keys once are acknowledged between two changes of the cluster.
const MORE: u64 = 20;
/// How long clients use one set of keys.
const ROUND: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_goes_to_this_build_and_back_under_load_and_loses_nothing() {
    let earlier = std::env::var_os("RAFT_KV_EARLIER")
        .expect("RAFT_KV_EARLIER must name the program of an earlier build");
    let (earlier, this) = (PathBuf::from(earlier), Path::new(THIS_BUILD));
    let mut cluster = Cluster::start_build(&earlier, 3, &["--snapshot-entries", "200"]).await;
    let mut load = Load::begin(&cluster, &earlier);
    load.goes_on().await;
    for (name, program) in [("this", this), ("the earlier", &earlier)] {
        cluster.set_program(program);
        let [follower, leader, last] = order(&cluster).await;
        stop(&mut cluster, follower).await;
        // The others are of one build, so the snapshot goes from that build to the other.
        a_snapshot_is_needed(&cluster, follower).await;
        start(&mut cluster, follower, name).await;
        load.goes_on().await;

        stop(&mut cluster, leader).await;
        // One node of each build votes. A leader that is back before that leads on.
        cluster.next_leader(leader).await;
        load.goes_on().await;
        start(&mut cluster, leader, name).await;
        load.goes_on().await;

        stop(&mut cluster, last).await;
        start(&mut cluster, last, name).await;
        load.goes_on().await;
    }
    let client = cluster.patient_client(PATIENCE);
    let (mut histories, tally) = load.end(&client).await;
    cluster.converged().await;
    println!("{tally:?}");
    assert_eq!(tally.lost, 0, "calls have failed for good");
    clients::read_again(&client, &mut histories).await;
    tokio::task::spawn_blocking(move || check(&histories)).await.unwrap();
}

/// Returns a follower, the leader, and the other follower.
async fn order(cluster: &Cluster) -> [NodeId; 3] {
    let leader = cluster.leader().await;
    let followers: Vec<_> = cluster.ids().into_iter().filter(|id| *id != leader).collect();
    [followers[0], leader, followers[1]]
}

async fn stop(cluster: &mut Cluster, id: NodeId) {
    println!("node {} leads; node {id} stops", cluster.leader().await);
    let ended = cluster.stop(id).await;
    assert!(ended.success(), "node {id}: {ended}");
}

async fn start(cluster: &mut Cluster, id: NodeId, build: &str) {
    cluster.run(id);
    cluster.caught_up(id).await;
    println!("node {id} has caught up with {build} build");
}

/// Returns when the leader has removed entries from its log that a follower, which is stopped, does not have.
async fn a_snapshot_is_needed(cluster: &Cluster, stopped: NodeId) {
    let client = &cluster.client();
    let leader = cluster.leader().await;
    assert_ne!(leader, stopped, "a follower was stopped");
    let status = || client.status_of(cluster.address(leader));
    // The stopped node has no entry that the leader lacks.
    let last = until("the leader has entries", || async { status().await.ok()?.last_log }).await;
    until("these leave the log", || async { status().await.ok()?.purged.filter(|purged| *purged > last) })
        .await;
}

/// Clients that call until they are told to stop.
struct Load {
    stop: watch::Sender<bool>,
    rounds: JoinHandle<(Histories, Tally)>,
    ledgers: Vec<Ledger>,
}

impl Load {
    fn begin(cluster: &Cluster, earlier: &Path) -> Self {
        let (stop, stopped) = watch::channel(false);
        let new = || cluster.patient_client(PATIENCE);
        let program = || Caller::Program(Program::new(earlier, cluster));
        let mut clients = clients::of(cluster, new);
        clients.add(program());
        clients.add(program());
        let rounds = tokio::spawn(rounds(clients, stopped.clone()));
        let ledgers = vec![
            Ledger::begin("this-build", Caller::Library(new()), stopped.clone()),
            Ledger::begin("earlier-build", program(), stopped),
        ];
        Self { stop, rounds, ledgers }
    }

    /// Returns when more writes were acknowledged to a client of each build.
    async fn goes_on(&mut self) {
        for ledger in &mut self.ledgers {
            let enough = *ledger.written.borrow() + MORE;
            let written = timeout(PATIENCE, ledger.written.wait_for(|written| *written >= enough));
            written.await.expect("writes are acknowledged").expect("the ledger is being written");
        }
    }

    /// Ends the load. Returns the histories of keys that were written several times. All keys that were written once must be there.
    async fn end(self, client: &Client) -> (Histories, Tally) {
        self.stop.send_replace(true);
        for ledger in self.ledgers {
            ledger.end(client).await;
        }
        self.rounds.await.unwrap()
    }
}

async fn rounds(clients: Clients, stopped: watch::Receiver<bool>) -> (Histories, Tally) {
    let (mut histories, mut tally) = (Histories::new(), Tally::default());
    for round in 0.. {
        if *stopped.borrow() {
            break;
        }
        histories.extend(clients::round(&clients, round, ROUND, &mut tally).await);
    }
    (histories, tally)
}

/// Keys that a client writes once each, one after the other.
struct Ledger {
    name: &'static str,
    /// How many writes were acknowledged.
    written: watch::Receiver<u64>,
    writer: JoinHandle<()>,
}

impl Ledger {
    fn begin(name: &'static str, caller: Caller, stopped: watch::Receiver<bool>) -> Self {
        let (count, written) = watch::channel(0);
        let writer = tokio::spawn(async move {
            for number in 0.. {
                if *stopped.borrow() {
                    break;
                }
                if let Err(Failed(why)) = caller.put(&key(name, number), &number.to_string()).await {
                    panic!("a write has failed for good: {why}");
                }
                count.send_replace(number + 1);
            }
        });
        Self { name, written, writer }
    }

    /// Waits for the last write, and reads all of them.
    async fn end(self, client: &Client) {
        const READERS: u64 = 16;
        self.writer.await.unwrap();
        let (name, count) = (self.name, *self.written.borrow());
        let mut readers = JoinSet::new();
        for first in 0..READERS {
            let client = client.clone();
            readers.spawn(async move {
                for number in (first..count).step_by(READERS as usize) {
                    let value = client.get(&key(name, number)).await.unwrap();
                    assert_eq!(value, Some(number.to_string().into()), "write {number} of {name} is lost");
                }
            });
        }
        readers.join_all().await;
        println!("{name}: {count} writes, all there");
    }
}

fn key(name: &str, number: u64) -> String {
    format!("{name}-{number}")
}
