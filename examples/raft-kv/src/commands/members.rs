//! Commands about the cluster and its members.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use farcall::Config;
use raft_kv::service::{KvError, Member, NodeStatus};
use raft_kv::types::NodeId;

use super::To;

#[derive(Debug, clap::Args)]
pub(super) struct Init {
    /// The nodes, which run already.
    #[arg(required = true, value_name = "ID=HOST:PORT", value_parser = member)]
    members: Vec<(NodeId, String)>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Add {
    #[command(flatten)]
    to: To,
    /// The node, which runs already.
    #[arg(value_name = "ID=HOST:PORT", value_parser = member)]
    member: (NodeId, String),
    /// Let it only follow, without a vote.
    #[arg(long)]
    learner: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Remove {
    #[command(flatten)]
    to: To,
    id: NodeId,
}

#[derive(Debug, clap::Args)]
pub(super) struct Status {
    #[command(flatten)]
    to: To,
}

fn member(text: &str) -> Result<(NodeId, String)> {
    let (id, address) = text.split_once('=').context("a node is written ID=HOST:PORT")?;
    Ok((id.parse().with_context(|| format!("`{id}` is no number of a node"))?, address.to_owned()))
}

impl Init {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        let members: BTreeMap<_, _> = self.members.iter().cloned().collect();
        ensure!(members.len() == self.members.len(), "two nodes have one number");
        let to = To { nodes: members.values().cloned().collect(), patience: 10 };
        match to.client(config)?.init(members).await {
            // A job that makes the cluster may run again.
            Err(KvError::Exists) => {
                println!("the first node belongs to a cluster already; nothing has changed");
                Ok(())
            }
            made => Ok(made?),
        }
    }
}

impl Add {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        let client = self.to.client(config)?;
        let (id, address) = &self.member;
        client.add_learner(*id, address).await?;
        if self.learner {
            return Ok(());
        }
        Ok(client.add_voter(*id).await?)
    }
}

impl Remove {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        if !self.to.client(config)?.remove(self.id).await? {
            // No failure: an earlier attempt of this command may have removed it.
            println!("node {} is no member of the cluster", self.id);
        }
        Ok(())
    }
}

impl Status {
    pub(super) async fn run(&self, config: &Config) -> Result<()> {
        let client = self.to.client(config)?;
        let known = client.status().await.context("no node answers")?;
        let members: Vec<_> = known.voters.iter().chain(&known.learners).cloned().collect();
        if members.is_empty() {
            println!("node {} belongs to no cluster yet: `raft-kv init` makes one", known.id);
            return Ok(());
        }
        println!(
            "{:>4}  {:<21} {:<9} {:>6} {:>9} {:>9} {:>9}",
            "node", "address", "role", "term", "log", "applied", "snapshot"
        );
        for Member { id, address } in &members {
            match client.status_of(address).await {
                Ok(status) => println!("{}", line(address, &status)),
                Err(why) => println!("{id:>4}  {address:<21} {why}"),
            }
        }
        Ok(())
    }
}

fn line(address: &str, status: &NodeStatus) -> String {
    let index = |index: Option<u64>| index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    let NodeStatus { id, role, term, last_log, applied, snapshot, .. } = status;
    let (log, applied, snapshot) = (index(*last_log), index(*applied), index(*snapshot));
    format!("{id:>4}  {address:<21} {role:<9} {term:>6} {log:>9} {applied:>9} {snapshot:>9}")
}
