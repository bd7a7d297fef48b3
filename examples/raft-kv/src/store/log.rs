//! The log and the vote.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;

use anyhow::ensure;
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
const FORMAT: &str = "format";

/// The version of all that a node has on disk. Raise it with a change that a build of the number before would read wrongly.
const THIS_FORMAT: u32 = 1;
/// The version of a log that does not say which it has: the first builds did not note it.
const FIRST_FORMAT: u32 = 1;

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

    /// Takes a new log for node `id`.
    ///
    /// # Errors
    ///
    /// If it belongs to another node, or has another format than this build.
    pub(super) fn claim(&self, id: NodeId) -> Result<()> {
        let Some(owner) = self.fact::<NodeId>(OWNER)? else {
            // The owner last: a log that has one is not new.
            self.set_fact(FORMAT, &THIS_FORMAT)?;
            return self.set_fact(OWNER, &id);
        };
        let format = self.fact::<u32>(FORMAT)?.unwrap_or(FIRST_FORMAT);
        ensure!(
            format == THIS_FORMAT,
            "the data have format {format}, and this build reads format {THIS_FORMAT}: start a build that reads format {format}"
        );
        ensure!(owner == id, "the data belong to node {owner}, not to node {id}");
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> LogStore {
        let memory = redb::backends::InMemoryBackend::new();
        LogStore::open(Arc::new(Database::builder().create_with_backend(memory).unwrap())).unwrap()
    }

    #[test]
    fn data_of_another_format_are_refused_and_those_of_the_first_builds_are_not() {
        let new = log();
        new.claim(1).unwrap();
        new.claim(1).unwrap();
        assert_eq!(new.fact::<u32>(FORMAT).unwrap(), Some(THIS_FORMAT));

        new.set_fact(FORMAT, &(THIS_FORMAT + 1)).unwrap();
        let refused = new.claim(1).unwrap_err().to_string();
        assert!(refused.contains("start a build that reads format 2"), "{refused}");

        let first = log();
        first.set_fact(OWNER, &1u64).unwrap();
        first.claim(1).unwrap();
    }
}
