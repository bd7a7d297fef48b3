use std::collections::BTreeSet;

use super::*;
use crate::probe::Severity::{self, Fault, Note, Warning};
use crate::probe::{Area, Finding};

macro_rules! host {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/", $name, ".txt"))
    };
}

mod addresses;
mod containers;
mod counters;
mod firewall;
mod limits;
mod unseen;

const CONNECTX: &str = host!("mellanox-connectx5-roce");

/// Answers that mend all that is wrong with the host of [`CONNECTX`].
const MENDED: &str = "
== /sys/class/infiniband/mlx5_0/device/current_link_width
16
== /proc/self/status
VmPin:\t       0 kB
CapEff:\t000001ffffffffff
Cpus_allowed_list:\t0-15
== /sys/class/net/ens1f0np0/mtu
9000
== $ dcb pfc show dev ens1f0np0
pfc-cap 8 macsec-bypass off delay 7
prio-pfc 0:on 1:off 2:off 3:off 4:off 5:off 6:off 7:off
== $ dcb ets show dev ens1f0np0 !95
== $ ethtool -S ens1f0np0
NIC statistics:
     rx_out_of_buffer: 0
== $ ibv_devinfo -d mlx5_0 -i 1
== $ lldpctl -f keyvalue ens1f0np0
";

fn examined(recording: &str, config: &RdmaConfig) -> Report {
    examine(&Machine::recorded(recording).unwrap(), config)
}

/// The findings that are not notes about counters, or about what a record lacks, by severity and code.
fn codes(report: &Report) -> Vec<(Severity, &'static str)> {
    let is_left_out = |finding: &&Finding| finding.area == Area::Counters || finding.code == "not-looked-at";
    let findings = report.findings.iter().filter(|finding| !is_left_out(finding));
    findings.map(|finding| (finding.severity, finding.code)).collect()
}

/// A good host, with these answers instead of its own.
fn mended(with: &str) -> String {
    let is_counter = |entry: &&str| entry.contains("counters/") || entry.starts_with("$ ethtool -S");
    let entries = CONNECTX.split("\n== ").skip(1).filter(|entry| !is_counter(entry));
    let still: String = entries.map(|entry| format!("== {entry}\n")).collect();
    format!("{still}{MENDED}\n{with}\n")
}

/// A host's name, its recording, and its findings.
type Expected = (&'static str, &'static str, &'static [(Severity, &'static str)]);

#[test]
fn hosts_of_several_vendors_are_judged() {
    let expected: [Expected; 8] = [
        ("efa", host!("aws-efa"), &[(Fault, "no-reliable-queue-pairs")]),
        ("vf", host!("azure-connectx-vf"), &[(Fault, "memlock"), (Warning, "limited-partition")]),
        (
            "bnxt_re",
            host!("broadcom-bnxt-re"),
            &[(Fault, "memlock"), (Note, "slow-governor"), (Note, "unprotected-priority")],
        ),
        ("chelsio", host!("chelsio-t6-iw_cxgb4"), &[(Fault, "iwarp")]),
        (
            "irdma",
            host!("intel-e810-irdma"),
            &[(Note, "iwarp"), (Note, "small-packets"), (Note, "slow-governor"), (Note, "lossy-network")],
        ),
        (
            "roce",
            CONNECTX,
            &[
                (Warning, "remote-node"),
                (Note, "slow-pcie"),
                (Note, "small-packets"),
                (Note, "lossy-network"),
            ],
        ),
        (
            "infiniband",
            host!("mellanox-infiniband"),
            &[(Fault, "no-subnet-manager"), (Warning, "limited-partition")],
        ),
        ("vfio", host!("no-driver"), &[(Fault, "kernel-bypassed")]),
    ];
    for (name, recording, expected) in expected {
        assert_eq!(codes(&examined(recording, &RdmaConfig::default())), expected, "{name}");
    }
}

#[test]
fn a_mended_host_is_all_good() {
    let report = examined(&mended(""), &RdmaConfig::default());
    assert_eq!(report.findings, []);
    assert_eq!(report.worst(), None);
    assert!(report.chosen.unwrap().ends_with("of mlx5_0 port 1"));
    let addresses = &report.devices[0].ports[0].addresses;
    assert_eq!(addresses.iter().filter(|address| address.is_chosen).count(), 1);
}

/// One thing that is wrong with a host that is otherwise good, or with its configuration.
struct Case {
    code: &'static str,
    severity: Severity,
    /// Answers that differ.
    answers: &'static str,
    /// A part of the remedy.
    fix: &'static str,
}

