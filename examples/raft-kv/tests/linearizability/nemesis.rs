//! Faults at random: nodes are killed, paused and started again, the network between them is cut, their disks are full, and their
//! clocks jump.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use raft_kv::types::NodeId;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::support::Cluster;

/// The furthest that a clock is set from this machine's, in seconds.
const FURTHEST: i64 = 400 * 24 * 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Kill,
    Pause,
    Cut,
    PortDown,
    FullDisk,
    Clock,
}

/// Makes faults until it is told to stop, with time for an election between most of them. `election` is its shortest timeout in
/// milliseconds. Returns the cluster, with all nodes running, and how many faults there were.
pub(crate) async fn run(
    mut cluster: Cluster,
    mut random: fastrand::Rng,
    election: u64,
    mut stopped: watch::Receiver<bool>,
) -> (Cluster, BTreeMap<Fault, u32>) {
    let mut possible = vec![Fault::Kill, Fault::Pause];
    possible.extend(cluster.has_network().then_some(Fault::Cut));
    possible.extend(cluster.port().map(|_| Fault::PortDown));
    possible.extend(cluster.has_disks().then_some(Fault::FullDisk));
    possible.extend(cluster.has_clocks().then_some(Fault::Clock));
    let mut faults = BTreeMap::new();
    loop {
        let quiet = Duration::from_millis(random.u64(election..election * 8));
        if timeout(quiet, stopped.wait_for(|stopped| *stopped)).await.is_ok() {
            return (cluster, faults);
        }
        let fault = possible[random.usize(..possible.len())];
        make(fault, &mut cluster, election, &mut random).await;
        *faults.entry(fault).or_default() += 1;
    }
}

async fn make(fault: Fault, cluster: &mut Cluster, election: u64, random: &mut fastrand::Rng) {
    let ids = cluster.ids();
    // Long enough for an election, now and then.
    let longest = (election * 5).max(2000);
    let mut victims = ids.clone();
    random.shuffle(&mut victims);
    // Now and then a majority, or all.
    victims.truncate([1, 1, 1, 1, 2, ids.len()][random.usize(..6)]);
    if victims.len() == 1 && random.bool() {
        victims = vec![cluster.leader().await];
    }
    let length = Duration::from_millis(random.u64(100..longest));
    match fault {
        Fault::Kill => {
            // A leader that is back before an election leads on.
            let length = if random.bool() { Duration::ZERO } else { length };
            println!("{victims:?} killed for {length:?}");
            each(&victims, |id| cluster.kill(id));
            sleep(length).await;
            each(&victims, |id| cluster.run(id));
        }
        Fault::Pause => {
            println!("{victims:?} paused for {length:?}");
            each(&victims, |id| cluster.pause(id));
            sleep(length).await;
            each(&victims, |id| cluster.resume(id));
        }
        Fault::Cut => {
            let (ways, length) = (cut(&ids, &victims, random), length * 2);
            println!("nothing passes on {ways:?} for {length:?}");
            cluster.cut(ways);
            sleep(length).await;
            cluster.cut(BTreeSet::new());
        }
        Fault::PortDown => {
            println!("the port down for {length:?}");
            let port = cluster.port().unwrap();
            port.take_down();
            sleep(length).await;
            port.bring_up();
        }
        Fault::Clock => {
            // They stay so until they jump again, so that nodes disagree on the time of day.
            let offsets = victims.iter().map(|id| (*id, random.i64(-FURTHEST..FURTHEST))).collect::<Vec<_>>();
            println!("clocks set, in seconds from this machine's: {offsets:?}");
            for (id, offset) in offsets {
                cluster.set_clock(id, offset);
            }
        }
        Fault::FullDisk => {
            each(&victims, |id| cluster.fill_disk(id));
            sleep(length).await;
            let ended: Vec<_> = victims.iter().filter(|id| cluster.ended(**id).is_some()).collect();
            println!("the disks of {victims:?} full for {length:?}; {ended:?} ended");
            each(&victims, |id| cluster.empty_disk(id));
        }
    }
}

/// Returns the ways between the victims and the others, or between all nodes if all are victims. Now and then only those that lead
/// away from the victims.
fn cut(ids: &[NodeId], victims: &[NodeId], random: &mut fastrand::Rng) -> BTreeSet<(NodeId, NodeId)> {
    let (all, both_ways) = (victims.len() == ids.len(), random.u8(..3) > 0);
    let is_cut = |from: &NodeId, to: &NodeId| match (victims.contains(from), victims.contains(to)) {
        (true, true) => all && from != to,
        (true, false) => true,
        (false, true) => both_ways,
        (false, false) => false,
    };
    let ways = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to)));
    ways.filter(|(from, to)| is_cut(from, to)).collect()
}

fn each(ids: &[NodeId], act: impl FnMut(NodeId)) {
    ids.iter().copied().for_each(act);
}
