//! `farcall top` against a server that is at work.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use farcall::admin::Snapshot;
use farcall::{Channel, Config, Server, Status};

use common::{complaint, farcall, printed};

#[farcall::service(package = "work.v1")]
trait Work {
    async fn short(&self) -> farcall::Result<()>;
    async fn refuse(&self) -> farcall::Result<()>;
    async fn wait(&self) -> farcall::Result<()>;
    async fn take(&self, data: Vec<u8>) -> farcall::Result<()>;
}

struct Worker;

impl Work for Worker {
    async fn short(&self) -> farcall::Result<()> {
        Ok(())
    }

    async fn refuse(&self) -> farcall::Result<()> {
        Err(Status::not_found("nothing"))
    }

    async fn wait(&self) -> farcall::Result<()> {
        std::future::pending().await
    }

    async fn take(&self, _: Vec<u8>) -> farcall::Result<()> {
        Ok(())
    }
}

#[test]
fn calls_connections_and_memory_are_shown() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::builder().add(WorkServer::new(Worker)).with_admin();
    let server = runtime.block_on(server.bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    let channel = runtime.block_on(Channel::connect(&format!("tcp://{address}"))).unwrap();
    let client = WorkClient::new(&channel);
    let _waiting = runtime.spawn(client.wait().into_future());
    runtime.block_on(async {
        for _ in 0..50 {
            client.short().await.unwrap();
        }
        client.refuse().await.unwrap_err();
        // A call that its caller gives up.
        client.wait().timeout(Duration::from_millis(1)).await.unwrap_err();
    });

    let json = farcall(&["top", &address, "--count", "2", "--every", "0.1", "--json"]);
    let last = printed(&json).lines().last().unwrap_or_else(|| panic!("{}", complaint(&json))).to_owned();
    let snapshot: Snapshot = serde_json::from_str(&last).unwrap();
    let calls = |method: &str| {
        snapshot.methods.iter().find(|calls| calls.path == format!("work.v1.Work/{method}")).unwrap()
    };
    assert_eq!((calls("short").answered, calls("short").failed, calls("short").running), (50, 0, 0));
    assert_eq!((calls("refuse").answered, calls("refuse").failed), (0, 1));
    assert_eq!((calls("wait").failed, calls("wait").running), (1, 1));
    assert!(calls("short").percentile(99.0).is_some());
    // The client of the test, and the command.
    assert_eq!(snapshot.connections.len(), 2);
    assert!(
        snapshot
            .connections
            .iter()
            .all(|connection| connection.transport.starts_with("tcp") && connection.bytes.1 > 0)
    );
    // An earlier look has begun to measure it.
    assert!(snapshot.connections.iter().all(|connection| connection.round_trip_us.is_some()));
    assert_eq!(snapshot.memory[0].address, Some([127, 0, 0, 1].into()));
    assert!(snapshot.memory_limit > snapshot.memory_used);

    let text = printed(&farcall(&["top", &address, "--count", "1", "--every", "0.1"]));
    for part in
        ["2 connections", "work.v1.Work/short", "1 running", "memory held for", "round trip", "travels by"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn connections_without_addresses_are_told_apart() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let socket = std::env::temp_dir().join(format!("farcall-top-{}.sock", std::process::id()));
    let address = format!("unix:{}", socket.display());
    // Memory of its own, which the other test does not see.
    let config = Config::from_toml("limits.memory = 1_000_000_000").unwrap();
    let server = Server::builder().add(WorkServer::new(Worker)).with_admin().config(config).listen(&address);
    let server = runtime.block_on(server.build()).unwrap();
    runtime.spawn(server.serve());
    // Both do nothing while they are looked at. The second has moved far more than the first before.
    let _channels = [1, 40 << 20].map(|length| {
        let channel = runtime.block_on(Channel::connect(&address)).unwrap();
        runtime.block_on(async { WorkClient::new(&channel).take(vec![0; length]).await }).unwrap();
        channel
    });
    let text = printed(&farcall(&["top", &address, "--count", "1", "--every", "0.1"]));
    let connections = text.lines().skip_while(|line| !line.contains("travels by")).skip(1).take(3);
    let connections: Vec<_> = connections.collect();
    assert_eq!(connections.len(), 3, "{text}");
    assert!(connections.iter().all(|line| line.contains("unix") && !line.contains("MiB")), "{text}");
}

#[test]
fn a_server_without_admin_is_said_to_be() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server =
        runtime.block_on(Server::builder().add(WorkServer::new(Worker)).bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    let output = farcall(&["top", &address, "--count", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("with_admin"), "{}", complaint(&output));
}

/// A server at this address, until the runtime ends.
fn serve(address: &str) -> (tokio::runtime::Runtime, String) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::builder().add(WorkServer::new(Worker)).with_admin().bind(address);
    let server = runtime.block_on(server).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    (runtime, address)
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_that_is_started_again_is_watched_on() {
    let (first, address) = serve("127.0.0.1:0");
    let command =
        format!("stty rows 30 cols 200; {} top {address} --every 0.1", env!("CARGO_BIN_EXE_farcall"));
    // See script(1): the command has a terminal. The limit is against hangs.
    let mut terminal = Command::new("timeout");
    terminal.args(["60", "script", "--quiet", "--return", "--command", &command, "/dev/null"]);
    terminal.env("TERM", "xterm").env_remove("NO_COLOR");
    let mut top = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = top.stdout.take().unwrap();
    let mut until = |what: &str| {
        let (mut text, mut piece) = (String::new(), [0; 4096]);
        while !text.contains(what) {
            let len = shown.read(&mut piece).unwrap();
            assert!(len > 0, "it has ended: {text}");
            text += &String::from_utf8_lossy(&piece[..len]);
        }
    };
    until("connections");
    drop(first);
    until("No answer");
    let (_second, _) = serve(&address);
    // The page comes again without the first line.
    until("\x1b[H\x1b[K\x1b[1mup ");
    // Without standard input `script` ends, and with it the terminal.
    drop(top.stdin.take());
    top.kill().unwrap();
    top.wait().unwrap();
}
