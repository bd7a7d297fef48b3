//! The owner of the index: it alone changes the buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall::region::{Region, RemoteRegion, Rights};
use farcall::{Bytes, Status};

use super::service::{
    BUCKET, Bucket, CHECKSUM, ENTRY, Index, Key, MAX_VALUE, Statistics, buckets_of, checksum, encode,
    entry_offset,
};

/// The index. Clones are the same one.
#[derive(Clone)]
pub struct Owner(Arc<Inner>);

struct Inner {
    region: Region,
    buckets: usize,
    /// The number of keys. One change happens at a time.
    keys: Mutex<u64>,
    handlers: AtomicU64,
}

impl Owner {
    /// Returns an empty index.
    pub fn new(buckets: usize) -> Result<Self, Status> {
        let region = Region::zeroed(buckets * BUCKET, Rights::READ);
        let sum = checksum(&[0; CHECKSUM]).to_le_bytes();
        for at in 0..buckets {
            region.write(at * BUCKET + CHECKSUM, &sum)?;
        }
        Ok(Self(Arc::new(Inner { region, buckets, keys: Mutex::default(), handlers: AtomicU64::new(0) })))
    }

    fn keys(&self) -> MutexGuard<'_, u64> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handler_runs(&self) {
        self.0.handlers.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the bytes of a bucket. They are whole if nobody changes it meanwhile.
    pub fn copy(&self, at: usize) -> Result<Bytes, Status> {
        Ok(self.0.region.read(at * BUCKET..(at + 1) * BUCKET)?.into())
    }

    /// Returns the two buckets where a key may be.
    pub fn places(&self, key: &Key) -> [usize; 2] {
        buckets_of(key, self.0.buckets)
    }

    /// Returns a copy of a bucket. The caller has locked `keys`, so nobody changes it meanwhile.
    fn bucket(&self, at: usize) -> Result<Bucket, Status> {
        Bucket::whole(self.copy(at)?)?.ok_or_else(|| Status::internal("a change has not ended"))
    }

    /// Begins to change the entry of a key. If the key is not there, it is a free entry with `insert`, and else nothing.
    fn change(&self, key: &Key, insert: bool) -> Result<Option<Change<'_>>, Status> {
        let keys = self.keys();
        let places = self.places(key);
        let buckets = [self.bucket(places[0])?, self.bucket(places[1])?];
        let found = (0..2).find_map(|i| Some((i, buckets[i].find(key)?)));
        let had = found.is_some();
        let place = found.or_else(|| {
            // The emptier one, so that both fill up evenly.
            let i = usize::from(buckets[1].room() > buckets[0].room());
            insert.then(|| Some((i, buckets[i].free()?))).flatten()
        });
        let Some((i, entry)) = place else { return Ok(None) };
        let version = buckets[i].version();
        let change = Change { region: &self.0.region, keys, start: places[i] * BUCKET, entry, version, had };
        change.set_version(version + 1)?;
        Ok(Some(change))
    }

    /// Begins to set the value of a key. Readers of its bucket wait for the end.
    pub fn begin_put(&self, key: &Key) -> Result<Change<'_>, Status> {
        let full = || Status::resource_exhausted("both buckets of this key are full");
        self.change(key, true)?.ok_or_else(full)
    }
}

/// A change of one bucket, whose version is odd, and does not fit its checksum, until this is dropped.
#[must_use = "the bucket can't be read meanwhile"]
pub struct Change<'a> {
    region: &'a Region,
    keys: MutexGuard<'a, u64>,
    start: usize,
    entry: usize,
    /// The version before.
    version: u64,
    /// Whether the key was there.
    had: bool,
}

impl Change<'_> {
    /// Writes the new value. Returns whether there was one.
    pub fn put(mut self, key: &Key, value: &[u8]) -> Result<bool, Status> {
        self.write(&encode(key, value))?;
        *self.keys += u64::from(!self.had);
        Ok(self.had)
    }

    fn remove(mut self) -> Result<(), Status> {
        self.write(&[0; ENTRY])?;
        *self.keys -= 1;
        Ok(())
    }

    fn write(&self, entry: &[u8; ENTRY]) -> Result<(), Status> {
        self.region.write(self.start + entry_offset(self.entry), entry)
    }

    fn set_version(&self, version: u64) -> Result<(), Status> {
        self.region.write(self.start, &version.to_le_bytes())
    }

    fn end(&self) -> Result<(), Status> {
        self.set_version(self.version + 2)?;
        let content = self.region.read(self.start..self.start + CHECKSUM)?;
        self.region.write(self.start + CHECKSUM, &checksum(&content).to_le_bytes())
    }
}

/// Ends the change, also one that fails half-way.
impl Drop for Change<'_> {
    fn drop(&mut self) {
        // It was written to before, so it can't fail.
        let _ = self.end();
    }
}

impl Index for Owner {
    async fn table(&self) -> farcall::Result<RemoteRegion> {
        self.handler_runs();
        Ok(self.0.region.remote())
    }

    async fn put(&self, key: Key, value: Bytes) -> farcall::Result<bool> {
        self.handler_runs();
        if value.len() > MAX_VALUE {
            let why = format!("a value of {} bytes is longer than {MAX_VALUE}", value.len());
            return Err(Status::invalid_argument(why));
        }
        self.begin_put(&key)?.put(&key, &value)
    }

    async fn remove(&self, key: Key) -> farcall::Result<bool> {
        self.handler_runs();
        match self.change(&key, false)? {
            Some(change) => change.remove().map(|()| true),
            None => Ok(false),
        }
    }

    async fn statistics(&self) -> farcall::Result<Statistics> {
        self.handler_runs();
        Ok(Statistics { keys: *self.keys(), handlers: self.0.handlers.load(Ordering::Relaxed) })
    }
}
