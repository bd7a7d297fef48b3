//! Attacks on the memory of a server with a small budget, from other addresses than that of an honest client.

#![cfg(target_os = "linux")] // All of 127.0.0.0/8 is this host there.
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod attackers;
#[path = "../../../tests/authority/mod.rs"]
mod authority;
#[path = "../../../tests/process/mod.rs"]
mod process;
mod resident;
mod server;
mod target;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::memory::{Budget, PeerMemory};
use farcall_core::payload::Payload;
use farcall_core::proto::wire::{FrameType, Header, PREFACE, ResponseHead, decode_status};
use farcall_core::server::ServerCore;
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Executed, Result};
use farcall_core::transport::Link;
use farcall_tcp::tls::{TlsClient, TlsServer};
use farcall_tcp::{Acceptor, TcpConfig, tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use attackers::{
    Attacker, compressed_zeros, connected, empty_elements, half_a_frame, half_messages, hanging_calls,
    unread_answers, unread_items,
};
use authority::{Authority, as_it_is};
use server::{ECHO, HANG, HUGE, SLOW, Test, To, info, settings};
use target::Target;

const MIB: usize = 1 << 20;

/// The server's budget.
const LIMIT: usize = 256 * MIB;

/// How much more may be held for a moment, before the greediest are closed: half a mebibyte of each of 200 connections, for a receive
/// buffer and what a turn brings, and the values of a message for each of two decoding threads. An eighth of the budget is kept for that.
const MOST_BEYOND: usize = 200 * MIB / 2 + 2 * LIMIT / 8 - LIMIT / 8;

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server, and an honest client of it.
struct Setup {
    server: Arc<ServerCore>,
    address: SocketAddr,
    honest: RawChannel,
    go: Arc<Semaphore>,
    slow: Arc<AtomicUsize>,
}

/// Returns TLS in which the server alone has a certificate.
fn tls_of(authority: &Authority) -> (TlsServer, TlsClient) {
    let mut files = authority.issue("server", as_it_is);
    files.client_auth = tls::ClientAuth::None;
    (TlsServer::from_files(&files).unwrap(), TlsClient::from_files(&authority.trusted()).unwrap())
}

/// Makes a call of the honest client, which must succeed.
async fn call_honestly(honest: &RawChannel) {
    let argument = Bytes::from(vec![9; 10_000]);
    let stub = Stub::new(honest.clone(), info());
    let call: Call<Result<Bytes>, Raw> = stub.call(ECHO, Ok(Payload::from_body(argument.clone())));
    let answer = tokio::time::timeout(PATIENCE, call).await.expect("an honest call hangs");
    assert_eq!(answer.expect("an honest call fails"), argument);
}

impl Setup {
    async fn new() -> Self {
        Self::with(settings(LIMIT), None).await
    }

    /// Starts the server. With `tls` it encrypts, and so does the honest client.
    async fn with(settings_of_server: Settings, tls: Option<(TlsServer, TlsClient)>) -> Self {
        let go = Arc::new(Semaphore::new(0));
        let slow = Arc::default();
        let service = Test { info: info(), slow: Arc::clone(&slow), go: go.clone() };
        let server = ServerCore::new(vec![Arc::new(service)], settings_of_server).unwrap();
        let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
        let address = acceptor.local_addr().unwrap();
        let (acceptor, trusting) = match tls {
            Some((tls, trusting)) => (acceptor.with_tls(tls), Some(trusting)),
            None => (acceptor, None),
        };
        let accepting = server.clone();
        tokio::spawn(async move {
            loop {
                accepting.serve(acceptor.accept().await);
            }
        });
        let honest = RawChannel::new(To(address, trusting), settings(0));
        let setup = Self { server, address, honest, go, slow };
        setup.honest_call().await;
        setup
    }

    fn budget(&self) -> &Budget {
        self.server.memory()
    }

    /// Makes a call of the honest client, which must succeed, and checks the budget.
    async fn honest_call(&self) {
        call_honestly(&self.honest).await;
        let peak = self.budget().peak();
        assert!(peak <= LIMIT + MOST_BEYOND, "{peak} bytes were used, {:?}", self.budget().peers());
    }

    /// Makes honest calls until something is so.
    async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let waiting = async {
            while !condition() {
                self.honest_call().await;
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| {
            panic!("{what}: {:?}, {:?}", self.budget().peers(), self.server.connections())
        });
    }

    /// Waits until nothing of the attackers is left.
    async fn until_free(&self) {
        self.until("memory is not given back", || {
            let peers = self.budget().peers();
            peers.len() == 1 && peers[0].total() <= 256 << 10
        })
        .await;
        assert!(self.budget().used() <= MIB, "{}", self.budget().used());
    }
}

async fn attack<F: Future<Output = Attacker> + Send + 'static>(
    connections: u8,
    addresses: u8,
    how: fn(Attacker) -> F,
) {
    let setup = Setup::new().await;
    let mut attackers = Vec::new();
    for n in 0..connections {
        let attacker = Attacker::new(setup.address, 2 + n % addresses).await;
        attackers.push(tokio::spawn(how(attacker)));
    }
    setup.until("the attack has no effect", || setup.budget().peak() > LIMIT / 8 * 5).await;
    for _ in 0..500 {
        setup.honest_call().await;
    }
    attackers.iter().for_each(tokio::task::JoinHandle::abort);
    drop(attackers);
    setup.until_free().await;
}

