use super::*;

/// A recording of a machine that grows.
#[derive(Default)]
struct Tree(String);

impl Tree {
    fn write(&mut self, path: &str, content: &str) {
        self.answer(&format!("/{path}"), content);
    }

    fn answer(&mut self, question: &str, answer: &str) {
        self.0.push_str(&format!("== {question}\n{answer}"));
    }

    fn machine(&self) -> Machine {
        Machine::recorded(&self.0).unwrap()
    }

    fn device(&mut self, name: &str, uverbs: &str) {
        self.write(&format!("sys/class/infiniband_verbs/{uverbs}/ibdev"), &format!("{name}\n"));
        self.answer(&format!("open /dev/infiniband/{uverbs}"), "666 0 0\n");
    }

    fn port(&mut self, device: &str, port: u8, state: &str, link_layer: &str) {
        let port = format!("sys/class/infiniband/{device}/ports/{port}");
        self.write(&format!("{port}/state"), &format!("{state}\n"));
        self.write(&format!("{port}/link_layer"), &format!("{link_layer}\n"));
    }

    fn gid(&mut self, device: &str, index: u16, gid: &str, kind: &str, netdev: &str) {
        let port = format!("sys/class/infiniband/{device}/ports/1");
        self.write(&format!("{port}/gids/{index}"), &format!("{gid}\n"));
        if !kind.is_empty() {
            self.write(&format!("{port}/gid_attrs/types/{index}"), &format!("{kind}\n"));
            self.write(&format!("{port}/gid_attrs/ndevs/{index}"), &format!("{netdev}\n"));
        }
    }
}

const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

/// The kernel's files for Soft-RoCE, and for a second device with an older table.
fn roce() -> Tree {
    let mut tree = Tree::default();
    tree.device("rxe0", "uverbs1");
    tree.port("rxe0", 1, "4: ACTIVE", "Ethernet");
    tree.gid("rxe0", 0, "fe80:0000:0000:0000:dcef:72ff:fed4:4261", "RoCE v2", "d0");
    tree.gid("rxe0", 1, "0000:0000:0000:0000:0000:ffff:c0a8:4d01", "RoCE v2", "d0");
    tree.gid("rxe0", 2, EMPTY, "", "");
    tree.device("mlx5_0", "uverbs0");
    tree.write("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
    tree.port("mlx5_0", 1, "4: ACTIVE", "Ethernet");
    tree.port("mlx5_0", 2, "1: DOWN", "Ethernet");
    tree.gid("mlx5_0", 0, "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1", "eth0");
    tree.gid("mlx5_0", 3, "2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth0");
    tree.gid("mlx5_0", 4, "2001:0db8:0000:0000:0000:0000:0000:0002", "RoCE v9", "eth0");
    tree.gid("mlx5_0", 256, "2001:0db8:0000:0000:0000:0000:0000:0003", "RoCE v2", "eth0");
    tree
}

#[test]
fn devices_ports_and_addresses_are_read() {
    let tree = roce();
    let devices = tree.machine().devices().unwrap();
    let names: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.numa_node)).collect();
    assert_eq!(names, [("mlx5_0", Some(1)), ("rxe0", None)]);
    assert_eq!(devices[0].node, "/dev/infiniband/uverbs0");
    assert_eq!(devices[1].node, "/dev/infiniband/uverbs1");
    let ports: Vec<_> = devices[0].ports.iter().map(|p| (p.number, p.active, p.state.as_str())).collect();
    assert_eq!(ports, [(1, true, "ACTIVE"), (2, false, "DOWN")]);

    let gids: Vec<_> =
        devices[1].ports[0].gids.iter().map(|g| (g.index, g.gid.to_string(), g.kind)).collect();
    let expected = [
        (0, "fe80::dcef:72ff:fed4:4261".to_owned(), GidKind::RoceV2LinkLocal),
        (1, "::ffff:192.168.77.1".to_owned(), GidKind::RoceV2Ipv4),
    ];
    assert_eq!(gids, expected);
    assert_eq!(devices[1].ports[0].gids[1].netdev.as_deref(), Some("d0"));

    // Neither what has a type from the future, nor what a work request could not name.
    let gids: Vec<_> = devices[0].ports[0].gids.iter().map(|g| (g.index, g.kind)).collect();
    assert_eq!(gids, [(0, GidKind::RoceV1), (3, GidKind::RoceV2Ipv6)]);
}

