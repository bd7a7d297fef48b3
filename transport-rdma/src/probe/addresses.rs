//! The addresses of ports, and how packets travel from them.

use std::net::IpAddr;

use super::Finding;
use super::Severity::Fault;
use super::finding::kinds;
use super::view::View;
use crate::Unavailable;
use crate::device::{DeviceSummary, GidEntry, GidKind, LinkLayer, PortSummary};

kinds! { KINDS:
    ROCE_V1 = "roce-v1", Warning, Addresses,
        "RoCE v1 does not pass routers, and other hosts use RoCE v2, with which it can't talk.",
        "take `rdma.gid_index` and `rdma.gid` out of the configuration; else see why the port has no RoCE v2 entry in \
         `gid_attrs/types`";
    LINK_LOCAL = "link-local", Warning, Addresses,
        "A link-local address does not pass routers. Only hosts on this network segment can be reached.",
        "give the interface an address that is routed: `ip addr add ADDRESS/PREFIX dev NETDEV`";
    WRONG_NETDEV = "wrong-interface", Warning, Addresses,
        "Soft-RoCE was put on a network interface that has no routable IP address, and another interface has one. Its packets reach no other host, \
         or those of one network segment only.",
        "put the device on the interface that has the address: `rdma link delete rxe0 && rdma link add rxe0 type rxe netdev NETDEV`";
    NO_IP = "no-ip-address", Fault, Addresses,
        "Packets of RoCE v2 are routed as those of IP are. Without an IP address on the port's network interface there is no route.",
        "give the interface an address: `ip addr add ADDRESS/PREFIX dev NETDEV`";
    OTHER_NAMESPACE = "interface-in-other-namespace", Warning, Addresses,
        "The address belongs to a network interface of another network namespace: the host's, or another container's. Connections by TCP have \
         other addresses than those by RDMA, whose packets follow routes and firewall of that namespace. Some kernels refuse to connect.",
        "run in the namespace of the interface (`docker run --network=host`, in Kubernetes `hostNetwork: true`), or give this one an interface of the \
         card: `ip link set NETDEV netns PID`";
    PKEY_ABSENT = "no-partition", Fault, Addresses,
        "A queue pair belongs to a partition, by a key from the port's table. The configured entry of the table is empty.",
        "set `rdma.pkey_index` to an entry that is in use: `grep . /sys/class/infiniband/*/ports/*/pkeys/*`";
    PKEY_LIMITED = "limited-partition", Warning, Addresses,
        "A limited member of a partition can talk with full members only. Two hosts that are limited don't reach each other.",
        "set `rdma.pkey_index` to an entry of full membership, or make the port a full member in the subnet manager's partitions.conf";
    SMALL_PACKETS = "small-packets", Note, Addresses,
        "RDMA's packets carry 4096 bytes if the network takes larger ones than Ethernet's 1500 bytes. With smaller packets a device \
         handles more of them for the same bytes. RDMA works as well.",
        "`ip link set NETDEV mtu 9000` on all hosts, if the switches let such packets pass";
    TINY_PACKETS = "tiny-packets", Warning, Addresses,
        "The network interface's MTU leaves less than 1024 bytes of payload to a packet of RDMA.",
        "`ip link set NETDEV mtu 9000` on all hosts if the switches let such packets pass, and 1500 otherwise";
    MTU = "mtu-mismatch", Warning, Addresses,
        "The port's packets are smaller than the network interface would allow. The MTU was changed after the device was set up, or the \
         port has a limit of its own.",
        "set the MTU again (`ip link set NETDEV mtu MTU`), or set the device up again";
}

pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    let absent =
        view.choice.as_ref().err().filter(|why| matches!(why, Unavailable::NoGid { .. })).map(Finding::from);
    [absent, kind(view), other_namespace(view), partition(view), packets(view), active_mtu(view)]
        .into_iter()
        .flatten()
        .collect()
}

