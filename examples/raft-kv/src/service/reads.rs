//! Reads, put together: those that come while a majority is asked wait for the next question.

use std::time::Duration;

use openraft::error::{CheckIsLeaderError, RaftError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::KvError;
use crate::types::{Batch, Raft, stopped};

/// How many reads may wait.
const WAITING: usize = 4096;

type Waiting = oneshot::Sender<Result<(), KvError>>;

/// Makes reads linearizable.
pub(super) struct Reads(mpsc::Sender<Waiting>);

impl Reads {
    /// Starts the task that confirms leadership for reads. Must be called within a tokio runtime.
    pub(super) fn new(raft: Raft) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(run(raft, receiver));
        Self(sender)
    }

    /// Returns when a majority has confirmed, since the call, that this node leads, and when all is applied that was committed then.
    pub(super) async fn confirmed(&self) -> Result<(), KvError> {
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).await.map_err(stopped)?;
        answered.await.map_err(stopped)?
    }
}

async fn run(raft: Raft, mut reads: mpsc::Receiver<Waiting>) {
    let mut first = Some(first_entry(raft.clone()));
    let mut waiting = Vec::new();
    while reads.recv_many(&mut waiting, WAITING).await > 0 {
        let confirmed = match caught_up(&raft, &mut first).await {
            Ok(()) => confirm(&raft).await,
            late => late,
        };
        for read in waiting.drain(..) {
            // A caller that has gone is not told.
            let _ = read.send(confirmed.clone());
        }
    }
}

/// Writes an entry without commands, and ends when it is applied, or at once if the node does not lead.
///
/// A leader that starts again before an election leads on. openraft then takes for confirmed only what is applied, and a crash took
/// that back. When an entry of the node's own is applied, so are all that were confirmed earlier. A node that is elected later
/// needs no such entry: openraft writes one at each election.
fn first_entry(raft: Raft) -> JoinHandle<()> {
    tokio::spawn(async move {
        // If raft has stopped, the read is told so when it asks for a confirmation.
        let _ = raft.client_write(Batch(Vec::new())).await;
    })
}

/// Waits for the first entry, as long as another leader would need to be elected.
async fn caught_up(raft: &Raft, first: &mut Option<JoinHandle<()>>) -> Result<(), KvError> {
    if let Some(entry) = first {
        let limit = Duration::from_millis(raft.config().election_timeout_max);
        let late = |_| KvError::NoQuorum("it has not confirmed an entry since it started".into());
        // The task does not panic, and nobody aborts it.
        let _ = timeout(limit, entry).await.map_err(late)?;
        *first = None;
    }
    Ok(())
}

/// Returns when a majority has confirmed that this node leads, and when all is applied that was committed then.
async fn confirm(raft: &Raft) -> Result<(), KvError> {
    raft.ensure_linearizable().await.map(drop).map_err(|error| match error {
        RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward)) => forward.into(),
        RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(why)) => KvError::NoQuorum(why.to_string()),
        RaftError::Fatal(why) => stopped(why).into(),
    })
}