#[tokio::test]
async fn half_messages_of_one_connection() {
    attack(1, 1, half_messages).await;
}

#[tokio::test]
async fn half_messages_of_many_connections() {
    attack(60, 1, half_messages).await;
}

#[tokio::test]
async fn half_messages_from_many_addresses() {
    attack(60, 30, half_messages).await;
}

#[tokio::test]
async fn hanging_calls_of_one_connection() {
    attack(1, 1, hanging_calls).await;
}

#[tokio::test]
async fn hanging_calls_from_many_addresses() {
    attack(60, 30, hanging_calls).await;
}

#[tokio::test]
async fn unread_answers_of_one_connection() {
    attack(1, 1, unread_answers).await;
}

#[tokio::test]
async fn unread_answers_from_many_addresses() {
    attack(60, 30, unread_answers).await;
}

#[tokio::test]
async fn unread_items_of_one_connection() {
    attack(1, 1, unread_items).await;
}

#[tokio::test]
async fn lists_of_empty_elements_of_one_connection() {
    attack(1, 1, empty_elements).await;
}

#[tokio::test]
async fn compressed_zeros_of_many_connections() {
    attack(8, 4, compressed_zeros).await;
}

#[tokio::test]
async fn half_a_frame_counts_until_its_connection_ends() {
    const COUNT: usize = 20;
    let setup = Setup::new().await;
    let mut attackers = Vec::new();
    for _ in 0..COUNT {
        attackers.push(half_a_frame(Attacker::new(setup.address, 2).await).await);
    }
    let partial = || setup.budget().peers().iter().map(|peer| peer.partial).sum::<usize>();
    setup.until("half a frame does not count", || partial() >= COUNT * (256 << 10)).await;
    drop(attackers);
    setup.until_free().await;
}

#[tokio::test]
async fn one_address_gets_as_many_connections_as_it_may() {
    let mut settings = settings(LIMIT);
    settings.limits.connections_per_address = 2;
    let setup = Setup::with(settings, None).await;
    let kept = [Attacker::new(setup.address, 2).await, Attacker::new(setup.address, 2).await];
    setup.until("two are accepted", || setup.server.connections().len() == 3).await;
    let reason = Attacker::new(setup.address, 2).await.reason().await.expect("a CLOSE");
    assert!(reason.contains("limits.connections_per_address"), "{reason}");
    // Another address has places of its own, and one whose connections end has them again.
    let _other = Attacker::new(setup.address, 3).await;
    setup.until("another address is accepted", || setup.server.connections().len() == 4).await;
    drop(kept);
    setup.until("connections end", || setup.server.connections().len() == 2).await;
    let _again = Attacker::new(setup.address, 2).await;
    setup.until("the address is accepted again", || setup.server.connections().len() == 3).await;
}

