//! The state machine: keys and values, and what is known of clients.

use std::io;
use std::sync::Arc;

use anyhow::{Result, ensure};
use farcall::Bytes;
use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, LogIdOptionExt, OptionalSend, RaftSnapshotBuilder};
use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};

use super::apply::{ANSWERS, SESSIONS, Tables, USES, VALUES};
use super::blocking;
use super::snapshot::{Record, SnapshotFile, Snapshots};
use crate::types::{
    Answer, Entry, LogId, Snapshot, SnapshotMeta, StorageError, StorageIOError, StoredMembership, TypeConfig,
};

/// One value, [`Applied`].
const FACTS: TableDefinition<'_, (), &[u8]> = TableDefinition::new("facts");

/// After how many entries the state is synced, and after about how many bytes of them. Until then a crash takes the state back to
/// an earlier one. raft then reads the entries from the log, all at once, and applies them again. It also bounds what redb can't
/// reuse of its file.
const SYNC_ENTRIES: usize = 1000;
const SYNC_BYTES: usize = 64 << 20;

/// The last entry that was applied, and the members that entries have set.
type Applied = (Option<LogId>, StoredMembership);

/// The state of a node. Clones share it.
#[derive(Clone)]
pub struct StateMachine {
    database: Arc<Database>,
    snapshots: Snapshots,
    /// The entries since the state was synced, and about how many bytes they have.
    unsynced: (usize, usize),
}

impl StateMachine {
    /// Opens the state of a log whose entries up to `purged` were removed.
    pub(super) fn open(database: Arc<Database>, snapshots: Snapshots, purged: Option<LogId>) -> Result<Self> {
        let transaction = database.begin_write()?;
        Tables::open(&transaction)?;
        transaction.open_table(FACTS)?;
        transaction.commit()?;
        let machine = Self { database, snapshots, unsynced: (0, 0) };
        machine.restore(purged)?;
        Ok(machine)
    }

    /// Loads the snapshot that has what a crash took from the state, and what the log has no more.
    fn restore(&self, purged: Option<LogId>) -> Result<()> {
        if let Some(latest) = self.snapshots.latest()?
            && latest.meta.last_log_id > self.applied()?.0
        {
            latest.snapshot.verify(&latest.meta)?;
            self.load(&latest.snapshot)?;
        }
        // Only then is it known that openraft took the snapshot that was being installed.
        if self.applied()?.0 < purged
            && let Some(installing) = self.snapshots.installing()?
        {
            installing.snapshot.verify(&installing.meta)?;
            self.load(&self.snapshots.adopt(&installing.snapshot)?.snapshot)?;
        }
        let applied = self.applied()?.0;
        ensure!(
            applied >= purged,
            "the state ends at entry {:?}, the log begins after {:?}, and no snapshot has the entries between",
            applied.index(),
            purged.index()
        );
        Ok(self.snapshots.end_install()?)
    }

    /// Returns what reads values.
    pub fn reader(&self) -> Reader {
        Reader(self.database.clone())
    }

    fn applied(&self) -> Result<Applied> {
        applied_in(&self.database.begin_read()?)
    }

    fn apply_all(&self, entries: &[Entry], sync: bool) -> Result<Vec<Vec<Answer>>> {
        let (_, mut members) = self.applied()?;
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(if sync { Durability::Immediate } else { Durability::None })?;
        let mut tables = Tables::open(&transaction)?;
        let mut answers = Vec::with_capacity(entries.len());
        for entry in entries {
            answers.push(match &entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(batch) => {
                    let index = entry.log_id.index;
                    batch.0.iter().map(|command| tables.apply(index, command)).collect::<Result<_>>()?
                }
                EntryPayload::Membership(new) => {
                    members = StoredMembership::new(Some(entry.log_id), new.clone());
                    Vec::new()
                }
            });
        }
        drop(tables);
        if let Some(last) = entries.last() {
            set_applied(&transaction, &(Some(last.log_id), members))?;
        }
        transaction.commit()?;
        Ok(answers)
    }

    /// Replaces the state by that of a snapshot.
    fn load(&self, snapshot: &SnapshotFile) -> Result<()> {
        let transaction = self.database.begin_write()?;
        transaction.delete_table(VALUES)?;
        transaction.delete_table(SESSIONS)?;
        transaction.delete_table(USES)?;
        transaction.delete_table(ANSWERS)?;
        let mut tables = Tables::open(&transaction)?;
        let meta = snapshot.records(|record| match record {
            Record::Value { key, value } => {
                tables.values.insert(key.as_str(), value.as_ref())?;
                Ok(())
            }
            Record::Session { number, session } => tables.add_session(number, session),
            Record::Answer { session, number, answer } => tables.put_answer(session, number, answer),
        })?;
        drop(tables);
        set_applied(&transaction, &(meta.last_log_id, meta.last_membership))?;
        Ok(transaction.commit()?)
    }
}

