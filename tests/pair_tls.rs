//! Sessions by TLS between two hosts: a capture of the wire shows none of what they say, by RDMA, by TCP, or on the way from one to
//! the other.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 calls and listens.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod authority;
mod pair;

use std::io::Read;

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::{Bytes, Channel, Config, Policy, Server, Streaming, rdma, stream, tls};
use socket2::{Domain, Protocol, Socket, Type};

use authority::{Authority, for_host_1};
use pair::{NoRoce, PATIENCE, is_server, run, together_serving};

/// The memory for captured packets, in bytes.
const CAPTURED: usize = 256 << 20;

/// All calls say this.
const MARK: &[u8] = b"for your eyes only";

/// Moves secrets in each way that there is.
#[farcall::service(package = "test")]
trait Secrets {
    async fn call(&self, secret: Bytes) -> farcall::Result<Bytes>;
    async fn stream(&self, secrets: Streaming<Bytes>) -> farcall::Result<Streaming<Bytes>>;
    async fn copy(&self, secret: BulkRead, into: BulkWrite) -> farcall::Result<()>;
}

struct Keeper;

impl Secrets for Keeper {
    async fn call(&self, secret: Bytes) -> farcall::Result<Bytes> {
        Ok(secret)
    }

    async fn stream(&self, secrets: Streaming<Bytes>) -> farcall::Result<Streaming<Bytes>> {
        Ok(secrets)
    }

    async fn copy(&self, secret: BulkRead, into: BulkWrite) -> farcall::Result<()> {
        into.write(0, secret.read(..).await?).await
    }
}

/// Moves a secret of so many bytes in each way.
async fn tell(secrets: &SecretsClient, len: usize) {
    let secret = Bytes::from(MARK.repeat(len / MARK.len()));
    let told = async {
        assert_eq!(secrets.call(secret.clone()).await.unwrap(), secret);
        let mut items = secrets.stream(stream::iter(vec![secret.clone(); 3])).await.unwrap();
        for _ in 0..3 {
            assert_eq!(items.message().await.unwrap(), Some(secret.clone()));
        }
        let (into, loan) = BulkWrite::lend(vec![0; secret.len()]);
        secrets.copy(secret.clone().into(), into).await.unwrap();
        assert_eq!(loan.reclaim().await, secret);
    };
    tokio::time::timeout(PATIENCE, told).await.expect("a secret must arrive");
}

/// All that the host's interface sends and receives.
struct Capture(Socket);

impl Capture {
    /// See packet(7).
    fn begin() -> Self {
        const ETH_P_ALL: u16 = 3;
        let socket =
            Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(ETH_P_ALL.to_be()))))
                .unwrap();
        // Nobody reads while calls run.
        std::fs::write("/proc/sys/net/core/rmem_max", CAPTURED.to_string()).unwrap();
        socket.set_recv_buffer_size(CAPTURED).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    /// Returns how many RoCE packets and how many of TCP crossed until now, and how many of them had the mark.
    fn end(mut self) -> Crossed {
        let mut frame = vec![0; 64 << 10];
        let mut crossed = Crossed::default();
        assert_eq!(Self::lost(), 0, "packets that nobody has looked at");
        while let Ok(len) = self.0.read(&mut frame) {
            // Ethernet, IPv4 without options.
            if len <= 42 || frame[12..14] != [8, 0] {
                continue;
            }
            match frame[23] {
                // UDP, the destination port of RoCE v2.
                17 if frame[36..38] == [0x12, 0xb7] => crossed.roce += 1,
                6 => crossed.tcp += 1,
                _ => continue,
            }
            crossed.marked += usize::from(frame[..len].windows(MARK.len()).any(|part| part == MARK));
        }
        crossed
    }

    /// How many packets did not fit into memory, as the kernel counts them for the only packet socket that there is.
    fn lost() -> usize {
        let sockets = run("ss --packet --memory --no-header --oneline");
        let (_, drops) = sockets.trim().rsplit_once(",d").unwrap();
        drops.trim_end_matches(')').parse().unwrap()
    }
}

