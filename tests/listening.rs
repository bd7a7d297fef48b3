//! Servers that listen in several places, Unix-domain sockets, and streams of the application's.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use farcall::middleware::authorize;
use farcall::{
    BalancePolicy, BindError, Bytes, Channel, Code, Config, Context, Handle, Listener, Policy, Server,
    ServerBuilder, Stream, TrafficClass,
};
use process::{Process, say, told};
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

#[farcall::service(package = "test")]
trait Desk {
    async fn echo(&self, value: Bytes) -> farcall::Result<Bytes>;
    /// The user of the caller's process.
    async fn user(&self, cx: &Context) -> farcall::Result<Option<u32>>;
    async fn sleep(&self, ms: u64) -> farcall::Result<()>;
}

struct Office;

impl Desk for Office {
    async fn echo(&self, value: Bytes) -> farcall::Result<Bytes> {
        Ok(value)
    }

    async fn user(&self, cx: &Context) -> farcall::Result<Option<u32>> {
        Ok(cx.identity().and_then(|caller| caller.process).map(|process| process.uid))
    }

    async fn sleep(&self, ms: u64) -> farcall::Result<()> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok(())
    }
}

fn builder() -> ServerBuilder {
    Server::builder().add(DeskServer::new(Office))
}

fn run(server: Server) -> Handle {
    let handle = server.handle();
    tokio::spawn(server.serve());
    handle
}

async fn desk(address: &str) -> DeskClient {
    DeskClient::new(Channel::connect(address).await.unwrap())
}

/// A folder for sockets, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("farcall-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self, name: &str) -> String {
        format!("unix:{}/{name}", self.0.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}

#[tokio::test]
async fn a_server_listens_on_all_its_addresses_until_it_drains() {
    let folder = Folder::new();
    let mut builder = builder().listen("127.0.0.1:0").listen(folder.socket("a"));
    if has_ipv6() {
        builder = builder.listen("[::1]:0");
    }
    let server = builder.bind("localhost:0").await.unwrap();
    let addresses = server.local_addrs();
    assert_eq!(addresses.len(), if has_ipv6() { 3 } else { 2 });
    assert_eq!(addresses[0], server.local_addr());
    let mut all: Vec<_> = addresses.iter().map(|address| format!("tcp://{address}")).collect();
    all.push(folder.socket("a"));
    let server = run(server);
    for address in &all {
        assert_eq!(desk(address).await.echo("hello").await.unwrap(), "hello", "{address}");
    }
    server.drain(Duration::from_secs(60)).await;
    for address in &all {
        let error = Channel::connect(address).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{address}: {error}");
    }
    assert!(!folder.0.join("a").exists());
}

#[tokio::test]
async fn one_address_serves_ipv4_and_ipv6() {
    if !has_ipv6() {
        return;
    }
    let server = builder().bind("[::]:0").await.unwrap();
    let port = server.local_addr().port();
    let _server = run(server);
    for address in [format!("tcp://127.0.0.1:{port}"), format!("tcp://[::1]:{port}")] {
        assert_eq!(desk(&address).await.echo("hello").await.unwrap(), "hello", "{address}");
    }
}

#[tokio::test]
async fn an_address_that_fails_is_named_and_none_is_listened_on() {
    let folder = Folder::new();
    let held = builder().bind("127.0.0.1:0").await.unwrap();
    let taken = held.local_addr().to_string();
    let error = builder().listen(folder.socket("a")).listen(&taken).build().await.unwrap_err();
    assert!(matches!(&error, BindError::Io(_)), "{error:?}");
    assert!(error.to_string().contains(&format!("can't listen on {taken}: ")), "{error}");
    assert!(!folder.0.join("a").exists());
    // A malformed address is found before the server listens on anything.
    let error = builder().listen(folder.socket("a")).listen("nonsense").build().await.unwrap_err();
    assert!(matches!(&error, BindError::Config(_)) && error.to_string().contains("`nonsense`"), "{error}");
    let error = builder().build().await.unwrap_err();
    assert!(error.to_string().contains("nothing to listen on"), "{error}");
    let missing = format!("unix:{}/missing/a", folder.0.display());
    let error = builder().bind(&missing).await.unwrap_err();
    assert!(error.to_string().contains(&format!("can't listen on {missing}: ")), "{error}");
}

