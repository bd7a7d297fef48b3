//! A server as systemd starts it: with sockets, and with a socket to tell its state to.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;

use std::os::fd::OwnedFd;
use std::time::Duration;

use farcall::{Channel, Server, systemd};
use process::{Process, say, told};
use tokio::net::UnixDatagram;
use tokio::signal::unix::{SignalKind, signal};

#[farcall::service(package = "test")]
trait Desk {
    async fn echo(&self, text: String) -> farcall::Result<String>;
}

struct Office;

impl Desk for Office {
    async fn echo(&self, text: String) -> farcall::Result<String> {
        Ok(text)
    }
}

/// Passes standard input and standard error on as systemd passes sockets, and becomes the program.
const ACTIVATE: &str = r#"exec 3<&0 4<&2 0</dev/null 2>&1; LISTEN_FDS=$1 LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; shift; exec "$@""#;

async fn told_to(systemd: &UnixDatagram) -> String {
    let mut message = [0; 100];
    let told = tokio::time::timeout(Duration::from_secs(60), systemd.recv(&mut message));
    let len = told.await.expect("systemd must be told something").unwrap();
    String::from_utf8(message[..len].to_vec()).unwrap()
}

#[tokio::test]
async fn a_service_has_its_sockets_from_systemd_and_tells_it_what_it_does() {
    let folder = std::env::temp_dir().join(format!("farcall-{:016x}", fastrand::u64(..)));
    std::fs::create_dir(&folder).unwrap();
    let notify = folder.join("notify");
    let systemd = UnixDatagram::bind(&notify).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses =
        [format!("tcp://{}", tcp.local_addr().unwrap()), format!("unix:{}", folder.join("own").display())];
    let unix = std::os::unix::net::UnixListener::bind(folder.join("own")).unwrap();
    let command = ["bash", "-c", ACTIVATE, "activate", "2"];
    let mut service = Process::start_as(&command, "serve_as_a_service", "", |command| {
        command.stdin(OwnedFd::from(tcp)).stderr(OwnedFd::from(unix));
        command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "1000000");
    });
    assert_eq!(service.said(), "2 sockets, then 0");
    assert_eq!(told_to(&systemd).await, "READY=1\n");
    assert_eq!(told_to(&systemd).await, "WATCHDOG=1\n");
    for address in &addresses {
        let desk = DeskClient::new(Channel::connect(address).await.unwrap());
        assert_eq!(desk.echo("hello").await.unwrap(), "hello", "{address}");
    }
    // Again and again, until it is told to stop.
    assert_eq!(told_to(&systemd).await, "WATCHDOG=1\n");
    service.signal("TERM");
    while told_to(&systemd).await != "STOPPING=1\n" {}
    assert_eq!(service.said(), "stopped");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn serve_as_a_service() {
    if told().is_none() {
        return;
    }
    let sockets = systemd::listeners().unwrap();
    say(&format!("{} sockets, then {}", sockets.len(), systemd::listeners().unwrap().len()));
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let server = Server::builder().add(DeskServer::new(Office)).with_systemd();
        let server = sockets.into_iter().fold(server, farcall::ServerBuilder::listen);
        let mut terminated = signal(SignalKind::terminate()).unwrap();
        server.build().await.unwrap().serve_until(terminated.recv()).await;
    });
    say("stopped");
}

#[tokio::test]
async fn a_socket_that_is_of_no_use_is_named() {
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let command = ["bash", "-c", ACTIVATE, "activate", "1"];
    let mut service = Process::start_as(&command, "take_sockets", "", |command| {
        command.stdin(OwnedFd::from(datagrams));
    });
    assert_eq!(service.said(), "fd 3 is not a valid tcp socket");
}

#[test]
fn take_sockets() {
    if told().is_some() {
        say(&systemd::listeners().unwrap_err().to_string());
    }
}

#[tokio::test]
async fn without_systemd_a_server_serves_as_usual() {
    let server = Server::builder().add(DeskServer::new(Office)).with_systemd();
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    let (handle, served) = (server.handle(), tokio::spawn(server.serve()));
    let desk = DeskClient::new(Channel::connect(&address).await.unwrap());
    assert_eq!(desk.echo("hello").await.unwrap(), "hello");
    drop(desk);
    handle.drain(Duration::from_secs(60)).await;
    served.await.unwrap();
}
