//! Sending snapshots.

use std::fmt::Display;
use std::time::Duration;

use farcall::{Code, Status, Streaming, TrafficClass, stream};
use openraft::error::{NetworkError, StreamingError, Unreachable};
use openraft::raft::SnapshotResponse;
use tokio::time::timeout;

use super::{Fatal, Progress, RaftPeerClient};
use crate::store::snapshot::SnapshotFile;
use crate::types::{NodeId, Snapshot, SnapshotMeta, TypeConfig, Vote};

/// How long a transfer may stand still. It may take any time as a whole.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a transfer goes on after a break without any progress.
const FRUITLESS: u32 = 5;
/// The pause before a transfer goes on.
const PAUSE: Duration = Duration::from_millis(200);

/// Sends a snapshot, and returns when it is installed. After a break it goes on where the receiver is.
pub(super) async fn snapshot(
    client: &RaftPeerClient,
    vote: Vote,
    snapshot: Snapshot,
) -> Result<SnapshotResponse<NodeId>, StreamingError<TypeConfig, Fatal>> {
    let Snapshot { meta, snapshot: file } = snapshot;
    let (mut best, mut fruitless) = (0, 0);
    loop {
        let mut arrived = best;
        let status = match attempt(client, vote, &meta, &file, &mut arrived).await {
            Ok(vote) => return Ok(SnapshotResponse::new(vote)),
            Err(status) => status,
        };
        fruitless = if arrived > best { 0 } else { fruitless + 1 };
        best = best.max(arrived);
        tracing::warn!(snapshot = meta.snapshot_id, arrived, of = file.len(), %status, "a snapshot was not sent");
        if fruitless >= FRUITLESS {
            return Err(match status.code() {
                Code::Unavailable => Unreachable::new(&status).into(),
                _ => NetworkError::new(&status).into(),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends what the receiver lacks. `arrived` follows what it has.
async fn attempt(
    client: &RaftPeerClient,
    vote: Vote,
    meta: &SnapshotMeta,
    file: &SnapshotFile,
    arrived: &mut u64,
) -> Result<Vote, Status> {
    let offset = client.arrived(meta.clone()).class(TrafficClass::Bulk).timeout(PATIENCE).await?;
    *arrived = offset;
    let call = client.install(vote, meta.clone(), file.len(), offset, blocks(file.clone(), offset));
    // The transfer may take longer than any timeout in the configuration. Its progress is watched below.
    let mut progress = within(call.class(TrafficClass::Bulk).timeout(Duration::MAX)).await?;
    loop {
        match within(progress.message()).await? {
            Some(Progress::Arrived(bytes)) => *arrived = bytes,
            Some(Progress::Installing) => {}
            Some(Progress::Done(vote)) => return Ok(vote),
            None => {
                return Err(Status::internal("the receiver did not say whether the snapshot is installed"));
            }
        }
    }
}

async fn within<T>(work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("no progress for {PATIENCE:?}"));
    timeout(PATIENCE, work).await.map_err(late)?
}

/// Reads the blocks of a snapshot, each when there is room for it.
fn blocks(file: SnapshotFile, mut offset: u64) -> Streaming<farcall::Bytes> {
    Streaming::new(stream::generate(async move |items| {
        while offset < file.len() {
            let file = file.clone();
            let block = tokio::task::spawn_blocking(move || file.block(offset)).await;
            let block = block.map_err(internal)?.map_err(internal)?;
            offset += block.len() as u64;
            items.send(block).await;
        }
        Ok(())
    }))
}

fn internal(why: impl Display) -> Status {
    Status::internal(format!("the snapshot can't be read: {why}"))
}
