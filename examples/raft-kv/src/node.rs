//! One node, from start to graceful stop.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farcall::health::{Reporter, Serving};
use farcall::{Config, Server};
use openraft::SnapshotPolicy;
use tokio::time::timeout;

use crate::network::{Network, RaftPeerServer, Receiver};
use crate::service::{ClusterServer, ClusterService, KvServer, KvService};
use crate::store::Store;
use crate::types::{NodeId, Raft};

/// The name by which `farcall health` asks whether the node serves clients.
pub const SERVICE: &str = "raftkv.v1.Kv";

/// Times and sizes of raft.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How often the leader says that it is there. An answer to entries must come in this time, disks included.
    pub heartbeat: Duration,
    /// After which silence of the leader others may stand for election. openraft adds up to as much at random.
    pub election: Duration,
    /// After how many entries a snapshot is written.
    pub snapshot_entries: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election: Duration::from_millis(500),
            snapshot_entries: 10_000,
        }
    }
}

impl Timing {
    /// Returns the configuration of openraft.
    ///
    /// # Errors
    ///
    /// If the times do not go together.
    pub fn config(self) -> Result<openraft::Config> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let config = openraft::Config {
            cluster_name: "raft-kv".into(),
            heartbeat_interval: ms(self.heartbeat),
            election_timeout_min: ms(self.election),
            election_timeout_max: ms(self.election) * 2,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_entries),
            // A follower that lags by more than this gets a snapshot.
            replication_lag_threshold: self.snapshot_entries * 2,
            max_in_snapshot_log_to_keep: self.snapshot_entries / 2,
            ..openraft::Config::default()
        };
        config.validate().context("these times do not go together")
    }
}

/// A node that listens and serves.
pub struct Node {
    raft: Raft,
    server: Server,
    health: Reporter,
}

impl Node {
    /// Starts node `id`, which keeps its data in `data`, and listens on `listen`. `config` counts for the server and for channels to
    /// other nodes.
    ///
    /// # Errors
    ///
    /// If the directory, the address or the configuration can't be used.
    pub async fn start(
        id: NodeId,
        listen: &str,
        data: &Path,
        config: Config,
        timing: Timing,
    ) -> Result<Self> {
        let data = data.to_owned();
        let store = tokio::task::spawn_blocking(move || Store::open(&data, id)).await??;
        let network = Network::new(config.clone(), timing.heartbeat);
        let reader = store.machine.reader();
        let raft = Raft::new(id, Arc::new(timing.config()?), network, store.log, store.machine).await?;
        let health = Reporter::new();
        health.set(SERVICE, Serving::NotServing);
        // These wait until a node has caught up, or for a majority.
        for method in ["init", "add_learner", "add_voter", "remove"] {
            health.takes_long(format!("raftkv.v1.Cluster/{method}"));
        }
        let builder = Server::builder();
        #[cfg(feature = "metrics")]
        let builder = builder.intercept(farcall::metrics::server);
        let server = builder
            .config(config)
            .with_env()
            .add(KvServer::new(KvService::new(&raft, reader)))
            .add(ClusterServer::new(ClusterService::new(raft.clone())))
            .add(RaftPeerServer::new(Receiver::new(raft.clone(), store.snapshots)))
            .with_health(&health)
            .with_reflection()
            .with_admin()
            .bind(listen)
            .await
            .with_context(|| format!("can't listen on {listen}"))?;
        Ok(Self { raft, server, health })
    }

    /// Serves until `stop` resolves, and then stops in the phases of [`ServerConfig`](farcall::ServerConfig). raft ends last, because
    /// calls in progress need it.
    ///
    /// openraft 0.9 can't hand leadership over. The others elect a leader when they miss this one.
    ///
    /// # Errors
    ///
    /// If raft stops by itself, for example because the disk is full.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<()> {
        let Self { raft, server, health } = self;
        let mut failed = None;
        server
            .serve_until(async {
                failed = tokio::select! {
                    () = stop => None,
                    why = follow(&raft, &health) => Some(why),
                };
            })
            .await;
        raft.shutdown().await.context("raft did not stop in order")?;
        match failed {
            Some(why) => bail!("raft stopped by itself: {why}"),
            None => Ok(()),
        }
    }
}

/// Says whether this node can serve clients, or send them to the leader, and tells metrics of raft's state. Returns why raft stopped.
async fn follow(raft: &Raft, health: &Reporter) -> String {
    let (state, mut server_state) = (raft.metrics(), raft.server_metrics());
    let lease = raft.config().election_timeout_max;
    let heartbeat = Duration::from_millis(raft.config().heartbeat_interval);
    let mut has_ended = false;
    loop {
        let (serves, running) = {
            let state = state.borrow();
            // openraft 0.9 lets a leader stay one that hears from no majority; it can't answer anything then.
            let is_alone = state.millis_since_quorum_ack.is_some_and(|silence| silence > lease);
            #[cfg(feature = "metrics")]
            crate::metrics::tell(&state);
            (state.current_leader.is_some() && !is_alone, state.running_state.clone())
        };
        if let Err(why) = running {
            return why.to_string();
        }
        if has_ended {
            return "it has ended".into();
        }
        health.set(SERVICE, if serves { Serving::Serving } else { Serving::NotServing });
        // Waits for no change of `state`, of which a write makes several: each would wake a thread.
        let changed = timeout(heartbeat, server_state.changed()).await;
        has_ended = matches!(changed, Ok(Err(_)));
    }
}
