//! Typed calls between two hosts over RDMA, and what a broken wire does to them.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 calls.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod pair;

use std::process::Command;

use farcall::{Bytes, Channel, Config, Reason, TrafficClass};

use pair::{EchoClient, NoRoce, PATIENCE, is_server, run, together_with};

fn config() -> Config {
    let mut config = Config::default();
    config.rdma.strict_credits = true;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

/// Host 1 serves until host 2 has done `client`.
async fn together(port: u16, client: impl AsyncFnOnce(&Channel)) {
    together_with(port, config(), client).await;
}

#[tokio::test]
async fn calls_cross_the_wire_by_rdma() {
    together(7401, async |channel| {
        let transport = channel.transport().await.unwrap();
        assert_eq!(transport.name, "rdma", "{transport}");
        let echo = EchoClient::new(channel);
        for len in [0, 1, 1000, 8192, 100_000, 1 << 20] {
            let content: Bytes = (0..len).map(|i| (i * 7) as u8).collect();
            assert_eq!(echo.echo(content.clone()).await.unwrap(), content, "{len} bytes");
        }
    })
    .await;
}

/// Counts the bytes that leave this host in packets with a DSCP: in TCP's with one, and in UDP's, which are RoCE's, with
/// another.
struct Marked;

impl Marked {
    fn begin(tcp: u8, roce: u8) -> Self {
        run("tc qdisc add dev eth0 root handle 1: prio bands 5");
        for (protocol, dscp, band) in [(6, tcp, 4), (17, roce, 5)] {
            run(&format!(
                "tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol {protocol} 0xff \
                 match ip tos {:#x} 0xfc flowid 1:{band}",
                dscp << 2
            ));
        }
        Self
    }

    fn bytes(&self) -> [u64; 2] {
        let shown = run("tc -s class show dev eth0");
        [4, 5].map(|band| {
            let (_, class) = shown.split_once(&format!("class prio 1:{band} ")).unwrap();
            class.split_once("Sent ").and_then(|(_, sent)| sent.split(' ').next()?.parse().ok()).unwrap()
        })
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        let _ = Command::new("tc").args(["qdisc", "del", "dev", "eth0", "root"]).status();
    }
}

#[tokio::test]
async fn packets_have_the_mark_of_their_class_in_both_directions() {
    let mut config = config();
    config.tcp.dscp.urgent = Some(10);
    config.rdma.dscp.urgent = Some(46);
    let marked = Marked::begin(10, 46);
    together_with(7405, config, async |channel| {
        call(&EchoClient::new(channel), 1, 10_000).await;
        assert_eq!(marked.bytes(), [0, 0]);
        let urgent = channel.class(TrafficClass::Urgent);
        call(&EchoClient::new(&urgent), 2, 10_000).await;
        assert_eq!(urgent.transport().await.unwrap().name, "rdma");
    })
    .await;
    // On the host that calls, and on the one that serves.
    let [tcp, roce] = marked.bytes();
    assert!(tcp > 0 && roce > 10_000, "{tcp} bytes of TCP and {roce} of RoCE are marked");
}

#[tokio::test]
async fn probe_lost() {
    let _no_roce = (!is_server()).then(NoRoce::begin);
    together(7402, async |channel| {
        let transport = channel.transport().await.unwrap();
        assert_eq!(transport.name, "tcp", "{transport}");
        let why = transport.why_not_rdma.unwrap();
        assert!(matches!(why.reason, Reason::ProbeLost | Reason::TimedOut), "{why}");
        let content = Bytes::from_static(b"by TCP all the same");
        assert_eq!(EchoClient::new(channel).echo(content.clone()).await.unwrap(), content);
    })
    .await;
}

async fn call(echo: &EchoClient, seed: u32, len: u32) {
    let content: Bytes = (0..len).map(|b| (b + seed) as u8).collect();
    let answer = tokio::time::timeout(PATIENCE, echo.echo(content.clone())).await;
    assert!(answer.expect("a call must end").unwrap() == content, "{len} bytes");
}

#[tokio::test]
async fn a_cut_wire_moves_the_calls_to_tcp_and_loses_none() {
    let mut config = config();
    // The test asks for the reason of the fall, not of another attempt.
    config.liveness.retry_ms = 0;
    together_with(7403, config, async |channel| {
        assert_eq!(channel.transport().await.unwrap().name, "rdma");
        let echo = EchoClient::new(channel);
        let mut no_roce = None;
        for i in 0..200 {
            if i == 50 {
                no_roce = Some(NoRoce::begin());
            }
            // The longest are read by the other side, or were to be.
            call(&echo, i, i * 150).await;
        }
        drop(no_roce);
        let transport = channel.transport().await.unwrap();
        let why = transport.why_not_rdma.unwrap();
        assert_eq!((transport.name, why.reason), ("tcp", Reason::QueuePair), "{why}");
    })
    .await;
}

#[tokio::test]
async fn a_wire_that_is_restored_brings_rdma_back_and_calls_use_it() {
    let mut config = config();
    config.liveness.retry_ms = 500;
    // A probe that is lost costs no longer than this.
    config.liveness.connect_ms = 5000;
    together_with(7404, config, async |channel| {
        let echo = EchoClient::new(channel);
        let goes_by = async |name| channel.transport().await.unwrap().name == name;
        let mut made = 0;
        let mut come_to = async |name| {
            let calls = async {
                while !goes_by(name).await {
                    made += 1;
                    call(&echo, made, [10, 5000, 100_000][made as usize % 3]).await;
                }
            };
            tokio::time::timeout(PATIENCE, calls).await.unwrap_or_else(|_| panic!("never again by {name}"));
        };
        for _ in 0..2 {
            come_to("rdma").await;
            let no_roce = NoRoce::begin();
            come_to("tcp").await;
            // Attempts fail meanwhile.
            for i in 0..20 {
                call(&echo, i, 100_000).await;
            }
            drop(no_roce);
            come_to("rdma").await;
        }
        let connection = channel.connection().await.unwrap();
        let before = connection.traffic();
        call(&echo, 1, 1 << 20).await;
        let after = connection.traffic();
        assert!(after.upgraded.bytes_sent > before.upgraded.bytes_sent + (1 << 20), "{after:?}");
    })
    .await;
}
