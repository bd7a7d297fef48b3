//! The address that connections leave from, and the devices that they do not.

use super::*;

#[test]
fn the_chosen_address_has_its_reason() {
    let reason = |change: &dyn Fn(&mut RdmaConfig), answers: &str| {
        let mut config = RdmaConfig::default();
        change(&mut config);
        let report = examined(&mended(answers), &config);
        let addresses = &report.devices[0].ports[0].addresses;
        assert!(
            addresses.iter().all(|address| address.reason.is_some() == address.is_chosen),
            "{addresses:?}"
        );
        assert!(
            addresses.iter().all(|address| address.netdev.as_deref() == Some("ens1f0np0")),
            "{addresses:?}"
        );
        addresses.iter().find_map(|address| address.reason.clone()).unwrap()
    };
    assert_eq!(reason(&|_| {}, ""), "IPv4 by RoCE v2 comes before a link-local address");
    assert_eq!(reason(&|c| c.gid_index = Some(1), ""), "`rdma.gid_index` is 1");
    let gid = "10.1.2.3".parse().ok();
    assert_eq!(reason(&|c| c.gid = gid, ""), "`rdma.gid` is 10.1.2.3");
    assert_eq!(
        reason(&|c| c.subnet = Some("10.1.2.0/24".into()), ""),
        "`rdma.subnet` is 10.1.2.0/24, and there IPv4 by RoCE v2 comes before RoCE v1"
    );
    let others = (0..3).map(|index| format!("== /sys/class/infiniband/mlx5_0/ports/1/gids/{index} !2\n"));
    assert_eq!(reason(&|_| {}, &others.collect::<String>()), "there is no other");
}

#[test]
fn iwarp_by_software_is_no_soft_roce() {
    let siw = SOFT.replace("rxe", "siw").replace("1: CA", "4: RNIC");
    let siw = siw.replace(
        "== /sys/class/infiniband/siw0/parent\neth0\n",
        "== /sys/class/infiniband/siw0/device/driver ->\n../e1000e\n",
    );
    let report = examined(&siw, &RdmaConfig::default());
    let device = &report.devices[0];
    assert_eq!((device.driver.as_deref(), device.is_software), (Some("siw"), true));
    let first = &report.findings[0];
    assert_eq!((first.code, first.severity), ("iwarp", Fault));
    assert!(first.seen.starts_with("siw0 is siw, iWARP by the kernel's software"), "{}", first.seen);
    assert!(first.fix.contains("rdma link add rxe0 type rxe"), "{}", first.fix);
    assert!(
        report.findings.iter().all(|finding| !finding.seen.contains("is Soft-RoCE")),
        "{:#?}",
        report.findings
    );
}

#[test]
fn soft_roce_on_the_wrong_interface_is_told_with_the_right_one() {
    let local = "== /sys/class/infiniband/rxe0/ports/1/gids/0\nfe80:0000:0000:0000:0000:00ff:fe00:0001\n";
    let examined = |interfaces: &str| {
        let answers = format!("{SOFT}{local}== interfaces\nlo 127.0.0.1/8\n{interfaces}");
        self::examined(&answers, &RdmaConfig::default()).findings.remove(0)
    };
    let wrong = examined("eth0 fe80::ff:fe00:1/64\neth1 fe80::2/64\neth1 10.1.2.3/24\n");
    assert_eq!((wrong.code, wrong.severity), ("wrong-interface", Warning));
    assert_eq!(wrong.seen, "rxe0 is Soft-RoCE on eth0, which has no routable IP address; eth1 has 10.1.2.3");
    let fix = "`rdma link delete rxe0 && rdma link add rxe0 type rxe netdev eth1`";
    assert!(wrong.fix.contains(fix), "{}", wrong.fix);
    // Without a link-local address on the interface nothing is sent at all.
    assert_eq!(examined("eth1 10.1.2.3/24\n").severity, Fault);
    // Its own has an address, which is not chosen.
    assert_eq!(examined("eth0 10.9.9.9/24\neth1 10.1.2.3/24\n").code, "link-local");
    // No interface would be better.
    assert_eq!(examined("eth0 fe80::ff:fe00:1/64\neth1 fe80::2/64\n").code, "link-local");
    assert_eq!(examined("eth1 fe80::2/64\n").code, "no-ip-address");
}
