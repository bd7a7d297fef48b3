//! Crowds of connections that begin a handshake and stop, to a server in a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use tokio::net::TcpSocket;

use super::*;
use crate::process::{self, Process};

/// How many half-open handshakes there are, and what they may take.
fn crowd() -> usize {
    if std::env::var_os("FARCALL_LONG").is_some() { 10_000 } else { 1500 }
}

const MOST: usize = 64 << 20;

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(120);

/// The server's process. It is told the directory with its files.
#[test]
fn serve_a_crowd() {
    let Some(directory) = process::told() else { return };
    let file = |name: &str| Some(format!("{directory}/{name}").into());
    let mut files = TlsConfig::default();
    (files.ca, files.cert, files.key) = (file("ca.pem"), file("desk.pem"), file("desk.key"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        process::say(&serve(with(files)).await);
        std::future::pending::<()>().await;
    });
}

/// Connects from one of many addresses, and sends the beginning of a ClientHello.
async fn half_open(to: SocketAddr, n: usize) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    let from = Ipv4Addr::new(127, 0, 1, (n % 40) as u8);
    socket.bind((from, 0).into()).unwrap();
    let mut socket = socket.connect(to).await.ok()?;
    let mut hello = vec![22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    hello.resize(300, 7);
    socket.write_all(&hello).await.ok()?;
    Some(socket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_displaces_itself() {
    let authority = Authority::new("ca");
    let server_files = authority.issue("desk", as_it_is);
    let directory = server_files.cert.as_ref().unwrap().parent().unwrap();
    let mut server = Process::start("crowd::serve_a_crowd", &directory.display().to_string());
    let address = server.said();
    let ann = authority.issue("ann", as_it_is);
    let time_to_connect = async || {
        let began = Instant::now();
        let call = async {
            let channel = connect("farcall", &address, with(ann.clone())).await.unwrap();
            DeskClient::new(&channel).echo("x").await.unwrap();
        };
        tokio::time::timeout(PATIENCE, call).await.expect("a good client can't connect");
        began.elapsed()
    };
    let alone = time_to_connect().await;
    let before = process::resident(server.id());
    let to: SocketAddr = address.parse().unwrap();
    let (mut crowd_of, mut slowest, mut most) = (Vec::new(), Duration::ZERO, 0);
    for n in 0..crowd() {
        // Without room for them, some are closed while they begin.
        crowd_of.extend(half_open(to, n).await);
        if n % 250 == 249 {
            slowest = slowest.max(time_to_connect().await);
            most = most.max(process::resident(server.id()) - before);
        }
    }
    println!(
        "{} half-open handshakes: {} MiB at most; a good client connects in {slowest:?} at most, in {alone:?} alone",
        crowd_of.len(),
        most >> 20
    );
    assert!(most <= MOST, "{most} bytes for {} half-open handshakes", crowd_of.len());
}
