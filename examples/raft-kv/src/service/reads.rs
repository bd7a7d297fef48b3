//! Reads, put together: those that come while a majority is asked wait for the next question.

use openraft::error::{CheckIsLeaderError, RaftError};
use tokio::sync::{mpsc, oneshot};

use super::{KvError, stopped};
use crate::types::Raft;

/// How many reads may wait.
const WAITING: usize = 4096;

type Waiting = oneshot::Sender<Result<(), KvError>>;

/// Makes reads linearizable.
pub(super) struct Reads(mpsc::Sender<Waiting>);

impl Reads {
    /// Returns what asks the other nodes of `raft`. Must be called within a tokio runtime.
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
    let mut waiting = Vec::new();
    while reads.recv_many(&mut waiting, WAITING).await > 0 {
        let confirmed = raft.ensure_linearizable().await.map(drop).map_err(|error| match error {
            RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward)) => KvError::from(forward),
            RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(why)) => {
                KvError::NoQuorum(why.to_string())
            }
            RaftError::Fatal(why) => stopped(why),
        });
        for read in waiting.drain(..) {
            // A caller that has gone is not told.
            let _ = read.send(confirmed.clone());
        }
    }
}
