//! RoCE packets that somebody forges who knows all that is on the wire: addresses, queue pairs and packet numbers. They cost links,
//! and no call.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 calls and forges.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
#![expect(clippy::print_stdout, reason = "the figures are for TESTING.md")]

mod authority;
mod pair;
mod work;

use std::cell::Cell;
use std::collections::HashMap;

use farcall::{Channel, Config, Server, tls};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use authority::{Authority, for_host_1};
use pair::{run, together_serving};
use work::{Load, Log, SIZES, WorkClient, WorkServer, until};

const SERVER: [u8; 4] = [10, 99, 0, 1];
const CLIENT: [u8; 4] = [10, 99, 0, 2];

/// A packet that the client's queue pair might have sent.
#[derive(Debug, Clone, Copy)]
enum Forged {
    /// A message of one packet.
    Message,
    /// A READ with a key that was never given.
    Read,
}

impl Forged {
    /// Operation codes of a reliable connection, table 38 of the InfiniBand specification.
    const fn opcode(self) -> u8 {
        match self {
            Self::Message => 0x04,
            Self::Read => 0x0c,
        }
    }

    /// Returns the bytes after the base transport header: a payload, or an RDMA extended transport header, section 9.3.
    fn content(self) -> Vec<u8> {
        match self {
            Self::Message => vec![0xa5; 64],
            Self::Read => {
                let (address, key, len) = (0x1000_u64, 0x1234_5678_u32, 8_u32);
                [&address.to_be_bytes()[..], &key.to_be_bytes(), &len.to_be_bytes()].concat()
            }
        }
    }

    /// Returns the packet, from its IPv4 header on.
    fn packet(self, to: u32, psn: u32) -> Vec<u8> {
        let content = self.content();
        let udp_len = 8 + 12 + content.len() as u16 + 4;
        let ip_len = 20 + udp_len;
        // Version 4, not to be fragmented, 64 hops, UDP. The kernel writes the checksum.
        let mut packet = vec![0x45, 0, (ip_len >> 8) as u8, ip_len as u8, 0, 1, 0x40, 0, 64, 17, 0, 0];
        packet.extend(CLIENT);
        packet.extend(SERVER);
        // UDP without a checksum, to the port of RoCE v2.
        for field in [49_152, 4791, udp_len, 0] {
            packet.extend(field.to_be_bytes());
        }
        // The base transport header, section 9.2: the default partition, and an acknowledgement is asked for.
        packet.extend([self.opcode(), 0, 0xff, 0xff]);
        packet.extend(to.to_be_bytes());
        packet.extend((1 << 31 | psn & 0xff_ffff).to_be_bytes());
        packet.extend(content);
        packet.extend(invariant_crc(&packet).to_le_bytes());
        packet
    }
}

/// Returns the checksum of RoCE v2 (annex A17 of the InfiniBand specification): fields that routers change count as ones, and so
/// does the header that RoCE does not have.
fn invariant_crc(packet: &[u8]) -> u32 {
    let mut masked = packet.to_vec();
    // Type of service, time to live, both checksums, and the reserved byte before the queue pair's number.
    for at in [1, 8, 10, 11, 26, 27, 32] {
        masked[at] = 0xff;
    }
    crc32fast::hash(&[&[0xff; 8], &masked[..]].concat())
}

/// A queue pair that is connected, as `rdma resource show qp` tells it. Nobody else on this host has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    number: u32,
    /// The queue pair of the other host.
    peer: u32,
    /// The number of the packet that the other host expects next.
    psn: u32,
}

impl Link {
    fn all() -> Vec<Self> {
        let lines = run("rdma -d resource show qp");
        let link = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let value = |name| words.iter().skip_while(|word| **word != name).nth(1).copied();
            if (value("type"), value("state")) != (Some("RC"), Some("RTS")) {
                return None;
            }
            let number = |name| value(name)?.parse().ok();
            Some(Self { number: number("lqpn")?, peer: number("rqpn")?, psn: number("sq-psn")? })
        };
        lines.lines().filter_map(link).collect()
    }

    /// Forges packets until the queue pair is gone. Returns how often.
    async fn is_broken_by(self, forged: Forged) -> u32 {
        // raw(7): the socket takes whole packets.
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap();
        let server: SockAddr = std::net::SocketAddr::from((SERVER, 0)).into();
        let times = Cell::new(0);
        let is_gone = async || {
            let Some(link) = Self::all().into_iter().find(|link| link.number == self.number) else {
                return true;
            };
            times.set(times.get() + 1);
            // Messages pass meanwhile. One of these is the next.
            for next in 0..16 {
                raw.send_to(&forged.packet(link.peer, link.psn + next), &server).unwrap();
            }
            false
        };
        until("the forged packet breaks the link", is_gone).await;
        times.get()
    }
}

/// Breaks one link after the other while calls run. None is lost, none runs twice, and each answer is right.
async fn outlive_forgeries(port: u16, mut config: Config, forgeries: &[Forged]) {
    let rounds = if std::env::var_os("FARCALL_LONG").is_some() { 30 } else { 3 };
    config.rdma.strict_credits = true;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config.liveness.retry_ms = 100;
    let server = Server::builder().add(WorkServer::new(Log::default()));
    together_serving(port, config, server, async |channel: &Channel| {
        let work = WorkClient::new(channel);
        let load = Load::start(&work, 0, 4, &SIZES);
        let is_up = async || channel.transport().await.unwrap().name == "rdma" && !Link::all().is_empty();
        for forged in forgeries.iter().cycle().take(rounds * forgeries.len()) {
            until("RDMA is there", is_up).await;
            load.go_on(10).await;
            let link = Link::all().pop().unwrap();
            let times = link.is_broken_by(*forged).await;
            assert!(times > 0, "{link:?} was gone before");
            println!("{forged:?}: {link:?} is broken after {times} attempts");
            load.go_on(10).await;
        }
        let outcomes = load.stop().await;
        outcomes.all_answered();
        let executed: HashMap<_, _> = work.executed().await.unwrap().into_iter().collect();
        outcomes.agree_with(&executed);
        assert_eq!(executed.len(), outcomes.calls.len(), "somebody else's call was executed");
        println!("{} calls, the longest took {} ms", outcomes.calls.len(), outcomes.longest_ms);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_packets_cost_sealed_links_and_no_call() {
    let authority = Authority::of_both_hosts();
    let mut config = Config::default();
    config.tls = Some(authority.issue("work", for_host_1));
    outlive_forgeries(7411, config, &[Forged::Message, Forged::Read]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_reads_cost_links_and_no_call() {
    outlive_forgeries(7412, Config::default(), &[Forged::Read]).await;
}
