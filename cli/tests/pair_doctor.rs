//! `farcall doctor HOST` between two hosts: one runs `farcall serve`, the other asks, and things on either are broken.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farcall::{Channel, Policy, Server};
use serde_json::Value;
use tokio::sync::Notify;

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(600);

/// Drops RoCE's packets.
const DROP: &str = "nft add table inet t
    nft add chain inet t in '{ type filter hook input priority 0; policy accept; }'
    nft add rule inet t in udp dport 4791 drop";

/// Has packets of UDP leave without their DSCP, and without the bits below it.
const REWRITE: &str = "nft add table inet t
    nft add chain inet t out '{ type filter hook output priority 0; policy accept; }'
    nft add rule inet t out meta l4proto udp ip dscp set cs0
    nft add rule inet t out meta l4proto udp ip ecn set not-ect";

/// Drops packets of UDP that are longer than this before they arrive. TCP's would move no calls otherwise.
const SHORTEN: &str = "nft add table inet t
    nft add chain inet t in '{ type filter hook input priority 0; policy accept; }'
    nft add rule inet t in meta l4proto udp meta length '>' 1400 drop";

/// The configuration of a network that knows a DSCP.
const MARKED: &str = "[rdma]
dscp.normal = 26
ecn = true
";

fn sh(script: &str) {
    assert!(Command::new("bash").args(["-ec", script]).status().unwrap().success(), "{script}");
}

/// The other host does what it is told.
#[farcall::service(package = "test")]
trait Control {
    /// Runs a script.
    async fn run(&self, script: String) -> farcall::Result<()>;
    /// The other host needs this one no more.
    async fn finish(&self) -> farcall::Result<()>;
}

struct Controlled(Arc<Notify>);

impl Control for Controlled {
    async fn run(&self, script: String) -> farcall::Result<()> {
        sh(&script);
        Ok(())
    }

    async fn finish(&self) -> farcall::Result<()> {
        self.0.notify_one();
        Ok(())
    }
}

fn doctor(more: &[&str]) -> Output {
    doctor_of("10.99.0.1:7499", more)
}

