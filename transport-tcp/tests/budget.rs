//! Attacks on the memory of a server with a small budget, from other addresses than that of an honest client.

#![cfg(target_os = "linux")] // All of 127.0.0.0/8 is this host there.
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::client::{Call, Connector, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::{Limits, Liveness};
use farcall_core::memory::{Budget, PeerMemory};
use farcall_core::payload::Payload;
use farcall_core::proto::wire::{
    Bind, BindMethod, Close, FrameType, HEADER_LEN, Header, PREFACE, ResponseHead, decode_status, flags,
};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Executed, Result};
use farcall_core::testing::{hello, request};
use farcall_core::transport::{BoxFuture, Link, Reason, Unavailable};
use farcall_tcp::{Acceptor, TcpConfig, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;

const MIB: usize = 1 << 20;

/// The server's budget.
const LIMIT: usize = 256 * MIB;

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const ECHO: usize = 0;
const HANG: usize = 1;
/// Answers with 256 KiB.
const BIG: usize = 2;
/// Answers with 60 MiB when it may.
const HUGE: usize = 3;

struct Test {
    info: Arc<ServiceInfo>,
    /// A permit for each call of [`HUGE`] that may answer.
    go: Arc<Semaphore>,
}

fn info() -> Arc<ServiceInfo> {
    let methods = ["echo", "hang", "big", "huge"].map(|name| Method::unary(name, name)).to_vec();
    Arc::new(ServiceInfo { name: "test".into(), codec: "raw", methods })
}

impl Service for Test {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let go = self.go.clone();
        Box::pin(async move {
            match method {
                ECHO => Reply::Ok(request.payload),
                BIG => Reply::Ok(Payload::from_body(vec![7; 256 << 10].into())),
                HUGE => {
                    go.acquire().await.unwrap().forget();
                    Reply::Ok(Payload::from_body(vec![7; 60 * MIB].into()))
                }
                _ => std::future::pending().await,
            }
        })
    }
}

fn settings(memory: usize) -> Settings {
    let mut limits = Limits::default();
    limits.memory = memory as u64;
    Settings::plain(limits, Liveness::default(), Unavailable::new(Reason::Disabled, ""))
}

/// A server, and an honest client of it.
struct Setup {
    server: Arc<ServerCore>,
    address: SocketAddr,
    honest: RawChannel,
    go: Arc<Semaphore>,
}

struct To(SocketAddr);

