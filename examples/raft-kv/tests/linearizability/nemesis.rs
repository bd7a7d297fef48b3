//! Faults: nodes are killed, paused and started again at random.

use std::time::Duration;

use raft_kv::types::NodeId;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::support::Cluster;

/// Makes faults until it is told to stop, with time for an election between most of them. `election` is its shortest timeout in
/// milliseconds. Returns the cluster, with all nodes running, and how many faults there were.
pub(crate) async fn run(
    mut cluster: Cluster,
    mut random: fastrand::Rng,
    election: u64,
    mut stopped: watch::Receiver<bool>,
) -> (Cluster, u32) {
    let mut faults = 0;
    loop {
        let quiet = Duration::from_millis(random.u64(election..election * 8));
        if timeout(quiet, stopped.wait_for(|stopped| *stopped)).await.is_ok() {
            return (cluster, faults);
        }
        fault(&mut cluster, &mut random).await;
        faults += 1;
    }
}

async fn fault(cluster: &mut Cluster, random: &mut fastrand::Rng) {
    let ids = cluster.ids();
    let mut victims = ids.clone();
    random.shuffle(&mut victims);
    // Now and then a majority, or all.
    victims.truncate([1, 1, 1, 1, 2, ids.len()][random.usize(..6)]);
    if victims.len() == 1 && random.bool() {
        victims = vec![cluster.leader().await];
    }
    let length = Duration::from_millis(random.u64(100..2000));
    if random.bool() {
        println!("{victims:?} killed for {length:?}");
        each(&victims, |id| cluster.kill(id));
        sleep(length).await;
        each(&victims, |id| cluster.run(id));
    } else {
        println!("{victims:?} paused for {length:?}");
        each(&victims, |id| cluster.pause(id));
        sleep(length).await;
        each(&victims, |id| cluster.resume(id));
    }
}

fn each(ids: &[NodeId], act: impl FnMut(NodeId)) {
    ids.iter().copied().for_each(act);
}
