//! Calls of clients and operators.

mod batches;
mod cluster;
mod kv;
mod reads;

use std::collections::BTreeMap;

use farcall::{Bytes, Status};
use openraft::error::ForwardToLeader;
use serde::{Deserialize, Serialize};

pub use cluster::ClusterService;
pub use kv::KvService;

use crate::types::{NodeId, RequestId};

/// The longest key, in bytes.
pub const LONGEST_KEY: usize = 1024;
/// The longest value, in bytes.
pub const LONGEST_VALUE: usize = 1 << 20;
/// How many requests of a session may be open.
pub const MOST_OPEN: u64 = 1024;

/// Keys and values. Only the leader answers; others say which node that is.
///
/// Methods that change something are idempotent by their request: the store applies it once, however often it comes.
#[farcall::service(package = "raftkv.v1")]
pub trait Kv {
    /// Opens a session, to which requests belong.
    #[rpc(idempotent)]
    async fn open(&self, session: u128) -> Result<(), KvError>;

    /// Returns the value of a key, as of a moment during this call.
    #[rpc(idempotent)]
    async fn get(&self, key: String) -> Result<Option<Bytes>, KvError>;

    /// Sets the value of a key.
    #[rpc(idempotent)]
    async fn put(&self, request: RequestId, key: String, value: Bytes) -> Result<(), KvError>;

    /// Removes a key. Returns whether there was one.
    #[rpc(idempotent)]
    async fn delete(&self, request: RequestId, key: String) -> Result<bool, KvError>;

    /// Sets the value of a key, or removes it, if its value is `expected`. `None` stands for a key that is absent. Returns
    /// whether it was.
    #[rpc(idempotent)]
    async fn compare_and_set(
        &self,
        request: RequestId,
        key: String,
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Result<bool, KvError>;
}

/// The cluster and its members. Changes are made by the leader; others say which node that is.
#[farcall::service(package = "raftkv.v1")]
pub trait Cluster {
    /// Returns what this node knows.
    #[rpc(idempotent)]
    async fn status(&self) -> farcall::Result<NodeStatus>;

    /// Makes a cluster of these nodes, with their addresses. Once in the life of a cluster, on one of its nodes.
    async fn init(&self, members: BTreeMap<NodeId, String>) -> Result<(), KvError>;

    /// Adds a node that gets all entries and does not vote. Returns when it has caught up.
    async fn add_learner(&self, id: NodeId, address: String) -> Result<(), KvError>;

    /// Gives a learner a vote.
    async fn add_voter(&self, id: NodeId) -> Result<(), KvError>;

    /// Removes a node, a voter or a learner. Returns whether it was a member.
    async fn remove(&self, id: NodeId) -> Result<bool, KvError>;

    /// Writes a snapshot of the state, whose entries can then leave the log.
    async fn snapshot(&self) -> farcall::Result<()>;
}

/// The state of a node and of the cluster, as the node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub id: NodeId,
    /// `Leader`, `Follower`, `Candidate`, `Learner` or `Shutdown`.
    pub role: String,
    pub term: u64,
    /// The leader, if this node knows one.
    pub leader: Option<Member>,
    pub voters: Vec<Member>,
    pub learners: Vec<Member>,
    /// The index of the last entry in the log.
    pub last_log: Option<u64>,
    /// The index of the last entry that was applied.
    pub applied: Option<u64>,
    /// The index of the last entry in the snapshot.
    pub snapshot: Option<u64>,
    /// Entries up to this index have left the log.
    pub purged: Option<u64>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    pub id: NodeId,
    pub address: String,
}

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvError {
    /// The node does not lead; here is which one does, if it knows. A change may still be made.
    NotLeader { leader: Option<Member> },
    /// The leader can't reach a majority.
    NoQuorum(String),
    /// The session is not open.
    NoSession,
    /// The request is one that its client has given up.
    Late,
    /// The request can't be right; the text says why.
    Invalid(String),
    /// The node belongs to a cluster already, so it can't make one.
    Exists,
    /// The call itself failed.
    Rpc(Status),
}

impl From<Status> for KvError {
    fn from(status: Status) -> Self {
        Self::Rpc(status)
    }
}

impl From<ForwardToLeader<NodeId, openraft::BasicNode>> for KvError {
    fn from(forward: ForwardToLeader<NodeId, openraft::BasicNode>) -> Self {
        let leader = forward.leader_id.zip(forward.leader_node);
        Self::NotLeader { leader: leader.map(|(id, node)| Member { id, address: node.addr }) }
    }
}

impl std::fmt::Display for KvError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotLeader { leader: Some(Member { id, address }) } => {
                write!(f, "the node does not lead; node {id} at {address} does")
            }
            Self::NotLeader { leader: None } => f.write_str("the node does not lead, and knows no leader"),
            Self::NoQuorum(why) => write!(f, "the leader can't reach a majority: {why}"),
            Self::NoSession => {
                f.write_str("the session is not open; the change may have been made before it ended")
            }
            Self::Late => f.write_str("the request comes after its client gave it up"),
            Self::Invalid(why) => f.write_str(why),
            Self::Exists => f.write_str("the node belongs to a cluster already"),
            Self::Rpc(status) => status.fmt(f),
        }
    }
}

impl std::error::Error for KvError {}