const fn case(code: &'static str, severity: Severity, answers: &'static str, fix: &'static str) -> Case {
    Case { code, severity, answers, fix }
}

/// A device of Soft-RoCE, and no other.
const SOFT: &str = host!("soft-roce");

#[rustfmt::skip]
const CASES: &[Case] = &[
    case("no-uverbs", Fault, "== /sys/class/infiniband_verbs/ !2", "modprobe ib_uverbs"),
    case("rdma-module", Fault,
        "== /sys/class/infiniband/ !2\n== /sys/bus/pci/devices/0000:31:00.0/driver ->\n../ice\n== /sys/module/irdma/ !2", "modprobe irdma"),
    case("no-device", Fault, "== /sys/class/infiniband/ !2\n== /.dockerenv\n", "docker run --device=/dev/infiniband"),
    case("no-device", Fault, "== /sys/class/infiniband/ !2\n== /sys/module/ib_core/parameters/netns_mode\nN", "rdma dev set NAME netns"),
    case("no-provider", Fault, "== /etc/libibverbs.d/\nrxe.driver", "apt install ibverbs-providers"),
    case("no-permission", Fault,
        "== open /dev/infiniband/uverbs0 !13\n== owner /dev/infiniband/uverbs0\n660 0 106\n== /etc/group\nroot:x:0:\nrdma:x:106:\n",
        "usermod -aG rdma USER"),
    case("no-permission", Fault, "== open /dev/infiniband/uverbs0 !13\n== owner /dev/infiniband/uverbs0\n600 0 0\n", "udev"),
    case("socket-bypass", Warning, "== $LD_PRELOAD\n/usr/lib/libvma.so", "env -u LD_PRELOAD"),
    case("port-down", Fault, "== /sys/class/infiniband/mlx5_0/ports/1/state\n1: DOWN\n== /sys/class/net/ens1f0np0/operstate\ndown\n== /sys/class/net/ens1f0np0/carrier\n0",
        "cable and switch port of ens1f0np0"),
    case("port-down", Fault, "== /sys/class/infiniband/mlx5_0/ports/1/state\n1: DOWN\n== /sys/class/net/ens1f0np0/operstate\nlowerlayerdown\n== /sys/class/net/ens1f0np0/carrier\n0",
        "ip link show ens1f0np0"),
    case("slow-pcie", Warning,
        "== /sys/class/infiniband/mlx5_0/device/current_link_width\n8\n== /sys/class/infiniband/mlx5_0/device/current_link_speed\n8.0 GT/s PCIe",
        "bifurcation"),
    case("slow-port", Warning, "== /sys/class/infiniband/mlx5_0/ports/1/rate\n2.5 Gb/sec (1X SDR)", "auto-negotiation"),
    case("roce-v1", Warning, "== /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1 !22\n== /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3 !22",
        "roce_mode=2"),
    case("no-partition", Fault, "== /sys/class/infiniband/mlx5_0/ports/1/pkeys/0\n0x0000", "rdma.pkey_index"),
    case("mtu-mismatch", Warning,
        "== $ ibv_devinfo -d mlx5_0 -i 1\nhca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\
         \t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t1024 (3)\n\t\t\tlink_layer:\t\tEthernet\n",
        "ip link set ens1f0np0 mtu 9000"),
    case("tiny-packets", Warning, "== /sys/class/net/ens1f0np0/mtu\n1100", "mtu 9000"),
    case("memlock-low", Warning,
        "== /proc/self/status\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-15\n== /proc/self/limits\nMax locked memory         8388608              8388608              bytes\n",
        "LimitMEMLOCK=infinity"),
    case("few-files", Warning, "== /proc/self/limits\nMax open files            256                  4096                 files\n", "ulimit -n 1024"),
    case("rdma-cgroup", Warning, "== /proc/self/cgroup\n0::/a/b\n== /sys/fs/cgroup/a/rdma.max\nmlx5_0 hca_handle=2 hca_object=20\n",
        "echo 'mlx5_0 hca_object=max' > /sys/fs/cgroup/a/rdma.max"),
    case("rdma-cgroup", Warning, "== /proc/self/cgroup\n0::/a\n== /sys/fs/cgroup/a/rdma.max\nmlx5_0 hca_handle=max hca_object=1000\n\
         == /sys/fs/cgroup/a/rdma.current\nmlx5_0 hca_handle=3 hca_object=900\n",
        "echo 'mlx5_0 hca_object=max' > /sys/fs/cgroup/a/rdma.max"),
    case("remote-node", Warning,
        "== /proc/self/status\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t16-31\n== /sys/devices/system/node/node1/distance\n21 10",
        "numactl --cpunodebind=0"),
    case("rdma-cgroup", Fault, "== /proc/self/cgroup\n4:rdma:/x\n== /sys/fs/cgroup/rdma/x/rdma.max\nmlx5_0 hca_handle=0 hca_object=max\n", "hca_handle=max"),
    case("no-huge-pages", Note, "== /sys/kernel/mm/transparent_hugepage/enabled\nalways madvise [never]", "vm.nr_hugepages"),
    case("interrupts-on-one-cpu", Warning,
        "== /sys/class/infiniband/mlx5_0/device/msi_irqs/\n50\n51\n52\n53\n== /proc/irq/50/smp_affinity_list\n2\n== /proc/irq/51/smp_affinity_list\n2\n\
         == /proc/irq/52/smp_affinity_list\n2\n== /proc/irq/53/smp_affinity_list\n2\n== $ pidof irqbalance\n812\n", "stop irqbalance"),
    case("remote-interrupts", Warning,
        "== /sys/class/infiniband/mlx5_0/device/msi_irqs/\n50\n== /proc/irq/50/effective_affinity_list\n17\n", "smp_affinity_list"),
    case("slow-governor", Note, "== /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor\nschedutil", "performance"),
    case("global-pause", Note, "== $ ethtool -a ens1f0np0\nPause parameters for ens1f0np0:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\ton\n", "ethtool -A ens1f0np0 rx off"),
    case("unprotected-priority", Note,
        "== $ dcb pfc show dev ens1f0np0\npfc-cap 8\nprio-pfc 0:off 3:on\n== $ dcb -N app show dev ens1f0np0\ndscp-prio 26:3 48:6\n", "rdma.dscp.normal = 26"),
    case("unprotected-priority", Note, "== $ dcb pfc show dev ens1f0np0\npfc-cap 8\nprio-pfc 0:off 3:on\n", "dscp-prio 26:3"),
    case("small-packets", Note,
        "== /sys/class/net/ens1f0np0/lower_bond0/mtu\n1\n== /sys/class/net/bond0/lower_ens1/mtu\n1\n== /sys/class/net/bond0/lower_ens2/mtu\n1\n\
         == /sys/class/net/ens1/mtu\n9000\n== /sys/class/net/ens2/mtu\n1500\n", "ip link set ens2 mtu 9000"),
    case("small-rings", Note,
        "== $ ethtool -S ens1f0np0\nNIC statistics:\n     rx_out_of_buffer: 77\n== $ ethtool -g ens1f0np0\nRing parameters for ens1f0np0:\nPre-set maximums:\nRX:\t\t8192\nRX Mini:\tn/a\nTX:\t\t8192\nCurrent hardware settings:\nRX:\t\t1024\nRX Mini:\tn/a\nTX:\t\t1024\n",
        "ethtool -G ens1f0np0 rx 8192"),
    case("software-before-hardware", Warning,
        "== /sys/class/infiniband/\nmlx5_0\nrxe0\n== /sys/class/infiniband/rxe0/parent\neth0\n== /sys/class/infiniband/rxe0/ports/1/state\n4: ACTIVE\n\
         == /sys/class/infiniband/rxe0/ports/1/gids/0\n0000:0000:0000:0000:0000:ffff:c0a8:4d01\n\
         == /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/0\nRoCE v2\n== /sys/class/infiniband/rxe0/ports/1/pkeys/0\n0xffff\n\
         == /sys/class/infiniband_verbs/uverbs7/ibdev\nrxe0\n== open /dev/infiniband/uverbs7\n666 0 0\n== /etc/libibverbs.d/\nrxe.driver\nmlx5.driver\n\
         == /sys/class/infiniband/mlx5_0/ports/1/state\n1: DOWN\n", "bring a port of it up; then set rdma.device = \"mlx5_0\""),
];