/// Finds that the chosen address is one that does not pass routers.
fn kind(view: &View<'_>) -> Option<Finding> {
    let chosen = view.choice.as_ref().ok()?;
    let netdev = chosen.gid.netdev.as_deref().unwrap_or("NETDEV");
    let seen =
        format!("{} port {} has no better address than {}", chosen.device, chosen.port, chosen.gid.gid.ip());
    let give = format!("ip addr add ADDRESS/PREFIX dev {netdev}");
    match chosen.gid.kind {
        GidKind::RoceV1 => {
            let fix = "take `rdma.gid_index` or `rdma.gid` out of the configuration, if they choose it; else see why the port has no RoCE \
                       v2 entry (`grep . /sys/class/infiniband/*/ports/*/gid_attrs/types/* 2>/dev/null`): ConnectX-3 has no \
                       RoCE v2, ConnectX-3 Pro has it by `options mlx4_core roce_mode=2` of MLNX_OFED";
            Some(Finding::new(&ROCE_V1, format!("{seen} (RoCE v1)"), fix))
        }
        GidKind::RoceV2LinkLocal => {
            // The port has it by itself. Without an interface that has it, too, there is no route.
            let has_route = view.interfaces.iter().any(|interface| interface.name == netdev);
            let finding = match wrong_netdev(view, netdev) {
                Some(finding) => finding,
                None if has_route => Finding::new(&LINK_LOCAL, seen, give),
                None => {
                    let seen = format!("{netdev}, the interface of {}, has no IP address", chosen.device);
                    Finding::new(&NO_IP, seen, give)
                }
            };
            Some(if has_route { finding } else { finding.but(Fault) })
        }
        GidKind::InfiniBand | GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6 => None,
    }
}

/// Finds that the chosen address is one of an interface that is not in this network namespace.
fn other_namespace(view: &View<'_>) -> Option<Finding> {
    let chosen = view.choice.as_ref().ok()?;
    let netdev = chosen.gid.netdev.as_ref()?;
    let here = view.machine.names("/sys/class/net");
    if here.is_empty() || here.contains(netdev) {
        return None;
    }
    let device = &chosen.device;
    let seen = format!(
        "{} of {device} is an address of {netdev}, which is not in this network namespace",
        chosen.gid.gid.ip()
    );
    let fix = match view.in_container() {
        true => format!(
            "start the container in the host's namespace (`docker run --network=host`, in Kubernetes `hostNetwork: true`), or give it an interface \
             of the card: `ip link set {netdev} netns PID` on the host, in Kubernetes a network of SR-IOV or macvlan by Multus"
        ),
        false => format!(
            "run in the namespace of {netdev} (`ip netns exec NAME PROGRAM`), or move it here: `ip link set {netdev} netns PID`"
        ),
    };
    let own =
        view.summaries.iter().filter(|summary| summary.name == *device).flat_map(|summary| &summary.ports);
    let mut own = own.filter(|port| port.number == chosen.port).flat_map(|port| &port.gids);
    let is_here = |gid: &GidEntry| gid.netdev.as_ref().is_some_and(|netdev| here.contains(netdev));
    let own = own.find(|gid| gid.kind != GidKind::RoceV1 && is_here(gid));
    let or = own.map(|gid| {
        format!("; or set `rdma.gid_index = {}`, an entry of an interface that is here", gid.index)
    });
    Some(Finding::new(&OTHER_NAMESPACE, seen, format!("{fix}{}", or.unwrap_or_default())))
}

/// Finds that Soft-RoCE is on an interface without an address of other networks, while another has one.
fn wrong_netdev(view: &View<'_>, netdev: &str) -> Option<Finding> {
    let (device, ..) = view.chosen().filter(|(device, ..)| view.is_software(device))?;
    let is_routable = |address: IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let routable = || view.interfaces.iter().filter(|interface| is_routable(interface.address));
    if routable().any(|own| own.name == netdev) {
        // The configuration has chosen the link-local one.
        return None;
    }
    // A card rather than a bridge, a tunnel or a VLAN, which Soft-RoCE may not take.
    let is_card = |name: &str| view.machine.link(&format!("/sys/class/net/{name}/device")).is_some();
    let better = routable().find(|interface| is_card(&interface.name)).or_else(|| routable().next())?;
    let (name, other) = (&device.name, &better.name);
    let seen = format!(
        "{name} is Soft-RoCE on {netdev}, which has no routable IP address; {other} has {}",
        better.address
    );
    let fix = format!(
        "put it there: `rdma link delete {name} && rdma link add {name} type rxe netdev {other}`; or give {netdev} an address: `ip addr add \
         ADDRESS/PREFIX dev {netdev}`"
    );
    Some(Finding::new(&WRONG_NETDEV, seen, fix))
}

