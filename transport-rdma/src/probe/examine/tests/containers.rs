//! Containers, which see devices of their host that they may not use.

use super::*;

const DOCKER: &str = "== /.dockerenv\n";

/// The first finding about a good host with these answers.
fn first(answers: &str) -> Finding {
    let mut report = examined(&mended(answers), &RdmaConfig::default());
    report.findings.retain(|finding| finding.code != "not-looked-at");
    report.findings.remove(0)
}

/// A second device, which is as good as the first.
fn second() -> String {
    let entries = CONNECTX.split("\n== ").skip(1);
    let of_device = entries.filter(|entry| entry.contains("mlx5_0") || entry.contains("uverbs0"));
    let copies = of_device
        .map(|entry| format!("== {}\n", entry.replace("mlx5_0", "mlx5_1").replace("uverbs0", "uverbs1")));
    format!(
        "== /sys/class/infiniband/\nmlx5_0\nmlx5_1\n== /sys/class/infiniband_verbs/\nuverbs0\nuverbs1\n{}",
        copies.collect::<String>()
    )
}

#[test]
fn a_node_that_was_not_passed_into_a_container() {
    let absent = "== open /dev/infiniband/uverbs0 !2\n";
    let found = first(&format!("{DOCKER}{absent}"));
    assert_eq!((found.code, found.severity), ("node-not-in-container", Fault));
    assert_eq!(found.seen, "mlx5_0 is there, its node /dev/infiniband/uverbs0 is not in this container");
    assert!(found.fix.contains("docker run --device=/dev/infiniband/uverbs0"), "{}", found.fix);
    assert!(!found.fix.contains("rdma.device"), "{}", found.fix);
    // Elsewhere it is another matter.
    assert_eq!(first(absent).code, "no-device");
    // A plugin has passed the other one.
    let other = first(&format!("{}{DOCKER}{absent}", second()));
    assert_eq!(other.code, "node-not-in-container");
    assert!(other.fix.ends_with("; or set rdma.device = \"mlx5_1\", which may be opened"), "{}", other.fix);
    let this = format!("{}{DOCKER}== open /dev/infiniband/uverbs1 !2\n", second());
    let report = examined(&mended(&this), &RdmaConfig::default());
    assert!(
        report.findings.iter().all(|finding| finding.code != "node-not-in-container"),
        "{:?}",
        report.findings
    );
}

#[test]
fn a_node_that_the_control_group_refuses() {
    let refused = "== open /dev/infiniband/uverbs0 !1\n== owner /dev/infiniband/uverbs0\n666 0 0\n";
    let found = first(&format!("{DOCKER}{refused}"));
    assert_eq!((found.code, found.severity), ("device-cgroup", Fault));
    assert_eq!(
        found.seen,
        "the device control group of this container refuses to open /dev/infiniband/uverbs0 (mode 666) of mlx5_0"
    );
    assert!(found.fix.contains("docker run --device=/dev/infiniband/uverbs0"), "{}", found.fix);
    let of_service = first(refused);
    assert_eq!(of_service.code, "device-cgroup");
    assert!(of_service.fix.contains("`DeviceAllow=/dev/infiniband/uverbs0 rw`"), "{}", of_service.fix);
    let exclusive = format!("{DOCKER}{refused}== /sys/module/ib_core/parameters/netns_mode\nN\n");
    assert!(first(&exclusive).fix.contains("rdma dev set mlx5_0 netns PID"));
    // Modes of files are refused by another number.
    assert_eq!(first(&format!("{DOCKER}{}", refused.replace("!1", "!13"))).code, "no-permission");
}

#[test]
fn an_interface_of_another_network_namespace() {
    let elsewhere = "== /sys/class/net/\nlo\neth0\n";
    let found = first(&format!("{DOCKER}{elsewhere}"));
    assert_eq!((found.code, found.severity), ("interface-in-other-namespace", Warning));
    assert_eq!(
        found.seen,
        "10.1.2.3 of mlx5_0 is an address of ens1f0np0, which is not in this network namespace"
    );
    assert!(found.fix.contains("`docker run --network=host`"), "{}", found.fix);
    assert!(first(elsewhere).fix.contains("ip link set ens1f0np0 netns PID"));
    // An entry of the container's own interface.
    let own = "== /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1\neth0\n";
    let fix = first(&format!("{DOCKER}{elsewhere}{own}")).fix;
    assert!(fix.contains("; or set `rdma.gid_index = 1`"), "{fix}");
    let report = examined(&mended("== /sys/class/net/\nlo\nens1f0np0\n"), &RdmaConfig::default());
    assert_eq!(codes(&report), []);
}
