//! The client's view of the numbers: accesses that are repeated where that is safe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall::region::RemoteMemory;
use farcall::{Bytes, Code, Executed, Status};

/// How long a server that can't be reached is tried again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The memory of the server, by one channel.
#[derive(Clone)]
pub struct Numbers {
    memory: RemoteMemory,
    /// Accesses that failed with the connection, of which nobody knows whether they were done.
    unknown: Arc<AtomicU64>,
}

/// The outcome of an atomic operation.
pub enum Atomic {
    /// It was done. This was the number before.
    Done(u64),
    /// The connection was lost while it was under way. It may have been done.
    Maybe,
}

impl Numbers {
    pub fn new(memory: RemoteMemory) -> Self {
        Self { memory, unknown: Arc::default() }
    }

    /// Returns how many accesses had an unknown outcome.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Reads bytes. Reading twice is safe.
    pub async fn read(&self, at: usize, len: usize) -> Result<Bytes, Status> {
        let mut attempts = Attempts::default();
        loop {
            match self.memory.read(at..at + len).await {
                Err(status) => _ = self.outcome(status, &mut attempts).await?,
                Ok(bytes) => return Ok(bytes),
            }
        }
    }

    /// Reads one number.
    pub async fn number(&self, at: usize) -> Result<u64, Status> {
        let mut attempts = Attempts::default();
        loop {
            match self.memory.load(at).await {
                Err(status) => _ = self.outcome(status, &mut attempts).await?,
                Ok(number) => return Ok(number),
            }
        }
    }

    /// Writes bytes that nobody else writes now. Writing twice is safe.
    ///
    /// An attempt whose connection was lost may be done later, even after others have written. They notice if the bytes have a
    /// fencing number.
    pub async fn write(&self, at: usize, bytes: Bytes) -> Result<(), Status> {
        let mut attempts = Attempts::default();
        loop {
            match self.memory.write(at, bytes.clone()).await {
                Err(status) => _ = self.outcome(status, &mut attempts).await?,
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Adds to a number, once at most.
    pub async fn fetch_add(&self, at: usize, add: u64) -> Result<Atomic, Status> {
        self.atomic(|| self.memory.fetch_add(at, add)).await
    }

    /// Swaps a number, once at most.
    pub async fn compare_and_swap(&self, at: usize, expected: u64, new: u64) -> Result<Atomic, Status> {
        self.atomic(|| self.memory.compare_and_swap(at, expected, new)).await
    }

    /// Does an operation that must not be done twice. It is repeated if it was certainly not done.
    async fn atomic<F>(&self, operation: impl Fn() -> F) -> Result<Atomic, Status>
    where
        F: Future<Output = Result<u64, Status>>,
    {
        let mut attempts = Attempts::default();
        loop {
            match operation().await {
                Ok(before) => return Ok(Atomic::Done(before)),
                Err(status) => match self.outcome(status, &mut attempts).await? {
                    Executed::No => {}
                    _ => return Ok(Atomic::Maybe),
                },
            }
        }
    }

    /// Says whether an access that failed was done, after a pause. Fails if there is no point in another attempt.
    async fn outcome(&self, status: Status, attempts: &mut Attempts) -> Result<Executed, Status> {
        if status.executed() != Executed::No {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
        if status.code() != Code::Unavailable || attempts.since.elapsed() > PATIENCE {
            return Err(status);
        }
        attempts.backoff.wait().await;
        Ok(status.executed())
    }
}

struct Attempts {
    since: Instant,
    backoff: Backoff,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { since: Instant::now(), backoff: Backoff::default() }
    }
}

/// Pauses that become longer. Jitter keeps those who wait from coming back all at once.
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_millis(1))
    }
}

impl Backoff {
    const LONGEST: Duration = Duration::from_millis(50);

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.0.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        self.0 = Self::LONGEST.min(self.0 * 2);
    }
}
