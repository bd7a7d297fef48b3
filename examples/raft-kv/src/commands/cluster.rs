//! `raft-kv cluster`: several nodes on this machine, each a process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;

use anyhow::{Context, Result, ensure};
use farcall::{Config, StopSignals};
use raft_kv::service::KvError;
use raft_kv::types::NodeId;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::serve::Times;
use super::{Arguments, To};

#[derive(Debug, clap::Args)]
pub(super) struct Cluster {
    /// The directory of the nodes' data. A cluster that is there goes on.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// How many nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// The nodes listen on the ports after this one.
    #[arg(long, default_value_t = 7400)]
    port: u16,
    #[command(flatten)]
    times: Times,
}

impl Cluster {
    pub(super) async fn run(&self, arguments: &Arguments, config: &Config) -> Result<()> {
        ensure!(self.port.checked_add(self.nodes).is_some(), "there are no ports above {}", self.port);
        let addresses: BTreeMap<NodeId, String> =
            (1..=self.nodes).map(|id| (id.into(), format!("127.0.0.1:{}", self.port + id))).collect();
        let (mut stop, mut hang_up) = (StopSignals::new()?, signal(SignalKind::hangup())?);
        let mut nodes = JoinSet::new();
        let mut running = BTreeMap::new();
        for (id, address) in &addresses {
            let mut node = self.start(arguments, *id, address)?;
            let pid =
                node.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).context("the node has ended")?;
            running.insert(*id, pid);
            let id = *id;
            println!("node {id} at {address} is process {pid}", pid = pid.as_raw_nonzero());
            nodes.spawn(async move { (id, node.wait().await) });
        }
        let to = To { nodes: addresses.values().cloned().collect(), patience: 10 };
        let client = to.client(config)?;
        let mut make = pin!(client.init(addresses.clone()));
        let mut is_made = false;
        let result = loop {
            tokio::select! {
                made = &mut make, if !is_made => match made {
                    // It was made when the cluster ran before.
                    Ok(()) | Err(KvError::Exists) => {
                        is_made = true;
                        println!("the cluster serves; Ctrl-C stops it");
                    }
                    Err(why) => break Err(why).context("the cluster can't be made"),
                },
                Some(ended) = nodes.join_next() => {
                    let (id, status) = ended?;
                    running.remove(&id);
                    println!("node {id} has ended: {}", status?);
                    println!("start it again by: {}", self.again(arguments, id, &addresses[&id]));
                    if running.is_empty() {
                        break Ok(());
                    }
                }
                () = stop.next() => break Ok(()),
                _ = hang_up.recv() => break Ok(()),
            }
        };
        let tell = |running: &BTreeMap<_, _>| {
            for pid in running.values() {
                // A node that has ended by itself meanwhile needs no signal.
                let _ = kill_process(*pid, Signal::TERM);
            }
        };
        tell(&running);
        loop {
            tokio::select! {
                ended = nodes.join_next() => match ended {
                    Some(ended) => drop(running.remove(&ended?.0)),
                    None => return result,
                },
                // A second signal ends the nodes at once.
                () = stop.next() => tell(&running),
            }
        }
    }

    fn start(&self, arguments: &Arguments, id: NodeId, address: &str) -> Result<Child> {
        let program = std::env::current_exe()?;
        let mut node = Command::new(program);
        // In a group of its own, so that Ctrl-C reaches it by this process alone: two signals would end it at once.
        let node =
            node.args(self.options(arguments, id, address)).process_group(0).kill_on_drop(true).spawn();
        node.with_context(|| format!("node {id} can't be started"))
    }

    fn options(&self, arguments: &Arguments, id: NodeId, address: &str) -> Vec<std::ffi::OsString> {
        let Times { heartbeat_ms, election_ms, snapshot_entries } = self.times;
        let mut options = arguments.of_config();
        options.extend([
            "serve".into(),
            "--id".into(),
            id.to_string().into(),
            "--listen".into(),
            address.into(),
        ]);
        options.extend(["--data".into(), self.data.join(format!("node-{id}")).into()]);
        for (option, value) in [
            ("--heartbeat-ms", heartbeat_ms),
            ("--election-ms", election_ms),
            ("--snapshot-entries", snapshot_entries),
        ] {
            options.extend([option.into(), value.to_string().into()]);
        }
        options
    }

    /// Returns the command that starts a node again.
    fn again(&self, arguments: &Arguments, id: NodeId, address: &str) -> String {
        let options = self.options(arguments, id, address);
        let options: Vec<_> = options.iter().map(|option| option.to_string_lossy()).collect();
        format!("raft-kv {}", options.join(" "))
    }
}
