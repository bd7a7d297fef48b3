//! The service by which `farcall perf` measures: what `farcall serve` serves.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::rdma::probe::raw::{Answering, Contact, Failed, Request};
use farcall::region::{Region, RemoteRegion, Rights};
use farcall::{Bytes, Config, Context, Status, Stream, Streaming, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, Semaphore, oneshot};

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

    /// Returns memory that may be read and written, and counted in.
    async fn region(&self) -> farcall::Result<RemoteRegion>;

    /// Has this machine's device answer the caller's for so many seconds, at most until the caller drops the stream. The stream has one
    /// item, by which the devices connect. `at` is this machine's address, as the caller has it.
    async fn device(
        &self,
        cx: &Context,
        at: IpAddr,
        request: Request,
        seconds: u32,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<Contact>>>;
}

/// The work of a process so far.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Time of processors, in microseconds. 0: not known.
    pub(crate) processor_micros: u64,
}

/// The largest payload, which is also the length of the region.
pub(crate) const MOST: usize = 64 << 20;

/// The most callers at once whose devices are answered. A thread polls for each, and the memory of each is registered.
const DEVICES: usize = 2;

/// The longest time for which a device is answered, in seconds: that of the longest measurement.
const MOST_SECONDS: u32 = 3700;

/// Serves [`Perf`].
pub(crate) struct Service {
    threads: u16,
    config: Config,
    devices: Arc<Semaphore>,
    /// The longest payload that was asked for.
    payload: Mutex<Bytes>,
    region: OnceLock<Region>,
    environment: OnceCell<Environment>,
}

impl Service {
    /// Measures with this configuration, on so many threads.
    pub(crate) fn new(threads: u16, config: Config) -> Self {
        Self {
            threads,
            config,
            devices: Arc::new(Semaphore::new(DEVICES)),
            payload: Mutex::default(),
            region: OnceLock::new(),
            environment: OnceCell::new(),
        }
    }

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
        let (threads, config) = (self.threads, self.config.clone());
        let look = || blocking(move || Environment::here(threads, &config));
        self.environment.get_or_try_init(look).await.cloned()
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
        let export = || Region::zeroed(REGION, Rights::READ | Rights::WRITE | Rights::ATOMICS);
        Ok(self.region.get_or_init(export).remote())
    }

    async fn device(
        &self,
        cx: &Context,
        at: IpAddr,
        request: Request,
        seconds: u32,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<Contact>>> {
        let busy = || Status::resource_exhausted("others measure this machine's devices: try again");
        let place = self.devices.clone().try_acquire_owned().map_err(|_| busy())?;
        let peer = cx.peer().map(|peer| peer.ip().to_canonical());
        let config = self.config.rdma.clone();
        // The place is free when the device is: this goes on where the caller has gone.
        let open = move || Answering::open(&config, Some(at), peer, &request).map(|ends| (ends, place));
        let (mut answering, place) = blocking(open).await?.map_err(|why| refused(&why))?;
        Ok(stream::generate(async move |contacts| {
            let contact = answering.contact();
            let (outcome, answered) = oneshot::channel();
            tokio::task::spawn_blocking(move || {
                let end = Instant::now() + Duration::from_secs(seconds.min(MOST_SECONDS).into());
                let result = answering.answer(|| !outcome.is_closed() && Instant::now() < end);
                drop((answering, place));
                // Nobody may wait for it.
                let _ = outcome.send(result);
            });
            contacts.send(contact).await;
            match answered.await {
                Ok(result) => result.map_err(|why| refused(&why)),
                Err(_) => Err(Status::internal("the thread that answers has ended")),
            }
        }))
    }
}

/// Runs on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> farcall::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Status::internal(error.to_string()))
}

fn refused(why: &Failed) -> Status {
    Status::failed_precondition(format!("the server's device: {why}"))
}

/// The length of the region, in bytes: the most that one access reads or writes.
pub(crate) const REGION: usize = 1 << 20;
