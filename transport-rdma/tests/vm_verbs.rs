//! The verbs layer on a real device: Soft-RoCE in the project's virtual machine, or hardware.
//!
//! `FARCALL_RDMA=required` says that there is one; docs/TESTING.md says how to run this.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::fs::File;
use std::future::poll_fn;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::{LIMIT, Machine, SLOT, atomics, keys, received, scenarios, windows, words};
use farcall_core::region::Exportable;
use farcall_core::transport::Words;
use farcall_rdma::MappedWords;
use farcall_rdma::testing::device::*;
use farcall_rdma::testing::dma::Pages;
use farcall_rdma::testing::verbs::SystemHost;

/// Stops tests that were started where no device is meant to be.
fn require_device() {
    let required = std::env::var("FARCALL_RDMA").is_ok_and(|value| value == "required");
    assert!(
        required,
        "needs an RDMA device: run it in the VM (docs/TESTING.md), or set FARCALL_RDMA=required"
    );
}

fn machine() -> Machine {
    require_device();
    Machine::open(&SystemHost::default(), &RdmaConfig::default())
}

macro_rules! on_the_device {
    ($($name:ident: $module:ident::$scenario:ident)*) => { $(
        #[test]
        fn $name() {
            $module::$scenario(machine());
        }
    )* };
}

on_the_device! {
    vm_ping_pong_by_polling: scenarios::ping_pong_by_polling
    vm_ping_pong_by_events: scenarios::ping_pong_by_events
    vm_completion_before_arming_makes_no_event: scenarios::completion_before_arming_makes_no_event
    vm_missing_receive_fails_the_send_at_once: scenarios::missing_receive_fails_the_send_at_once
    vm_missing_peer_fails_the_send_after_its_retries: scenarios::missing_peer_fails_the_send_after_its_retries
    vm_marker_comes_after_every_outstanding_send: scenarios::marker_comes_after_every_outstanding_send
    vm_completions_are_asked_for_every_so_often: scenarios::completions_are_asked_for_every_so_often
    vm_full_send_queue_takes_what_fits: scenarios::full_send_queue_takes_what_fits
    vm_copied_messages_arrive_between_others: scenarios::copied_messages_arrive_between_others
    vm_message_of_two_parts_arrives_as_one: scenarios::message_of_two_parts_arrives_as_one
    vm_only_small_messages_may_lie_anywhere: scenarios::only_small_messages_may_lie_anywhere
    vm_message_larger_than_a_slot_fails_both_ends: scenarios::message_larger_than_a_slot_fails_both_ends
    vm_posting_before_the_connection_is_refused: scenarios::posting_before_the_connection_is_refused
    vm_send_completion_queue_cannot_be_oversubscribed: scenarios::send_completion_queue_cannot_be_oversubscribed
    vm_undrained_queue_pair_leaves_nothing_behind: scenarios::undrained_queue_pair_leaves_nothing_behind
    vm_views_outlive_the_device: scenarios::views_outlive_the_device
    vm_exposed_bytes_are_read_whole_and_in_parts: windows::exposed_bytes_are_read_whole_and_in_parts
    vm_more_reads_than_the_device_serves_wait_for_each_other: windows::more_reads_than_the_device_serves_wait_for_each_other
    vm_memory_is_kept_until_its_exposure_is_over: windows::memory_is_kept_until_its_exposure_is_over
    vm_grant_that_is_over_grants_nothing: windows::grant_that_is_over_grants_nothing
    vm_bytes_beside_a_grant_are_out_of_reach: windows::bytes_beside_a_grant_are_out_of_reach
    vm_exposed_bytes_are_nobodys_to_write: windows::exposed_bytes_are_nobodys_to_write
    vm_keys_of_a_window_come_round: keys::keys_of_a_window_come_round
    vm_arena_is_removed_once_nothing_of_it_is_used: windows::arena_is_removed_once_nothing_of_it_is_used
    vm_windows_run_out_and_come_back: windows::windows_run_out_and_come_back
    vm_exposure_that_is_over_does_nothing: windows::exposure_that_is_over_does_nothing
    vm_only_what_lies_in_an_arena_is_exposed: windows::only_what_lies_in_an_arena_is_exposed
    vm_read_beyond_its_landing_is_refused: windows::read_beyond_its_landing_is_refused
    vm_failed_read_gives_its_landing_back: windows::failed_read_gives_its_landing_back
    vm_queue_pairs_with_bound_windows_go_at_once: windows::queue_pairs_with_bound_windows_go_at_once
    vm_extents_outlive_the_device: windows::extents_outlive_the_device
    vm_device_says_what_it_can_read_and_expose: windows::device_says_what_it_can_read_and_expose
    vm_words_are_read_as_they_are_until_the_grant_is_over: words::words_are_read_as_they_are_until_the_grant_is_over
    vm_words_beside_a_grant_are_out_of_reach: words::words_beside_a_grant_are_out_of_reach
    vm_a_part_of_words_has_bounds_of_its_own: words::a_part_of_words_has_bounds_of_its_own
    vm_words_of_this_side_are_read_into_and_written_from: words::words_of_this_side_are_read_into_and_written_from
    vm_windows_serve_words_and_messages: words::windows_serve_words_and_messages
    vm_words_of_queue_pairs_that_are_gone_are_free: words::words_of_queue_pairs_that_are_gone_are_free
    vm_empty_words_are_not_exposed: words::empty_words_are_not_exposed
    vm_words_are_written_until_the_grant_is_over: words::words_are_written_until_the_grant_is_over
    vm_words_in_an_arena_are_written_until_the_grant_is_over: words::words_in_an_arena_are_written_until_the_grant_is_over
    vm_words_beside_a_grant_are_not_written: words::words_beside_a_grant_are_not_written
    vm_a_grant_gives_the_rights_that_it_names: words::a_grant_gives_the_rights_that_it_names
    vm_numbers_are_changed_until_the_grant_is_over: atomics::numbers_are_changed_until_the_grant_is_over
    vm_no_addition_is_lost: atomics::no_addition_is_lost
    vm_numbers_beside_a_grant_are_not_changed: atomics::numbers_beside_a_grant_are_not_changed
    vm_numbers_are_changed_by_right: atomics::numbers_are_changed_by_right
}

