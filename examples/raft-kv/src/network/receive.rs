//! The node's end of calls from other nodes.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use farcall::{Bytes, Status, Stream, Streaming, stream};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::{Progress, RaftPeer};
use crate::store::snapshot::Snapshots;
use crate::types::{NodeId, Raft, Snapshot, SnapshotMeta, TypeConfig, Vote, stopped};

/// How long a sender may send nothing, before another may begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the sender is told how far a snapshot is, when there is nothing new.
const TOLD: Duration = Duration::from_secs(2);

/// Serves other nodes.
pub struct Receiver {
    raft: Raft,
    snapshots: Snapshots,
    /// Locked while a snapshot arrives and is installed: there is one file for each.
    arriving: Arc<Mutex<()>>,
}

impl Receiver {
    /// Creates the service for other nodes.
    pub fn new(raft: Raft, snapshots: Snapshots) -> Self {
        Self { raft, snapshots, arriving: Arc::default() }
    }
}

fn disk(why: impl std::fmt::Display) -> Status {
    Status::internal(format!("the snapshot can't be stored: {why:#}"))
}

impl RaftPeer for Receiver {
    async fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> farcall::Result<AppendEntriesResponse<NodeId>> {
        self.raft.append_entries(request).await.map_err(stopped)
    }

    async fn vote(&self, request: VoteRequest<NodeId>) -> farcall::Result<VoteResponse<NodeId>> {
        self.raft.vote(request).await.map_err(stopped)
    }

    async fn arrived(&self, meta: SnapshotMeta) -> farcall::Result<u64> {
        let snapshots = self.snapshots.clone();
        on_disk(move || Ok(snapshots.arrived(&meta)?)).await
    }

    async fn install(
        &self,
        vote: Vote,
        meta: SnapshotMeta,
        len: u64,
        offset: u64,
        blocks: Streaming<Bytes>,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<Progress>>> {
        let busy = |_| Status::unavailable("another snapshot is arriving or being installed");
        let alone = self.arriving.clone().try_lock_owned().map_err(busy)?;
        let (told, mut progress) = watch::channel(Progress::Arrived(offset));
        let transfer =
            Transfer { raft: self.raft.clone(), snapshots: self.snapshots.clone(), meta, len, told };
        // A task of its own: if the sender goes away, the files stay in use until the task ends.
        let transfer = tokio::spawn(async move {
            let _alone = alone;
            transfer.run(vote, offset, blocks).await
        });
        Ok(stream::generate(async move |items| {
            loop {
                let now = *progress.borrow_and_update();
                items.send(now).await;
                // Without news the sender is told again, so that it knows that this node is there.
                if let Ok(Err(_ended)) = timeout(TOLD, progress.changed()).await {
                    break;
                }
            }
            let vote = transfer.await.map_err(disk)??;
            items.send(Progress::Done(vote)).await;
            Ok(())
        }))
    }
}

/// A snapshot on its way from another node to the state machine.
struct Transfer {
    raft: Raft,
    snapshots: Snapshots,
    meta: SnapshotMeta,
    /// Its length in bytes.
    len: u64,
    told: watch::Sender<Progress>,
}

impl Transfer {
    /// Takes the blocks from `offset` on, then installs the snapshot. Returns the vote of this node.
    async fn run(self, vote: Vote, offset: u64, blocks: Streaming<Bytes>) -> farcall::Result<Vote> {
        self.receive(offset, blocks).await?;
        self.told.send_replace(Progress::Installing);
        let (snapshots, meta) = (self.snapshots.clone(), self.meta.clone());
        let snapshot = on_disk(move || snapshots.begin_install(&meta)).await?;
        let snapshot = Snapshot { meta: self.meta, snapshot: Box::new(snapshot) };
        let installed = self.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        on_disk(move || Ok(self.snapshots.end_install()?)).await?;
        Ok(installed.vote)
    }

    async fn receive(&self, offset: u64, mut blocks: Streaming<Bytes>) -> farcall::Result<()> {
        let len = self.len;
        let more = || Status::invalid_argument(format!("the snapshot has more than {len} bytes"));
        let mut left = len.checked_sub(offset).ok_or_else(more)?;
        let (snapshots, meta) = (self.snapshots.clone(), self.meta.clone());
        let file = Arc::new(on_disk(move || open_at(&snapshots, &meta, offset)).await?);
        let late = |_| Status::deadline_exceeded(format!("the sender sent nothing for {PATIENCE:?}"));
        loop {
            let block = tokio::select! {
                block = timeout(PATIENCE, blocks.message()) => block.map_err(late)??,
                () = self.told.closed() => return Err(Status::cancelled("the sender has gone away")),
            };
            let Some(block) = block else { break };
            left = left.checked_sub(block.len() as u64).ok_or_else(more)?;
            let file = file.clone();
            on_disk(move || Ok((&*file).write_all(&block)?)).await?;
            self.told.send_replace(Progress::Arrived(len - left));
        }
        match left {
            0 => Ok(()),
            left => Err(Status::data_loss(format!("{left} bytes of the snapshot did not come"))),
        }
    }
}

/// Opens the file of the arriving snapshot, to go on at `offset`.
fn open_at(snapshots: &Snapshots, meta: &SnapshotMeta, offset: u64) -> Result<File> {
    let arrived = snapshots.arrived(meta)?;
    ensure!(offset <= arrived, "{arrived} bytes have arrived, so it can't go on at {offset}");
    let mut file =
        File::options().create(true).truncate(false).write(true).open(snapshots.arriving_path())?;
    file.set_len(offset)?;
    file.seek(SeekFrom::Start(offset))?;
    Ok(file)
}

async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> farcall::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(disk)?.map_err(disk)
}
