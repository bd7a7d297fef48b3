//! The cost of sealing: calls between two simulated hosts on one thread, sealed and not, and the ciphers by themselves.
//!
//! ```text
//! cargo bench -p farcall-rdma --features testing --bench sealing
//! ```

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "it runs by hand")]

#[path = "../tests/near/mod.rs"]
mod near;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_core::client::{RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::Policy;
use farcall_core::payload::Encoder;
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::status::Result;
use farcall_core::transport::{Cipher, TAG_LEN};
use farcall_rdma::RdmaConfig;
use farcall_rdma::testing::sim::Fabric;

use near::Near;

const ROUNDS: usize = 9;
const TIME: Duration = Duration::from_millis(500);

/// The cipher that 64-bit servers agree on.
const CIPHER: Cipher = Cipher::Aes256Gcm;

/// echo(x) -> x; put(x) -> an empty answer.
struct Server(Arc<ServiceInfo>);

impl Service for Server {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let answer = if method == 0 { request.payload } else { Encoder::new().finish() };
        Box::pin(std::future::ready(Reply::Ok(answer)))
    }
}

#[derive(Clone)]
struct Client {
    caller: RawChannel,
    info: Arc<ServiceInfo>,
}

impl Client {
    /// A client of a server on another simulated host, with or without encryption.
    fn new(cipher: Option<Cipher>) -> Self {
        let fabric = Fabric::new(1);
        let [near, far] = [1, 2].map(|n| near::settings(&fabric, n, Policy::Rdma, RdmaConfig::default()));
        let methods = vec![Method::unary("echo", "echo"), Method::unary("put", "put")];
        let info = Arc::new(ServiceInfo { name: "bench".into(), codec: "raw".into(), methods });
        let host = ServerCore::new(vec![Arc::new(Server(info.clone()))], far).unwrap();
        Self { caller: RawChannel::new(Near { host, cipher }, near), info }
    }

    async fn call(&self, method: usize, argument: Bytes) {
        let mut arguments = Encoder::new();
        arguments.put_bytes(&argument);
        let stub = Stub::new(self.caller.clone(), self.info.clone());
        let answer: Result<Bytes> = stub.call::<_, Raw>(method, Ok(arguments.finish())).await;
        assert_eq!(answer.unwrap().len(), if method == 0 { argument.len() } else { 0 });
    }

    /// Returns how long a call takes, with so many in flight.
    async fn measure(&self, method: usize, len: usize, in_flight: usize, time: Duration) -> f64 {
        let argument = Bytes::from(vec![7; len]);
        let begun = Instant::now();
        let callers: Vec<_> = (0..in_flight)
            .map(|_| {
                let (client, argument) = (self.clone(), argument.clone());
                tokio::spawn(async move {
                    let mut calls = 0;
                    while begun.elapsed() < time {
                        client.call(method, argument.clone()).await;
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        let mut calls = 0;
        for caller in callers {
            calls += caller.await.unwrap();
        }
        begun.elapsed().as_nanos() as f64 / f64::from(calls)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns how many nanoseconds it takes to encrypt and to decrypt a text.
fn ciphers(cipher: Cipher, len: usize) -> [f64; 2] {
    let secret = farcall_tcp::tls::exported(cipher, &[1; 32]).unwrap();
    let key = secret.key(cipher, b"bench").unwrap();
    let mut text = vec![7; len + TAG_LEN];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let (mut encrypting, mut decrypting) = (Duration::ZERO, Duration::ZERO);
        let texts = (64 << 20) / (len + 1024);
        for number in 0..texts as u64 {
            let begun = Instant::now();
            let tag = key.seal(number, &mut text[..len]).unwrap();
            encrypting += begun.elapsed();
            text[len..].copy_from_slice(&tag);
            let begun = Instant::now();
            assert!(key.open(number, &mut text));
            decrypting += begun.elapsed();
        }
        times[0].push(encrypting.as_nanos() as f64 / texts as f64);
        times[1].push(decrypting.as_nanos() as f64 / texts as f64);
    }
    times.map(median)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!("| text | encrypting | decrypting |\n|---|---|---|");
    for cipher in Cipher::ALL {
        for len in [64, 1024, 8 << 10, 64 << 10] {
            let [encrypting, decrypting] =
                ciphers(cipher, len).map(|time| format!("{time:.0} ns, {:.1} GB/s", len as f64 / time));
            println!("| {len} B, {cipher} | {encrypting} | {decrypting} |");
        }
    }
    println!(
        "\n| call | plain | sealed | ratio | sealing adds | payload per added second |\n|---|---|---|---|---|---|"
    );
    let clients = [None, Some(CIPHER)].map(Client::new);
    for (method, name, len, in_flight) in [
        (0, "echo", 64, 1),
        (0, "echo", 64, 32),
        (0, "echo", 4000, 32),
        (1, "put", 64 << 10, 8),
        (1, "put", 1 << 20, 8),
        (0, "echo", 1 << 20, 8),
    ] {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            for (client, times) in clients.iter().zip(&mut times) {
                let time = client.measure(method, len, in_flight, TIME).await;
                // The first is to warm up: memory is registered.
                if round > 0 {
                    times.push(time);
                }
            }
        }
        let ratio = median(times[0].iter().zip(&times[1]).map(|(plain, sealed)| sealed / plain).collect());
        let [plain, sealed] = times.map(median);
        let added = sealed - plain;
        let crossings = if method == 0 { 2 } else { 1 };
        println!(
            "| {name} of {len} B, {in_flight} in flight | {:.2} us | {:.2} us | {ratio:.2} | {:.2} us | {:.2} GB/s |",
            plain / 1e3,
            sealed / 1e3,
            added / 1e3,
            (crossings * len) as f64 / added
        );
    }
}
