//! The store on disk: openraft's own tests of a store, requests that come twice, and snapshots that break.

#![expect(clippy::unwrap_used, reason = "a test ends where it can't go on")]

use std::fs;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;

use farcall::{Bytes, stream};
use openraft::entry::FromAppData;
use openraft::storage::{RaftLogStorageExt, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{CommittedLeaderId, OptionalSend, RaftLogReader, RaftSnapshotBuilder};
use raft_kv::network::{Network, Progress, RaftPeerClient, Receiver};
use raft_kv::store::snapshot::SnapshotFile;
use raft_kv::store::{LogStore, Reader, StateMachine, Store};
use raft_kv::types::{
    Answer, Batch, Command, Entry, LogId, Operation, Raft, RequestId, Snapshot, SnapshotMeta, StorageError,
    StoredMembership, TypeConfig, Vote,
};
use tempfile::TempDir;
use tokio::sync::Semaphore;

fn open(directory: &Path) -> Store {
    Store::open(directory, 1).unwrap()
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError> {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        Ok((directory, store.log, store.machine))
    }
}

#[test]
fn the_store_keeps_what_openraft_asks_of_it() {
    Suite::<TypeConfig, LogStore, StateMachine, Builder, TempDir>::test_all(Builder).unwrap();
}

fn put(session: u128, number: u64, first_open: u64, key: &str, value: &str) -> Command {
    let operation = Operation::Put { key: key.into(), value: Bytes::copy_from_slice(value.as_bytes()) };
    Command { request: RequestId { session, number, first_open }, operation }
}

fn session(session: u128) -> Command {
    Command { request: RequestId { session, number: 0, first_open: 0 }, operation: Operation::Open }
}

fn entry(index: u64, commands: Vec<Command>) -> Entry {
    let mut entry = Entry::from_app_data(Batch(commands));
    entry.log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
    entry
}

async fn value(reader: &Reader, key: &str) -> Option<Bytes> {
    reader.get(key.into()).await.unwrap()
}

#[tokio::test]
async fn a_request_is_applied_once_however_often_it_comes() {
    let directory = tempfile::tempdir().unwrap();
    let mut machine = open(directory.path()).machine;
    let reader = machine.reader();
    let removed = Command { operation: Operation::Delete { key: "k".into() }, ..put(1, 2, 1, "k", "") };
    let first = vec![session(1), put(1, 1, 1, "k", "a"), removed.clone(), put(1, 3, 1, "k", "b")];
    let answers = machine.apply([entry(1, first)]).await.unwrap();
    assert_eq!(answers, [[Answer::Done, Answer::Done, Answer::Changed(true), Answer::Done]]);

    // In a later entry, the removal gets the answer that it got, and removes nothing.
    let answers = machine.apply([entry(2, vec![removed.clone()])]).await.unwrap();
    assert_eq!(answers, [[Answer::Changed(true)]]);
    assert_eq!(value(&reader, "k").await, Some("b".into()));

    // When its client has its answer, it is forgotten, and still not applied.
    let answers = machine.apply([entry(3, vec![put(1, 4, 3, "k", "c"), removed])]).await.unwrap();
    assert_eq!(answers, [[Answer::Done, Answer::Late]]);
    assert_eq!(value(&reader, "k").await, Some("c".into()));

    let answers = machine.apply([entry(4, vec![put(2, 1, 1, "k", "d")])]).await.unwrap();
    assert_eq!(answers, [[Answer::NoSession]]);
    assert_eq!(value(&reader, "k").await, Some("c".into()));
}

#[tokio::test]
async fn a_snapshot_has_requests_as_well_as_values() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut machine = open(from.path()).machine;
    let command = put(1, 1, 1, "k", "a");
    machine.apply([entry(1, vec![session(1), command.clone()])]).await.unwrap();
    let snapshot = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();

    let mut other = open(to.path()).machine;
    other.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();
    assert_eq!(value(&other.reader(), "k").await, Some("a".into()));
    // A request of before is still known.
    let other_value = Command { operation: Operation::Delete { key: "k".into() }, ..command };
    let answers = other.apply([entry(2, vec![other_value])]).await.unwrap();
    assert_eq!(answers, [[Answer::Done]]);
    assert_eq!(value(&other.reader(), "k").await, Some("a".into()));
}

