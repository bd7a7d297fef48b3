//! Queue pairs of an RDMA device that die under load. One test alone: it kills all that the process has.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcall::{Bytes, Channel, Config, Policy, Server};

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(300);

#[farcall::service(package = "test")]
trait Work {
    /// The sum of the content's bytes; `id` is written down.
    async fn sum(&self, id: u64, content: Bytes) -> farcall::Result<u64>;
    /// So many bytes; `id` is written down.
    async fn make(&self, id: u64, len: u32) -> farcall::Result<Bytes>;
}

/// How often each id was executed.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<HashMap<u64, u32>>>);

impl Log {
    fn note(&self, id: u64) {
        *self.0.lock().unwrap().entry(id).or_default() += 1;
    }
}

impl Work for Log {
    async fn sum(&self, id: u64, content: Bytes) -> farcall::Result<u64> {
        self.note(id);
        Ok(sum(&content))
    }

    async fn make(&self, id: u64, len: u32) -> farcall::Result<Bytes> {
        self.note(id);
        Ok(made(id, len as usize))
    }
}

fn made(id: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (i.wrapping_mul(31) ^ id) as u8).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|b| u64::from(*b)).sum()
}

/// What a caller of `a_queue_pair_…` has seen.
#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    longest_ms: AtomicU64,
    over: AtomicBool,
}

async fn call_on(work: WorkClient, task: u64, seen: Arc<Seen>) {
    let mut i = 0;
    while !seen.over.load(Ordering::Relaxed) {
        let id = task << 32 | i;
        let len = [10, 700, 6000, 30_000, 150_000, 600_000][(task + i) as usize % 6];
        let began = Instant::now();
        if i.is_multiple_of(2) {
            let content = made(id, len);
            assert_eq!(work.sum(id, content.clone()).await.unwrap(), sum(&content), "call {id:x}");
        } else {
            assert!(work.make(id, len as u32).await.unwrap() == made(id, len), "call {id:x}");
        }
        let took = began.elapsed().as_millis() as u64;
        seen.longest_ms.fetch_max(took, Ordering::Relaxed);
        seen.calls.fetch_add(1, Ordering::Relaxed);
        i += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_pair_that_dies_again_and_again_costs_no_call_and_repeats_none() {
    let deaths = if std::env::var_os("FARCALL_LONG").is_some() { 100 } else { 8 };
    let log = Log::default();
    let mut config = Config::default();
    config.transport = Policy::Rdma;
    config.rdma.strict_credits = true;
    config.liveness.connect_ms = 60_000;
    config.liveness.retry_ms = 50;
    let server = Server::builder().add(WorkServer::new(log.clone())).config(config.clone());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (format!("rdma://{}", server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    let channel = Channel::builder().config(config).connect(&address).await.unwrap();
    let (near, far) = (channel.connection().await.unwrap(), handle.connections()[0].clone());
    let work = WorkClient::new(channel);
    let seen = Arc::new(Seen::default());
    let callers: Vec<_> =
        (0..8).map(|task| tokio::spawn(call_on(work.clone(), task, seen.clone()))).collect();
    let is_up = || near.transport().name == "rdma" && far.transport().name == "rdma";
    let mut killed = 0;
    let killing = async {
        while killed < deaths {
            let before = seen.calls.load(Ordering::Relaxed);
            while !is_up() || seen.calls.load(Ordering::Relaxed) < before + 10 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let pairs = tokio::task::spawn_blocking(farcall_rdma::fault::fail_queue_pairs).await.unwrap();
            assert!(pairs >= 2, "both ends are of this process");
            killed += 1;
            while is_up() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE * 4, killing).await.expect("calls go on, and RDMA comes back");
    seen.over.store(true, Ordering::Relaxed);
    for caller in callers {
        tokio::time::timeout(PATIENCE, caller).await.expect("every call ends").unwrap();
    }
    let calls = seen.calls.load(Ordering::Relaxed);
    let executed = log.0.lock().unwrap();
    assert_eq!(executed.len() as u64, calls, "what was answered was executed");
    assert!(executed.values().all(|&times| times == 1), "nothing was executed twice");
    println!(
        "{deaths} deaths, {calls} calls, the longest took {} ms",
        seen.longest_ms.load(Ordering::Relaxed)
    );
}
