//! The service of operators.

use std::collections::{BTreeMap, BTreeSet};

use farcall::Status;
use openraft::error::{ChangeMembershipError, ClientWriteError, InitializeError, RaftError};
use openraft::{BasicNode, ChangeMembers};

use super::{Cluster, KvError, Member, NodeStatus};
use crate::types::{NodeId, Raft, StoredMembership, stopped};

/// Serves operators.
pub struct ClusterService {
    raft: Raft,
}

impl ClusterService {
    /// Creates the service for operators.
    pub fn new(raft: Raft) -> Self {
        Self { raft }
    }

    /// Makes one change of the members, and leaves the others as the log has them: another change may have come before.
    async fn change(&self, change: ChangeMembers<NodeId, BasicNode>) -> Result<(), KvError> {
        // A node that votes no more leaves: else it would stay as a learner.
        let retain = false;
        let raft = self.raft.clone();
        // A task of its own: openraft makes the change in two steps. If the caller went away between them, and this future with it,
        // the cluster would go on needing a majority of the old voters and one of the new.
        let change = tokio::spawn(async move { raft.change_membership(change, retain).await });
        let changed =
            change.await.map_err(|why| Status::internal(format!("the change has failed: {why}")))?;
        changed.map(drop).map_err(change_error)
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
            RaftError::APIError(InitializeError::NotAllowed(_)) => KvError::Exists,
            RaftError::APIError(why) => KvError::Invalid(why.to_string()),
            RaftError::Fatal(why) => stopped(why).into(),
        })
    }

    async fn add_learner(&self, id: NodeId, address: String) -> Result<(), KvError> {
        let blocking = true;
        self.raft.add_learner(id, BasicNode::new(address), blocking).await.map(drop).map_err(change_error)
    }

    async fn add_voter(&self, id: NodeId) -> Result<(), KvError> {
        self.change(ChangeMembers::AddVoterIds([id].into())).await
    }

    async fn remove(&self, id: NodeId) -> Result<bool, KvError> {
        let membership = self.raft.metrics().borrow().membership_config.clone();
        let change = if membership.voter_ids().any(|voter| voter == id) {
            ChangeMembers::RemoveVoters([id].into())
        } else {
            ChangeMembers::RemoveNodes([id].into())
        };
        // Also without such a member: the change finds out whether this node leads.
        self.change(change).await?;
        Ok(membership.nodes().any(|(member, _)| *member == id))
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
        RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => match why {
            // It does not count as not executed: the second step of a change may be refused, too.
            ChangeMembershipError::InProgress(_) => {
                Status::unavailable(format!("another change is under way: {why}")).into()
            }
            why => KvError::Invalid(why.to_string()),
        },
        RaftError::Fatal(why) => stopped(why).into(),
    }
}
