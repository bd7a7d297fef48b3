//! The comparison: clusters in turn, on one machine.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farcall::Bytes;
use raft_kv::types::{NodeId, RequestId};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Network;
use crate::caller::Caller;
use crate::report::{Measured, Report};

/// How long a cluster may take until it writes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many keys are written.
const KEYS: u64 = 1000;

#[derive(clap::Args)]
pub(crate) struct Bench {
    /// How often each network is measured. The order is turned around from one round to the next.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measurement takes, in seconds. A third of that goes before it, to warm up.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// The length of values, in bytes.
    #[arg(long, default_value_t = 100)]
    bytes: usize,
    /// How many clients write at a time.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    clients: Vec<u64>,
    /// Where the nodes keep their data. The disk counts as much as the network.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    data: PathBuf,
}

impl Bench {
    pub(crate) async fn run(self) -> Result<()> {
        let mut report = Report::default();
        for round in 0..self.rounds {
            let mut networks = Network::ALL;
            if round % 2 == 1 {
                networks.reverse();
            }
            for network in networks {
                let cluster = Cluster::start(network, &self.data).await?;
                for &clients in &self.clients {
                    let measured = self.measure(&cluster, clients).await?;
                    eprintln!("round {}: {} with {clients} clients: {measured}", round + 1, network.name());
                    report.add(clients, network, measured);
                }
            }
        }
        report.print();
        Ok(())
    }

    async fn measure(&self, cluster: &Cluster, clients: u64) -> Result<Measured> {
        let leader = cluster.leader().await?;
        let begin = Instant::now() + Duration::from_secs(self.seconds) / 3;
        let end = begin + Duration::from_secs(self.seconds);
        let mut writers = JoinSet::new();
        for _ in 0..clients {
            writers.spawn(write(leader.clone(), Bytes::from(vec![7; self.bytes]), begin, end));
        }
        let mut times = Vec::new();
        while let Some(written) = writers.join_next().await {
            times.extend(written??);
        }
        Measured::new(times, end - begin)
    }
}

/// Puts values one after the other. Returns how long each took that was answered between `begin` and `end`.
async fn write(leader: Caller, value: Bytes, begin: Instant, end: Instant) -> Result<Vec<Duration>> {
    let session = u128::from(fastrand::u64(..));
    leader.open(session).await?;
    let mut times = Vec::new();
    for number in 1.. {
        let key = format!("key-{}", fastrand::u64(..KEYS));
        let request = RequestId { session, number, first_open: number };
        let began = Instant::now();
        leader.put(request, &key, value.clone()).await?;
        let now = Instant::now();
        if now >= end {
            break;
        }
        if now >= begin {
            times.push(now - began);
        }
    }
    Ok(times)
}

/// Three nodes. Their processes and data end with this.
struct Cluster {
    network: Network,
    addresses: BTreeMap<NodeId, String>,
    _nodes: Vec<Child>,
    _data: TempDir,
}

impl Cluster {
    async fn start(network: Network, data: &PathBuf) -> Result<Self> {
        let data = tempfile::tempdir_in(data)?;
        // All ports are held before one is used, so that they differ.
        let ports = (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let addresses =
            ports.iter().map(|port| Ok(port.local_addr()?.to_string())).collect::<Result<Vec<_>>>()?;
        drop(ports);
        let addresses: BTreeMap<NodeId, String> = (1..).zip(addresses).collect();
        let mut nodes = Vec::new();
        for (id, address) in &addresses {
            let mut node = Command::new(std::env::current_exe()?);
            node.args(["serve", "--network", network.name(), "--id", &id.to_string(), "--listen", address]);
            node.arg("--data").arg(data.path().join(id.to_string()));
            nodes.push(
                node.stdin(Stdio::null()).kill_on_drop(true).spawn().context("a node can't be started")?,
            );
        }
        let cluster = Self { network, addresses, _nodes: nodes, _data: data };
        for id in cluster.addresses.keys() {
            let node = cluster.caller(*id)?;
            until("a node answers", async || node.status().await.ok()).await?;
        }
        cluster.caller(1)?.init(cluster.addresses.clone()).await?;
        Ok(cluster)
    }

    fn caller(&self, id: NodeId) -> Result<Caller> {
        Caller::new(self.network, &self.addresses[&id])
    }

    /// Returns a client of the leader, with connections of its own.
    async fn leader(&self) -> Result<Caller> {
        let any = self.caller(1)?;
        let leader = until("there is a leader", async || any.status().await.ok()?.leader).await?;
        self.caller(leader.id)
    }
}

async fn until<T>(what: &str, found: impl AsyncFn() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found().await {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "after {PATIENCE:?} it is still not so: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
