//! The log and the vote.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogId, RaftLogReader};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::blocking;
use crate::types::{Entry, LogId, NodeId, StorageError, StorageIOError, TypeConfig, Vote};

/// Entries by their index.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// Other facts that have to last, by the names below.
const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
const VOTE: &str = "vote";
const PURGED: &str = "purged";
const OWNER: &str = "owner";

/// About how many bytes of entries one message to a follower has at most. openraft gives a message one heartbeat interval to be
/// answered, and the follower syncs its disk in that time.
const MESSAGE: usize = 1 << 20;

type Result<T, E = anyhow::Error> = std::result::Result<T, E>;

/// The log and the vote of a node. Clones share them.
#[derive(Clone)]
pub struct LogStore {
    database: Arc<Database>,
}

impl LogStore {
    pub(super) fn open(database: Arc<Database>) -> Result<Self> {
        let transaction = database.begin_write()?;
        transaction.open_table(LOG)?;
        transaction.open_table(FACTS)?;
        transaction.commit()?;
        Ok(Self { database })
    }

    /// Returns the node that the log belongs to: `id`, if it is new.
    pub(super) fn owner(&self, id: NodeId) -> Result<NodeId> {
        if let Some(owner) = self.fact(OWNER)? {
            return Ok(owner);
        }
        self.set_fact(OWNER, &id)?;
        Ok(id)
    }

    /// Returns the last of the entries that were removed from the beginning of the log.
    pub(super) fn purged(&self) -> Result<Option<LogId>> {
        self.fact(PURGED)
    }

    fn fact<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let facts = self.database.begin_read()?.open_table(FACTS)?;
        let fact = facts.get(name)?;
        Ok(fact.map(|fact| postcard::from_bytes(fact.value())).transpose()?)
    }

    fn set_fact<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(FACTS)?.insert(name, postcard::to_allocvec(value)?.as_slice())?;
        Ok(transaction.commit()?)
    }

    /// Writes entries, and returns when they are on disk.
    fn write(&self, entries: &[Entry]) -> Result<()> {
        let transaction = self.database.begin_write()?;
        let mut log = transaction.open_table(LOG)?;
        for entry in entries {
            log.insert(entry.log_id.index, postcard::to_allocvec(entry)?.as_slice())?;
        }
        drop(log);
        Ok(transaction.commit()?)
    }

    fn truncate_from(&self, index: u64) -> Result<()> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(LOG)?.retain_in(index.., |_, _| false)?;
        Ok(transaction.commit()?)
    }

    fn purge_to(&self, last: &LogId) -> Result<()> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(LOG)?.retain_in(..=last.index, |_, _| false)?;
        // In the transaction that removes the entries: else a crash would leave a log without its beginning.
        transaction.open_table(FACTS)?.insert(PURGED, postcard::to_allocvec(last)?.as_slice())?;
        Ok(transaction.commit()?)
    }

    /// Reads entries until they have `limit` bytes, and one at least.
    fn read(&self, range: impl RangeBounds<u64>, limit: usize) -> Result<Vec<Entry>> {
        let log = self.database.begin_read()?.open_table(LOG)?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for item in log.range(range)? {
            let (_, entry) = item?;
            bytes += entry.value().len();
            if bytes > limit && !entries.is_empty() {
                break;
            }
            entries.push(postcard::from_bytes(entry.value())?);
        }
        Ok(entries)
    }

    fn state(&self) -> Result<LogState<TypeConfig>> {
        let last_purged_log_id = self.purged()?;
        let log = self.database.begin_read()?.open_table(LOG)?;
        let last = log.last()?.map(|(_, entry)| postcard::from_bytes::<Entry>(entry.value())).transpose()?;
        let last_log_id = last.map(|entry| *entry.get_log_id()).or(last_purged_log_id);
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    /// Does `work` where it may wait for the disk.
    async fn on_disk<T: Send + 'static>(
        &self,
        fault: fn(&std::io::Error) -> StorageIOError,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let store = self.clone();
        let result = blocking(move || work(&store)).await;
        result.map_err(|why| fault(&std::io::Error::other(format!("{why:#}"))).into())
    }
}

fn reading(error: &std::io::Error) -> StorageIOError {
    StorageIOError::read_logs(error)
}

fn writing(error: &std::io::Error) -> StorageIOError {
    StorageIOError::write_logs(error)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        self.on_disk(reading, move |store| store.read(range, usize::MAX)).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError> {
        self.on_disk(reading, move |store| store.read(start..end, MESSAGE)).await
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        self.on_disk(reading, Self::state).await
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let vote = *vote;
        let fault = |error: &std::io::Error| StorageIOError::write_vote(error);
        self.on_disk(fault, move |store| store.set_fact(VOTE, &vote)).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let fault = |error: &std::io::Error| StorageIOError::read_vote(error);
        self.on_disk(fault, |store| store.fact(VOTE)).await
    }

    /// Writes entries, and waits for the disk: openraft 0.9 waits for the callback before it goes on in any case.
    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        self.on_disk(writing, move |store| store.write(&entries)).await?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.on_disk(writing, move |store| store.truncate_from(log_id.index)).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.on_disk(writing, move |store| store.purge_to(&log_id)).await
    }
}