#[test]
fn each_thing_that_is_wrong_is_found_with_its_remedy() {
    for Case { code, severity, answers, fix } in CASES {
        let mut report = examined(&mended(answers), &RdmaConfig::default());
        // These records have few answers of programs.
        report.findings.retain(|finding| finding.code != "not-looked-at");
        let found = report.findings.iter().find(|finding| finding.code == *code);
        let found = found.unwrap_or_else(|| panic!("{code}: {:#?}", report.findings));
        assert_eq!(found.severity, *severity, "{code}");
        assert!(found.fix.contains(fix), "{code}: {}", found.fix);
        // The worst stands first, so that the first line names the cause.
        assert_eq!(report.findings[0].severity, report.worst().unwrap());
        assert!(
            report.findings[0].severity > *severity || report.findings[0].code == *code,
            "{code}: {:#?}",
            report.findings
        );
    }
}

#[test]
fn the_configuration_is_compared_with_the_machine() {
    let config = |change: &dyn Fn(&mut RdmaConfig)| {
        let mut config = RdmaConfig::default();
        change(&mut config);
        config
    };
    let judged = |answers: &str, config: &RdmaConfig| codes(&examined(&mended(answers), config));
    assert_eq!(judged("", &config(&|c| c.device = Some("mlx5_9".into()))), [(Fault, "no-such-device")]);
    assert_eq!(judged("", &config(&|c| c.gid_index = Some(99))), [(Fault, "no-address")]);
    assert_eq!(judged("", &config(&|c| c.pkey_index = 3)), [(Fault, "no-partition")]);
    assert_eq!(judged("", &config(&|c| c.busy_cpu = Some(999))), [(Fault, "busy-cpu-not-allowed")]);
    let wide = "== /proc/self/status\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-63\n";
    assert_eq!(judged(wide, &config(&|c| c.busy_cpu = Some(20))), [(Warning, "remote-poller")]);
    assert_eq!(judged("", &config(&|c| c.dscp.normal = 26)), [(Warning, "dscp-not-trusted")]);
    let maps = |map: &str| {
        format!(
            "== /sys/class/net/ens1f0np0/qos/trust\ndscp\n== $ dcb -N app show dev ens1f0np0\ndscp-prio 0:0 {map}\n== $ dcb pfc show dev ens1f0np0\npfc-cap 8\nprio-pfc 0:off 3:on\n"
        )
    };
    let marked = config(&|c| c.dscp.normal = 26);
    assert_eq!(judged(&maps("24:3"), &marked), [(Warning, "dscp-not-mapped")]);
    assert_eq!(judged(&maps("26:4"), &marked), [(Warning, "dscp-not-mapped")]);
    assert_eq!(judged(&maps("26:3"), &marked), []);
    let ets = |shares: &str, classes: &str| {
        let kinds = "0:ets 1:ets 2:strict 3:ets";
        format!(
            "{}== $ dcb ets show dev ens1f0np0\nwilling off ets-cap 8 cbs off\ntc-bw {shares}\npg-bw 0:0\ntc-tsa {kinds}\nprio-tc {classes}\n",
            maps("26:3")
        )
    };
    let apart = "0:0 1:1 2:2 3:3 4:4";
    assert_eq!(judged(&ets("0:50 1:0 2:0 3:50", apart), &marked), []);
    assert_eq!(judged(&ets("0:100 1:0 2:0 3:0", apart), &marked), [(Warning, "starved-class")]);
    // Where no class has a share they are equal, and a strict class needs none.
    assert_eq!(judged(&ets("0:0 1:0 2:0 3:0", apart), &marked), []);
    assert_eq!(judged(&ets("0:100 1:0 2:0 3:0", "0:0 3:2"), &marked), []);
    let together = "0:0 1:0 2:0 3:0 4:1";
    assert_eq!(judged(&ets("0:50 1:50 2:0 3:0", together), &marked), [(Note, "shared-class")]);
    let found = |shares, classes| examined(&mended(&ets(shares, classes)), &marked).findings.remove(0);
    let starved = found("0:100 1:0 2:0 3:0", apart);
    assert!(starved.fix.starts_with("`dcb ets set dev ens1f0np0 tc-bw 3:50 0:50` "), "{}", starved.fix);
    let shared = found("0:50 1:50 2:0 3:0", together);
    assert!(shared.fix.starts_with("`dcb ets set dev ens1f0np0 prio-tc 3:2`,"), "{}", shared.fix);
    let with_ecn = config(&|c| (c.dscp.normal, c.ecn) = (26, true));
    let of_ecn =
        |state: &str| format!("{}== /sys/class/net/ens1f0np0/ecn/roce_rp/enable/3\n{state}\n", maps("26:3"));
    assert_eq!(judged(&of_ecn("1"), &with_ecn), []);
    assert_eq!(judged(&of_ecn("0"), &with_ecn), [(Warning, "ecn-off")]);
    assert_eq!(judged(&of_ecn("0"), &marked), []);
    let local = "== /sys/class/infiniband/mlx5_0/ports/1/gids/3 !2\n== /sys/class/infiniband/mlx5_0/ports/1/gids/2 !2\n";
    assert_eq!(judged(local, &RdmaConfig::default()), [(Warning, "link-local")]);
    let bare = format!("{local}== interfaces\nlo 127.0.0.1/8\n");
    assert_eq!(judged(&bare, &RdmaConfig::default()), [(Fault, "no-ip-address")]);
}