#[tokio::test]
async fn a_state_that_a_crash_took_back_comes_from_the_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let mut machine = open(directory.path()).machine;
    machine.apply([entry(1, vec![session(1), put(1, 1, 1, "k", "a")])]).await.unwrap();
    machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
    drop(machine);

    // As if nothing of the state had been synced.
    fs::remove_file(directory.path().join("state.redb")).unwrap();
    let mut machine = open(directory.path()).machine;
    assert_eq!(value(&machine.reader(), "k").await, Some("a".into()));
    assert_eq!(machine.applied_state().await.unwrap().0.map(|log_id| log_id.index), Some(1));
}

#[tokio::test]
async fn the_log_outlasts_its_process_and_belongs_to_one_node() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path()).log;
    let entries = [entry(0, vec![session(1)]), entry(1, vec![put(1, 1, 1, "k", "a")])];
    log.blocking_append(entries.clone()).await.unwrap();
    // A second process finds the directory in use.
    assert!(Store::open(directory.path(), 1).is_err());
    drop(log);
    let read = open(directory.path()).log.try_get_log_entries(0..).await.unwrap();
    assert_eq!(read, entries);
    let Err(why) = Store::open(directory.path(), 2) else { panic!("node 2 took the log of node 1") };
    let why = format!("{why:#}");
    assert!(why.contains("belong to node 1, not to node 2"), "{why}");
}

/// Returns a snapshot of several blocks.
async fn large_snapshot(directory: &Path) -> Snapshot {
    let mut machine = open(directory).machine;
    let half = "v".repeat(700_000);
    let commands = (1..=6).map(|number| put(1, number, 1, &format!("k{number}"), &half)).collect();
    machine.apply([entry(1, vec![session(1)]), entry(2, commands)]).await.unwrap();
    machine.get_snapshot_builder().await.build_snapshot().await.unwrap()
}

/// Returns node 1, without the service by which others call it.
async fn raft(log: LogStore, machine: impl RaftStateMachine<TypeConfig>) -> Raft {
    let network = Network::new(farcall::Config::default(), std::time::Duration::from_millis(100));
    Raft::new(1, Default::default(), network, log, machine).await.unwrap()
}

/// Returns a node that takes snapshots, and what reads its values.
async fn receiver(directory: &Path) -> (RaftPeerClient, Reader) {
    let Store { log, machine, snapshots } = open(directory);
    let reader = machine.reader();
    let raft = raft(log, machine).await;
    (RaftPeerClient::in_process(Receiver::new(raft, snapshots)), reader)
}

/// A state machine that installs a snapshot when the semaphore has a permit.
struct Gated(StateMachine, Arc<Semaphore>);

