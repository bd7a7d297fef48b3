//! RDMA devices that are on another network than the TCP connection.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it. Each host has a second network on the wire, 10.88.0.0/24,
//! with a device of its own. Each case is a process of its own on either host: a device can be removed only when no process has it
//! open.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod pair;

use std::process::Command;
use std::time::Duration;

use farcall::{Bytes, Channel, Config};

use pair::{EchoClient, PATIENCE, together_with};

/// Adds the second network, and its device `rxe1`. Each network answers for its own addresses only.
const SECOND_NETWORK: &str = "
    echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
    echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce
    ip link add m0 link eth0 type macvlan mode bridge
    ip link set m0 mtu 4500
    rdma link add rxe1 type rxe netdev m0
    ip addr add 10.88.0.$FARCALL_HOST/24 dev m0
    ip link set m0 up
    remove() { rdma link del rxe1; ip link del m0; }
    trap remove EXIT
    until grep -qs ffff:0a58 /sys/class/infiniband/rxe1/ports/1/gids/*; do sleep 0.05; done
";

/// Runs a script in which `$PROCESS` is the test `process`, with the settings in TOML, and its port.
fn run(port: u16, settings: &str, script: &str) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("bash")
        .args(["-ec", &format!("{SECOND_NETWORK}{script}")])
        .env("PROCESS", format!("{} --exact process --nocapture", program.display()))
        .env("TEST_PORT", port.to_string())
        .env("TEST_SETTINGS", format!("liveness.connect_ms = 20000\nliveness.retry_ms = 500\n{settings}"))
        .output()
        .unwrap();
    let [said, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{complained}");
}

/// Not a test by itself: calls the other host, or serves it, until calls go by `rxe1`.
#[tokio::test]
async fn process() {
    let Ok(port) = std::env::var("TEST_PORT") else { return };
    let config = Config::from_toml(&std::env::var("TEST_SETTINGS").unwrap()).unwrap();
    together_with(port.parse().unwrap(), config, async |channel| {
        let moved = tokio::time::timeout(PATIENCE, moved(channel)).await;
        assert!(moved.is_ok(), "{}", channel.transport().await.unwrap());
        let echo = EchoClient::new(channel);
        for len in [1, 8192, 1 << 20] {
            let content: Bytes = (0..len).map(|i| (i * 7) as u8).collect();
            assert_eq!(echo.echo(content.clone()).await.unwrap(), content, "{len} bytes");
        }
        let transport = channel.transport().await.unwrap();
        assert!(transport.name == "rdma" && transport.to_string().contains("rxe1"), "{transport}");
    })
    .await;
}

async fn moved(channel: &Channel) {
    while !channel.transport().await.unwrap().to_string().contains("rxe1") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_rdma_network_of_its_own_is_found() {
    // The only device is on the second network; the TCP connection is on the first.
    run(
        7421,
        "",
        "
        rdma link del rxe0
        restore() {
            remove
            rdma link add rxe0 type rxe netdev eth0
            until grep -qs ffff:0a63 /sys/class/infiniband/rxe0/ports/1/gids/*; do sleep 0.05; done
        }
        trap restore EXIT
        $PROCESS
        ",
    );
}

#[test]
fn b_subnet_that_is_configured_is_used() {
    run(7422, "rdma.subnet = '10.88.0.0/24'", "$PROCESS");
}

#[test]
fn c_network_that_drops_roce_is_passed_over() {
    // The addresses of the TCP connection are the likeliest, so they are tried first.
    run(
        7423,
        "",
        "
        tc qdisc add dev eth0 root handle 1: prio
        restore() { tc qdisc del dev eth0 root; remove; }
        trap restore EXIT
        tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100%
        tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff \
            match ip dst 10.99.0.0/16 flowid 1:3
        $PROCESS
        ",
    );
}