/// Finds that the port is no full member of the partition. Ethernet has one partition, of which all are full members.
fn partition(view: &View<'_>) -> Option<Finding> {
    const FULL: u16 = 0x8000;
    // A port that is not active yet has a table, too, and can be chosen when it is.
    let first = || {
        view.summaries
            .iter()
            .filter(|device| device.unsuited.is_none())
            .find_map(|device| Some((device, device.ports.first()?)))
    };
    let (device, port) = match &view.choice {
        Ok(_) => view.chosen().map(|(device, port, _)| (device, port)),
        Err(Unavailable::PortDown { .. }) => first(),
        Err(_) => None,
    }?;
    let index = view.config.pkey_index;
    let at = format!("entry {index} of the partition keys of {} port {}", device.name, port.number);
    let key = key_of(view, device, port, index);
    // A table that can't be read says nothing, except that others can.
    if key.is_none() && index == 0 {
        return None;
    }
    match key.unwrap_or(0) {
        0 => {
            let fix = "set `rdma.pkey_index` to an entry that is in use: `grep . /sys/class/infiniband/*/ports/*/pkeys/*`";
            Some(Finding::new(&PKEY_ABSENT, format!("{at} is empty"), fix))
        }
        key if key & FULL == 0 && port.link_layer == LinkLayer::InfiniBand => {
            let full =
                (0..16).find(|index| key_of(view, device, port, *index).is_some_and(|key| key & FULL != 0));
            let fix = match full {
                Some(index) => format!("set `rdma.pkey_index` to {index}, where the port is a full member"),
                None => {
                    "make the port a full member in the subnet manager's partitions.conf (`PORT_GUID=full`)"
                        .to_owned()
                }
            };
            Some(Finding::new(&PKEY_LIMITED, format!("{at} is {key:#06x}, a limited member's"), fix))
        }
        _ => None,
    }
}

fn key_of(view: &View<'_>, device: &DeviceSummary, port: &PortSummary, index: u16) -> Option<u16> {
    let key = view.of_port(device, port, &format!("pkeys/{index}"))?;
    u16::from_str_radix(key.trim_start_matches("0x"), 16).ok()
}

/// Finds that the port's packets are smaller than the network interface's, as far as ibv_devinfo(1) tells without a trial.
fn active_mtu(view: &View<'_>) -> Option<Finding> {
    let (device, port, _) = view.chosen().filter(|(_, port, _)| port.link_layer == LinkLayer::Ethernet)?;
    let netdev = view.netdev(device, port)?;
    let netdev_mtu = view.machine.number(&format!("/sys/class/net/{netdev}/mtu"))?;
    let number = port.number.to_string();
    let told = view.run(&["ibv_devinfo", "-d", &device.name, "-i", &number])?;
    let line = told.lines().find_map(|line| line.trim().strip_prefix("active_mtu:"))?;
    let active = line.split_whitespace().next()?.parse().ok()?;
    mtu_mismatch(&device.name, active, &netdev, netdev_mtu)
}

/// Finds that a device's packets carry less than the MTU of its network interface allows.
pub(super) fn mtu_mismatch(name: &str, active: u64, netdev: &str, netdev_mtu: u64) -> Option<Finding> {
    let fits = payload(netdev_mtu);
    let seen =
        format!("packets of {name} carry {active} bytes, {netdev} has MTU {netdev_mtu}, where {fits} fit");
    let fix =
        format!("set the MTU again (`ip link set {netdev} mtu {netdev_mtu}`), or set the device up again");
    (active < fits).then(|| Finding::new(&MTU, seen, fix))
}

/// Returns how many bytes of payload fit into a packet of RoCE, for the MTU of the network interface; as the kernel's `iboe_get_mtu`.
fn payload(netdev_mtu: u64) -> u64 {
    // GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4.
    const HEADERS: u64 = 96;
    let fits = |size: &&u64| **size + HEADERS <= netdev_mtu;
    [4096, 2048, 1024, 512].iter().find(fits).copied().unwrap_or(256)
}

fn packets(view: &View<'_>) -> Option<Finding> {
    let (device, port, netdev) = view.chosen()?;
    if port.link_layer == LinkLayer::InfiniBand {
        return None;
    }
    // Packets are as large as the cards' below a VLAN or a bond.
    let cards = view.cards(&netdev?);
    let mtus = cards
        .iter()
        .filter_map(|card| Some((view.machine.number(&format!("/sys/class/net/{card}/mtu"))?, card)));
    let (mtu, card) = mtus.min()?;
    let payload = payload(mtu);
    let kind = match payload {
        4096.. => return None,
        1024.. => &SMALL_PACKETS,
        _ => &TINY_PACKETS,
    };
    let seen = format!("{card} has MTU {mtu}, so packets of {} carry {payload} bytes", device.name);
    let fix = format!(
        "`ip link set {card} mtu 9000`, and then what is on it, on all hosts, if the switches let such packets pass"
    );
    Some(Finding::new(kind, seen, fix))
}