/// A connection that the server has closed has its place as long as its socket is there.
#[tokio::test]
async fn a_connection_that_is_no_session_has_a_place_until_it_is_gone() {
    let mut settings = settings(LIMIT);
    settings.limits.connections_per_address = 1;
    let setup = Setup::with(settings, None).await;
    let mut garbage = connected(setup.address, 2).await.unwrap();
    garbage.write_all(&[&PREFACE[..], &[0xff; 64]].concat()).await.unwrap();
    // The server has closed its half, and waits for the other one.
    garbage.read_to_end(&mut Vec::new()).await.unwrap();
    let refused = Attacker::new(setup.address, 2).await.reason().await.expect("a CLOSE");
    assert!(refused.contains("limits.connections_per_address"), "{refused}");
    drop(garbage);
    loop {
        let mut again = Attacker::new(setup.address, 2).await;
        tokio::select! {
            refused = again.reason() => assert!(refused.is_some()),
            () = setup.until("the address is accepted again", || setup.server.connections().len() == 2) => break,
        }
    }
}

/// The honest client comes when a few addresses have all connections that the server takes.
#[tokio::test]
async fn an_address_with_fewer_connections_gets_a_place() {
    let mut settings_of_server = settings(LIMIT);
    settings_of_server.limits.connections = 9;
    let setup = Setup::with(settings_of_server, None).await;
    let mut attackers = Vec::new();
    for n in 0..8 {
        let mut attacker = Attacker::new(setup.address, 2 + n % 2).await;
        attacker.request(1, HANG, b"").await;
        attackers.push(attacker);
    }
    setup.until("all places are taken", || setup.server.connections().len() == 9).await;
    let refused = Attacker::new(setup.address, 2).await.reason().await.expect("a CLOSE");
    assert!(refused.contains("9 connections already, which is its limits.connections"), "{refused}");
    let late = RawChannel::new(To(setup.address, None), settings(0));
    call_honestly(&late).await;
    // The newest connection of the first address makes room, where a call goes on for longer than it may.
    let reason = attackers[6].reason().await.expect("a CLOSE");
    assert!(reason.contains("limits.connections") && reason.contains("did not end within 1s"), "{reason}");
    setup.until("it is gone", || setup.server.connections().len() == 9).await;
    call_honestly(&late).await;
}

/// A client's connection does not wait for all that another host has opened before it.
#[tokio::test]
async fn connections_of_an_address_wait_for_one_of_each_other_address() {
    const FLOOD: usize = 900;
    let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    let address = acceptor.local_addr().unwrap();
    let mut flood = Vec::new();
    for _ in 0..FLOOD {
        flood.push(attackers::connected(address, 2).await.unwrap());
    }
    let honest = attackers::connected(address, 3).await.unwrap();
    for served in 1.. {
        let link = acceptor.accept().await;
        if link.description().peer == honest.local_addr().ok() {
            // The sockets were in the kernel's queue, and are taken from there in some turns.
            assert!(served < FLOOD / 10, "{served} were served before");
            return;
        }
    }
}

/// Handlers run on the thread that reads their requests. A connection that sends many has no more turns than another.
#[tokio::test]
async fn requests_that_take_long_do_not_have_one_long_turn() {
    const REQUESTS: u64 = 4000;
    let setup = Setup::new().await;
    let mut attacker = Attacker::new(setup.address, 2).await;
    attacker.requests(1..=REQUESTS, SLOW).await;
    let mut most = 0;
    while setup.slow.load(Ordering::Relaxed) < REQUESTS as usize / 2 {
        let before = setup.slow.load(Ordering::Relaxed);
        setup.honest_call().await;
        most = most.max(setup.slow.load(Ordering::Relaxed) - before);
    }
    // A call takes a few turns, of eight requests at first, and then of as many as begin within 250 µs.
    assert!(most < 100, "{most} of {REQUESTS} requests were handled during one honest call");
}

