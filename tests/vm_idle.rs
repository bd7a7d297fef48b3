//! Connections that nobody uses cost nothing: no thread of the process wakes up for them.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::future::pending;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use farcall::{Bytes, Channel, Config, Policy, Server};

#[farcall::service(package = "test")]
trait Echo {
    async fn echo(&self, value: Bytes) -> farcall::Result<Bytes>;
}

struct Mirror;

impl Echo for Mirror {
    async fn echo(&self, value: Bytes) -> farcall::Result<Bytes> {
        Ok(value)
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.rdma.connections = 200;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

/// How much each thread of a process has computed. The process's own clock counts in hundredths of a second.
fn clocks(process: u32) -> BTreeMap<OsString, Duration> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().map(Result::unwrap);
    let clock = |thread: DirEntry| {
        // One that ends at this moment has no clock any more.
        let schedstat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let nanos = schedstat.split(' ').next()?.parse().ok()?;
        Some((thread.file_name(), Duration::from_nanos(nanos)))
    };
    threads.filter_map(clock).collect()
}

/// Not a test by itself: the process that serves.
#[tokio::test]
async fn process_server() {
    if std::env::var_os("TEST_SERVER").is_some() {
        let server = Server::builder().add(EchoServer::new(Mirror)).config(config()).bind("127.0.0.1:0");
        let server = server.await.unwrap();
        say("ADDRESS ", &format!("rdma://{}", server.local_addr()));
        tokio::spawn(server.serve());
        pending::<()>().await;
    }
}

/// Not a test by itself: the process that connects, uses every connection once, waits for a line, and uses them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_clients() {
    let Ok(address) = std::env::var("TEST_CLIENTS") else { return };
    let mut clients = Vec::new();
    for _ in 0..connections() {
        let channel = Channel::builder().config(config()).connect(&address).await.unwrap();
        assert_eq!(channel.transport().await.unwrap().name, "rdma");
        clients.push(EchoClient::new(channel));
    }
    for word in ["READY ", "DONE "] {
        for client in &clients {
            client.echo(Bytes::from_static(b"x")).await.unwrap();
        }
        say(word, "");
        if word == "READY " {
            let line = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
            line.await.unwrap().unwrap();
        }
    }
}

fn connections() -> usize {
    if std::env::var_os("FARCALL_LONG").is_some() { 100 } else { 30 }
}

fn say(word: &str, what: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{word}{what}").unwrap();
    out.flush().unwrap();
}

/// This test program again, as a process that does one thing.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(test: &str, variable: &str, value: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(variable, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the text that it prints after `word`.
    fn said(&mut self, word: &str) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let line = lines.find_map(|line| line.split_once(word).map(|(_, said)| said.trim().to_owned()));
        line.unwrap_or_else(|| panic!("the process ended without saying `{word}`"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// From a third process, whose own looking is not counted.
#[test]
fn idle_connections_cost_less_than_a_thousandth_of_a_cpu() {
    let seconds = if std::env::var_os("FARCALL_LONG").is_some() { 10 } else { 4 };
    let mut server = Process::start("process_server", "TEST_SERVER", "1");
    let address = server.said("ADDRESS ");
    let mut clients = Process::start("process_clients", "TEST_CLIENTS", &address);
    clients.said("READY ");
    // The work of the last calls is over: acknowledgements, and `liveness.ping_ms`.
    std::thread::sleep(Duration::from_secs(3));
    let processes = [("server", server.child.id()), ("clients", clients.child.id())];
    let before = processes.map(|(_, process)| clocks(process));
    std::thread::sleep(Duration::from_secs(seconds));
    for ((who, process), before) in processes.into_iter().zip(before) {
        let after = clocks(process);
        let begun = |thread: &OsString| before.get(thread).copied().unwrap_or_default();
        let used: Duration = after.iter().map(|(thread, now)| *now - begun(thread)).sum();
        println!("{} idle connections: the {who} took {used:?} in {seconds} s", connections());
        assert!(used < Duration::from_millis(seconds), "the {who} took {used:?} in {seconds} s");
    }
    writeln!(clients.child.stdin.take().unwrap()).unwrap();
    clients.said("DONE ");
}