#[tokio::test]
async fn calls_by_a_unix_socket_know_the_caller_and_values_of_all_sizes_come_back() {
    let folder = Folder::new();
    let own = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&folder.0).unwrap());
    let rules = authorize(move |who, _| who.process.is_some_and(|process| process.uid == own));
    // Its own, which the test's other servers do not share.
    let mut config = Config::default();
    config.limits.memory = 256 << 20;
    let server = builder().intercept(rules).config(config).bind(&folder.socket("a")).await.unwrap();
    assert!(server.local_addrs().is_empty());
    let server = run(server);
    for address in [folder.socket("a"), folder.socket("a").replace("unix:", "unix://")] {
        let channel = Channel::connect(&address).await.unwrap();
        assert_eq!(channel.transport().await.unwrap().name, "unix");
        let desk = DeskClient::new(&channel);
        assert_eq!(desk.user().await.unwrap(), Some(own));
        for len in [0, 1, 1000, 65_536, 131_072, 9 << 20] {
            assert_eq!(desk.echo(vec![7; len]).await.unwrap(), vec![7; len], "{len} bytes");
        }
    }
    let near = Channel::connect(&folder.socket("a")).await.unwrap().connection().await.unwrap();
    assert_eq!(near.identity().unwrap().process.unwrap().pid, Some(std::process::id() as i32));
    assert!(near.peer().is_none() && !near.is_encrypted());
    let peers: Vec<_> = server.stats().peers.iter().map(|peer| peer.address).collect();
    assert_eq!(peers, [None], "all are counted together");
}

#[tokio::test]
async fn a_channel_by_a_unix_socket_finds_the_server_that_comes_after_one_killed() {
    let folder = Folder::new();
    let address = folder.socket("a");
    let mut first = Process::start("serve_as_a_process", &address);
    assert_eq!(first.said(), "serving");
    let channel = Channel::builder().wait_for_ready(true).connect(&address).await.unwrap();
    let desk = DeskClient::new(&channel);
    desk.echo("a").await.unwrap();
    first.kill().await;
    assert!(folder.0.join("a").exists(), "it had no time to remove it");
    let mut second = Process::start("serve_as_a_process", &address);
    assert_eq!(second.said(), "serving");
    // The connection may not be known to be lost yet.
    let mut answer = desk.echo("b").await;
    while answer.is_err() {
        answer = desk.echo("b").await;
    }
}

#[tokio::test]
async fn serve_as_a_process() {
    let Some(address) = told() else { return };
    let server = builder().bind(&address).await.unwrap();
    say("serving");
    server.serve().await;
}

#[tokio::test]
async fn listeners_that_the_application_has_made_are_served() {
    let folder = Folder::new();
    let std_tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let std_unix = std::os::unix::net::UnixListener::bind(folder.0.join("std")).unwrap();
    let unix = tokio::net::UnixListener::bind(folder.0.join("tokio")).unwrap();
    let ports = [std_tcp.local_addr().unwrap(), tcp.local_addr().unwrap()];
    let server = builder().listen(std_tcp).listen(tcp).listen(std_unix).listen(unix).build().await.unwrap();
    assert_eq!(server.local_addrs(), ports);
    let _server = run(server);
    let sockets = ["std", "tokio"].map(|name| folder.socket(name));
    for address in ports.map(|port| format!("tcp://{port}")).iter().chain(&sockets) {
        assert_eq!(desk(address).await.echo("hello").await.unwrap(), "hello", "{address}");
    }
}

/// The items of a tokio channel, as a stream.
struct Received<T>(mpsc::UnboundedReceiver<T>);

impl<T> Stream for Received<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

