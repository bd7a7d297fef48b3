//! The example `etcd` with a real etcd: servers that register, leave and die, and an etcd that is away for a while.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
#![expect(clippy::print_stderr, reason = "the example says what it waits for")]
#![expect(unreachable_pub, reason = "in an application a registry is a library of its own")]

#[path = "../examples/etcd/etcd.rs"]
mod etcd;
#[path = "../examples/etcd/registry.rs"]
mod registry;
mod who;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farcall::{BalancePolicy, Channel, Config};

use etcd::Etcd;
use registry::{Registered, servers};
use who::{ready, share, start_with};

const SERVICE: &str = "who";

/// An etcd of its own, with its data in a directory.
struct Running {
    process: Child,
    directory: PathBuf,
    ports: [u16; 2],
}

impl Running {
    fn start() -> Self {
        let directory = std::env::temp_dir().join(format!("farcall-etcd-{}", std::process::id()));
        // Held until both are known, so that they differ.
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = free.each_ref().map(|listener| listener.local_addr().unwrap().port());
        drop(free);
        Self { process: start(&directory, ports), directory, ports }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.process = start(&self.directory, self.ports);
    }

    fn client(&self) -> Etcd {
        Etcd::at(&format!("http://127.0.0.1:{}", self.ports[0]))
    }

    /// Waits until it answers.
    async fn answers(&self) {
        let etcd = self.client();
        let ask = move || {
            while etcd.list("/").is_err() {
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        tokio::task::spawn_blocking(ask).await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = (self.process.kill(), self.process.wait());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn start(directory: &PathBuf, [clients, peers]: [u16; 2]) -> Child {
    let program = std::env::var_os("ETCD_PROGRAM").unwrap_or_else(|| "etcd".into());
    let url = |port| format!("http://127.0.0.1:{port}");
    let etcd = Command::new(&program)
        .arg("--data-dir")
        .arg(directory)
        .args(["--listen-client-urls", &url(clients), "--advertise-client-urls", &url(clients)])
        .args(["--listen-peer-urls", &url(peers), "--initial-advertise-peer-urls", &url(peers)])
        .args(["--initial-cluster", &format!("default={}", url(peers))])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    etcd.unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask test` has it", program.display()))
}

/// Waits until the channel knows so many servers.
async fn known(channel: &Channel, count: usize) {
    let mut states = channel.endpoints().unwrap();
    let known =
        tokio::time::timeout(Duration::from_secs(120), states.wait_for(|states| states.len() == count));
    known.await.expect("so many are known").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_to_the_servers_that_are_registered() {
    let mut running = Running::start();
    running.answers().await;
    let etcd = running.client();
    let register = async |number| {
        let (address, handle) = start_with(number, "127.0.0.1:0", Config::default()).await;
        (Registered::new(&etcd, SERVICE, &address).await.unwrap(), handle)
    };
    let (first, _first) = register(0).await;
    let (second, _second) = register(1).await;
    let builder = Channel::builder().balance(BalancePolicy::RoundRobin);
    let channel = builder.discover(SERVICE, servers(etcd.clone(), SERVICE)).unwrap();
    ready(&channel, 2).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(0, 10), (1, 10)]));

    first.leave().await;
    known(&channel, 1).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(1, 20)]));

    running.kill();
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(1, 20)]), "etcd is away, and servers stay");
    running.start_again();
    running.answers().await;
    let (_third, _kept) = register(2).await;
    ready(&channel, 2).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(1, 10), (2, 10)]));

    // As if its process had died.
    drop(second);
    known(&channel, 1).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(2, 20)]));
}