/// The kernel lists distances from the nodes that are online, whose numbers may have gaps.
#[test]
fn the_distance_of_the_devices_node_is_told() {
    for (of_device, online, distances, told) in [(0, "0-1", "21 10", 21), (3, "0-1,3", "21 10 31", 31)] {
        let far = format!(
            "== /proc/self/status\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t16-31\n\
             == /sys/class/infiniband/mlx5_0/device/numa_node\n{of_device}\n\
             == /sys/devices/system/node/online\n{online}\n== /sys/devices/system/node/node1/distance\n{distances}\n"
        );
        let report = examined(&mended(&far), &RdmaConfig::default());
        let remote = report.findings.iter().find(|finding| finding.code == "remote-node").unwrap();
        assert!(remote.seen.contains(&format!(", at distance {told} ")), "{}", remote.seen);
    }
}

#[test]
fn a_virtual_function_has_the_addresses_of_the_interface_above_it() {
    // As hv_netvsc does it, the interface above is the master, and the kernel gives its addresses to the device.
    let above = "== /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/2\neth0\n== /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3\neth0\n\
                 == /sys/class/net/eth0/lower_ens1f0np0/mtu\n9000\n== /sys/class/net/eth0/mtu\n9000\n== interfaces\nlo 127.0.0.1/8\neth0 10.1.2.3/24\n";
    let report = examined(&mended(above), &RdmaConfig::default());
    assert_eq!(codes(&report), []);
    assert!(report.chosen.as_ref().unwrap().starts_with("10.1.2.3 of mlx5_0"), "{:?}", report.chosen);
    // The card's own settings are those of the function.
    let lossy = format!("{above}== $ dcb pfc show dev ens1f0np0\npfc-cap 8\nprio-pfc 0:off\n");
    assert_eq!(codes(&examined(&mended(&lossy), &RdmaConfig::default())), [(Note, "lossy-network")]);
}

