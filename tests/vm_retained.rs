//! Users that keep what arrives, readers that do not read, and servers that call themselves, when memory is short.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod work;

use std::sync::mpsc;
use std::sync::{Arc, OnceLock};

use farcall::{Bytes, Config, Policy, Server};
use tokio::task::JoinSet;

use work::{Load, Log, PATIENCE, SIZES, WorkClient, connect, made, until};

fn long() -> bool {
    std::env::var_os("FARCALL_LONG").is_some()
}

/// As little memory as there may be.
fn frugal() -> Config {
    let mut config = Config::default();
    config.rdma.strict_credits = true;
    config.rdma.memory = farcall_rdma::RdmaConfig::LEAST_MEMORY;
    config.rdma.bulk_memory = 16 << 20;
    config.liveness.connect_ms = 60_000;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_that_keeps_ten_thousand_buffers_has_them_unchanged_and_starves_nobody() {
    let count = if long() { 10_000 } else { 1000 };
    let log = Log::default();
    let mut config = frugal();
    config.transport = Some(Policy::Rdma);
    let (address, _server) = work::serve(&log, config.clone()).await;
    let keeper = WorkClient::new(connect(&address, &config).await);
    let other = WorkClient::new(connect(&address, &config).await);
    let others = Load::start(&other, 1, 1, &SIZES);
    // Lengths of each kind: in a frame's own buffer, in pieces, read.
    let len = |id: u64| [100, 1500, 3000, 7000, 12_000, 20_000][id as usize % 6];
    let keepers: Vec<_> = (0..8)
        .map(|first| {
            let keeper = keeper.clone();
            tokio::spawn(async move {
                let mut kept = Vec::new();
                for id in (first..count).step_by(8) {
                    let content = tokio::time::timeout(PATIENCE, keeper.make(id, len(id)));
                    kept.push((id, content.await.expect("nobody waits for what is kept").unwrap()));
                }
                kept
            })
        })
        .collect();
    let mut kept = Vec::new();
    for keeper in keepers {
        kept.extend(keeper.await.unwrap());
    }
    assert_eq!(kept.len() as u64, count);
    others.go_on(20).await;
    others.stop().await.all_answered();
    for (id, content) in kept {
        assert!(content == made(id, len(id) as usize), "{id} has changed");
    }
}

/// Answers for a client whose runtime does nothing are kept for it, and trouble no one else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_holds_up_nobody_else() {
    let log = Log::default();
    let mut config = frugal();
    config.transport = Some(Policy::Rdma);
    let (address, _server) = work::serve(&log, config.clone()).await;
    let (asleep, is_asleep) = tokio::sync::oneshot::channel();
    let (wake, wait) = mpsc::channel::<()>();
    let sleeper = std::thread::spawn({
        let (address, config) = (address.clone(), config.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(sleep_amid_calls(&address, &config, asleep, &wait));
        }
    });
    is_asleep.await.unwrap();
    let other = WorkClient::new(connect(&address, &config).await);
    let load = Load::start(&other, 100, 4, &SIZES);
    load.go_on(30).await;
    load.stop().await.all_answered();
    wake.send(()).unwrap();
    tokio::task::spawn_blocking(move || sleeper.join().unwrap()).await.unwrap();
    assert!(log.times().values().all(|&times| times == 1));
}

async fn sleep_amid_calls(
    address: &str,
    config: &Config,
    asleep: tokio::sync::oneshot::Sender<()>,
    wait: &mpsc::Receiver<()>,
) {
    let work = WorkClient::new(connect(address, config).await);
    let mut calls = JoinSet::new();
    for id in 0..60 {
        let (work, len) = (work.clone(), SIZES[id as usize % SIZES.len()]);
        calls.spawn(async move { assert!(work.make(id, len as u32).await.unwrap() == made(id, len)) });
    }
    // All are on their way, and some have been answered.
    calls.join_next().await.unwrap().unwrap();
    asleep.send(()).unwrap();
    wait.recv().unwrap();
    let all = async {
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("what was kept arrives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_never_return_hold_up_nobody_else() {
    let log = Log::default();
    let mut config = frugal();
    config.transport = Some(Policy::Rdma);
    config.limits.concurrent_calls = 100;
    let (address, _server) = work::serve(&log, config.clone()).await;
    let stuck = WorkClient::new(connect(&address, &config).await);
    // More than may be in progress: the rest wait on their own side.
    let hanging: Vec<_> = (0..150).map(|id| tokio::spawn(stuck.hang(id).into_future())).collect();
    until("handlers hang", async || log.times().len() == 100).await;
    let other = WorkClient::new(connect(&address, &config).await);
    let load = Load::start(&other, 1, 4, &SIZES);
    load.go_on(30).await;
    load.stop().await.all_answered();
    hanging.into_iter().for_each(|call| call.abort());
    // Their places are free again.
    assert!(stuck.check(9999, made(9999, 10)).await.unwrap());
}

#[farcall::service(package = "test")]
trait Relay {
    /// Passes the content on to this server, `hops` times, and gives back what comes back.
    async fn pass(&self, hops: u32, content: Bytes) -> farcall::Result<Bytes>;
}

/// Calls the server that it is part of, by connections of its own.
#[derive(Clone, Default)]
struct Caller(Arc<OnceLock<[RelayClient; 2]>>);

impl Relay for Caller {
    async fn pass(&self, hops: u32, content: Bytes) -> farcall::Result<Bytes> {
        match hops {
            0 => Ok(content),
            _ => self.0.get().unwrap()[hops as usize % 2].pass(hops - 1, content).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_calls_itself_when_memory_is_used_up_does_not_lock_up() {
    for bulk_memory in [4 << 20, 0] {
        let mut config = frugal();
        config.rdma.bulk_memory = bulk_memory;
        let caller = Caller::default();
        let server = Server::builder().add(RelayServer::new(caller.clone())).config(config.clone());
        let server = server.bind("127.0.0.1:0").await.unwrap();
        let address = format!("farcall://{}", server.local_addr());
        tokio::spawn(server.serve());
        let own = [connect(&address, &config).await, connect(&address, &config).await];
        assert!(caller.0.set(own.map(RelayClient::new)).is_ok());
        let relay = RelayClient::new(connect(&address, &config).await);
        let mut calls = JoinSet::new();
        // Each message is in memory eight times on its way there and back; all of them would need several times what
        // there is.
        for i in 0..if long() { 100 } else { 6 } {
            let relay = relay.clone();
            calls.spawn(async move {
                let content = made(i, 500_000);
                assert!(relay.pass(3, content.clone()).await.unwrap() == content);
            });
        }
        let all = async {
            while let Some(call) = calls.join_next().await {
                call.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE * 2, all).await.expect("handlers and their callees get on");
    }
}