#[test]
fn vm_relaxed_ordering_is_accepted() {
    let mut config = RdmaConfig::default();
    config.relaxed_ordering = true;
    require_device();
    let machine = Machine::open(&SystemHost::default(), &config);
    let (a, b) = machine.pair(1);
    a.send(a.message(SLOT, 3));
    assert_eq!(received(b.poll(Cq::Receive, 1).remove(0)), vec![3; SLOT]);
    windows::exposed_bytes_are_read_whole_and_in_parts(machine);
}

/// Words of which a dma-buf is said to have them.
struct Elsewhere(Vec<AtomicU64>, File);

impl AsRef<[AtomicU64]> for Elsewhere {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl Exportable for Elsewhere {
    fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        Some(self.1.as_fd())
    }
}

/// A device that takes dma-bufs says that this is none.
#[test]
fn vm_memory_that_the_device_cannot_use_is_told_with_its_reason() {
    let machine = machine();
    let words = Elsewhere(vec![AtomicU64::new(0)], File::open("/dev/null").unwrap());
    let error = machine.device.add_words(Arc::new(words), true).unwrap_err();
    let Unavailable::Device(device) = &error else { panic!("{error}") };
    assert_eq!(device.operation, "ibv_reg_dmabuf_mr");
    assert!(error.to_string().contains("the memory of another device"), "{error}");
    assert!(error.remedy().contains("export memory of the host"), "{}", error.remedy());
}

