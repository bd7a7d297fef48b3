//! A port that goes down and comes back, under load: calls go on over TCP, and none is lost.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farcall::{Bytes, Channel, Config, Server};

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(240);

#[farcall::service(package = "test")]
trait Count {
    /// Adds and says the sum, which a call that was repeated would spoil.
    async fn add(&self, number: u64, ballast: Bytes) -> farcall::Result<u64>;
}

#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl Count for Counter {
    async fn add(&self, number: u64, _ballast: Bytes) -> farcall::Result<u64> {
        Ok(self.0.fetch_add(number, Ordering::Relaxed) + number)
    }
}

fn set_link(state: &str) {
    assert!(Command::new("ip").args(["link", "set", "d0", state]).status().unwrap().success());
}

/// The machine is others', too, whatever comes of the test.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        set_link("up");
    }
}

/// Waits until calls go by this transport, and what is said of it has this word.
async fn moved_to(channel: &Channel, name: &str, word: &str) {
    let moved = async {
        loop {
            let transport = channel.transport().await.unwrap();
            if transport.name == name && transport.to_string().contains(word) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, moved).await.is_err() {
        panic!("it must move to {name}: {word}, and says {}", channel.transport().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_that_goes_down_under_load_costs_no_call_and_repeats_none() {
    let mut config = Config::default();
    config.liveness.connect_ms = 60_000;
    config.liveness.retry_ms = 200;
    let counter = Counter::default();
    let server = Server::builder().add(CountServer::new(counter.clone())).config(config.clone());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::builder().config(config).connect(&address).await.unwrap();
    moved_to(&channel, "rdma", "rxe0").await;

    let _restore = Restore;
    let done = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (count, done) = (CountClient::new(&channel), Arc::clone(&done));
            tokio::spawn(async move {
                let mut calls = 0;
                while !done.load(Ordering::Relaxed) {
                    let ballast = Bytes::from(vec![task; (calls as usize * 977) % 40_000]);
                    count.add(1, ballast).await.unwrap();
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for _ in 0..if std::env::var_os("FARCALL_LONG").is_some() { 20 } else { 2 } {
        set_link("down");
        // The first reason is the failure of the first frame; then the link finds out.
        moved_to(&channel, "tcp", "port 1 of rxe0 is DOWN").await;
        let before = counter.0.load(Ordering::Relaxed);
        let moving = async {
            while counter.0.load(Ordering::Relaxed) < before + 100 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, moving).await.expect("calls must go on over TCP");
        set_link("up");
        moved_to(&channel, "rdma", "rxe0").await;
    }
    done.store(true, Ordering::Relaxed);
    let mut calls = 0;
    for task in tasks {
        calls += tokio::time::timeout(PATIENCE, task).await.expect("every call must end").unwrap();
    }
    assert_eq!(counter.0.load(Ordering::Relaxed), calls, "each call was executed once");
}
