//! Sessions by TLS between two hosts: a capture of the wire shows none of what they say by RDMA.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 calls and listens.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod authority;

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use farcall::{Bytes, Channel, Config, Policy, Server, rdma, tls};
use rcgen::KeyPair;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::Notify;

use authority::{Authority, as_it_is};

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(120);

/// The memory for captured packets, in bytes.
const CAPTURED: usize = 256 << 20;

/// All calls say this.
const MARK: &[u8] = b"for your eyes only";

/// Both hosts make certificates of one CA. Nobody else trusts this key.
const CA_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUEujwhPlhXjbu3hc
Xnba9fV3cUgG9oCHm+CJWVk5YhGhRANCAATpg4qTK2WmVAoBc1Rg7g5zLnEmvCcD
TFtflewt773M1RtruQvRJKeTYhBcujAhu29dVeGNRoSmD+dXPTE7hrQX
-----END PRIVATE KEY-----
";

#[farcall::service(package = "test")]
trait Echo {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes>;
    /// The other host needs this one no more.
    async fn finish(&self) -> farcall::Result<()>;
}

struct Mirror(Arc<Notify>);

impl Echo for Mirror {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes> {
        Ok(content)
    }

    async fn finish(&self) -> farcall::Result<()> {
        self.0.notify_one();
        Ok(())
    }
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
        // Nobody reads while calls run, and no packet may be missed.
        std::fs::write("/proc/sys/net/core/rmem_max", CAPTURED.to_string()).unwrap();
        socket.set_recv_buffer_size(CAPTURED).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    /// Returns how many RoCE packets crossed until now, and how many of them had the mark.
    fn end(mut self) -> [usize; 2] {
        let mut frame = vec![0; 64 << 10];
        let [mut all, mut marked] = [0; 2];
        while let Ok(len) = self.0.read(&mut frame) {
            // Ethernet, IPv4 without options, UDP, the destination port of RoCE v2.
            let is_roce =
                len > 42 && frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == [0x12, 0xb7];
            if is_roce {
                all += 1;
                marked += usize::from(frame[..len].windows(MARK.len()).any(|part| part == MARK));
            }
        }
        [all, marked]
    }
}

fn config(authority: &Authority, plaintext: Option<rdma::Plaintext>) -> Config {
    let mut files = authority.issue("echo", |params| {
        as_it_is(params);
        params.subject_alt_names.push(rcgen::SanType::IpAddress([10, 99, 0, 1].into()));
    });
    files.client_auth = tls::ClientAuth::Require;
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.tls = Some(files);
    config.rdma.plaintext = plaintext;
    config.rdma.strict_credits = true;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

/// Host 1 serves until host 2 has done its part. Returns what host 2 captured.
async fn calls_are_overheard(port: u16, plaintext: Option<rdma::Plaintext>) -> Option<[usize; 2]> {
    let authority = Authority::with_key("ca", KeyPair::from_pem(CA_KEY).unwrap());
    let config = config(&authority, plaintext);
    if std::env::var("FARCALL_HOST").unwrap() == "1" {
        let finished = Arc::new(Notify::new());
        let server = Server::builder().add(EchoServer::new(Mirror(finished.clone()))).config(config);
        let server = server.bind(&format!("10.99.0.1:{port}")).await.unwrap();
        let served = tokio::time::timeout(PATIENCE, server.serve_until(finished.notified())).await;
        served.expect("the other host must finish");
        return None;
    }
    let capture = Capture::begin();
    let connected = async {
        loop {
            let channel = Channel::builder().config(config.clone());
            match channel.connect(&format!("farcall://10.99.0.1:{port}")).await {
                Ok(channel) => return channel,
                // Host 1 is not as far yet.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let channel = tokio::time::timeout(PATIENCE, connected).await.expect("host 1 must listen");
    let connection = channel.connection().await.unwrap();
    assert_eq!((connection.transport().name, connection.is_encrypted()), ("rdma", plaintext.is_none()));
    let echo = EchoClient::new(&channel);
    for len in [100, 5000, 200_000, 1 << 20] {
        let content = Bytes::from(MARK.repeat(len / MARK.len()));
        for _ in 0..4 {
            assert_eq!(echo.echo(content.clone()).await.unwrap(), content);
        }
    }
    echo.finish().await.unwrap();
    Some(capture.end())
}

#[tokio::test]
async fn sealed_links_say_nothing_on_the_wire() {
    if let Some([packets, marked]) = calls_are_overheard(7411, None).await {
        assert!(packets > 1000, "{packets} packets");
        assert_eq!(marked, 0, "of {packets} packets");
    }
}

#[tokio::test]
async fn a_trusted_fabric_carries_what_is_said() {
    // The capture is good enough to see it.
    if let Some([packets, marked]) = calls_are_overheard(7412, Some(rdma::Plaintext::TrustedFabric)).await {
        assert!(marked > 1000, "{marked} of {packets} packets");
    }
}
