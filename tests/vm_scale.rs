//! Many connections over an RDMA device, at once and one after the other: what each costs, and what they leave behind.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::future::pending;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farcall::{Bytes, Channel, Config, Policy, Server};

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(600);

/// Connections that are made at the same time.
const AT_ONCE: usize = 8;

#[farcall::service(package = "test")]
trait Echo {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes>;
}

struct Echoing;

impl Echo for Echoing {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes> {
        Ok(content)
    }
}

/// RDMA or nothing, for 1,100 peers, and not one message for which there is no buffer.
fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.rdma.strict_credits = true;
    config.rdma.connections = 1100;
    config.rdma.memory = 160 << 20;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 120_000;
    config
}

fn long() -> bool {
    std::env::var_os("FARCALL_LONG").is_some()
}

/// Both count what is on the machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// More descriptors than most systems allow at first.
fn allow_descriptors() {
    let pid = std::process::id().to_string();
    let status = Command::new("prlimit").args(["--nofile=16384:16384", "--pid", &pid]).status();
    assert!(status.unwrap().success());
}

async fn serve() -> String {
    let server = Server::builder().add(EchoServer::new(Echoing)).config(config()).bind("127.0.0.1:0");
    let server = server.await.unwrap();
    let address = format!("rdma://{}", server.local_addr());
    tokio::spawn(server.serve());
    address
}

/// Not a test by itself: the process that the others connect to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_server() {
    if std::env::var_os("TEST_SERVER").is_some() {
        allow_descriptors();
        let address = serve().await;
        let mut out = std::io::stdout();
        writeln!(out, "ADDRESS {address}").unwrap();
        out.flush().unwrap();
        pending::<()>().await;
    }
}

/// A process with a server.
struct Process {
    child: Child,
    address: String,
    /// Kept, because the process writes there again when the test takes long.
    _out: BufReader<ChildStdout>,
}

impl Process {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_server", "--nocapture"])
            .env("TEST_SERVER", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = out.by_ref().lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once("ADDRESS ").map(|(_, said)| said.to_owned()));
        Self { child, address: address.unwrap(), _out: out }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a connection and a call on it.
async fn connect(address: String, i: usize) -> Channel {
    let channel = Channel::builder().config(config()).connect(&address).await.unwrap();
    assert_eq!(channel.transport().await.unwrap().name, "rdma");
    let content = Bytes::from(format!("this is call {i}"));
    assert_eq!(EchoClient::new(&channel).echo(content.clone()).await.unwrap(), content);
    channel
}

async fn connect_many(address: &str, count: usize) -> Vec<Channel> {
    let mut channels = Vec::new();
    while channels.len() < count {
        let begin = channels.len();
        let tasks: Vec<_> = (begin..count.min(begin + AT_ONCE))
            .map(|i| tokio::spawn(connect(address.to_owned(), i)))
            .collect();
        for task in tasks {
            channels.push(tokio::time::timeout(PATIENCE, task).await.expect("hangs").unwrap());
        }
    }
    channels
}

/// A line of a process's status, in KiB.
fn status(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").parse().unwrap()
}

/// The holdings of this process, and of everybody on this machine, of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    queue_pairs: usize,
    regions: usize,
}

impl Held {
    fn now() -> Self {
        let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
        let output = Command::new("rdma").args(["resource", "show"]).output().unwrap();
        let device = String::from_utf8(output.stdout).unwrap();
        let of = |what: &str| {
            let mut words = device.split_whitespace().skip_while(|word| *word != what);
            words
                .nth(1)
                .and_then(|count| count.parse().ok())
                .unwrap_or_else(|| panic!("no {what} in {device}"))
        };
        Self { descriptors: count("fd"), threads: count("task"), queue_pairs: of("qp"), regions: of("mr") }
    }

    /// Whether no connection has left anything since. The runtime may have had more threads at first than it needs later.
    /// Memory for short messages grows with the most connections that there were at once: in steps of two regions at
    /// either end, of which there are far fewer than connections.
    fn is_left(&self, before: &Self) -> bool {
        let steps = usize::try_from(config().rdma.memory >> 20).unwrap() / 2;
        (self.descriptors, self.queue_pairs) == (before.descriptors, before.queue_pairs)
            && self.threads <= before.threads
            && self.regions <= before.regions + 4 * steps
    }
}

#[test]
fn many_connections_at_once_cost_little_each() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let count = if long() { 1000 } else { 200 };
    allow_descriptors();
    let server = Process::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Resources for the first connection are needed once.
        let first = connect(server.address.clone(), 0).await;
        let pids = [std::process::id(), server.child.id()];
        let usage = || pids.map(|pid| ["VmRSS", "VmPin"].map(|name| status(pid, name)));
        let before = usage();
        let channels = connect_many(&server.address, count).await;
        let after = usage();
        let mut out = std::io::stdout();
        for (i, who) in ["client", "server"].iter().enumerate() {
            let each = |k: usize| after[i][k].saturating_sub(before[i][k]) / count as u64;
            let (resident, pinned) = (each(0), each(1));
            writeln!(
                out,
                "{count} connections: {who}: {resident} KiB resident each, {pinned} KiB registered each"
            )
            .unwrap();
            // 8 receives of 8 KiB, and what stands by to replace them and for sends.
            assert!(pinned <= 130, "{who}: {pinned} KiB registered each");
            assert!(resident <= 400, "{who}: {resident} KiB resident each");
        }
        // They are all there, and work at the same time.
        let calls: Vec<_> = channels
            .iter()
            .map(|channel| {
                let echo = EchoClient::new(channel);
                tokio::spawn(async move { echo.echo(Bytes::from(vec![7; 3000])).await })
            })
            .collect();
        for call in calls {
            let answer = tokio::time::timeout(PATIENCE, call).await.expect("hangs").unwrap().unwrap();
            assert_eq!(answer.len(), 3000);
        }
        for channel in &channels {
            assert_eq!(channel.transport().await.unwrap().name, "rdma");
        }
        drop((first, channels));
    });
}

#[test]
fn connections_come_and_go_and_leave_nothing() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let count: usize = if long() { 10_000 } else { 200 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let address = serve().await;
        // An endpoint has what it keeps for its next link from the first on.
        let kept = connect(address.clone(), 0).await;
        drop(connect_many(&address, AT_ONCE).await);
        // Queue pairs and descriptors of the last go a little later.
        let mut before = Held::now();
        let settled = async {
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let last = std::mem::replace(&mut before, Held::now());
                if (Held { threads: before.threads, ..last }) == before {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, settled).await.expect("what there is must settle");
        for _ in 0..count.div_ceil(AT_ONCE) {
            drop(connect_many(&address, AT_ONCE).await);
        }
        let mut after = Held::now();
        let gone = async {
            while !after.is_left(&before) {
                tokio::time::sleep(Duration::from_millis(100)).await;
                after = Held::now();
            }
        };
        if tokio::time::timeout(Duration::from_secs(120), gone).await.is_err() {
            panic!("{count} connections have left something: {before:?} before, {after:?} after");
        }
        drop(kept);
    });
}
