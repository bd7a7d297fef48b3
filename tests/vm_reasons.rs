//! The reasons that a connection gives when RDMA can't be had, on a machine that has a device: each reason is made for
//! real.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it. Each case is a process of its own, because it changes
//! what the process, or everybody, may do.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use farcall::{Channel, Config, Server};

#[farcall::service(package = "test")]
trait Hello {
    async fn hello(&self) -> farcall::Result<String>;
}

struct Polite;

impl Hello for Polite {
    async fn hello(&self) -> farcall::Result<String> {
        Ok("hello".into())
    }
}

/// Not a test by itself: the process whose circumstances the tests make. Prints the reason that it finds.
#[tokio::test]
async fn process_reason() {
    let Ok(scheme) = std::env::var("TEST_SCHEME") else { return };
    // An emulated machine on a busy host is slow.
    let config = Config::from_toml("[liveness]\nconnect_ms = 60000").unwrap();
    let server = Server::builder().add(HelloServer::new(Polite)).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("{scheme}://{}?liveness.connect_ms=60000", server.local_addr());
    tokio::spawn(server.serve());
    match Channel::connect(&address).await {
        Ok(channel) => {
            // Whatever the reason, calls work.
            assert_eq!(HelloClient::new(&channel).hello().await.unwrap(), "hello");
            let transport = channel.transport().await.unwrap();
            let reason = transport.why_not_rdma.as_ref().map(|why| why.reason);
            println!("FOUND {} {reason:?} {transport}", transport.name);
        }
        Err(error) => println!("REFUSED {error}"),
    }
}

/// The cases change the machine that they share.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a shell script in which `$PROCESS` is the process above; what it prints.
fn run(scheme: &str, script: &str) -> String {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let program = std::env::current_exe().unwrap();
    let output = Command::new("bash")
        .args(["-ec", script])
        .env("PROCESS", format!("{} --exact process_reason --nocapture", program.display()))
        .env("TEST_SCHEME", scheme)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Under `auto` calls go by TCP and the reason is `reason`; under `rdma` there is an error that says the same.
fn expect(script: &str, reason: &str, words: &[&str]) {
    let said = run("farcall", script);
    assert!(said.contains(&format!("FOUND tcp Some({reason})")), "{said}");
    let refused = run("rdma", script);
    assert!(refused.contains("REFUSED UNAVAILABLE"), "{refused}");
    for word in words {
        assert!(said.contains(word), "`{word}` is missing from: {said}");
        assert!(refused.contains(word), "`{word}` is missing from: {refused}");
    }
}

const AS_USER: &str =
    "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -ipc_lock --inh-caps -ipc_lock";

#[test]
fn with_nothing_in_its_way_it_is_rdma() {
    let said = run("farcall", "$PROCESS");
    assert!(said.contains("FOUND rdma None rdma on rxe0"), "{said}");
}

#[test]
fn library_absent() {
    let script = "unshare -m bash -ec '
        for library in /usr/lib/*/libibverbs.so.1; do mount --bind /dev/null $library; done
        $PROCESS'";
    expect(script, "LibraryAbsent", &["libibverbs.so.1"]);
}

#[test]
fn no_device() {
    let script = "unshare -m bash -ec 'mount -t tmpfs none /sys/class/infiniband; $PROCESS'";
    expect(script, "NoDevice", &["/sys/class/infiniband"]);
}

#[test]
fn port_down() {
    let script = "ip link set d0 down; trap 'ip link set d0 up' EXIT; $PROCESS";
    expect(script, "PortDown", &["rxe0", "DOWN"]);
}

#[test]
fn no_gid() {
    let script = "unshare -m bash -ec '
        for gids in /sys/class/infiniband/rxe0/ports/1/gids /sys/class/infiniband/rxe0/ports/1/gid_attrs/types; do
            mount -t tmpfs none $gids
        done
        $PROCESS'";
    expect(script, "NoGid", &["rxe0"]);
}

#[test]
fn device_file_unreadable() {
    let script = format!(
        "chmod 600 /dev/infiniband/uverbs0; trap 'chmod 666 /dev/infiniband/uverbs0' EXIT; {AS_USER} $PROCESS"
    );
    expect(&script, "NoPermission", &["/dev/infiniband/uverbs0"]);
}

#[test]
fn memlock_too_low() {
    let script =
        format!("chmod 666 /dev/infiniband/uverbs0; prlimit --memlock=65536:65536 {AS_USER} $PROCESS");
    expect(&script, "Memlock", &["ulimit -l", "64 KiB"]);
}

#[test]
fn disabled() {
    let said = run("tcp", "$PROCESS");
    assert!(said.contains("FOUND tcp Some(Disabled)"), "{said}");
}
