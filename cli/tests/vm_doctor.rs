//! `farcall doctor` on a machine with a device, of which one thing after the other is broken: the first line names the cause and the
//! fix, and after the fix all is good.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The machine, which one test at a time breaks.
struct Machine(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

impl Machine {
    fn take() -> Self {
        static MACHINE: Mutex<()> = Mutex::new(());
        let machine = Self(MACHINE.lock().unwrap_or_else(PoisonError::into_inner));
        machine.is_good();
        machine
    }

    /// Checks that all is good, once the kernel has noticed the last change.
    fn is_good(&self) {
        self.says("all good: connections can leave from 192.168.77.1 of rxe0 port 1", &[]);
    }

    /// Waits until the first line begins like this, and checks that it has these parts.
    fn says(&self, beginning: &str, parts: &[&str]) {
        /// A guard against hangs only.
        const PATIENCE: Duration = Duration::from_secs(60);
        let began = Instant::now();
        let first = loop {
            let first = first_line(&doctor(&[]));
            if first.starts_with(beginning) {
                break first;
            }
            assert!(began.elapsed() < PATIENCE, "it must begin with {beginning:?}: {first}");
            thread::sleep(Duration::from_millis(100));
        };
        for part in parts {
            assert!(first.contains(part), "{part:?}: {first}");
        }
    }
}

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).arg("doctor").args(arguments).output().unwrap()
}

/// Runs it as an ordinary user who may lock this many KiB. It may still read what root may, as the build can be in a directory of root's.
fn doctor_of_user(memlock: u32) -> Output {
    let program = format!(
        "ulimit -l {memlock} && exec setpriv --reuid=1000 --regid=1000 --clear-groups --bounding-set=-all,+dac_read_search \
         --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search {} doctor",
        env!("CARGO_BIN_EXE_farcall")
    );
    Command::new("bash").args(["-c", &program]).output().unwrap()
}

fn first_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the command that a finding's line says as its fix.
fn command(line: &str) -> String {
    let (_, fix) = line.split_once('`').unwrap_or_else(|| panic!("{line}"));
    fix.split('`').next().unwrap_or_default().to_owned()
}

#[track_caller]
fn sh(script: &str) {
    assert!(Command::new("bash").args(["-ec", script]).status().unwrap().success(), "{script}");
}