#[test]
fn a_device_of_another_kind_is_no_fault_beside_one_that_is_down() {
    let down = "== /sys/class/infiniband/rocep152s0f0/ports/1/state\n1: DOWN\n";
    let report = examined(&format!("{}\n{down}", host!("intel-e810-irdma")), &RdmaConfig::default());
    let faults: Vec<_> = report.findings.iter().filter(|finding| finding.severity == Fault).collect();
    assert_eq!(faults.iter().map(|finding| finding.code).collect::<Vec<_>>(), ["port-down"]);
}

#[test]
fn the_switch_is_named_if_it_tells() {
    let told = "== $ lldpctl -f keyvalue ens1f0np0\nlldp.ens1f0np0.chassis.name=leaf7\nlldp.ens1f0np0.port.ifname=Ethernet1/3\n";
    let report = examined(&mended(told), &RdmaConfig::default());
    assert_eq!(report.devices[0].ports[0].switch.as_deref(), Some("leaf7 Ethernet1/3"));
}

#[test]
fn nothing_at_all_is_no_failure() {
    let report = examined("", &RdmaConfig::default());
    assert_eq!(codes(&report), [(Fault, "no-device")]);
    // Questions that no file answers, on a machine that has a device by name only.
    let report = examined(
        "== /sys/class/infiniband/\nx\n== /sys/class/infiniband_verbs/u/ibdev\nx\n",
        &RdmaConfig::default(),
    );
    assert_eq!(report.worst(), Some(Fault));
}

#[test]
fn codes_are_names_and_each_is_of_one_kind() {
    let all: Vec<_> = KINDS.iter().copied().flatten().collect();
    let codes: BTreeSet<_> = all.iter().map(|kind| kind.code).collect();
    assert_eq!(codes.len(), all.len());
    for kind in all {
        assert!(
            kind.code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "{}",
            kind.code
        );
        assert!(kind.means.ends_with('.'), "{}: {}", kind.code, kind.means);
        assert!(kind.remedy.len() > 10 && !kind.remedy.ends_with('.'), "{}: {}", kind.code, kind.remedy);
    }
}