impl RaftStateMachine<TypeConfig> for Gated {
    type SnapshotBuilder = StateMachine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        self.0.applied_state().await
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Vec<Answer>>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.0.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.0.get_snapshot_builder().await
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotFile>, StorageError> {
        self.0.begin_receiving_snapshot().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<SnapshotFile>,
    ) -> Result<(), StorageError> {
        let _permit = self.1.acquire().await.unwrap();
        self.0.install_snapshot(meta, snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        self.0.get_current_snapshot().await
    }
}

/// Copies the files of a node, as a crash leaves them.
fn crashed(directory: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(directory).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

/// After a crash raft reads at once all entries that the state lacks.
#[tokio::test]
async fn a_crash_takes_back_less_than_128_mib_of_entries() {
    let directory = tempfile::tempdir().unwrap();
    let mut machine = open(directory.path()).machine;
    let long = "v".repeat(16 << 20);
    for index in 1..=8 {
        machine.apply([entry(index, vec![session(1), put(1, index, index, "k", &long)])]).await.unwrap();
    }
    let crashed = crashed(directory.path());
    let (applied, _) = open(crashed.path()).machine.applied_state().await.unwrap();
    assert!(applied.is_some_and(|applied| applied.index >= 4), "{applied:?}");
}

/// openraft removes the entries from the log while the snapshot is still being installed.
#[tokio::test]
async fn a_crash_between_the_removal_of_entries_and_the_installation_of_their_snapshot_loses_nothing() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let snapshot = large_snapshot(from.path()).await;
    let store = open(to.path());
    let node = raft(store.log, Gated(store.machine, Arc::new(Semaphore::new(0)))).await;
    let client = RaftPeerClient::in_process(Receiver::new(node.clone(), store.snapshots));
    let (last, all) = (snapshot.meta.last_log_id, blocks(&snapshot, 0));
    let sending = tokio::spawn(async move { send(&client, &snapshot, 0, all).await });
    node.wait(None).metrics(|metrics| metrics.purged == last, "the entries left the log").await.unwrap();
    let crashed_first = crashed(to.path());
    sending.abort();

    let store = open(crashed_first.path());
    // A further crash, before any of the state is synced.
    let crashed_again = crashed(crashed_first.path());
    fs::remove_file(crashed_again.path().join("state.redb")).unwrap();
    drop(store);
    for directory in [crashed_first, crashed_again] {
        let Store { log, mut machine, .. } = open(directory.path());
        assert_eq!(machine.applied_state().await.unwrap().0, last);
        assert_eq!(value(&machine.reader(), "k6").await.map(|value| value.len()), Some(700_000));
        // openraft finds that log and state go together.
        raft(log, machine).await;
    }
}

/// Returns the blocks of a snapshot from `offset` on.
fn blocks(snapshot: &Snapshot, mut offset: u64) -> Vec<Bytes> {
    let mut blocks = Vec::new();
    while offset < snapshot.snapshot.len() {
        let block = snapshot.snapshot.block(offset).unwrap();
        offset += block.len() as u64;
        blocks.push(block);
    }
    blocks
}

/// Sends these blocks, and returns the last that the receiver says.
async fn send(
    client: &RaftPeerClient,
    snapshot: &Snapshot,
    offset: u64,
    blocks: Vec<Bytes>,
) -> farcall::Result<Option<Progress>> {
    let (vote, meta, len) = (Vote::new_committed(1, 2), snapshot.meta.clone(), snapshot.snapshot.len());
    let mut progress = client.install(vote, meta, len, offset, stream::iter(blocks)).await?;
    let mut last = None;
    while let Some(next) = progress.message().await? {
        last = Some(next);
    }
    Ok(last)
}

#[tokio::test]
async fn a_snapshot_that_was_cut_short_goes_on_where_it_was() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let snapshot = large_snapshot(from.path()).await;
    let (client, reader) = receiver(to.path()).await;
    assert_eq!(client.arrived(snapshot.meta.clone()).await.unwrap(), 0);

    let beginning = blocks(&snapshot, 0)[..2].to_vec();
    let error = send(&client, &snapshot, 0, beginning).await.unwrap_err();
    assert_eq!(error.code(), farcall::Code::DataLoss);
    let arrived = client.arrived(snapshot.meta.clone()).await.unwrap();
    assert_eq!(arrived, 2 << 20);
    assert_eq!(value(&reader, "k1").await, None);

    let last = send(&client, &snapshot, arrived, blocks(&snapshot, arrived)).await.unwrap();
    assert!(matches!(last, Some(Progress::Done(_))), "{last:?}");
    assert_eq!(value(&reader, "k6").await.map(|value| value.len()), Some(700_000));
}

#[tokio::test]
async fn a_snapshot_that_is_shorter_than_what_has_arrived_is_refused() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let snapshot = large_snapshot(from.path()).await;
    let (client, _reader) = receiver(to.path()).await;
    send(&client, &snapshot, 0, blocks(&snapshot, 0)[..2].to_vec()).await.unwrap_err();
    let (vote, arrived, len) = (Vote::new_committed(1, 2), 2 << 20, (2 << 20) - 1);
    let none = stream::iter(Vec::<Bytes>::new());
    let mut progress = client.install(vote, snapshot.meta.clone(), len, arrived, none).await.unwrap();
    let error = loop {
        if let Err(error) = progress.message().await {
            break error;
        }
    };
    assert_eq!(error.code(), farcall::Code::InvalidArgument, "{error}");
    // The part that has arrived stays.
    assert_eq!(client.arrived(snapshot.meta.clone()).await.unwrap(), arrived);
}

