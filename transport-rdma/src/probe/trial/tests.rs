use std::sync::Arc;

use super::*;
use crate::Unavailable;
use crate::device::{Limits, WcStatus};
use crate::probe::{Severity, examine};
use crate::sim::{Fabric, SimHost};

fn host(fabric: &Arc<Fabric>) -> SimHost {
    fabric.host(std::net::IpAddr::from([10, 0, 0, 1]))
}

/// Tries the device of a host. Returns the steps that did not work, and the findings' codes.
fn tried(host: &SimHost) -> (Report, Vec<(&'static str, StepResult)>) {
    let config = RdmaConfig::default();
    let mut report = examine(&Machine::recorded("").unwrap(), &config);
    report.findings.clear();
    try_host(host, &mut report, &config, "");
    let others = report.tried.iter().filter(|step| step.result != StepResult::Worked);
    let others = others.map(|step| (step.what, step.result)).collect();
    (report, others)
}

#[test]
fn a_device_that_works_does_all_of_it() {
    let (report, others) = tried(&host(&Fabric::new(1)));
    assert_eq!((others, &report.findings[..]), (vec![], &[][..]));
    let steps: Vec<_> = report.tried.iter().map(|step| step.what).collect();
    assert_eq!(
        steps,
        [
            "open the device",
            "register memory",
            "connect",
            "SEND",
            "wake up by an event",
            "READ",
            "WRITE",
            "atomic addition",
            "end access"
        ]
    );
}

#[test]
fn steps_that_a_device_can_not_do_are_skipped_and_noted() {
    let fabric = Fabric::new(2);
    let host = host(&fabric);
    host.without_atomics();
    let (report, others) = tried(&host);
    assert_eq!(others, [("atomic addition", StepResult::Skipped)]);
    assert_eq!(report.findings[0].code, "no-atomics");
    host.limit_windows(0);
    let (report, others) = tried(&host);
    assert_eq!(others.len(), 4, "{others:?}");
    assert_eq!(report.findings[0].code, "no-windows");
    assert_eq!(report.worst(), Some(Severity::Note));
}

#[test]
fn objects_that_others_have_are_counted() {
    let fabric = Fabric::new(6);
    let host = host(&fabric);
    let config = RdmaConfig::default();
    let device = host.open(&host.devices().unwrap()[0], &config).unwrap();
    let Limits { max_qp, max_mr, .. } = device.limits();
    let found = |qps: u32, regions: u32| {
        let resources = format!(
            "0: other: pd 1 qp 9999 mr 9999\n1: sim0: pd 3 cq 4 qp {qps} cm_id 0 mr {regions} ctx 1 srq 2\n"
        );
        objects(&*device, &resources, &config)
    };
    let few_qps = found(max_qp - 7, 0);
    assert_eq!(few_qps.len(), 1, "{few_qps:?}");
    assert_eq!(few_qps[0].code, "few-queue-pairs");
    assert!(few_qps[0].seen.starts_with(&format!("sim0 has 7 of {max_qp} queue pairs left")), "{few_qps:?}");
    let few_regions = found(0, max_mr - 7);
    assert_eq!(few_regions.len(), 1, "{few_regions:?}");
    assert_eq!(few_regions[0].code, "few-memory-regions");
    assert!(few_regions[0].seen.contains(&format!("7 of {max_mr} memory regions left")), "{few_regions:?}");
    assert_eq!(found(0, 0), []);
    assert_eq!(objects(&*device, "", &config), []);
}

#[test]
fn packets_that_are_smaller_than_the_interface_takes_are_found() {
    let host = host(&Fabric::new(7));
    let (device, path) = open(&host, &RdmaConfig::default(), None).unwrap();
    let active = path.status.active_mtu.bytes() as u64;
    let found = |netdev_mtu: Option<u64>, name: &str| {
        let recording = format!(
            "{SIM}== /sys/class/net/eth0/mtu\n{}\n",
            netdev_mtu.map_or_else(String::new, |mtu| mtu.to_string())
        );
        let mut devices = examine(&Machine::recorded(&recording).unwrap(), &RdmaConfig::default()).devices;
        devices[0].name = name.to_owned();
        mtu(&devices, device.name(), &path)
    };
    // All headers that there are take 96 bytes.
    assert_eq!(found(Some(active + 96), "sim0"), None);
    assert_eq!(found(Some(active), "sim0"), None);
    assert_eq!(found(None, "sim0"), None);
    let more = found(Some(9000), "sim0").unwrap();
    assert_eq!((more.code, more.severity), ("mtu-mismatch", Severity::Warning));
    assert_eq!(more.seen, format!("packets of sim0 carry {active} bytes, eth0 has MTU 9000, where 4096 fit"));
    assert!(more.fix.contains("ip link set eth0 mtu 9000"), "{}", more.fix);
    // Another device says nothing about this one.
    assert_eq!(found(Some(9000), "sim1"), None);
}

/// The answers of a machine with a device like the simulated one.
const SIM: &str = "\
== /sys/class/infiniband/
sim0
== /sys/class/infiniband/sim0/node_type
1: CA
== /sys/class/infiniband/sim0/parent
eth0
== /sys/class/infiniband/sim0/ports/1/state
4: ACTIVE
== /sys/class/infiniband/sim0/ports/1/link_layer
Ethernet
== /sys/class/infiniband_verbs/uverbs0/ibdev
sim0
";

#[test]
fn the_first_step_that_fails_is_named() {
    let fabric = Fabric::new(3);
    let refusing = host(&fabric);
    refusing.fail_open(Some(Unavailable::NoPermission { path: "/dev/infiniband/uverbs0".into() }));
    let (report, others) = tried(&refusing);
    assert_eq!(others, [("open the device", StepResult::Failed)]);
    assert_eq!(report.findings[0].code, "no-permission");
    let poor = host(&fabric);
    poor.limit_memory(Some(4096));
    let (report, others) = tried(&poor);
    assert_eq!(others, [("register memory", StepResult::Failed)]);
    assert_eq!(report.worst(), Some(Severity::Fault));
}

#[test]
fn a_read_that_fails_is_a_fault_with_its_status() {
    let fabric = Fabric::new(4);
    fabric.fail_read(WcStatus::REM_OP_ERR);
    let (report, others) = tried(&host(&fabric));
    assert_eq!(others, [("READ", StepResult::Failed)]);
    let finding = &report.findings[0];
    assert_eq!((finding.code, finding.severity), ("trial-failed", Severity::Fault));
    assert!(
        finding.seen.starts_with("READ failed: ") && finding.seen.contains("REM_OP_ERR"),
        "{}",
        finding.seen
    );
}

#[test]
fn each_call_of_the_device_may_fail() {
    for calls in 0..40 {
        let host = host(&Fabric::new(5));
        host.fail_call_after(calls);
        let (report, others) = tried(&host);
        if !host.has_failed() {
            assert!(calls > 10 && others.is_empty(), "{calls}");
            return;
        }
        assert_eq!(report.worst(), Some(Severity::Fault), "after {calls} calls: {others:?}");
    }
    panic!("more calls than thought");
}