/// A network in memory: what dials, and the server's source of connections.
fn network() -> (impl Fn(String) -> DuplexFuture + Clone + Send + Sync + 'static, Listener, Arc<AtomicUsize>)
{
    let (sender, incoming) = mpsc::unbounded_channel();
    let dialled = Arc::new(AtomicUsize::new(0));
    let count = dialled.clone();
    let dial = move |host: String| {
        count.fetch_add(1, Ordering::Relaxed);
        let (near, far) = tokio::io::duplex(16 << 10);
        let taken = match host.as_str() {
            "desk:1" => sender.send(Ok(far)).map_err(io::Error::other),
            _ => Err(io::Error::other("no such host in this network")),
        };
        std::future::ready(taken.map(|()| near))
    };
    (dial, Listener::incoming(Received(incoming)), dialled)
}

type DuplexFuture = std::future::Ready<io::Result<DuplexStream>>;

#[tokio::test]
async fn a_network_of_the_applications_carries_calls_and_is_dialled_again() {
    let (dial, incoming, dialled) = network();
    let server = run(builder().listen(incoming).build().await.unwrap());
    let builder = Channel::builder().dial_with(dial).transport(Policy::Tcp);
    let channel = builder.clone().connect("farcall://desk:1").await.unwrap();
    assert_eq!(channel.transport().await.unwrap().name, "stream");
    let desk = DeskClient::new(&channel);
    for len in [0, 1000, 65_536, 5 << 20] {
        assert_eq!(desk.echo(vec![7; len]).await.unwrap(), vec![7; len], "{len} bytes");
    }
    assert_eq!(desk.user().await.unwrap(), None);
    assert_eq!(dialled.load(Ordering::Relaxed), 1);
    desk.echo("a").class(TrafficClass::Urgent).await.unwrap();
    assert_eq!(dialled.load(Ordering::Relaxed), 2);
    let near = channel.connection().await.unwrap();
    server.connections().iter().for_each(|connection| connection.close("come again"));
    near.closed().await;
    assert_eq!(desk.echo("b").await.unwrap(), "b");
    assert_eq!(dialled.load(Ordering::Relaxed), 3);

    let error = builder.connect("farcall://other:1").await.unwrap_err();
    assert!(error.message().contains("can't connect to other:1: no such host in this network"), "{error}");
}

#[tokio::test]
async fn hosts_that_the_application_dials_are_balanced_and_not_looked_up() {
    let (dial, incoming, _) = network();
    let server = run(builder().listen(incoming).build().await.unwrap());
    let builder = Channel::builder().dial_with(dial).balance(BalancePolicy::RoundRobin);
    let channel = builder.connect_lazy("tcp://desk:1,nowhere.invalid:1").unwrap();
    let desk = DeskClient::new(&channel);
    for _ in 0..10 {
        desk.echo("a").await.unwrap();
    }
    let names: Vec<_> =
        channel.endpoints().unwrap().borrow().iter().map(|endpoint| endpoint.name.to_string()).collect();
    assert_eq!(names, ["desk:1", "nowhere.invalid:1"]);
    server.close();
}

/// Nothing of the system takes part, so a test decides what time it is.
#[tokio::test(start_paused = true)]
async fn a_network_in_memory_works_in_paused_time() {
    let (dial, incoming, _) = network();
    let server = run(builder().listen(incoming).build().await.unwrap());
    let channel = Channel::builder().dial_with(dial).connect("tcp://desk:1").await.unwrap();
    let desk = DeskClient::new(&channel);
    let begun = tokio::time::Instant::now();
    desk.sleep(3_600_000).await.unwrap();
    let status = desk.sleep(3_600_000).timeout(Duration::from_secs(60)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(begun.elapsed().as_secs(), 3660);
    server.drain(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn a_socket_that_the_application_dials_is_used_as_one_of_the_channels_own() {
    let server = builder().bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr();
    let _server = run(server);
    // The name means nothing to the system. The address is no server's, if that of a proxy was dialled.
    let dial = move |host: String| {
        assert_eq!(host, "desk.invalid:1");
        TcpStream::connect(address)
    };
    let channel = Channel::builder().dial_with(dial).connect("tcp://desk.invalid:1").await.unwrap();
    assert_eq!(channel.transport().await.unwrap().name, "tcp");
    assert_eq!(channel.connection().await.unwrap().peer(), Some(address));
    DeskClient::new(&channel).echo("a").class(TrafficClass::Bulk).await.unwrap();
}
