//! Sending snapshots.

use std::fmt::Display;
use std::time::Duration;

use farcall::{Code, Status, Streaming, TrafficClass, stream};
use openraft::error::{NetworkError, StreamingError, Unreachable};
use openraft::raft::SnapshotResponse;
use tokio::time::{Instant, timeout, timeout_at};

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
    let begun = timeout(PATIENCE, call.class(TrafficClass::Bulk).timeout(Duration::MAX)).await;
    follow(begun.map_err(|_| no_progress(PATIENCE))??, arrived, PATIENCE).await
}

/// Follows a transfer to its end. It may stand still for `patience`; a receiver that only says again what has arrived makes no progress.
async fn follow(
    mut progress: Streaming<Progress>,
    arrived: &mut u64,
    patience: Duration,
) -> Result<Vote, Status> {
    let mut until = Instant::now() + patience;
    loop {
        let said = timeout_at(until, progress.message()).await.map_err(|_| no_progress(patience))??;
        match said {
            Some(Progress::Arrived(bytes)) if bytes <= *arrived => continue,
            Some(Progress::Arrived(bytes)) => *arrived = bytes,
            // It takes as long as the snapshot is large, and the receiver says that it goes on.
            Some(Progress::Installing) => {}
            Some(Progress::Done(vote)) => return Ok(vote),
            None => {
                return Err(Status::internal("the receiver did not say whether the snapshot is installed"));
            }
        }
        until = Instant::now() + patience;
    }
}

fn no_progress(patience: Duration) -> Status {
    Status::deadline_exceeded(format!("no progress for {patience:?}"))
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use farcall::{Bytes, Context, Stream, stream};
    use openraft::entry::FromAppData;
    use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
    use openraft::storage::RaftStateMachine;
    use openraft::{CommittedLeaderId, RaftSnapshotBuilder};

    use super::super::{Network, RaftPeer, Receiver};
    use super::*;
    use crate::locked;
    use crate::store::Store;
    use crate::store::snapshot::Snapshots;
    use crate::types::{Batch, Command, Entry, LogId, Operation, Raft, RequestId};

    /// How many bytes arrive before the connection breaks.
    const BREAK: u64 = 2 << 20;

    /// A node that breaks the connection off by which it gets its first snapshot, between two blocks.
    struct Breaking {
        node: Receiver,
        snapshots: Snapshots,
        /// Where each transfer began.
        offsets: Arc<Mutex<Vec<u64>>>,
    }

    impl RaftPeer for Breaking {
        async fn append(
            &self,
            request: AppendEntriesRequest<TypeConfig>,
        ) -> farcall::Result<AppendEntriesResponse<NodeId>> {
            self.node.append(request).await
        }

        async fn vote(&self, request: VoteRequest<NodeId>) -> farcall::Result<VoteResponse<NodeId>> {
            self.node.vote(request).await
        }

        async fn arrived(&self, meta: SnapshotMeta) -> farcall::Result<u64> {
            self.node.arrived(meta).await
        }

        async fn install(
            &self,
            vote: Vote,
            meta: SnapshotMeta,
            len: u64,
            offset: u64,
            mut blocks: Streaming<Bytes>,
        ) -> farcall::Result<impl Stream<Item = farcall::Result<Progress>>> {
            let breaks = {
                let mut offsets = locked(&self.offsets);
                offsets.push(offset);
                offsets.len() == 1
            };
            let (snapshots, of) = (self.snapshots.clone(), meta.clone());
            let connection = Context::current().and_then(|call| call.connection()).expect("a connection");
            let passed = stream::generate(async move |items| {
                let mut sent = offset;
                while let Some(block) = blocks.message().await? {
                    if breaks && sent == BREAK {
                        // The blocks that were passed on are on disk first.
                        while snapshots.arrived(&of).map_err(internal)? < BREAK {
                            tokio::task::yield_now().await;
                        }
                        connection.close("the test breaks it off");
                        return std::future::pending().await;
                    }
                    sent += block.len() as u64;
                    items.send(block).await;
                }
                Ok(())
            });
            self.node.install(vote, meta, len, offset, Streaming::new(passed)).await
        }
    }

    fn entry(index: u64, operations: impl IntoIterator<Item = Operation>) -> Entry {
        let command = |(number, operation)| {
            let request = RequestId { session: 1, number, first_open: 0 };
            Command { request, operation }
        };
        let commands = (index - 1..).zip(operations).map(command);
        let mut entry = Entry::from_app_data(Batch(commands.collect()));
        entry.log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
        entry
    }

    #[tokio::test]
    async fn a_receiver_that_writes_nothing_any_more_is_given_up() {
        let again = Streaming::new(stream::generate(async |items| {
            loop {
                items.send(Progress::Arrived(5)).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }));
        let given_up = follow(again, &mut 5, Duration::from_millis(50)).await.expect_err("it does not grow");
        assert_eq!(given_up.code(), Code::DeadlineExceeded, "{given_up}");
    }

    #[tokio::test]
    async fn a_transfer_goes_on_after_a_break_with_what_has_not_arrived() {
        let (from, to) =
            (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let mut machine = Store::open(from.path(), 1).expect("a store").machine;
        let put = |number| {
            let value = Bytes::from(vec![b'v'; 700_000]);
            Operation::Put { key: format!("k{number}"), value }
        };
        let entries = [entry(1, [Operation::Open]), entry(2, (1..=6).map(put))];
        machine.apply(entries).await.expect("entries that are applied");
        let built = machine.get_snapshot_builder().await.build_snapshot().await.expect("a snapshot");
        assert!(built.snapshot.len() > BREAK);

        let Store { log, machine, snapshots } = Store::open(to.path(), 1).expect("a store");
        let reader = machine.reader();
        let network = Network::new(farcall::Config::default(), PAUSE);
        let raft = Raft::new(1, Arc::default(), network, log, machine).await.expect("a node");
        let offsets = Arc::default();
        let node = Receiver::new(raft, snapshots.clone());
        let client = RaftPeerClient::in_process(Breaking { node, snapshots, offsets: Arc::clone(&offsets) });

        snapshot(&client, Vote::new_committed(1, 2), built).await.expect("it is sent");
        let mut offsets = locked(&offsets).clone();
        // Refused as long as the first transfer has not ended.
        offsets.dedup();
        assert_eq!(offsets, [0, BREAK]);
        let value = reader.get("k6".into()).await.expect("a reader");
        assert_eq!(value.map(|value| value.len()), Some(700_000));
    }
}