fn doctor_of(host: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(["doctor", host]).args(more).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The host that is looked at.
async fn serve() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["serve", "--listen", "[::]:7499"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let finished = Arc::new(Notify::new());
    let control =
        Server::builder().add(ControlServer::new(Controlled(finished.clone()))).transport(Policy::Tcp);
    let control = control.bind("10.99.0.1:7498").await.unwrap();
    let served = tokio::time::timeout(PATIENCE, control.serve_until(finished.notified())).await;
    server.kill().unwrap();
    server.wait().unwrap();
    served.expect("the other host must finish");
}

/// Connects to the host that is looked at, once it serves.
async fn control() -> ControlClient {
    let began = Instant::now();
    loop {
        match Channel::connect("tcp://10.99.0.1:7498").await {
            Ok(channel) => return ControlClient::new(&channel),
            Err(status) => assert!(began.elapsed() < PATIENCE, "host 1 must listen: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_and_the_way_to_it_are_looked_at() {
    if std::env::var("FARCALL_HOST").unwrap() == "1" {
        return serve().await;
    }
    let there = control().await;
    let began = Instant::now();
    let good = loop {
        let output = doctor(&[]);
        // Host 1 is not as far yet.
        if !text(&output).contains("[host-not-reached]") || began.elapsed() > PATIENCE {
            break output;
        }
        thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(good.status.code(), Some(0), "{}", text(&good));
    let said = text(&good);
    assert!(
        said.starts_with("between\nall good: calls of all sizes go by RDMA, both ways\n`auto` chooses rdma"),
        "{said}"
    );
    assert!(said.contains("there\nconnections can leave from 10.99.0.1 of rxe0 port 1"), "{said}");

    // A fault of the other host is named there, and first.
    there.run(DROP).await.unwrap();
    // A report is told again for five seconds.
    let began = Instant::now();
    let broken = loop {
        let output = doctor(&[]);
        if text(&output).starts_with("there\n") || began.elapsed() > PATIENCE {
            break output;
        }
    };
    let said = text(&broken);
    assert_eq!(broken.status.code(), Some(2), "{said}");
    assert!(
        said.contains(
            "fault: a rule of nft drops RoCE: `udp dport 4791 drop` (chain inet t in). Fix: take the rule out"
        ),
        "{said}"
    );
    assert!(said.contains("fault: RDMA does not reach the host"), "{said}");
    there.run("nft flush ruleset").await.unwrap();

    // A fault of this host.
    sh(DROP);
    let said = text(&doctor(&[]));
    sh("nft flush ruleset");
    assert!(said.starts_with("here\nfault: a rule of nft drops RoCE"), "{said}");

    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("pair_doctor.toml");
    std::fs::write(&file, MARKED).unwrap();
    let marked = ["--config", file.to_str().unwrap()];
    marks(&there, &marked).await;
    lengths(&there, &marked).await;

    // Packets of different sizes.
    sh("ip link set eth0 mtu 1500");
    let output = doctor(&["--json"]);
    sh("ip link set eth0 mtu 4500");
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)));
    let codes: Vec<_> = report["between"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["code"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["mtu-differs"], "{report:#}");
    there.finish().await.unwrap();
}

/// Looks at a way that changes the marks of packets, in either direction.
async fn marks(there: &ControlClient, marked: &[&str]) {
    let cause = |direction: &str| {
        format!(
            "between\nwarning: DSCP 26 becomes 0 on the way {direction}. Fix: have switches and routers trust the DSCP"
        )
    };
    sh(REWRITE);
    let said = text(&doctor(marked));
    let unmarked = text(&doctor(&[]));
    sh("nft flush ruleset");
    assert!(said.starts_with(&cause("there")), "{said}");
    assert!(said.contains("the ECN bits of packets are cleared on the way there. Fix: "), "{said}");
    // For a service that marks nothing it is good to know.
    assert!(unmarked.contains("note: DSCP 26 becomes 0 on the way there"), "{unmarked}");
    assert!(unmarked.starts_with("between\nall good"), "{unmarked}");

    there.run(REWRITE.to_owned()).await.unwrap();
    let said = text(&doctor(marked));
    there.run("nft flush ruleset".to_owned()).await.unwrap();
    assert!(said.starts_with(&cause("back")), "{said}");
    assert!(said.contains("are cleared on the way back"), "{said}");
    is_good("10.99.0.1:7499", marked);

    // IPv6 has its own place for marks.
    sh("ip addr add fd99::2/64 dev eth0 nodad");
    there.run("ip addr add fd99::1/64 dev eth0 nodad".to_owned()).await.unwrap();
    is_good("[fd99::1]:7499", marked);
    sh(&REWRITE.replace("udp ip ", "udp ip6 "));
    let said = text(&doctor_of("[fd99::1]:7499", marked));
    sh("nft flush ruleset");
    // RDMA would go on by these addresses where other tests cut the way of the others.
    sh("ip addr del fd99::2/64 dev eth0");
    there.run("ip addr del fd99::1/64 dev eth0".to_owned()).await.unwrap();
    assert!(said.starts_with(&cause("there")), "{said}");
}

/// Looks at a way that carries shorter packets than the hosts send, in either direction.
async fn lengths(there: &ControlClient, marked: &[&str]) {
    let cause = |direction: &str| {
        format!(
            "between\nfault: the way {direction} carries packets of up to 1400 bytes, and both hosts send up to 4500. Fix: raise the MTU"
        )
    };
    there.run(SHORTEN.to_owned()).await.unwrap();
    let said = text(&doctor(marked));
    there.run("nft flush ruleset".to_owned()).await.unwrap();
    assert!(said.starts_with(&cause("there")), "{said}");
    assert!(said.contains("fault: RDMA does not reach the host"), "{said}");

    sh(SHORTEN);
    let said = text(&doctor(marked));
    sh("nft flush ruleset");
    assert!(said.starts_with(&cause("back")), "{said}");
    is_good("10.99.0.1:7499", marked);

    // A name whose address is not RoCE's is nobody's fault.
    there.run("ip addr add 10.98.0.1/32 dev lo".to_owned()).await.unwrap();
    sh("ip route add 10.98.0.1/32 via 10.99.0.1");
    let said = text(&doctor_of("10.98.0.1:7499", marked));
    sh("ip route del 10.98.0.1/32");
    there.run("ip addr del 10.98.0.1/32 dev lo".to_owned()).await.unwrap();
    assert!(said.starts_with("between\nall good"), "{said}");
    assert!(said.contains("10.99.0.2 and 10.98.0.1 are not both addresses of RoCE. Fix: name"), "{said}");
    assert!(said.contains("`farcall doctor 10.99.0.1:7499`"), "{said}");

    // Nor is a firewall that drops what it does not know.
    there.run(SHORTEN.replace("meta length '>' 1400", "udp dport != 4791")).await.unwrap();
    let said = text(&doctor(marked));
    there.run("nft flush ruleset".to_owned()).await.unwrap();
    assert!(
        said.starts_with("between\nall good")
            && said.contains("note: DSCP and packet lengths were not tried: UDP"),
        "{said}"
    );
}

/// Checks that nothing is wrong, and nothing was left out.
fn is_good(host: &str, marked: &[&str]) {
    let said = text(&doctor_of(host, marked));
    assert!(said.starts_with("between\nall good"), "{said}");
    for code in ["dscp", "ecn-cleared", "path-mtu", "way-untried"] {
        assert!(!said.contains(code), "{code}: {said}");
    }
}
