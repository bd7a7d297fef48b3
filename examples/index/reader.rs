//! A reader of the index, which asks no handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farcall::region::RemoteMemory;
use farcall::{Bytes, Status};

use super::service::{BUCKET, Bucket, Key, buckets_of};

/// Reads of one bucket that may be torn before the reader gives up. With the pauses it takes two seconds.
const READS: u32 = 200;

/// Looks keys up in the memory of the index. Clones share their counts.
#[derive(Clone)]
pub struct Reader {
    memory: RemoteMemory,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    torn: AtomicU64,
}

impl Reader {
    pub fn new(memory: RemoteMemory) -> Self {
        Self { memory, counts: Arc::default() }
    }

    /// Returns the value of a key. Reads one bucket or two, and a bucket again that was being changed.
    ///
    /// # Errors
    ///
    /// - ABORTED, if a bucket is changed all the time.
    /// - Any error of the connection.
    pub async fn get(&self, key: &Key) -> Result<Option<Bytes>, Status> {
        for at in buckets_of(key, self.memory.region().len() / BUCKET) {
            let bucket = self.bucket(at).await?;
            if let Some(entry) = bucket.find(key) {
                return Ok(Some(bucket.value(entry)));
            }
        }
        Ok(None)
    }

    /// Returns how many buckets were read, and how many of these reads were torn.
    pub fn counts(&self) -> (u64, u64) {
        (self.counts.reads.load(Ordering::Relaxed), self.counts.torn.load(Ordering::Relaxed))
    }

    async fn bucket(&self, at: usize) -> Result<Bucket, Status> {
        for read in 0..READS {
            let bytes = self.memory.read(at * BUCKET..(at + 1) * BUCKET).await?;
            self.counts.reads.fetch_add(1, Ordering::Relaxed);
            if let Some(bucket) = Bucket::whole(bytes)? {
                return Ok(bucket);
            }
            self.counts.torn.fetch_add(1, Ordering::Relaxed);
            // A change takes a few hundred nanoseconds, so that the next read is late enough. Unless its thread has to wait.
            if read > 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Err(Status::aborted(format!("bucket {at} was being changed at each of {READS} reads")))
    }
}