/// Packets.
#[derive(Debug, Default)]
struct Crossed {
    roce: usize,
    tcp: usize,
    marked: usize,
}

/// Returns the authority of both hosts, which keeps the files, and a configuration with TLS.
fn encrypted() -> (Authority, Config) {
    let authority = Authority::of_both_hosts();
    let mut config = config();
    config.tls = Some(authority.issue("echo", for_host_1));
    (authority, config)
}

fn config() -> Config {
    let mut config = Config::default();
    config.rdma.strict_credits = true;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

/// Host 1 serves secrets until host 2, which captures all packets, has done `client`.
async fn overhear(
    port: u16,
    config: Config,
    client: impl AsyncFnOnce(&Channel, &SecretsClient),
) -> Option<Crossed> {
    let capture = (!is_server()).then(Capture::begin);
    let server = Server::builder().add(SecretsServer::new(Keeper));
    together_serving(port, config, server, async |channel| {
        client(channel, &SecretsClient::new(channel)).await;
    })
    .await;
    capture.map(Capture::end)
}

/// Moves secrets of several lengths. Returns the packets that host 2 has seen.
async fn secrets_are_overheard(port: u16, plaintext: Option<rdma::Plaintext>) -> Option<Crossed> {
    let (_authority, mut config) = encrypted();
    config.transport = Some(Policy::Rdma);
    config.rdma.plaintext = plaintext;
    overhear(port, config, async |channel, secrets| {
        let connection = channel.connection().await.unwrap();
        assert_eq!((connection.transport().name, connection.is_encrypted()), ("rdma", plaintext.is_none()));
        for len in [100, 5000, 200_000, 1 << 20] {
            tell(secrets, len).await;
        }
    })
    .await
}

#[tokio::test]
async fn sealed_links_say_nothing_on_the_wire() {
    if let Some(crossed) = secrets_are_overheard(7411, None).await {
        assert!(crossed.roce > 1000 && crossed.marked == 0, "{crossed:?}");
    }
}

#[tokio::test]
async fn a_trusted_fabric_carries_what_is_said() {
    // The capture is good enough to see it.
    if let Some(crossed) = secrets_are_overheard(7412, Some(rdma::Plaintext::TrustedFabric)).await {
        assert!(crossed.marked > 1000, "{crossed:?}");
    }
}

#[tokio::test]
async fn without_tls_tcp_carries_what_is_said() {
    let mut config = config();
    config.transport = Some(Policy::Tcp);
    let crossed = overhear(7414, config, async |_, secrets| tell(secrets, 200_000).await);
    if let Some(crossed) = crossed.await {
        assert!(crossed.marked > 100 && crossed.roce == 0, "{crossed:?}");
    }
}

#[tokio::test]
async fn sealed_links_that_fail_and_come_back_say_nothing_either() {
    let (_authority, mut config) = encrypted();
    config.liveness.retry_ms = 500;
    // A probe that is lost costs no longer than this.
    config.liveness.connect_ms = 5000;
    let crossed = overhear(7413, config, async |channel, secrets| {
        let come_to = async |name| {
            let told = async {
                while channel.transport().await.unwrap().name != name {
                    tell(secrets, 20_000).await;
                }
                tell(secrets, 100_000).await;
            };
            tokio::time::timeout(PATIENCE, told).await.unwrap_or_else(|_| panic!("never by {name}"));
        };
        come_to("rdma").await;
        for _ in 0..2 {
            let no_roce = NoRoce::begin();
            come_to("tcp").await;
            drop(no_roce);
            come_to("rdma").await;
        }
    });
    if let Some(crossed) = crossed.await {
        assert!(crossed.roce > 500 && crossed.tcp > 500 && crossed.marked == 0, "{crossed:?}");
    }
}
