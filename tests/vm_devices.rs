//! A machine with two RDMA devices: connections spread over both, and leave one that fails for the other.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it. The test is a process of its own: the second device can be removed only
//! when no process has it open.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farcall::{Channel, Config, Server};

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(240);

#[farcall::service(package = "test")]
trait Count {
    /// Adds and says the sum, which a call that was repeated would spoil.
    async fn add(&self, number: u64) -> farcall::Result<u64>;
}

#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl Count for Counter {
    async fn add(&self, number: u64) -> farcall::Result<u64> {
        Ok(self.0.fetch_add(number, Ordering::Relaxed) + number)
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.liveness.connect_ms = 60_000;
    config.liveness.retry_ms = 200;
    config
}

/// Returns the device that calls of the channel go by, once they go by RDMA.
async fn device(channel: &Channel) -> &'static str {
    let moved = async {
        loop {
            let transport = channel.transport().await.unwrap();
            let said = transport.to_string();
            let named = ["rxe0", "rxe1"].into_iter().find(|name| said.contains(name));
            match named.filter(|_| transport.name == "rdma") {
                Some(name) => return name,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let moved = tokio::time::timeout(PATIENCE, moved).await;
    match moved {
        Ok(name) => name,
        Err(_) => panic!("it must move to RDMA, and says {}", channel.transport().await.unwrap()),
    }
}

fn set_link(state: &str) {
    assert!(Command::new("ip").args(["link", "set", "d0", state]).status().unwrap().success());
}

/// Not a test by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process() {
    if std::env::var_os("TEST_PROCESS").is_none() {
        return;
    }
    let counter = Counter::default();
    let server = Server::builder().add(CountServer::new(counter.clone())).config(config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let connect = async |config: Config| Channel::builder().config(config).connect(&address).await.unwrap();

    let mut configured = config();
    configured.rdma.subnet = Some("192.168.78.0/24".into());
    assert_eq!(device(&connect(configured).await).await, "rxe1");
    let mut configured = config();
    configured.rdma.gid = Some([192, 168, 77, 1].into());
    assert_eq!(device(&connect(configured).await).await, "rxe0");

    let mut channels = Vec::new();
    let mut devices = BTreeSet::new();
    for _ in 0..4 {
        let channel = connect(config()).await;
        devices.insert(device(&channel).await);
        channels.push(channel);
    }
    assert_eq!(devices.len(), 2, "connections spread");

    let done = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = channels
        .iter()
        .map(|channel| {
            let (count, done) = (CountClient::new(channel), Arc::clone(&done));
            tokio::spawn(async move {
                let mut calls = 0;
                while !done.load(Ordering::Relaxed) {
                    count.add(1).await.unwrap();
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    set_link("down");
    for channel in &channels {
        let moved = async {
            while device(channel).await != "rxe1" {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, moved).await.expect("it must move to the device that is left");
    }
    set_link("up");
    done.store(true, Ordering::Relaxed);
    let mut calls = 0;
    for task in tasks {
        calls += tokio::time::timeout(PATIENCE, task).await.expect("every call must end").unwrap();
    }
    assert_eq!(counter.0.load(Ordering::Relaxed), calls, "each call was executed once");
}

#[test]
fn connections_spread_over_two_devices_and_leave_one_that_fails_for_the_other() {
    const SCRIPT: &str = "
        ip link add d1 type dummy
        ip link set d1 mtu 4500
        rdma link add rxe1 type rxe netdev d1
        ip addr add 192.168.78.1/24 dev d1
        ip link set d1 up
        trap 'ip link set d0 up; rdma link del rxe1; ip link del d1' EXIT
        until grep -qs ffff:c0a8:4e01 /sys/class/infiniband/rxe1/ports/1/gids/*; do sleep 0.05; done
        $PROCESS
    ";
    let program = std::env::current_exe().unwrap();
    let output = Command::new("bash")
        .args(["-ec", SCRIPT])
        .env("PROCESS", format!("{} --exact process --nocapture", program.display()))
        .env("TEST_PROCESS", "1")
        .output()
        .unwrap();
    let [said, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{complained}");
}
