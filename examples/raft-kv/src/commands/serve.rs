//! `raft-kv serve`: a node.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use farcall::{Config, StopSignals};
use raft_kv::node::{Node, Timing};
use raft_kv::types::NodeId;
use tokio::sync::oneshot;

#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    /// The node's number. It stays with the data for good.
    #[arg(long)]
    id: NodeId,
    /// The address to listen on. Others know the node by the address that `init` and `add` get.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// The directory of the node's data.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The address at which Prometheus gets the node's metrics, by HTTP. None unless set.
    #[cfg(feature = "metrics")]
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<std::net::SocketAddr>,
    #[command(flatten)]
    times: Times,
}

/// Times and sizes of raft.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Times {
    /// How often the leader says that it is there, in milliseconds. Followers sync their disks in this time.
    #[arg(long, default_value_t = 100)]
    pub(super) heartbeat_ms: u64,
    /// The shortest election timeout, in milliseconds. The longest is twice as long.
    #[arg(long, default_value_t = 500)]
    pub(super) election_ms: u64,
    /// After how many entries a snapshot is written.
    #[arg(long, default_value_t = 10_000)]
    pub(super) snapshot_entries: u64,
}

impl Times {
    fn timing(self) -> Timing {
        Timing {
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            election: Duration::from_millis(self.election_ms),
            snapshot_entries: self.snapshot_entries,
        }
    }
}

impl Serve {
    pub(super) async fn run(&self, config: Config) -> Result<()> {
        let mut signals = StopSignals::new()?;
        #[cfg(feature = "metrics")]
        self.metrics.map_or(Ok(()), raft_kv::metrics::export)?;
        let node = Node::start(self.id, &self.listen, &self.data, config, self.times.timing()).await?;
        tracing::info!(id = self.id, listen = self.listen, "the node serves");
        let (tell, told) = oneshot::channel::<()>();
        tokio::spawn(async move {
            signals.next().await;
            tracing::info!("the node stops");
            drop(tell);
            signals.next().await;
            tracing::warn!("a second signal ends the node at once");
            // All that it has confirmed is on disk, as when it is killed.
            std::process::exit(1);
        });
        node.serve(async { drop(told.await) }).await
    }
}
