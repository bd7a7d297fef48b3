//! Calls between nodes: openraft's network, on farcall.
//!
//! | what | class | why |
//! |---|---|---|
//! | votes, heartbeats | urgent | they must not wait behind data in a connection: a late one costs an election |
//! | entries | normal | openraft 0.9 has one message to a follower in flight at a time, so a heartbeat waits until entries are answered |
//! | snapshots | bulk | nothing should wait for them |
//!
//! Each class has a connection of its own.

mod protocol;
mod receive;
mod send;

use std::collections::HashMap;
use std::time::Duration;

use farcall::{Channel, Code, Config, Status, TrafficClass};
use openraft::BasicNode;
use openraft::error::{NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

pub use protocol::{Progress, RaftPeer, RaftPeerClient, RaftPeerServer};
pub use receive::Receiver;

use crate::types::{NodeId, Snapshot, TypeConfig, Vote};

type Fatal = openraft::error::Fatal<NodeId>;
type CallError = RPCError<NodeId, BasicNode, RaftError<NodeId>>;

/// Makes the connections to other nodes.
pub struct Network {
    config: Config,
    /// How long a node that can't be reached is left alone.
    pause: Duration,
    /// The channels that were made, by node. openraft asks for several clients of one node.
    peers: HashMap<NodeId, (String, Channel)>,
}

impl Network {
    /// Returns a network whose channels have this configuration. A node that can't be reached is tried again after `pause`.
    pub fn new(mut config: Config, pause: Duration) -> Self {
        // A follower that comes back should be found before it stands for election.
        let most = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(1);
        config.liveness.reconnect_ms = config.liveness.reconnect_ms.min(most);
        config.liveness.reconnect_max_ms = config.liveness.reconnect_max_ms.min(most);
        Self { config, pause, peers: HashMap::new() }
    }

    /// Returns the channel to a node. A wrong address gives none.
    fn channel(&mut self, id: NodeId, address: &str) -> Result<Channel, Status> {
        if let Some((known, channel)) = self.peers.get(&id)
            && known == address
        {
            return Ok(channel.clone());
        }
        let builder = Channel::builder().config(self.config.clone()).with_env();
        let channel = builder.connect_lazy(&farcall_address(address));
        let channel = channel.map_err(|why| Status::invalid_argument(format!("node {id}: {why}")))?;
        self.peers.insert(id, (address.to_owned(), channel.clone()));
        Ok(channel)
    }
}

/// Returns the address of the node at `HOST:PORT`. The configuration says by which transport it is called.
pub fn farcall_address(node: &str) -> String {
    format!("farcall://{node}")
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> Peer {
        let client = self.channel(target, &node.addr).map(|channel| RaftPeerClient::new(&channel));
        Peer { client, pause: self.pause }
    }
}

/// Another node.
pub struct Peer {
    /// The client, or why there can be none.
    client: Result<RaftPeerClient, Status>,
    pause: Duration,
}

impl Peer {
    fn client(&self) -> Result<&RaftPeerClient, Status> {
        self.client.as_ref().map_err(Clone::clone)
    }
}

/// Says to openraft what became of a call. It leaves a node that is unreachable alone for a while.
fn call_error(status: &Status) -> CallError {
    match status.code() {
        Code::Unavailable | Code::InvalidArgument => RPCError::Unreachable(Unreachable::new(status)),
        _ => RPCError::Network(NetworkError::new(status)),
    }
}

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, CallError> {
        let class = if request.entries.is_empty() { TrafficClass::Urgent } else { TrafficClass::Normal };
        let client = self.client().map_err(|status| call_error(&status))?;
        let call = client.append(request).class(class).timeout(option.hard_ttl());
        call.await.map_err(|status| call_error(&status))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<NodeId>,
        option: RPCOption,
    ) -> Result<VoteResponse<NodeId>, CallError> {
        let client = self.client().map_err(|status| call_error(&status))?;
        let call = client.vote(request).class(TrafficClass::Urgent).timeout(option.hard_ttl());
        call.await.map_err(|status| call_error(&status))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<NodeId>, StreamingError<TypeConfig, Fatal>> {
        let client = self.client().map_err(|status| Unreachable::new(&status))?;
        tokio::select! {
            sent = send::snapshot(client, vote, snapshot) => sent,
            closed = cancel => Err(closed.into()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(self.pause))
    }
}
