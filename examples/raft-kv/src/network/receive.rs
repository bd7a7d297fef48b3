//! The node's end of calls from other nodes.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use farcall::{Bytes, Status, Stream, Streaming, stream};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::{Progress, RaftPeer};
use crate::store::snapshot::Snapshots;
use crate::types::{NodeId, Raft, Snapshot, SnapshotMeta, TypeConfig, Vote};

/// How long a sender may send nothing, before another may begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the sender learns that a snapshot is still being installed.
const TOLD: Duration = Duration::from_secs(2);

/// Serves other nodes.
pub struct Receiver {
    raft: Raft,
    snapshots: Snapshots,
    /// Locked while a snapshot arrives: there is one file for it.
    arriving: Arc<Mutex<()>>,
}

impl Receiver {
    /// Returns what serves other nodes.
    pub fn new(raft: Raft, snapshots: Snapshots) -> Self {
        Self { raft, snapshots, arriving: Arc::default() }
    }
}

/// Says to another node that raft has stopped here.
fn stopped(why: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("raft has stopped on this node: {why}"))
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
        mut blocks: Streaming<Bytes>,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<Progress>>> {
        let busy = |_| Status::unavailable("another snapshot is arriving");
        let alone = self.arriving.clone().try_lock_owned().map_err(busy)?;
        let (raft, snapshots) = (self.raft.clone(), self.snapshots.clone());
        Ok(stream::generate(async move |items| {
            let _alone = alone;
            let (of, to) = (meta.clone(), snapshots.clone());
            let file = on_disk(move || open_at(&to, &of, offset)).await?;
            let (file, mut arrived) = (Arc::new(file), offset);
            let late = |_| Status::deadline_exceeded(format!("the sender sent nothing for {PATIENCE:?}"));
            while let Some(block) = timeout(PATIENCE, blocks.message()).await.map_err(late)?? {
                arrived += block.len() as u64;
                if arrived > len {
                    return Err(Status::invalid_argument(format!("the snapshot has more than {len} bytes")));
                }
                let file = file.clone();
                on_disk(move || Ok((&*file).write_all(&block)?)).await?;
                items.send(Progress::Arrived(arrived)).await;
            }
            if arrived < len {
                return Err(Status::data_loss(format!(
                    "{} bytes of the snapshot did not come",
                    len - arrived
                )));
            }
            let (of, from) = (meta.clone(), snapshots.clone());
            let snapshot = on_disk(move || from.begin_install(&of)).await?;
            let snapshot = Snapshot { meta, snapshot: Box::new(snapshot) };
            let mut install = pin!(raft.install_full_snapshot(vote, snapshot));
            let installed = loop {
                tokio::select! {
                    installed = &mut install => break installed.map_err(stopped)?,
                    () = sleep(TOLD) => items.send(Progress::Installing).await,
                }
            };
            on_disk(move || Ok(snapshots.end_install()?)).await?;
            items.send(Progress::Done(installed.vote)).await;
            Ok(())
        }))
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
