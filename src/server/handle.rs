//! Stopping a server, and looking at it, from elsewhere.

use std::sync::Arc;
use std::time::Duration;

use farcall_core::admission::AdmissionStats;
use farcall_core::connection::Connection;
use farcall_core::memory::PeerMemory;
use farcall_core::server::ServerCore;
use tokio::sync::watch;

use crate::health::Reporter;

/// A handle of a [`Server`](super::Server), which stops it and looks at it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) host: Arc<ServerCore>,
    pub(super) health: Option<Reporter>,
    pub(super) stop: Arc<watch::Sender<bool>>,
}

impl Handle {
    /// Stops listening without [delay](crate::ServerConfig::drain_delay_ms), lets calls in progress finish for at most `grace`, then closes.
    /// Returns when every session has ended. Handlers that would go on for longer can learn of it by [`Context::draining`](crate::Context::draining).
    /// Dropping the future does not call it off.
    pub async fn drain(&self, grace: Duration) {
        self.say_not_serving();
        let host = self.host.clone();
        let drained = tokio::spawn(async move { host.drain(grace).await });
        self.stop.send_replace(true);
        // It can't fail: the task does not panic, and nobody aborts it.
        let _ = drained.await;
    }

    /// Stops listening and ends every session now: handlers are dropped, and their callers learn that they may have
    /// been executed.
    pub fn close(&self) {
        self.say_not_serving();
        self.host.close();
        self.stop.send_replace(true);
    }

    pub(super) fn say_not_serving(&self) {
        if let Some(health) = &self.health {
            health.stop();
        }
    }

    /// Returns the connections that are open now. Each can be [closed](Connection::close) or [drained](Connection::drain) by itself.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.host.connections()
    }

    /// Returns what the server holds for its clients now, and which of them hold most.
    pub fn stats(&self) -> ServerStats {
        let memory = self.host.memory();
        ServerStats {
            connections: self.host.connections().len(),
            admission: self.host.admission(),
            memory_limit: memory.limit(),
            memory_used: memory.used(),
            memory_peak: memory.peak(),
            peers: memory.peers(),
        }
    }
}

/// The connections and memory that a server holds for its clients. Memory is counted against
/// [`Limits::memory`](crate::Limits::memory), in bytes. Servers that leave that setting at 0 share one account.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerStats {
    /// The connections that are open.
    pub connections: usize,
    /// How many calls the server takes at once, and how many it has refused. `None`: its [`Admission`](crate::Admission) takes all.
    pub admission: Option<AdmissionStats>,
    /// The limit of memory.
    pub memory_limit: usize,
    /// The memory that is used, in steps of 64 KiB for each connection.
    pub memory_used: usize,
    /// The most that was ever used.
    pub memory_peak: usize,
    /// The memory that is held for each client address, the greediest first.
    pub peers: Vec<PeerMemory>,
}
