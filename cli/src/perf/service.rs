//! The service by which `farcall perf` measures: what `farcall serve` serves.

use std::sync::{Mutex, OnceLock, PoisonError};

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::region::{Region, RemoteRegion, Rights};
use farcall::{Bytes, Status, Stream, Streaming, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::environment::{Environment, processor_micros};

/// Sends, returns and moves bytes.
#[farcall::service(package = "farcall.perf.v1")]
pub(crate) trait Perf {
    /// Returns what the server runs on.
    async fn environment(&self) -> farcall::Result<Environment>;

    /// Returns what the server's process has used so far.
    async fn usage(&self) -> farcall::Result<Usage>;

    /// Returns its argument.
    async fn echo(&self, data: Bytes) -> farcall::Result<Bytes>;

    /// Takes bytes.
    async fn put(&self, data: Bytes) -> farcall::Result<u64>;

    /// Returns so many bytes.
    async fn get(&self, size: u32) -> farcall::Result<Bytes>;

    /// Returns so many items of this size.
    async fn stream_down(
        &self,
        count: u32,
        size: u32,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<Bytes>>>;

    /// Takes items.
    async fn stream_up(&self, items: Streaming<Bytes>) -> farcall::Result<u64>;

    /// Reads all of what is lent.
    async fn lend(&self, data: BulkRead) -> farcall::Result<u64>;

    /// Writes all of what is lent.
    async fn fill(&self, into: BulkWrite) -> farcall::Result<u64>;

    /// Returns memory that may be read, and counted in.
    async fn region(&self) -> farcall::Result<RemoteRegion>;
}

/// The work of a process so far.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Time of processors, in microseconds. 0: not known.
    pub(crate) processor_micros: u64,
}

/// The largest payload, which is also the length of the region.
pub(crate) const MOST: usize = 64 << 20;

/// Serves [`Perf`].
#[derive(Default)]
pub(crate) struct Service {
    /// The longest payload that was asked for.
    payload: Mutex<Bytes>,
    region: OnceLock<Region>,
    environment: OnceCell<Environment>,
}

impl Service {
    /// Returns a payload of this size.
    fn payload(&self, size: usize) -> farcall::Result<Bytes> {
        if size > MOST {
            return Err(Status::invalid_argument(format!("{size} bytes are more than {MOST}")));
        }
        let mut payload = self.payload.lock().unwrap_or_else(PoisonError::into_inner);
        if payload.len() < size {
            *payload = filled(size);
        }
        Ok(payload.slice(..size))
    }
}

/// Returns a payload in memory from which RDMA sends without a copy, if there is RDMA.
pub(crate) fn filled(size: usize) -> Bytes {
    let mut payload = farcall::buf(size);
    payload.put_slice(&(0..size).map(|i| (i * 31) as u8).collect::<Vec<_>>());
    payload.freeze()
}

impl Perf for Service {
    async fn environment(&self) -> farcall::Result<Environment> {
        // It is the same for all, and takes a look at the machine.
        let environment =
            self.environment.get_or_try_init(|| tokio::task::spawn_blocking(Environment::here)).await;
        environment.cloned().map_err(|error| Status::internal(error.to_string()))
    }

    async fn usage(&self) -> farcall::Result<Usage> {
        Ok(Usage { processor_micros: processor_micros() })
    }

    async fn echo(&self, data: Bytes) -> farcall::Result<Bytes> {
        Ok(data)
    }

    async fn put(&self, data: Bytes) -> farcall::Result<u64> {
        Ok(data.len() as u64)
    }

    async fn get(&self, size: u32) -> farcall::Result<Bytes> {
        self.payload(size as usize)
    }

    async fn stream_down(
        &self,
        count: u32,
        size: u32,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<Bytes>>> {
        let payload = self.payload(size as usize)?;
        Ok(stream::iter((0..count).map(move |_| Ok(payload.clone()))))
    }

    async fn stream_up(&self, mut items: Streaming<Bytes>) -> farcall::Result<u64> {
        let mut bytes = 0;
        while let Some(item) = items.message().await? {
            bytes += item.len() as u64;
        }
        Ok(bytes)
    }

    async fn lend(&self, data: BulkRead) -> farcall::Result<u64> {
        Ok(data.read(..).await?.len() as u64)
    }

    async fn fill(&self, into: BulkWrite) -> farcall::Result<u64> {
        into.write(0, self.payload(into.len())?).await?;
        Ok(into.len() as u64)
    }

    async fn region(&self) -> farcall::Result<RemoteRegion> {
        let export = || Region::zeroed(REGION, Rights::READ | Rights::ATOMICS);
        Ok(self.region.get_or_init(export).remote())
    }
}

/// The length of the region, in bytes: the longest one-sided read.
pub(crate) const REGION: usize = 1 << 20;
