//! A client of a thousand servers: what they cost its memory.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;
mod who;

use std::process::Command;

use farcall::{BalancePolicy, Channel, Config};
use process::Process;

const SERVERS: usize = 1000;

/// Bytes of memory that all of them may cost the client. Futures are larger where nothing is optimised.
const MOST: usize = if cfg!(debug_assertions) { 22_000_000 } else { 20_000_000 };

/// Lets this process have so many sockets. A shell allows 1,024 descriptors, often.
fn allow_sockets() {
    let pid = std::process::id().to_string();
    assert!(Command::new("prlimit").args(["--nofile=4096:", "--pid", &pid]).status().unwrap().success());
}

#[test]
fn serve_a_thousand_addresses() {
    if process::told().is_none() {
        return;
    }
    allow_sockets();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (address, _handle) = who::start_with(0, "0.0.0.0:0", Config::default()).await;
        process::say(address.rsplit_once(':').unwrap().1);
        std::future::pending::<()>().await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_holds_a_thousand_servers_in_20_mb() {
    allow_sockets();
    // One process answers at a thousand addresses, so that the client's memory is its own.
    let mut server = Process::start("serve_a_thousand_addresses", "");
    let port = server.said();
    let connect = |addresses: Vec<String>| {
        let channel = Channel::builder().balance(BalancePolicy::RoundRobin);
        channel.connect_lazy(&format!("tcp://{}", addresses.join(","))).unwrap()
    };
    let used = async |channel: &Channel, servers: usize| {
        who::ready(channel, servers).await;
        assert_eq!(who::share(channel, 2 * servers).await[&0], 2 * servers);
    };
    // Threads and the runtime are there before.
    let warm = connect(vec![format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}")]);
    used(&warm, 2).await;
    let before = process::resident(std::process::id());
    let addresses = (0..SERVERS).map(|n| format!("127.0.{}.{}:{port}", n / 200 + 1, n % 200 + 1)).collect();
    let channel = connect(addresses);
    used(&channel, SERVERS).await;
    let cost = process::resident(std::process::id()) - before;
    println!("{SERVERS} servers cost the client {cost} bytes");
    assert!(cost <= MOST, "{cost} bytes");
}
