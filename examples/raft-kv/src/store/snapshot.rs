//! Snapshots: all of a state in one file, which other nodes can be sent.
//!
//! | part | bytes |
//! |---|---|
//! | the word `RAFTKV01` | 8 |
//! | what openraft knows of the snapshot, as Postcard, with its length in front | 4 + n |
//! | records as Postcard, each with its length in front | 4 + n each |
//! | a length of 0 | 4 |
//! | CRC-32 of all before it | 4 |
//!
//! Numbers are little-endian.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use farcall::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::apply::Session;
use crate::locked;
use crate::types::{Answer, Snapshot, SnapshotMeta};

const WORD: &[u8; 8] = b"RAFTKV01";
/// The longest part of a snapshot. Values are shorter, so this bounds what a damaged file can make a node allocate.
const LONGEST: u32 = 16 << 20;
/// How many bytes are read or written at a time.
const BLOCK: usize = 1 << 20;

/// The names of the files of snapshots that a node opens when it starts.
const LATEST: &str = "snapshot";
const INSTALLING: &str = "installing";

/// A part of a state.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Record {
    Value { key: String, value: Bytes },
    Session { number: u128, session: Session },
    Answer { session: u128, number: u64, answer: Answer },
}

/// A snapshot that is open for reading. It stays readable when a newer one takes its name.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    file: Arc<File>,
    len: u64,
}

impl SnapshotFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), len })
    }

    /// Opens the file at `path`, if there is one.
    fn find(path: &Path) -> io::Result<Option<Self>> {
        match Self::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    /// Returns its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a snapshot is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads up to 1 MiB from `offset` on. Nothing is left at the end.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn block(&self, offset: u64) -> io::Result<Bytes> {
        let left = self.len.saturating_sub(offset);
        let mut block = vec![0; usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK))];
        self.file.read_exact_at(&mut block, offset)?;
        Ok(block.into())
    }

    /// Checks that the snapshot is whole, and that it is the one that `meta` tells of.
    ///
    /// # Errors
    ///
    /// If it is not, or if the disk fails.
    pub(crate) fn verify(&self, meta: &SnapshotMeta) -> Result<()> {
        let summed = self.len.checked_sub(4).context("the snapshot is too short")?;
        let (mut sum, mut offset) = (crc32fast::Hasher::new(), 0);
        while offset < summed {
            let block = self.block(offset)?;
            let len = block.len().min(usize::try_from(summed - offset).unwrap_or(usize::MAX));
            sum.update(&block[..len]);
            offset += len as u64;
        }
        let mut expected = [0; 4];
        self.file.read_exact_at(&mut expected, summed)?;
        ensure!(
            sum.finalize() == u32::from_le_bytes(expected),
            "the snapshot is damaged: its checksum differs"
        );
        ensure!(self.meta()? == *meta, "it is another snapshot than was announced");
        Ok(())
    }

    fn reader(&self) -> impl Read {
        BufReader::with_capacity(BLOCK, At { file: &self.file, offset: 0 })
    }

    fn meta(&self) -> Result<SnapshotMeta> {
        read_meta(&mut self.reader())
    }

    /// Gives all records to `take`.
    pub(super) fn records(&self, mut take: impl FnMut(Record) -> Result<()>) -> Result<SnapshotMeta> {
        let reader = &mut self.reader();
        let meta = read_meta(reader)?;
        while let Some(record) = read_part(reader)? {
            take(record)?;
        }
        Ok(meta)
    }
}

/// Reads at an offset of its own, whatever other readers of the file do.
struct At<'f> {
    file: &'f File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

fn read_meta(reader: &mut impl Read) -> Result<SnapshotMeta> {
    let mut word = [0; WORD.len()];
    reader.read_exact(&mut word)?;
    ensure!(word == *WORD, "the file is no snapshot of this version");
    read_part(reader)?.context("the snapshot does not say what it is of")
}

/// Reads a part with its length in front. `None`: the length is 0.
fn read_part<T: DeserializeOwned>(reader: &mut impl Read) -> Result<Option<T>> {
    let mut len = [0; 4];
    reader.read_exact(&mut len)?;
    match u32::from_le_bytes(len) {
        0 => Ok(None),
        len if len > LONGEST => bail!("the snapshot is damaged: a part has {len} bytes"),
        len => {
            let mut part = vec![0; len as usize];
            reader.read_exact(&mut part)?;
            Ok(Some(postcard::from_bytes(&part)?))
        }
    }
}

/// Writes a snapshot.
pub(super) struct Writer<W> {
    to: W,
    sum: crc32fast::Hasher,
}

impl<W: Write> Writer<W> {
    fn begin(to: W, meta: &SnapshotMeta) -> Result<Self> {
        let mut writer = Self { to, sum: crc32fast::Hasher::new() };
        writer.put(WORD)?;
        writer.part(meta)?;
        Ok(writer)
    }

    pub(super) fn record(&mut self, record: &Record) -> Result<()> {
        self.part(record)
    }

    fn part(&mut self, part: &impl Serialize) -> Result<()> {
        let part = postcard::to_allocvec(part)?;
        let len = u32::try_from(part.len()).ok().filter(|len| *len <= LONGEST);
        self.put(&len.context("too long for a snapshot")?.to_le_bytes())?;
        Ok(self.put(&part)?)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }

    fn end(mut self) -> Result<W> {
        self.put(&0u32.to_le_bytes())?;
        self.to.write_all(&self.sum.finalize().to_le_bytes())?;
        Ok(self.to)
    }
}

/// The snapshots of a node: the latest one, one that arrives from another node, and one that has arrived and is being installed.
#[derive(Clone, Debug)]
pub struct Snapshots {
    directory: Arc<PathBuf>,
    /// Locked while the latest snapshot is replaced.
    replacing: Arc<Mutex<()>>,
}

