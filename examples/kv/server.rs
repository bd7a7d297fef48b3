//! A key-value server.
//!
//! ```text
//! cargo run --release --example kv-server -- 0.0.0.0:7400
//! ```

#![expect(unreachable_pub, reason = "in an application the service is a library of its own")]

mod service;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall::{Bytes, Config, Server};
use service::{Entry, Kv, KvError, KvServer, Statistics, cpu_us};

/// How many bytes of values the store takes.
const LIMIT: u64 = 4 << 30;

#[derive(Default)]
struct Store {
    values: Mutex<BTreeMap<String, Bytes>>,
    bytes: AtomicU64,
    calls: AtomicU64,
}

impl Store {
    fn values(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kv for Store {
    async fn get(&self, key: String) -> farcall::Result<Option<Bytes>> {
        Ok(self.values().get(&key).cloned())
    }

    async fn put(&self, key: String, value: Bytes) -> Result<Option<u64>, KvError> {
        if key.is_empty() || key.len() > 4096 {
            return Err(KvError::BadKey { bytes: key.len() as u64 });
        }
        let mut values = self.values();
        let old = values.get(&key).map_or(0, |v| v.len() as u64);
        let bytes = self.bytes.load(Ordering::Relaxed) - old + value.len() as u64;
        if bytes > LIMIT {
            return Err(KvError::Full { limit: LIMIT });
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        // A view of the receive buffer would keep all of that buffer for as long as the key lives.
        let value = if value.is_unique() { value } else { Bytes::copy_from_slice(&value) };
        Ok(values.insert(key, value).map(|v| v.len() as u64))
    }

    async fn delete(&self, key: String) -> farcall::Result<bool> {
        let old = self.values().remove(&key);
        if let Some(old) = &old {
            self.bytes.fetch_sub(old.len() as u64, Ordering::Relaxed);
        }
        Ok(old.is_some())
    }

    async fn range(&self, from: String, limit: u32) -> farcall::Result<Vec<Entry>> {
        let values = self.values();
        let entries = values.range(from..).take(limit as usize);
        Ok(entries.map(|(key, value)| Entry { key: key.clone(), bytes: value.len() as u64 }).collect())
    }

    async fn statistics(&self) -> farcall::Result<Statistics> {
        let keys = self.values().len() as u64;
        let (bytes, calls) = (self.bytes.load(Ordering::Relaxed), self.calls.load(Ordering::Relaxed));
        Ok(Statistics { keys, bytes, calls, cpu_us: cpu_us() })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn configured(file: &str) -> Result<Config, Box<dyn Error>> {
    Ok(Config::from_toml(&std::fs::read_to_string(file)?)?)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(address) = arguments.next() else {
        return Err("usage: kv-server HOST:PORT [CONFIG.toml]".into());
    };
    let config = match arguments.next() {
        Some(file) => configured(&file).map_err(|why| format!("{file}: {why}"))?,
        None => Config::default(),
    };
    let server = Server::builder().add(KvServer::new(Store::default())).config(config);
    // For `farcall list`, `describe` and `call`.
    let server = server.with_reflection();
    // An operator's FARCALL_TRANSPORT overrides the file.
    let server = server.with_env().bind(&address).await?;
    writeln!(std::io::stdout(), "listening on {}", server.local_addr())?;
    // Calls in progress finish, whichever way the server is told to go.
    server.serve_until_stopped().await?;
    Ok(())
}