fn applied_in(transaction: &ReadTransaction) -> Result<Applied> {
    let facts = transaction.open_table(FACTS)?;
    let applied = facts.get(())?;
    Ok(applied.map(|applied| postcard::from_bytes(applied.value())).transpose()?.unwrap_or_default())
}

fn set_applied(transaction: &WriteTransaction, applied: &Applied) -> Result<()> {
    transaction.open_table(FACTS)?.insert((), postcard::to_allocvec(applied)?.as_slice())?;
    Ok(())
}

/// Returns about how many bytes of commands an entry has.
fn size(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(batch) => batch.0.iter().map(|command| command.operation.size()).sum(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

/// Converts an error into openraft's.
fn fault(to: fn(io::Error) -> StorageIOError, why: &anyhow::Error) -> StorageError {
    to(io::Error::other(format!("{why:#}"))).into()
}

fn write_fault(why: &anyhow::Error) -> StorageError {
    fault(|error| StorageIOError::write_state_machine(&error), why)
}

fn read_fault(why: &anyhow::Error) -> StorageError {
    fault(|error| StorageIOError::read_state_machine(&error), why)
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<Applied, StorageError> {
        let machine = self.clone();
        blocking(move || machine.applied()).await.map_err(|why| read_fault(&why))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Vec<Answer>>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        self.unsynced.0 += entries.len();
        self.unsynced.1 += entries.iter().map(size).sum::<usize>();
        let sync = self.unsynced.0 >= SYNC_ENTRIES || self.unsynced.1 >= SYNC_BYTES;
        if sync {
            self.unsynced = (0, 0);
        }
        let machine = self.clone();
        blocking(move || machine.apply_all(&entries, sync)).await.map_err(|why| write_fault(&why))
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    /// Returns an empty file without a name. openraft's own tests call this; the network has a file of its own.
    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotFile>, StorageError> {
        let snapshots = self.snapshots.clone();
        let file = blocking(move || snapshots.nameless()).await;
        Ok(Box::new(file.map_err(|error| StorageIOError::write_snapshot(None, &error))?))
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta,
        snapshot: Box<SnapshotFile>,
    ) -> Result<(), StorageError> {
        let machine = self.clone();
        // After a crash before the end of it, `restore` does the rest.
        let loaded = blocking(move || machine.load(&machine.snapshots.adopt(&snapshot)?.snapshot));
        loaded.await.map_err(|why| write_fault(&why))?;
        self.unsynced = (0, 0);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        let snapshots = self.snapshots.clone();
        blocking(move || snapshots.latest()).await.map_err(|why| read_fault(&why))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let machine = self.clone();
        blocking(move || machine.snapshot()).await.map_err(|why| read_fault(&why))
    }
}

impl StateMachine {
    /// Writes a snapshot of the state as it is now. Entries may be applied meanwhile.
    fn snapshot(&self) -> Result<Snapshot> {
        let transaction = self.database.begin_read()?;
        let (last_log_id, last_membership) = applied_in(&transaction)?;
        let index = last_log_id.index().unwrap_or(0);
        // Two nodes may write the state of one entry in different bytes, and a part of one does not fit the other.
        let snapshot_id = format!("{index}-{:016x}", fastrand::u64(..));
        let meta = SnapshotMeta { last_log_id, last_membership, snapshot_id };
        self.snapshots.write(&meta, |writer| {
            for item in transaction.open_table(VALUES)?.iter()? {
                let (key, value) = item?;
                let (key, value) = (key.value().to_owned(), Bytes::copy_from_slice(value.value()));
                writer.record(&Record::Value { key, value })?;
            }
            for item in transaction.open_table(SESSIONS)?.iter()? {
                let (number, session) = item?;
                let session = postcard::from_bytes(session.value())?;
                writer.record(&Record::Session { number: number.value(), session })?;
            }
            for item in transaction.open_table(ANSWERS)?.iter()? {
                let (place, answer) = item?;
                let ((session, number), answer) = (place.value(), postcard::from_bytes(answer.value())?);
                writer.record(&Record::Answer { session, number, answer })?;
            }
            Ok(())
        })
    }
}

/// Reads values. Clones read one state.
#[derive(Clone)]
pub struct Reader(Arc<Database>);

impl Reader {
    /// Returns the value of a key in the state as it is now.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub async fn get(&self, key: String) -> Result<Option<Bytes>> {
        let database = self.0.clone();
        blocking(move || {
            let values = database.begin_read()?.open_table(VALUES)?;
            let value = values.get(key.as_str())?;
            Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
        })
        .await
    }
}
