//! Sessions by TLS between two hosts: a capture of the wire shows none of what they say by RDMA.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 calls and listens.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod authority;
mod pair;

use std::io::Read;

use farcall::{Bytes, Config, Policy, rdma, tls};
use rcgen::KeyPair;
use socket2::{Domain, Protocol, Socket, Type};

use authority::{Authority, as_it_is};
use pair::{EchoClient, is_server, together_with};

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

/// Makes calls from host 2. Returns how many RoCE packets it captured, and how many of them had the mark.
async fn calls_are_overheard(port: u16, plaintext: Option<rdma::Plaintext>) -> Option<[usize; 2]> {
    let authority = Authority::with_key("ca", KeyPair::from_pem(CA_KEY).unwrap());
    let capture = (!is_server()).then(Capture::begin);
    together_with(port, config(&authority, plaintext), async |channel| {
        let connection = channel.connection().await.unwrap();
        assert_eq!((connection.transport().name, connection.is_encrypted()), ("rdma", plaintext.is_none()));
        let echo = EchoClient::new(channel);
        for len in [100, 5000, 200_000, 1 << 20] {
            let content = Bytes::from(MARK.repeat(len / MARK.len()));
            for _ in 0..4 {
                assert_eq!(echo.echo(content.clone()).await.unwrap(), content);
            }
        }
    })
    .await;
    capture.map(Capture::end)
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
