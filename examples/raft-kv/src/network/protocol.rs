//! The service of a node for other nodes.

use farcall::{Bytes, Stream, Streaming};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use serde::{Deserialize, Serialize};

use crate::types::{NodeId, SnapshotMeta, TypeConfig, Vote};

/// The calls that nodes make to each other.
#[farcall::service(package = "raftkv.v1")]
pub trait RaftPeer {
    /// Appends entries of the leader to the log. Without entries it is a heartbeat.
    async fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> farcall::Result<AppendEntriesResponse<NodeId>>;

    /// Asks for a vote.
    async fn vote(&self, request: VoteRequest<NodeId>) -> farcall::Result<VoteResponse<NodeId>>;

    /// Returns how many bytes of a snapshot have arrived already.
    #[rpc(idempotent)]
    async fn arrived(&self, meta: SnapshotMeta) -> farcall::Result<u64>;

    /// Takes a snapshot from `offset` on, in blocks of up to 1 MiB, and installs it. `len` is its whole length in bytes. The
    /// answer says how far it is: at least every few seconds while all goes well.
    async fn install(
        &self,
        vote: Vote,
        meta: SnapshotMeta,
        len: u64,
        offset: u64,
        blocks: Streaming<Bytes>,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<Progress>>>;
}

/// How far a snapshot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// So many bytes have arrived.
    Arrived(u64),
    /// All has arrived, and is being checked and installed.
    Installing,
    /// It is installed, or the receiver's vote, which is this, is above that of the sender.
    Done(Vote),
}
