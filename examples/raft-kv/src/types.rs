//! The types that raft replicates, and openraft's own with this store's parameters.

use farcall::{Bytes, Status};
use serde::{Deserialize, Serialize};

use crate::store::snapshot::SnapshotFile;

openraft::declare_raft_types!(
    /// The parameters of openraft for this store.
    pub TypeConfig:
        D = Batch,
        R = Vec<Answer>,
        NodeId = NodeId,
        Node = openraft::BasicNode,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = SnapshotFile,
        AsyncRuntime = openraft::TokioRuntime,
);

/// The number of a node. It stays with the node's data for good.
pub type NodeId = u64;
pub type Raft = openraft::Raft<TypeConfig>;
pub type Entry = openraft::Entry<TypeConfig>;
pub type LogId = openraft::LogId<NodeId>;
pub type Vote = openraft::Vote<NodeId>;
pub type StoredMembership = openraft::StoredMembership<NodeId, openraft::BasicNode>;
pub type SnapshotMeta = openraft::SnapshotMeta<NodeId, openraft::BasicNode>;
pub type Snapshot = openraft::Snapshot<TypeConfig>;
pub type StorageError = openraft::StorageError<NodeId>;
pub type StorageIOError = openraft::StorageIOError<NodeId>;

/// The commands of one log entry. Several clients share an entry, because openraft 0.9 syncs the disk once for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch(pub Vec<Command>);

/// A change that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    pub request: RequestId,
    pub operation: Operation,
}

/// The identity of a request. All attempts of one request have one identity, so that it is applied once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestId {
    /// The client's session, a number that it drew at random.
    pub session: u128,
    /// The request's number in the session, from 1.
    pub number: u64,
    /// The client waits for no request below this number any more. The store forgets their answers, and refuses attempts of them
    /// that are late.
    pub first_open: u64,
}

/// The operation of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Opens the session of the request, if it is not open.
    Open,
    /// Sets the value of a key.
    Put {
        key: String,
        #[serde(with = "farcall::attachment")]
        value: Bytes,
    },
    /// Removes a key.
    Delete { key: String },
    /// Sets or removes the value of a key if it is `expected`. `None` stands for a key that is absent.
    CompareAndSet {
        key: String,
        #[serde(with = "farcall::attachment")]
        expected: Option<Bytes>,
        #[serde(with = "farcall::attachment")]
        value: Option<Bytes>,
    },
}

impl Operation {
    /// Returns about how many bytes it takes in the log.
    pub fn size(&self) -> usize {
        let len = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        match self {
            Self::Open => 0,
            Self::Put { key, value } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
            Self::CompareAndSet { key, expected, value } => key.len() + len(expected) + len(value),
        }
    }
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The session is open, or the value is set.
    Done,
    /// A removal or a comparison: whether it changed something.
    Changed(bool),
    /// The session is not open: it never was, or its client was idle while many others were not.
    NoSession,
    /// The request is below `first_open` of a later one: nobody waits for its answer.
    Late,
}

/// Returns the status for a caller whose callee's raft has stopped. Another node may serve it.
pub(crate) fn stopped(why: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("raft has stopped on this node: {why}"))
}