#[test]
fn infiniband_ports_have_gids_without_type_and_interface() {
    let mut tree = Tree::default();
    tree.device("mlx5_2", "uverbs2");
    tree.port("mlx5_2", 1, "4: ACTIVE", "InfiniBand");
    tree.gid("mlx5_2", 0, "fe80:0000:0000:0000:0002:c903:0011:2233", "", "");
    let devices = tree.machine().devices().unwrap();
    let port = &devices[0].ports[0];
    assert_eq!(port.link_layer, LinkLayer::InfiniBand);
    assert_eq!((port.gids[0].kind, &port.gids[0].netdev), (GidKind::InfiniBand, &None));
}

#[test]
fn machine_without_devices_says_where_it_looked() {
    let error = Tree::default().machine().devices().unwrap_err();
    assert_eq!(
        error,
        Unavailable::NoDevice { detail: "/sys/class/infiniband is absent or empty".to_owned() }
    );
}

#[test]
fn device_node_that_is_missing_or_closed_is_named() {
    let mut tree = roce();
    tree.answer("open /dev/infiniband/uverbs1 !2", "\n");
    let devices = tree.machine().devices().unwrap();
    assert_eq!(roce().machine().check_access(&devices[1]), Ok(()));
    let error = tree.machine().check_access(&devices[1]).unwrap_err();
    assert!(matches!(&error, Unavailable::NoDevice { detail } if detail.contains("uverbs1")), "{error}");
    tree.answer("open /dev/infiniband/uverbs1 !13", "\n");
    let error = tree.machine().check_access(&devices[1]).unwrap_err();
    assert_eq!(error, Unavailable::NoPermission { path: "/dev/infiniband/uverbs1".into() });
}

#[test]
fn devices_that_can_not_be_used_are_known_by_type_and_driver() {
    let mut tree = Tree::default();
    let mut of = |name: &str, node_type: &str, driver: &str| {
        tree.device(name, &format!("uverbs-{name}"));
        tree.port(name, 1, "4: ACTIVE", "Ethernet");
        tree.write(&format!("sys/class/infiniband/{name}/node_type"), &format!("{node_type}\n"));
        let device = format!("/sys/class/infiniband/{name}/device/driver ->");
        tree.answer(&device, &format!("../../bus/pci/drivers/{driver}\n"));
    };
    of("cxgb4_0", "4: RNIC", "cxgb4");
    of("efa_0", "7: unspecified", "efa");
    of("mlx5_0", "1: CA", "mlx5_core");
    of("other_0", "7: unspecified", "other");
    of("usnic_0", "6: usNIC UDP", "enic");
    let devices = tree.machine().devices().unwrap();
    let unsuited: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.unsuited)).collect();
    assert_eq!(
        unsuited,
        [
            ("cxgb4_0", Some(Unsuited::Iwarp)),
            ("efa_0", Some(Unsuited::NoReliableQueuePairs("efa"))),
            ("mlx5_0", None),
            ("other_0", None),
            ("usnic_0", Some(Unsuited::NoReliableQueuePairs("usnic_verbs"))),
        ]
    );
}

#[test]
fn the_node_of_the_allowed_cpus_is_known_if_it_is_one() {
    let mut tree = Tree::default();
    tree.write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
    tree.write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
    tree.write("sys/devices/system/node/possible", "0-1\n");
    let node = |cpus| tree.machine().node_of(cpus);
    assert_eq!(
        ["\t0-1\n", "4,13", "8", "3-4", "0-15", "", "x"].map(node),
        [Some(0), Some(1), Some(0), None, None, None, None]
    );
}
