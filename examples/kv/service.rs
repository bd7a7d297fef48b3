//! The key-value service: what both programs share.

use farcall::{Bytes, Status};
use serde::{Deserialize, Serialize};

/// A small key-value store.
#[farcall::service(package = "farcall.example")]
pub trait Kv {
    /// The value of a key, if it has one. On the client it is a view of the receive buffer, not a copy.
    async fn get(&self, key: String) -> farcall::Result<Option<Bytes>>;

    /// Sets the value of a key; gives the number of bytes it had before.
    async fn put(&self, key: String, value: Bytes) -> Result<Option<u64>, KvError>;

    /// Removes a key; whether it was there.
    async fn delete(&self, key: String) -> farcall::Result<bool>;

    /// The keys from `from` on, in order, at most `limit`, with the lengths of their values.
    async fn range(&self, from: String, limit: u32) -> farcall::Result<Vec<Entry>>;

    /// Returns what is in the store, and the cost of putting it there.
    async fn statistics(&self) -> farcall::Result<Statistics>;
}

/// A key, and how long its value is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub key: String,
    pub bytes: u64,
}

/// The contents of the store, and the cost of putting them there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    pub keys: u64,
    pub bytes: u64,
    pub calls: u64,
    /// Processor time of the server's process, user and system, in microseconds.
    pub cpu_us: u64,
}

/// Why a value was not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvError {
    /// The store takes no more than so many bytes.
    Full { limit: u64 },
    /// Keys are from 1 to 4096 bytes long.
    BadKey { bytes: u64 },
    /// The call itself failed.
    Rpc(Status),
}

impl From<Status> for KvError {
    fn from(status: Status) -> Self {
        Self::Rpc(status)
    }
}

impl std::fmt::Display for KvError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full { limit } => write!(f, "the store is full: it takes {limit} bytes"),
            Self::BadKey { bytes } => write!(f, "the key has {bytes} bytes, not 1 to 4096"),
            Self::Rpc(status) => status.fmt(f),
        }
    }
}

impl std::error::Error for KvError {}

/// Processor time of this process so far, user and system, in microseconds; 0 where /proc does not say.
pub fn cpu_us() -> u64 {
    // proc_pid_stat(5): after the name in parentheses, fields 14 and 15 of all, in clock ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok());
    ticks.sum::<u64>() * 10_000
}