impl Connector for To {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let target = self.0.to_string();
        Box::pin(async move { Ok(connect(&target, &TcpConfig::default(), PATIENCE).await? as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        self.0.to_string()
    }
}

impl Setup {
    async fn new() -> Self {
        let go = Arc::new(Semaphore::new(0));
        let service = Test { info: info(), go: go.clone() };
        let server = ServerCore::new(vec![Arc::new(service)], settings(LIMIT)).unwrap();
        let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
        let address = acceptor.local_addr().unwrap();
        let accepting = server.clone();
        tokio::spawn(async move {
            loop {
                accepting.serve(acceptor.accept().await);
            }
        });
        let honest = RawChannel::new(To(address), settings(0));
        let setup = Self { server, address, honest, go };
        setup.honest_call().await;
        setup
    }

    fn budget(&self) -> &Budget {
        self.server.memory()
    }

    /// Makes a call of the honest client, which must succeed, and checks the budget.
    async fn honest_call(&self) {
        let argument = Bytes::from(vec![9; 10_000]);
        let stub = Stub::new(self.honest.clone(), info());
        let call: Call<Result<Bytes>, Raw> = stub.call(ECHO, Ok(Payload::from_body(argument.clone())));
        let answer = tokio::time::timeout(PATIENCE, call).await.expect("an honest call hangs");
        assert_eq!(answer.expect("an honest call fails"), argument);
        let peak = self.budget().peak();
        assert!(peak <= LIMIT + LIMIT / 10, "{peak} bytes were used, {:?}", self.budget().peers());
    }

    /// Makes honest calls until something is so.
    async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let waiting = async {
            while !condition() {
                self.honest_call().await;
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
    }

    /// Waits until nothing of the attackers is left.
    async fn until_free(&self) {
        self.until("memory is not given back", || {
            let peers = self.budget().peers();
            peers.len() == 1 && peers[0].total() <= 64 << 10
        })
        .await;
        assert!(self.budget().used() <= MIB, "{}", self.budget().used());
    }
}

/// A client that sends single frames, valid or not, and reads when it is told to.
struct Attacker {
    socket: TcpStream,
    seq: u32,
}

impl Attacker {
    /// Connects from 127.0.0.`n`.
    async fn new(setup: &Setup, n: u8) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, n), 0).into()).unwrap();
        let mut socket = socket.connect(setup.address).await.unwrap();
        socket.write_all(PREFACE).await.unwrap();
        let mut attacker = Self { socket, seq: 0 };
        let mut payload = BytesMut::new();
        hello().encode(&mut payload);
        attacker.send(Header::new(FrameType::HELLO, 0), &payload).await;
        let info = info();
        let methods = info.methods.iter();
        let methods = methods.map(|m| BindMethod { hash: m.hash(), kind: 0, fingerprint: m.fingerprint });
        let bind = Bind { service: 0, name: "test".into(), codec: "raw".into(), methods: methods.collect() };
        payload.clear();
        bind.encode(&mut payload);
        attacker.message(FrameType::BIND, 0, 0, &payload).await;
        attacker
    }

    /// Sends a frame. Returns false if the server has closed the connection.
    async fn send(&mut self, mut header: Header, payload: &[u8]) -> bool {
        header.len = payload.len() as u32;
        let frame = [&header.encode()[..], payload].concat();
        self.socket.write_all(&frame).await.is_ok()
    }

    async fn message(&mut self, kind: FrameType, call: u64, flags: u8, payload: &[u8]) -> bool {
        self.seq += 1;
        self.send(Header { seq: self.seq, flags, ..Header::new(kind, call) }, payload).await
    }

    async fn request(&mut self, call: u64, method: usize, argument: &[u8]) -> bool {
        self.message(FrameType::REQUEST, call, 0, &request(method, argument)).await
    }

    /// Reads the next frame; `None` at the end.
    async fn read(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut header = [0; HEADER_LEN];
        let read = async {
            self.socket.read_exact(&mut header).await.ok()?;
            let header = Header::decode(&header).unwrap();
            let mut payload = vec![0; header.len as usize];
            self.socket.read_exact(&mut payload).await.ok()?;
            Some((header, payload))
        };
        tokio::time::timeout(PATIENCE, read).await.expect("nothing comes")
    }

    /// Reads to the end, and returns the reason of the CLOSE.
    async fn reason(&mut self) -> Option<String> {
        let mut preface = [0; PREFACE.len()];
        self.socket.read_exact(&mut preface).await.ok()?;
        while let Some((header, payload)) = self.read().await {
            if header.kind == FrameType::CLOSE {
                return Some(Close::decode(payload.into()).unwrap().reason);
            }
        }
        None
    }
}

/// Begins messages and never ends them.
async fn half_messages(mut attacker: Attacker) -> Attacker {
    const TOTAL: u32 = 16 << 20;
    let piece = vec![0; 256 << 10];
    for call in 1..100 {
        let first = [&TOTAL.to_le_bytes()[..], &piece[..4000]].concat();
        if !attacker.message(FrameType::REQUEST, call, flags::FRAGMENTED, &first).await {
            break;
        }
        for _ in 0..60 {
            if !attacker.message(FrameType::FRAGMENT, call, 0, &piece).await {
                return attacker;
            }
        }
    }
    attacker
}

/// Calls a method that never ends, with long arguments.
async fn hanging_calls(mut attacker: Attacker) -> Attacker {
    for call in 1..4000 {
        if !attacker.request(call, HANG, &[1; 100_000]).await {
            break;
        }
    }
    attacker
}

/// Asks for long answers and reads none.
async fn unread_answers(mut attacker: Attacker) -> Attacker {
    for call in 1..4000 {
        if !attacker.request(call, BIG, b"").await {
            break;
        }
    }
    attacker
}

async fn attack<F: Future<Output = Attacker> + Send + 'static>(
    connections: u8,
    addresses: u8,
    how: fn(Attacker) -> F,
) {
    let setup = Setup::new().await;
    let mut attackers = Vec::new();
    for n in 0..connections {
        let attacker = Attacker::new(&setup, 2 + n % addresses).await;
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

/// A connection that never lets go is refused calls first.
#[tokio::test]
async fn calls_beyond_the_share_are_refused_and_not_executed() {
    let setup = Setup::new().await;
    let mut attacker = Attacker::new(&setup, 2).await;
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
    let (mut attacker, mut other) = (Attacker::new(&setup, 2).await, Attacker::new(&setup, 3).await);
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
