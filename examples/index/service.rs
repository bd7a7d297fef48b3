//! The parts that the owner of the index and its readers share: the methods, and the form of a bucket.

use farcall::region::RemoteRegion;
use farcall::{Bytes, Status};
use serde::{Deserialize, Serialize};

/// The key of a value.
pub type Key = [u8; 16];

/// The longest value, in bytes.
pub const MAX_VALUE: usize = 47;

/// The length of an entry: a key, the length of its value plus one, and the value. A length of 0 marks a free entry.
pub const ENTRY: usize = 16 + 1 + MAX_VALUE;

/// Entries of a bucket.
pub const ENTRIES: usize = 8;

/// The length of a bucket: a version, the entries, and a checksum of both. The version makes each state of a bucket another one: so a
/// copy that fits its checksum is no older than the READ.
pub const BUCKET: usize = 8 + ENTRIES * ENTRY + 8;

/// The place of the checksum.
pub const CHECKSUM: usize = BUCKET - 8;

/// A map of keys to short values. Look-ups need no method: they read the memory of `table`.
#[farcall::service(package = "farcall.example.index")]
pub trait Index {
    /// Returns the memory of all buckets.
    async fn table(&self) -> farcall::Result<RemoteRegion>;

    /// Sets the value of a key. Returns whether it had one.
    ///
    /// RESOURCE_EXHAUSTED, if both of its buckets are full.
    async fn put(&self, key: Key, value: Bytes) -> farcall::Result<bool>;

    /// Removes a key. Returns whether it was there.
    async fn remove(&self, key: Key) -> farcall::Result<bool>;

    /// Returns the counts of the server.
    async fn statistics(&self) -> farcall::Result<Statistics>;
}

/// The counts of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    pub keys: u64,
    /// How many handlers have run, of all methods.
    pub handlers: u64,
}

/// Returns the two buckets where a key may be. They may be the same.
pub fn buckets_of(key: &Key, buckets: usize) -> [usize; 2] {
    let hash = |start: u64| {
        let hash = fnv(start, key);
        (hash ^ hash >> 32) as usize % buckets
    };
    [hash(FNV_START), hash(0x9e37_79b9_7f4a_7c15)]
}

/// Returns the checksum of a bucket, from its bytes before the checksum.
pub fn checksum(content: &[u8]) -> u64 {
    fnv(FNV_START, content)
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a.
fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A copy of a bucket.
pub struct Bucket(Bytes);

impl Bucket {
    /// Checks a copy. Returns nothing if it was made while the bucket was being changed.
    ///
    /// A device may read the bytes of one READ in any order, so versions in the copy say nothing of the bytes between them. Only the checksum
    /// says that all belong together.
    pub fn whole(bytes: Bytes) -> Result<Option<Self>, Status> {
        let (Some((content, sum)), BUCKET) = (bytes.split_last_chunk(), bytes.len()) else {
            return Err(Status::internal(format!("a bucket has {BUCKET} bytes, not {}", bytes.len())));
        };
        let is_whole = checksum(content) == u64::from_le_bytes(*sum);
        Ok(is_whole.then_some(Self(bytes)))
    }

    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.0.first_chunk().map_or(0, |version| u64::from_le_bytes(*version))
    }

    /// Returns the entry of a key.
    pub fn find(&self, key: &Key) -> Option<usize> {
        (0..ENTRIES).find(|&at| !self.is_free(at) && self.entry(at).starts_with(key))
    }

    /// Returns a free entry.
    pub fn free(&self) -> Option<usize> {
        (0..ENTRIES).find(|&at| self.is_free(at))
    }

    /// Returns how many entries are free.
    pub fn room(&self) -> usize {
        (0..ENTRIES).filter(|&at| self.is_free(at)).count()
    }

    /// Returns the value in an entry that is not free.
    pub fn value(&self, at: usize) -> Bytes {
        let len = usize::from(self.entry(at)[16]).clamp(1, MAX_VALUE + 1) - 1;
        let start = entry_offset(at) + 17;
        self.0.slice(start..start + len)
    }

    fn is_free(&self, at: usize) -> bool {
        self.entry(at)[16] == 0
    }

    fn entry(&self, at: usize) -> &[u8] {
        &self.0[entry_offset(at)..][..ENTRY]
    }
}

/// Returns the place of an entry in its bucket.
pub fn entry_offset(at: usize) -> usize {
    8 + at * ENTRY
}

/// Returns an entry's bytes. The value must fit.
pub fn encode(key: &Key, value: &[u8]) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..16].copy_from_slice(key);
    entry[16] = value.len() as u8 + 1;
    entry[17..17 + value.len()].copy_from_slice(value);
    entry
}