impl Snapshots {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: Arc::new(directory.to_owned()), replacing: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns where a snapshot from another node is put while it arrives.
    pub(crate) fn arriving_path(&self) -> PathBuf {
        self.path("arriving")
    }

    /// Returns a new file that is gone when it is closed.
    pub(super) fn nameless(&self) -> io::Result<SnapshotFile> {
        let path = self.path("nameless");
        File::create(&path)?;
        let file = SnapshotFile::open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    }

    /// Returns how many bytes of a snapshot have arrived.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub(crate) fn arrived(&self, meta: &SnapshotMeta) -> io::Result<u64> {
        let Some(arriving) = SnapshotFile::find(&self.arriving_path())? else { return Ok(0) };
        // A beginning that does not say which snapshot it is of is of no use.
        Ok(if arriving.meta().is_ok_and(|of| of == *meta) { arriving.len } else { 0 })
    }

    /// Checks the snapshot that has arrived, and gives it a name that outlasts a crash: openraft removes its entries from the log
    /// before the state machine has it. A damaged one is removed, so that the next attempt begins anew.
    ///
    /// # Errors
    ///
    /// If it is damaged, is not the one that `meta` tells of, or if the disk fails.
    pub(crate) fn begin_install(&self, meta: &SnapshotMeta) -> Result<SnapshotFile> {
        let arriving = self.arriving_path();
        let file = SnapshotFile::open(&arriving)?;
        if let Err(why) = file.verify(meta) {
            fs::remove_file(&arriving).context("a damaged snapshot can't be removed")?;
            return Err(why);
        }
        file.file.sync_all()?;
        self.rename(&arriving, &self.path(INSTALLING))?;
        Ok(file)
    }

    /// Removes the snapshot that was being installed, if there is one.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub(crate) fn end_install(&self) -> io::Result<()> {
        match fs::remove_file(self.path(INSTALLING)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns the snapshot that was being installed when the node crashed.
    pub(super) fn installing(&self) -> Result<Option<Snapshot>> {
        self.find(INSTALLING)
    }

    /// Returns the latest snapshot.
    pub(super) fn latest(&self) -> Result<Option<Snapshot>> {
        self.find(LATEST)
    }

    fn find(&self, name: &str) -> Result<Option<Snapshot>> {
        let Some(file) = SnapshotFile::find(&self.path(name))? else { return Ok(None) };
        Ok(Some(Snapshot { meta: file.meta()?, snapshot: Box::new(file) }))
    }

    /// Writes a snapshot, of which `fill` adds the records. Returns the latest one, which is this, unless a newer one was adopted
    /// meanwhile.
    pub(super) fn write(
        &self,
        meta: &SnapshotMeta,
        fill: impl FnOnce(&mut Writer<BufWriter<File>>) -> Result<()>,
    ) -> Result<Snapshot> {
        let path = self.path("built");
        let mut writer = Writer::begin(BufWriter::with_capacity(BLOCK, File::create(&path)?), meta)?;
        fill(&mut writer)?;
        writer.end()?.into_inner()?.sync_all()?;
        self.accept(&path, meta)
    }

    /// Makes a snapshot of another node the latest, unless there is a newer one. Returns the latest.
    pub(super) fn adopt(&self, snapshot: &SnapshotFile) -> Result<Snapshot> {
        let path = self.path("adopted");
        let mut copy = File::create(&path)?;
        io::copy(&mut At { file: &snapshot.file, offset: 0 }, &mut copy)?;
        copy.sync_all()?;
        self.accept(&path, &snapshot.meta()?)
    }

    /// Gives a file that is on disk the name of the latest snapshot, or removes it if there is a newer one: a snapshot may be
    /// built for so long that one from another node is newer. Returns the latest.
    fn accept(&self, path: &Path, meta: &SnapshotMeta) -> Result<Snapshot> {
        let _alone = locked(&self.replacing);
        match self.latest()? {
            Some(newer) if newer.meta.last_log_id > meta.last_log_id => {
                fs::remove_file(path)?;
                Ok(newer)
            }
            _ => {
                self.rename(path, &self.path(LATEST))?;
                self.latest()?.context("the snapshot was removed")
            }
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)?;
        sync_directory(&self.directory)
    }
}

/// Returns when the names of a directory's files are on disk.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use openraft::CommittedLeaderId;

    use super::*;
    use crate::types::LogId;

    fn meta(index: u64) -> SnapshotMeta {
        let last_log_id = Some(LogId::new(CommittedLeaderId::new(1, 1), index));
        SnapshotMeta { last_log_id, snapshot_id: index.to_string(), ..SnapshotMeta::default() }
    }

    fn record(key: &str) -> Record {
        Record::Value { key: key.into(), value: Bytes::from_static(b"v") }
    }

    #[test]
    fn an_older_snapshot_that_is_done_later_does_not_replace_a_newer_one() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let newer =
            Snapshots::new(there.path()).write(&meta(2), |writer| writer.record(&record("new"))).unwrap();
        let snapshots = Snapshots::new(here.path());
        let built = snapshots.write(&meta(1), |writer| {
            writer.record(&record("old"))?;
            // While it is written, a newer one comes from another node.
            snapshots.adopt(&newer.snapshot)?;
            writer.record(&record("older"))
        });
        for latest in [built.unwrap(), snapshots.latest().unwrap().unwrap()] {
            assert_eq!(latest.meta, newer.meta);
            latest.snapshot.verify(&newer.meta).unwrap();
        }
        let files: Vec<_> =
            fs::read_dir(here.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, ["snapshot"]);
    }
}
