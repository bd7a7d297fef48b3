//! Commands, put together: those that come while others are written share the next log entry.

use openraft::error::{ClientWriteError, RaftError};
use tokio::sync::{mpsc, oneshot};

use super::{KvError, stopped};
use crate::types::{Answer, Batch, Command, Raft};

/// How many commands may wait for an entry.
const WAITING: usize = 4096;
/// How many commands an entry has at most.
const COMMANDS: usize = 256;
/// About how many bytes an entry has at most.
const BYTES: usize = 1 << 20;
/// How many entries are under way at once: one is synced here while another is synced by followers.
const UNDER_WAY: usize = 4;

struct Waiting {
    command: Command,
    answer: oneshot::Sender<Result<Answer, KvError>>,
}

/// Writes commands to the log.
pub(super) struct Batches(mpsc::Sender<Waiting>);

impl Batches {
    /// Returns what writes to the log of `raft`. Must be called within a tokio runtime.
    pub(super) fn new(raft: Raft) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(run(raft, receiver));
        Self(sender)
    }

    /// Writes a command, and returns what became of it when it is applied. If the future is dropped, it may be applied nevertheless.
    pub(super) async fn write(&self, command: Command) -> Result<Answer, KvError> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Waiting { command, answer }).await.map_err(stopped)?;
        answered.await.map_err(stopped)?
    }
}

async fn run(raft: Raft, mut commands: mpsc::Receiver<Waiting>) {
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(UNDER_WAY));
    // The first command of the next entry, if it did not fit the last.
    let mut first = None;
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let next = match first.take() {
            Some(first) => Some(first),
            None => commands.recv().await,
        };
        let Some(next) = next else { return };
        let mut bytes = next.command.operation.size();
        let mut batch = vec![next];
        while batch.len() < COMMANDS
            && let Ok(next) = commands.try_recv()
        {
            bytes += next.command.operation.size();
            if bytes > BYTES {
                first = Some(next);
                break;
            }
            batch.push(next);
        }
        let raft = raft.clone();
        tokio::spawn(async move {
            write(&raft, batch).await;
            drop(place);
        });
    }
}

async fn write(raft: &Raft, batch: Vec<Waiting>) {
    let (commands, waiting): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|waiting| (waiting.command, waiting.answer)).unzip();
    // A caller that has gone is not told.
    match raft.client_write(Batch(commands)).await {
        Ok(written) => {
            for (waiting, answer) in waiting.into_iter().zip(written.data) {
                let _ = waiting.send(Ok(answer));
            }
        }
        Err(error) => {
            let error = match error {
                RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => KvError::from(forward),
                other => stopped(other),
            };
            for waiting in waiting {
                let _ = waiting.send(Err(error.clone()));
            }
        }
    }
}