#[tokio::test]
async fn a_snapshot_that_is_damaged_on_its_way_is_not_installed() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let snapshot = large_snapshot(from.path()).await;
    let (client, reader) = receiver(to.path()).await;
    let mut damaged = blocks(&snapshot, 0);
    let mut block = damaged[1].to_vec();
    block[1000] ^= 1;
    damaged[1] = block.into();
    let error = send(&client, &snapshot, 0, damaged).await.unwrap_err();
    assert!(error.message().contains("its checksum differs"), "{error}");
    assert_eq!(value(&reader, "k1").await, None);

    // The next attempt begins anew, and goes well.
    assert_eq!(client.arrived(snapshot.meta.clone()).await.unwrap(), 0);
    let last = send(&client, &snapshot, 0, blocks(&snapshot, 0)).await.unwrap();
    assert!(matches!(last, Some(Progress::Done(_))), "{last:?}");
    assert_eq!(value(&reader, "k1").await.map(|value| value.len()), Some(700_000));
}

#[tokio::test]
async fn a_snapshot_whose_sender_leaves_on_the_way_goes_on_where_it_was() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let snapshot = large_snapshot(from.path()).await;
    let (client, reader) = receiver(to.path()).await;
    let (vote, meta, len) = (Vote::new_committed(1, 2), snapshot.meta.clone(), snapshot.snapshot.len());
    let beginning = blocks(&snapshot, 0)[..2].to_vec();
    let stuck = stream::generate(async move |items| {
        for block in beginning {
            items.send(block).await;
        }
        pending().await
    });
    let mut progress = client.install(vote, meta, len, 0, stuck).await.unwrap();
    while progress.message().await.unwrap() != Some(Progress::Arrived(2 << 20)) {}
    drop(progress);

    let last = loop {
        match send(&client, &snapshot, 2 << 20, blocks(&snapshot, 2 << 20)).await {
            // The receiver has not noticed yet.
            Err(error) if error.code() == farcall::Code::Unavailable => tokio::task::yield_now().await,
            sent => break sent.unwrap(),
        }
    };
    assert!(matches!(last, Some(Progress::Done(_))), "{last:?}");
    assert_eq!(value(&reader, "k6").await.map(|value| value.len()), Some(700_000));
}

/// Sends all of a snapshot until the receiver installs it, and then breaks the connection off.
async fn send_and_leave(client: &RaftPeerClient, snapshot: &Snapshot) {
    let (vote, meta, len) = (Vote::new_committed(1, 2), snapshot.meta.clone(), snapshot.snapshot.len());
    let all = stream::iter(blocks(snapshot, 0));
    let mut progress = client.install(vote, meta, len, 0, all).await.unwrap();
    while progress.message().await.unwrap() != Some(Progress::Installing) {}
}

#[tokio::test]
async fn a_snapshot_whose_sender_leaves_during_the_installation_is_installed_and_no_other_begins_meanwhile() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let snapshot = large_snapshot(from.path()).await;
    let Store { log, machine, snapshots } = open(to.path());
    let (reader, gate) = (machine.reader(), Arc::new(Semaphore::new(0)));
    let node = raft(log, Gated(machine, gate.clone())).await;
    let client = RaftPeerClient::in_process(Receiver::new(node.clone(), snapshots));
    send_and_leave(&client, &snapshot).await;

    let error = send(&client, &snapshot, 0, blocks(&snapshot, 0)).await.unwrap_err();
    assert_eq!(error.code(), farcall::Code::Unavailable, "{error}");

    gate.add_permits(1);
    let last = snapshot.meta.last_log_id;
    node.wait(None).metrics(|metrics| metrics.last_applied == last, "it is installed").await.unwrap();
    assert_eq!(value(&reader, "k6").await.map(|value| value.len()), Some(700_000));
}
