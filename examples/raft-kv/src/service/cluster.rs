//! The service of operators.

use std::collections::{BTreeMap, BTreeSet};

use farcall::Status;
use openraft::BasicNode;
use openraft::error::{ClientWriteError, RaftError};

use super::{Cluster, KvError, Member, NodeStatus, stopped};
use crate::types::{NodeId, Raft, StoredMembership};

/// Serves operators.
pub struct ClusterService {
    raft: Raft,
}

impl ClusterService {
    /// Returns what serves operators.
    pub fn new(raft: Raft) -> Self {
        Self { raft }
    }
}

impl Cluster for ClusterService {
    async fn status(&self) -> farcall::Result<NodeStatus> {
        let metrics = self.raft.metrics().borrow().clone();
        let membership = &metrics.membership_config;
        let voters: BTreeSet<_> = membership.voter_ids().collect();
        let (voters, learners) = members(membership).partition(|member| voters.contains(&member.id));
        let index = |log_id: Option<openraft::LogId<NodeId>>| log_id.map(|log_id| log_id.index);
        Ok(NodeStatus {
            id: metrics.id,
            role: format!("{:?}", metrics.state),
            term: metrics.current_term,
            leader: metrics.current_leader.and_then(|id| members(membership).find(|member| member.id == id)),
            voters,
            learners,
            last_log: metrics.last_log_index,
            applied: index(metrics.last_applied),
            snapshot: index(metrics.snapshot),
            purged: index(metrics.purged),
        })
    }

    async fn init(&self, members: BTreeMap<NodeId, String>) -> Result<(), KvError> {
        let members: BTreeMap<_, _> =
            members.into_iter().map(|(id, address)| (id, BasicNode::new(address))).collect();
        self.raft.initialize(members).await.map_err(|error| match error {
            RaftError::APIError(why) => KvError::Invalid(why.to_string()),
            RaftError::Fatal(why) => stopped(why),
        })
    }

    async fn add_learner(&self, id: NodeId, address: String) -> Result<(), KvError> {
        let blocking = true;
        self.raft.add_learner(id, BasicNode::new(address), blocking).await.map(drop).map_err(change_error)
    }

    async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), KvError> {
        // A node that votes no more leaves: else it would stay as a learner.
        let retain = false;
        self.raft.change_membership(voters, retain).await.map(drop).map_err(change_error)
    }

    async fn snapshot(&self) -> farcall::Result<()> {
        self.raft.trigger().snapshot().await.map_err(|why| Status::unavailable(why.to_string()))
    }
}

fn members(membership: &StoredMembership) -> impl Iterator<Item = Member> {
    membership.nodes().map(|(id, node)| Member { id: *id, address: node.addr.clone() })
}

fn change_error(error: RaftError<NodeId, ClientWriteError<NodeId, BasicNode>>) -> KvError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => forward.into(),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => {
            KvError::Invalid(why.to_string())
        }
        RaftError::Fatal(why) => stopped(why),
    }
}
