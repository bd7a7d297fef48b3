//! Commands, put together: those that come while others are written share the next log entry.

use std::sync::Arc;

use farcall::{Executed, Status};
use openraft::error::{ClientWriteError, RaftError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::KvError;
use crate::types::{Answer, Batch, Command, Raft, stopped};

/// How many commands may wait to be applied, and about how many bytes of them. Without a majority none is.
const WAITING: usize = 4096;
const WAITING_BYTES: usize = 64 << 20;
/// How many commands an entry has at most.
const COMMANDS: usize = 256;
/// About how many bytes an entry has at most.
const BYTES: usize = 1 << 20;
/// How many entries are under way at once: one is synced here while another is synced by followers.
const UNDER_WAY: usize = 4;

struct Waiting {
    command: Command,
    answer: oneshot::Sender<Result<Answer, KvError>>,
    /// The bytes of the command, until it is answered.
    room: OwnedSemaphorePermit,
}

/// Writes commands to the log.
pub(super) struct Batches {
    commands: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
}

impl Batches {
    /// Starts the task that writes commands to the log. Must be called within a tokio runtime.
    pub(super) fn new(raft: Raft) -> Self {
        let (commands, receiver) = mpsc::channel(WAITING);
        tokio::spawn(run(raft, receiver));
        Self { commands, room: Arc::new(Semaphore::new(WAITING_BYTES)) }
    }

    /// Writes a command, and returns what became of it when it is applied. If the future is dropped, it may be applied nevertheless.
    pub(super) async fn write(&self, command: Command) -> Result<Answer, KvError> {
        let (answer, answered) = oneshot::channel();
        // A key and two values have less than 4 GiB.
        let bytes = u32::try_from(command.operation.size()).unwrap_or(u32::MAX);
        // A command that waited for room would take memory, too.
        let room = self.room.clone().try_acquire_many_owned(bytes);
        let full = |_| {
            let mib = WAITING_BYTES >> 20;
            let why = format!("commands of {mib} MiB wait for a majority: try again later");
            Status::resource_exhausted(why).with_executed(Executed::No)
        };
        let unsent = |why| stopped(why).with_executed(Executed::No);
        let waiting = Waiting { command, answer, room: room.map_err(full)? };
        self.commands.send(waiting).await.map_err(unsent)?;
        answered.await.map_err(stopped)?
    }
}

async fn run(raft: Raft, mut commands: mpsc::Receiver<Waiting>) {
    let places = Arc::new(Semaphore::new(UNDER_WAY));
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
        // Nobody waits for these any more: their callers were late, or went away.
        batch.retain(|waiting| !waiting.answer.is_closed());
        if batch.is_empty() {
            continue;
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
        batch.into_iter().map(|Waiting { command, answer, room }| (command, (answer, room))).unzip();
    // A caller that has gone is not told.
    match raft.client_write(Batch(commands)).await {
        Ok(written) => {
            for ((waiting, _), answer) in waiting.into_iter().zip(written.data) {
                let _ = waiting.send(Ok(answer));
            }
        }
        Err(error) => {
            let error = match error {
                RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => KvError::from(forward),
                other => stopped(other).into(),
            };
            for (waiting, _) in waiting {
                let _ = waiting.send(Err(error.clone()));
            }
        }
    }
}