/// Runs one test of this file again as a user without privileges, and expects it to pass.
fn as_ordinary_user(test: &str, limits: &str) {
    require_device();
    let script = format!("{limits} exec \"$0\" \"$@\"");
    let this = std::env::current_exe().unwrap();
    let mut child = Command::new("sh");
    child.args(["-c", &script]).arg(this).args(["--exact", test, "--nocapture"]);
    let output = child.env("FARCALL_TEST_ORDINARY", "1").uid(65534).gid(65534).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn is_ordinary_user() -> bool {
    std::env::var_os("FARCALL_TEST_ORDINARY").is_some()
}

#[test]
fn vm_memlock_limit_is_told_with_its_remedy() {
    if !is_ordinary_user() {
        return as_ordinary_user("vm_memlock_limit_is_told_with_its_remedy", "ulimit -l 4096;");
    }
    let machine = machine();
    let error = machine.device.add_slab(SlabLayout { slot_size: SLOT, slots: 1024 }).unwrap_err();
    let Unavailable::Memlock(memlock) = &error else { panic!("{error}") };
    assert_eq!((memlock.asked, memlock.soft, memlock.hard), (8 << 20, Some(4 << 20), Some(4 << 20)));
    assert!(memlock.in_use >= machine.slab.slots() as u64 * SLOT as u64, "{memlock:?}");
    assert!(error.remedy().contains("ulimit -l"));
    // Memory that was registered before goes on working.
    let (a, b) = machine.pair(1);
    a.send(a.message(SLOT, 3));
    assert_eq!(received(b.poll(Cq::Receive, 1).remove(0)), vec![3; SLOT]);
}

/// Locked while a test reserves huge pages.
static RESERVING: Mutex<()> = Mutex::new(());

/// Reserved huge pages, and a control group that may use none of them.
struct HugePages {
    group: &'static str,
    before: String,
}

impl HugePages {
    const COUNT: &'static str = "/proc/sys/vm/nr_hugepages";

    fn reserve(count: u32) -> Self {
        let group = "/tmp/cgroup-of-farcall/without-huge-pages";
        run("mkdir -p /tmp/cgroup-of-farcall && mount -t cgroup2 none /tmp/cgroup-of-farcall");
        run("echo +hugetlb > /tmp/cgroup-of-farcall/cgroup.subtree_control");
        run(&format!("mkdir {group} && echo 0 > {group}/hugetlb.2MB.max"));
        let before = std::fs::read_to_string(Self::COUNT).unwrap();
        std::fs::write(Self::COUNT, count.to_string()).unwrap();
        Self { group, before }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        std::fs::write(Self::COUNT, &self.before).unwrap();
        run(&format!("rmdir {} && umount /tmp/cgroup-of-farcall", self.group));
    }
}

#[test]
fn vm_huge_pages_that_may_not_be_used_are_not() {
    const TEST: &str = "vm_huge_pages_that_may_not_be_used_are_not";
    let pages = || {
        let machine = machine();
        let mut slot = machine.slab.take().unwrap();
        slot.fill(1);
        machine.slab.pages()
    };
    if std::env::var_os("FARCALL_TEST_WITHOUT_HUGE_PAGES").is_some() {
        assert_eq!(pages(), Pages::Transparent);
        return;
    }
    require_device();
    let _alone = RESERVING.lock().unwrap();
    // Enough for the tests beside this one, which use them too.
    let huge = HugePages::reserve(64);
    assert_eq!(pages(), Pages::Huge);
    let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", huge.group);
    let mut child = Command::new("sh");
    child.args(["-c", &script]).arg(std::env::current_exe().unwrap()).args(["--exact", TEST, "--nocapture"]);
    let output = child.env("FARCALL_TEST_WITHOUT_HUGE_PAGES", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Returns the memory of this process that is pinned, in bytes.
fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPin:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Prints how long registrations take, which TUNING tells.
#[test]
fn vm_memory_is_pinned_as_long_as_it_is_registered() {
    const LEN: usize = 128 << 20;
    let machine = machine();
    let measure = |name: &str, words: Words| {
        let begun = Instant::now();
        let registered = machine.device.add_words(words, true).unwrap();
        let took = begun.elapsed();
        assert!(pinned() >= LEN, "{name}: it is not pinned");
        let begun = Instant::now();
        drop(registered);
        println!("{} MiB, {name}: {took:.1?} to register, {:.1?} to end that", LEN >> 20, begun.elapsed());
        // Other tests have less.
        assert!(pinned() < LEN, "{name}: it stays pinned");
    };
    let path = "/dev/shm/farcall-registered";
    let mut file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(&vec![1; LEN]).unwrap();
    measure("pages of 4 KiB that were written", Arc::new(MappedWords::of_file(&file).unwrap()));
    measure(
        "large pages that were written",
        Arc::new((0..LEN as u64 / 8).map(AtomicU64::new).collect::<Vec<_>>()),
    );
    let _alone = RESERVING.lock().unwrap();
    measure("fresh pages that the kernel makes huge", Arc::new(MappedWords::zeroed(LEN).unwrap()));
    let before = std::fs::read_to_string(HugePages::COUNT).unwrap();
    std::fs::write(HugePages::COUNT, "128").unwrap();
    let huge = Arc::new(MappedWords::zeroed(LEN).unwrap());
    std::fs::write(HugePages::COUNT, before).unwrap();
    measure("reserved huge pages", huge);
}

#[test]
fn vm_device_node_that_may_not_be_opened_is_named() {
    if !is_ordinary_user() {
        return as_ordinary_user("vm_device_node_that_may_not_be_opened_is_named", "");
    }
    let host = SystemHost::default();
    let mut devices = host.devices().unwrap();
    devices[0].node = "/proc/1/mem".into();
    let error = host.open(&devices[0], &RdmaConfig::default()).unwrap_err();
    assert_eq!(error, Unavailable::NoPermission { path: "/proc/1/mem".into() });
}

#[test]
fn vm_device_is_found_with_its_addresses() {
    require_device();
    let host = SystemHost::default();
    let (devices, interfaces) = (host.devices().unwrap(), host.interfaces());
    let by_rank = choose(&devices, &interfaces, &RdmaConfig::default(), None).unwrap();
    if by_rank.gid.kind != GidKind::InfiniBand {
        let address = by_rank.gid.gid.ip();
        assert!(interfaces.iter().any(|i| i.address == address), "{address} is no address of this machine");
        let by_address = choose(&devices, &interfaces, &RdmaConfig::default(), Some(address)).unwrap();
        assert_eq!(by_address.matched, Match::Address);
        assert_eq!(by_address.gid, by_rank.gid);
    }
    let probe = farcall_rdma::probe(&RdmaConfig::default(), None).unwrap();
    assert_eq!((probe.device, probe.gid_index), (by_rank.device, by_rank.gid.index));
}

/// A Soft-RoCE device of one test's own, on a network interface of its own; removed at the end.
struct OwnDevice(&'static str);

impl OwnDevice {
    fn add(name: &'static str, address: &str) -> Self {
        for command in [
            format!("ip link add {name} type dummy"),
            format!("ip addr add {address} dev {name}"),
            format!("ip link set {name} up"),
            format!("rdma link add {name} type rxe netdev {name}"),
        ] {
            run(&command);
        }
        Self(name)
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        run(&format!("ip link del {}", self.0));
    }
}

fn run(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

#[test]
fn vm_key_of_another_connection_reads_nothing() {
    let times = if std::env::var_os("FARCALL_LONG").is_some() { 100 } else { 10 };
    keys::key_of_another_connection_reads_nothing(&machine(), times);
}

#[test]
fn vm_guessed_keys_open_nothing() {
    let times = if std::env::var_os("FARCALL_LONG").is_some() { 10_000 } else { 100 };
    keys::guessed_keys_open_nothing(&machine(), times);
}

/// The machine, with another device than the one that the other tests use.
fn machine_with(device: &str) -> Machine {
    let mut config = RdmaConfig::default();
    config.device = Some(device.to_owned());
    Machine::open(&SystemHost::default(), &config)
}

/// Returns the objects that processes have of a device, as the kernel lists them. Windows are not among it; but a window
/// keeps its region.
fn resources(device: &str) -> String {
    let show = |kind: &str| {
        // It fails when a device, another test's, goes while it goes through them all.
        let start = Instant::now();
        let output = loop {
            let output = Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
            if output.status.success() {
                break output;
            }
            assert!(start.elapsed() < LIMIT, "{}", String::from_utf8_lossy(&output.stderr));
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let of_device = |line: &&str| line.contains(device) && line.contains(" pid ");
        text.lines().filter(of_device).map(|line| format!("{line}\n")).collect::<String>()
    };
    ["qp", "mr", "pd", "srq"].map(show).concat()
}

#[test]
fn vm_bound_windows_leave_nothing_behind() {
    require_device();
    let own = OwnDevice::add("zwin", "192.168.79.1/24");
    let machine = machine_with(own.0);
    let ends = windows::with_bound_windows(&machine);
    let there = resources(own.0);
    assert!(there.contains("lqpn") && there.contains("mrn"), "{there}");
    let start = Instant::now();
    drop((ends, machine));
    assert!(start.elapsed() < windows::BEFORE_A_HANG, "{:?}", start.elapsed());
    assert_eq!(resources(own.0), "");
    assert_eq!(farcall_rdma::testing::verbs::leaks(), 0);
}

#[test]
fn vm_killed_process_with_bound_windows_is_gone_at_once() {
    const TEST: &str = "vm_killed_process_with_bound_windows_is_gone_at_once";
    if let Some(device) = std::env::var_os("FARCALL_TEST_TO_BE_KILLED") {
        let machine = machine_with(device.to_str().unwrap());
        let _ends = windows::with_bound_windows(&machine);
        println!("\nbound");
        loop {
            std::thread::park();
        }
    }
    require_device();
    let own = OwnDevice::add("zkill", "192.168.80.1/24");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", TEST, "--nocapture"]).env("FARCALL_TEST_TO_BE_KILLED", own.0);
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "bound"), "the process has failed");
    assert_ne!(resources(own.0), "");
    let start = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(start.elapsed() < windows::BEFORE_A_HANG, "{:?}", start.elapsed());
    println!("gone after {:?}", start.elapsed());
    assert_eq!(resources(own.0), "");
}

#[test]
fn vm_link_that_goes_down_is_an_event_and_a_reason() {
    require_device();
    let own = OwnDevice::add("zdown", "192.168.78.1/24");
    let host = SystemHost::default();
    let mut config = RdmaConfig::default();
    config.device = Some(own.0.to_owned());
    let devices = host.devices().unwrap();
    let summary = devices.iter().find(|device| device.name == own.0).unwrap();
    let device = host.open(summary, &config).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut events = device.events().unwrap();
        run("ip link set zdown down");
        loop {
            let event = tokio::time::timeout(LIMIT, poll_fn(|cx| events.poll_next(cx))).await;
            match event.expect("no event came").unwrap() {
                DeviceEvent::PortDown { port } => break assert_eq!(port, 1),
                DeviceEvent::PortChanged { .. } | DeviceEvent::PortUp { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    });
    drop(device);
    let error = choose(&host.devices().unwrap(), &host.interfaces(), &config, None).unwrap_err();
    assert!(matches!(&error, Unavailable::PortDown { device, port: 1, .. } if device == own.0), "{error}");
}