#[tokio::test]
async fn half_a_frame_is_not_waited_for_for_ever() {
    let mut settings = settings(LIMIT);
    settings.limits.stall_ms = 300;
    let setup = Setup::with(settings, None).await;
    let watched = setup.server.clone();
    tokio::spawn(async move { watched.watch().await });
    let mut attacker = Attacker::new(setup.address, 2).await;
    attacker.socket.write_all(&Header::new(FrameType::REQUEST, 1).encode()[..10]).await.unwrap();
    let reason = attacker.reason().await.unwrap();
    assert!(reason.contains("in the middle of a message") && reason.contains("limits.stall_ms"), "{reason}");
    setup.honest_call().await;
}

#[tokio::test]
async fn half_a_record_is_not_waited_for_for_ever() {
    let mut settings = settings(LIMIT);
    settings.limits.stall_ms = 300;
    let authority = Authority::new("ca");
    let setup = Setup::with(settings, Some(tls_of(&authority))).await;
    let watched = setup.server.clone();
    tokio::spawn(async move { watched.watch().await });
    let target = Target { address: setup.address, ca: authority.trusted().ca };
    let (mut attacker, left) = target.attacked().connect_to_be_cut(2).await.unwrap();
    // The header of a record, and a part of what it says.
    left.store(10, Ordering::Relaxed);
    attacker.request(1, ECHO, b"").await;
    let reason = attacker.reason().await.unwrap();
    assert!(reason.contains("in the middle of a message") && reason.contains("limits.stall_ms"), "{reason}");
    setup.honest_call().await;
}

/// A connection that never lets go is refused calls first.
#[tokio::test]
async fn calls_beyond_the_share_are_refused_and_not_executed() {
    let setup = Setup::new().await;
    let mut attacker = Attacker::new(setup.address, 2).await;
    let mut preface = [0; PREFACE.len()];
    attacker.socket.read_exact(&mut preface).await.unwrap();
    // More than what holds it back, and less than what has it closed.
    for call in 1..2400 {
        assert!(attacker.request(call, HANG, &[1; 100_000]).await, "closed before a call was refused");
    }
    // It is not read for a second. Then what it has sent is refused.
    let refusal = loop {
        let (header, payload) = attacker.read().await.expect("closed before a call was refused");
        if header.kind == FrameType::RESPONSE {
            break payload;
        }
    };
    let content = ResponseHead::decode(refusal.into()).unwrap();
    let status = decode_status(content.1.payload.into_body()).unwrap();
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No), "{status}");
    assert!(status.message().contains("limits.memory"), "{status}");
    setup.honest_call().await;
    drop(attacker);
    setup.until_free().await;
}

/// Where nothing is left, the connection that holds most is closed, and told why.
#[tokio::test]
async fn the_connection_that_holds_most_is_told_why_it_is_closed() {
    let setup = Setup::new().await;
    let (mut attacker, mut other) =
        (Attacker::new(setup.address, 2).await, Attacker::new(setup.address, 3).await);
    for call in 1..=4 {
        assert!(attacker.request(call, HUGE, b"").await);
    }
    other.request(1, HANG, b"").await;
    let runs = |peer: &PeerMemory| {
        peer.address == Some(Ipv4Addr::new(127, 0, 0, 2).into()) && peer.arguments >= 4 * 4096
    };
    setup.until("the calls do not begin", || setup.budget().peers().iter().any(runs)).await;
    // Handlers that run are not held back.
    setup.go.add_permits(4);
    setup.until("the budget is not used up", || setup.budget().peak() > LIMIT / 8 * 7).await;
    let reason = attacker.reason().await.expect("a CLOSE");
    assert!(reason.contains("limits.memory is 268435456 bytes"), "{reason}");
    drop(attacker);
    setup.until("memory is not given back", || setup.budget().peers().len() == 2).await;
    drop(other);
    setup.until_free().await;
}