/// Mends the machine at the end, whatever comes of the test.
struct Mend(&'static str);

impl Drop for Mend {
    fn drop(&mut self) {
        sh(self.0);
    }
}

#[test]
fn a_good_machine_has_done_all_steps() {
    let _machine = Machine::take();
    let output = doctor(&[]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout);
    let tried = text.lines().find(|line| line.starts_with("tried")).unwrap();
    assert_eq!(
        tried,
        "tried  open the device, register memory, connect, SEND, wake up by an event, READ, WRITE, atomic addition, end access"
    );
    assert!(text.contains("rxe0 is Soft-RoCE on d0"), "{text}");
}

#[test]
fn a_port_that_is_down() {
    let machine = Machine::take();
    let mend = Mend("ip link set d0 up");
    sh("ip link set d0 down");
    machine.says("fault: port 1 of rxe0 is DOWN", &["Fix: ip link set d0 up"]);
    drop(mend);
    machine.is_good();
}

#[test]
fn an_interface_without_an_address() {
    let machine = Machine::take();
    let mend = Mend("ip addr add 192.168.77.1/24 dev d0; ip link set d0 down; ip link set d0 up");
    sh("ip addr flush d0");
    machine.says(
        "fault: d0, the interface of rxe0, has no IP address",
        &["Fix: ip addr add ADDRESS/PREFIX dev d0"],
    );
    drop(mend);
    machine.is_good();
}

#[test]
fn a_device_that_was_removed() {
    let machine = Machine::take();
    let mend = Mend("rdma link add rxe0 type rxe netdev d0");
    sh("rdma link del rxe0");
    machine.says("fault: no RDMA device: /sys/class/infiniband is absent or empty", &["Fix: "]);
    assert_eq!(doctor(&[]).status.code(), Some(2));
    drop(mend);
    machine.is_good();
}

#[test]
fn a_device_on_the_wrong_interface() {
    let machine = Machine::take();
    let mend = Mend("rdma link del rxe0 || true; ip link del dummy7; rdma link add rxe0 type rxe netdev d0");
    sh(
        "rdma link del rxe0; ip link add dummy7 type dummy; ip link set dummy7 up; rdma link add rxe0 type rxe netdev dummy7",
    );
    let beginning =
        "warning: rxe0 is Soft-RoCE on dummy7, which has no routable IP address; d0 has 192.168.77.1";
    machine.says(beginning, &[]);
    sh(&command(&first_line(&doctor(&[]))));
    machine.is_good();
    drop(mend);
    machine.is_good();
}

#[test]
fn small_packets() {
    let machine = Machine::take();
    let _mend = Mend("ip link set d0 mtu 4500");
    let note = "note: d0 has MTU 1500, so packets of rxe0 carry 1024 bytes";
    // Ethernet's own MTU, which most switches have, is good.
    sh("ip link set d0 mtu 1500");
    machine.is_good();
    let text = String::from_utf8(doctor(&[]).stdout).unwrap();
    let told = text.lines().find(|line| line.starts_with(note)).unwrap_or_else(|| panic!("{text}"));
    sh(&command(told));
    machine.is_good();
    let text = String::from_utf8(doctor(&[]).stdout).unwrap();
    assert!(!text.contains("so packets of rxe0 carry"), "{text}");
    sh("ip link set d0 mtu 700");
    machine.says("warning: d0 has MTU 700, so packets of rxe0 carry 512 bytes", &[]);
    sh(&command(&first_line(&doctor(&[]))));
    machine.is_good();
}

#[test]
fn a_node_that_may_not_be_opened() {
    let machine = Machine::take();
    let mend = Mend("chmod 666 /dev/infiniband/uverbs0; chgrp root /dev/infiniband/uverbs0");
    sh("chmod 600 /dev/infiniband/uverbs0");
    let first = first_line(&doctor_of_user(1 << 20));
    assert!(
        first.starts_with("fault: no permission to open /dev/infiniband/uverbs0: mode 600, group root"),
        "{first}"
    );
    sh("chmod 660 /dev/infiniband/uverbs0; chgrp daemon /dev/infiniband/uverbs0");
    let first = first_line(&doctor_of_user(1 << 20));
    assert!(first.contains("mode 660, group daemon") && first.contains("usermod -aG daemon USER"), "{first}");
    drop(mend);
    assert!(first_line(&doctor_of_user(1 << 20)).starts_with("all good"));
    machine.is_good();
}

#[test]
fn memory_that_may_not_be_locked() {
    let _machine = Machine::take();
    for (memlock, status, beginning) in
        [(64, 2, "fault: locked-memory limit"), (8 << 10, 1, "warning: 8192 KiB may be locked")]
    {
        let output = doctor_of_user(memlock);
        let first = first_line(&output);
        assert!(first.starts_with(beginning), "{first}");
        assert_eq!(output.status.code(), Some(status));
        // The limit that the line says is enough.
        let (_, told) = first.split_once("`ulimit -l ").unwrap();
        let told = told.split('`').next().unwrap().parse().unwrap();
        let mended = first_line(&doctor_of_user(told));
        assert!(mended.starts_with("all good"), "{told}: {mended}");
    }
}

#[test]
fn no_library() {
    let machine = Machine::take();
    let library = "$(ldconfig -p | grep -o '/.*libibverbs.so.1$' | head -1)";
    let program =
        format!("mount --bind /dev/null {library} && exec {} doctor", env!("CARGO_BIN_EXE_farcall"));
    let output = Command::new("unshare").args(["-m", "bash", "-ec", &program]).output().unwrap();
    let first = first_line(&output);
    assert!(first.starts_with("fault: libibverbs.so.1 cannot be loaded"), "{first}{output:?}");
    assert!(first.contains("Fix: install rdma-core's verbs library"), "{first}");
    machine.is_good();
}

#[test]
fn no_provider() {
    let _machine = Machine::take();
    let program = format!(
        "mount --bind /dev/null /etc/libibverbs.d/rxe.driver; mount -t tmpfs none /etc/libibverbs.d; \
         echo driver mlx5 > /etc/libibverbs.d/mlx5.driver; exec {} doctor",
        env!("CARGO_BIN_EXE_farcall")
    );
    let output = Command::new("unshare").args(["-m", "bash", "-ec", &program]).output().unwrap();
    let first = first_line(&output);
    assert!(first.starts_with("fault: rxe0 (driver rxe) needs the provider rxe"), "{first}{output:?}");
    assert!(first.contains("apt install ibverbs-providers"), "{first}");
}

#[test]
fn a_connection_that_requires_rdma_fails_with_the_cause() {
    let _machine = Machine::take();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(async { farcall::Server::builder().bind("127.0.0.1:0").await }).unwrap();
    let address = server.local_addr();
    runtime.spawn(server.serve());
    let connect = |before: &str| {
        let program = format!("{before} exec {} connect --rdma {address}", env!("CARGO_BIN_EXE_farcall"));
        let output = Command::new("unshare").args(["-m", "bash", "-ec", &program]).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, says, _) = connect("");
    assert_eq!(status, Some(0));
    assert!(says.contains("calls travel by rdma"), "{says}");
    let (status, _, why) =
        connect("mount -t tmpfs none /etc/libibverbs.d; echo driver mlx5 > /etc/libibverbs.d/mlx5.driver;");
    assert_eq!(status, Some(1));
    for part in [
        "found on this machine: fault: rxe0 (driver rxe) needs the provider rxe",
        "Fix: apt install ibverbs-providers",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn a_firewall_that_drops_roce() {
    let machine = Machine::take();
    let mend = Mend("nft flush ruleset");
    sh("nft add table inet t
        nft add chain inet t in '{ type filter hook input priority 0; policy accept; }'
        nft add rule inet t in udp dport 4791 drop");
    machine.says("fault: a rule of nft drops RoCE: `udp dport 4791 drop`", &["Fix: take the rule out"]);
    drop(mend);
    machine.is_good();
}

#[test]
fn counters_that_grow_while_they_are_watched() {
    let machine = Machine::take();
    let flap = thread::spawn(|| {
        for _ in 0..20 {
            sh("ip link set d0 down; ip link set d0 up");
            thread::sleep(Duration::from_millis(100));
        }
    });
    let output = doctor(&["--watch", "1", "--no-trial"]);
    flap.join().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let warning = text.lines().find(|line| line.starts_with("warning: rxe0 port 1 counted link_downed"));
    assert!(warning.is_some_and(|line| line.contains("while it was watched")), "{text}");
    machine.is_good();
}

#[test]
fn a_record_holds_what_was_seen() {
    let _machine = Machine::take();
    let record = std::env::temp_dir().join("doctor-record.txt");
    let record = record.to_str().unwrap();
    let here = doctor(&["--no-trial", "--record", record]);
    let again = doctor(&["--recorded", record]);
    assert_eq!(String::from_utf8(again.stdout), String::from_utf8(here.stdout));
    std::fs::remove_file(record).unwrap();
}
