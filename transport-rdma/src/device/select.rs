//! Chooses device, port and GID from what the machine has.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{DeviceSummary, GidEntry, GidKind, Interface, PortSummary, RdmaConfig, Unsuited};
use crate::Unavailable;

/// Why a GID was taken, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// It is the local address of the TCP connection.
    Address,
    /// It is on the network interface that has that address.
    Interface,
    /// There is no such address or interface; it is the best by kind.
    Rank,
}

/// An address that links may leave from: a device, its port and an entry of the port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The device's name.
    pub device: String,
    /// The NUMA node that the device is attached to, if the machine has several.
    pub numa_node: Option<u32>,
    /// The port, counted from 1.
    pub port: u8,
    /// The entry of the port's GID table.
    pub gid: GidEntry,
    /// How many of the GID's 128 bits name its network.
    pub prefix: u8,
    /// It is the address of an interface that was put upon the port's own. Not all devices receive packets to it.
    pub is_of_upper: bool,
    /// The property that decides how well it suits.
    pub matched: Match,
}

impl Selection {
    /// The device and its port.
    fn at(&self) -> (String, u8) {
        (self.device.clone(), self.port)
    }

    /// Returns the device among those that were just found.
    pub fn summary<'a>(&self, devices: &'a [DeviceSummary]) -> Result<&'a DeviceSummary, Unavailable> {
        let found = devices.iter().find(|device| device.name == self.device);
        found.ok_or_else(|| Unavailable::NoDevice { detail: format!("{} has just vanished", self.device) })
    }
}

/// Returns all addresses that `config` allows, the best first for a TCP connection with this local address. At least one.
///
/// Without an address, and for a loopback one, which no device has, they are ranked by kind.
pub(crate) fn ranked(
    devices: &[DeviceSummary],
    interfaces: &[Interface],
    config: &RdmaConfig,
    local: Option<IpAddr>,
) -> Result<Vec<Selection>, Unavailable> {
    let local = local.map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback());
    let netdev = local.and_then(|ip| interfaces.iter().find(|i| i.address == ip)).map(|i| i.name.as_str());
    let mut reason = None;
    let mut found = Vec::new();
    for (device, port) in candidates(devices, config)? {
        let gids = match usable(device, port, config) {
            Ok(gids) => gids,
            Err(unavailable) => {
                // A port that is up but lacks an address is nearer to working than one that is down.
                if reason.is_none() || matches!(unavailable, Unavailable::NoGid { .. }) {
                    reason = Some(unavailable);
                }
                continue;
            }
        };
        for gid in gids {
            let matched = if Some(gid.gid.ip()) == local && gid.kind != GidKind::InfiniBand {
                Match::Address
            } else if netdev.is_some() && gid.netdev.as_deref() == netdev {
                Match::Interface
            } else {
                Match::Rank
            };
            found.push(Selection {
                device: device.name.clone(),
                numa_node: device.numa_node,
                port: port.number,
                gid: gid.clone(),
                prefix: prefix(gid, interfaces),
                is_of_upper: gid.netdev.as_deref()
                    != port.gids.first().and_then(|first| first.netdev.as_deref()),
                matched,
            });
        }
    }
    // Among equals the first device, port and index stays.
    found.sort_by_key(|selection| (selection.matched, selection.is_of_upper, selection.gid.kind));
    if found.is_empty() { Err(reason.unwrap_or_else(no_port)) } else { Ok(found) }
}

/// Returns the addresses that links of a session may leave from, within what `config` allows, and the best first for a TCP
/// connection with this local address. At least one. Addresses of one network segment are left out where the port has others.
pub fn addresses(
    devices: &[DeviceSummary],
    interfaces: &[Interface],
    config: &RdmaConfig,
    local: Option<IpAddr>,
) -> Result<Vec<Selection>, Unavailable> {
    let mut found = ranked(devices, interfaces, config, local)?;
    // A peer names an address, not a device. Devices below a bridge or a macvlan have its addresses, too, and a port has most
    // addresses as RoCE v1 and as v2.
    let mut seen = HashSet::new();
    found.retain(|selection| seen.insert(selection.gid.gid));
    let has_routable: HashSet<_> =
        found.iter().filter(|s| s.gid.kind.is_routable()).map(Selection::at).collect();
    let is_lesser = |s: &Selection| !s.gid.kind.is_routable() && s.matched != Match::Address;
    found.retain(|selection| !(is_lesser(selection) && has_routable.contains(&selection.at())));
    Ok(found)
}

/// Chooses the best of the [`addresses`].
pub fn choose(
    devices: &[DeviceSummary],
    interfaces: &[Interface],
    config: &RdmaConfig,
    local: Option<IpAddr>,
) -> Result<Selection, Unavailable> {
    Ok(addresses(devices, interfaces, config, local)?.swap_remove(0))
}

/// How many of an address's 128 bits name its network: as its interface says, and all if no interface has it.
fn prefix(entry: &GidEntry, interfaces: &[Interface]) -> u8 {
    let ip = entry.gid.ip();
    match entry.kind {
        // The subnet prefix, or one network segment.
        GidKind::InfiniBand | GidKind::RoceV2LinkLocal => 64,
        _ => {
            let of_ip = interfaces.iter().find(|i| i.address == ip).map(|i| i.prefix);
            let before = if ip.is_ipv4() { 96 } else { 0 };
            of_ip.map_or(128, |bits| before + bits)
        }
    }
}

fn no_port() -> Unavailable {
    Unavailable::NoDevice { detail: "no device has a port".to_owned() }
}

/// The ports that the configuration allows.
fn candidates<'a>(
    devices: &'a [DeviceSummary],
    config: &RdmaConfig,
) -> Result<Vec<(&'a DeviceSummary, &'a PortSummary)>, Unavailable> {
    let named = |d: &&DeviceSummary| config.device.as_ref().is_none_or(|name| *name == d.name);
    let suited = |d: &&DeviceSummary| d.unsuited.is_none();
    let numbered = |p: &&PortSummary| config.port.is_none_or(|number| number == p.number);
    let ports: Vec<_> = devices
        .iter()
        .filter(named)
        .filter(suited)
        .flat_map(|device| device.ports.iter().filter(numbered).map(move |port| (device, port)))
        .collect();
    if ports.is_empty() {
        let unsuited = devices.iter().filter(named).find_map(|d| Some((d.name.clone(), d.unsuited?)));
        if let Some((device, why)) = unsuited.filter(|_| !devices.iter().filter(named).any(|d| suited(&d))) {
            return Err(match why {
                Unsuited::NoReliableQueuePairs(driver) => {
                    Unavailable::NoReliableQueuePairs { device, driver }
                }
                Unsuited::Iwarp => Unavailable::Iwarp { device },
            });
        }
        let configured = match (&config.device, config.port) {
            (Some(device), Some(port)) => format!("port {port} of {device}"),
            (Some(device), None) => device.clone(),
            (None, Some(port)) => format!("port {port}"),
            (None, None) => return Err(no_port()),
        };
        let present = devices.iter().filter(suited).map(|d| match d.ports.len() {
            1 => d.name.clone(),
            n => format!("{} with {n} ports", d.name),
        });
        return Err(Unavailable::NoSuchDevice { configured, present: present.collect() });
    }
    Ok(ports)
}

/// The GIDs of an active port that the configuration allows; never empty.
fn usable<'a>(
    device: &DeviceSummary,
    port: &'a PortSummary,
    config: &RdmaConfig,
) -> Result<Vec<&'a GidEntry>, Unavailable> {
    if !port.active {
        let (device, port, state) = (device.name.clone(), port.number, port.state.clone());
        return Err(Unavailable::PortDown { device, port, state });
    }
    let subnet: Option<IpNet> = config.subnet.as_deref().and_then(|subnet| subnet.parse().ok());
    let is_allowed = |entry: &&GidEntry| {
        let ip = entry.gid.ip();
        config.gid_index.is_none_or(|index| index == entry.index)
            && config.gid.is_none_or(|gid| gid.to_canonical() == ip)
            && subnet.is_none_or(|subnet| subnet.contains(&ip))
    };
    let gids: Vec<_> = port.gids.iter().filter(is_allowed).collect();
    if gids.is_empty() {
        let detail =
            if port.gids.is_empty() { "its GID table is empty".to_owned() } else { not_there(port, config) };
        return Err(Unavailable::NoGid { device: device.name.clone(), port: port.number, detail });
    }
    Ok(gids)
}

/// Says what is configured of addresses, and what the port has.
fn not_there(port: &PortSummary, config: &RdmaConfig) -> String {
    let index = config.gid_index.map(|index| format!("entry {index} of its GID table"));
    let gid = config.gid.map(|gid| format!("the address {gid}"));
    let subnet = config.subnet.as_ref().map(|subnet| format!("an address in {subnet}"));
    let configured: Vec<_> = [index, gid, subnet].into_iter().flatten().collect();
    let there: Vec<_> = port.gids.iter().map(|g| format!("{} ({})", g.index, g.gid.ip())).collect();
    format!("{} is configured, the entries in use are {}", configured.join(" with "), there.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Gid, LinkLayer};

    fn gid(index: u8, ip: &str, kind: GidKind, netdev: &str) -> GidEntry {
        let ip: IpAddr = ip.parse().unwrap();
        GidEntry { index, gid: Gid::from(ip), kind, netdev: Some(netdev.to_owned()) }
    }

    fn device(name: &str, gids: Vec<GidEntry>) -> DeviceSummary {
        let port = PortSummary {
            number: 1,
            active: true,
            state: "ACTIVE".to_owned(),
            link_layer: LinkLayer::Ethernet,
            gids,
        };
        DeviceSummary {
            unsuited: None,
            name: name.to_owned(),
            node: "/dev/infiniband/uverbs0".into(),
            numa_node: None,
            ports: vec![port],
        }
    }

    /// Two RoCE devices; the second has two addresses on one interface.
    fn machine() -> (Vec<DeviceSummary>, Vec<Interface>) {
        use GidKind::*;
        let first = vec![
            gid(0, "fe80::1", RoceV1, "eth0"),
            gid(1, "fe80::1", RoceV2LinkLocal, "eth0"),
            gid(2, "10.0.0.1", RoceV1, "eth0"),
            gid(3, "10.0.0.1", RoceV2Ipv4, "eth0"),
        ];
        let second = vec![
            gid(0, "fe80::2", RoceV2LinkLocal, "eth1"),
            gid(1, "2001:db8::2", RoceV2Ipv6, "eth1"),
            gid(2, "10.0.1.2", RoceV2Ipv4, "eth1"),
        ];
        let interface = |name: &str, ip: &str| Interface {
            name: name.to_owned(),
            address: ip.parse().unwrap(),
            prefix: 24,
        };
        let interfaces = vec![
            interface("lo", "127.0.0.1"),
            interface("eth0", "10.0.0.1"),
            interface("eth1", "10.0.1.2"),
            interface("eth1", "10.9.9.9"),
            interface("eth1", "2001:db8::2"),
            interface("eth2", "10.0.2.1"),
        ];
        (vec![device("mlx5_0", first), device("mlx5_1", second)], interfaces)
    }

    fn chosen(config: &RdmaConfig, local: Option<&str>) -> (String, u8, Match) {
        let (devices, interfaces) = machine();
        let local = local.map(|ip| ip.parse().unwrap());
        let s = choose(&devices, &interfaces, config, local).unwrap();
        (s.device, s.gid.index, s.matched)
    }

    #[test]
    fn local_address_decides() {
        let auto = RdmaConfig::default();
        assert_eq!(chosen(&auto, Some("10.0.0.1")), ("mlx5_0".into(), 3, Match::Address));
        assert_eq!(chosen(&auto, Some("10.0.1.2")), ("mlx5_1".into(), 2, Match::Address));
        assert_eq!(chosen(&auto, Some("2001:db8::2")), ("mlx5_1".into(), 1, Match::Address));
        assert_eq!(chosen(&auto, Some("::ffff:10.0.1.2")), ("mlx5_1".into(), 2, Match::Address));
    }

    #[test]
    fn else_the_interface_that_has_the_address() {
        let auto = RdmaConfig::default();
        assert_eq!(chosen(&auto, Some("10.9.9.9")), ("mlx5_1".into(), 2, Match::Interface));
    }

    #[test]
    fn else_the_kind_and_so_for_loopback() {
        let auto = RdmaConfig::default();
        for local in [None, Some("127.0.0.1"), Some("::1"), Some("10.0.2.1"), Some("192.0.2.1")] {
            assert_eq!(chosen(&auto, local), ("mlx5_0".into(), 3, Match::Rank), "{local:?}");
        }
        let ipv6_first = RdmaConfig { device: Some("mlx5_1".into()), ..auto };
        assert_eq!(chosen(&ipv6_first, Some("127.0.0.1")), ("mlx5_1".into(), 2, Match::Rank));
    }

    #[test]
    fn configuration_overrides() {
        let device = RdmaConfig { device: Some("mlx5_1".into()), ..RdmaConfig::default() };
        assert_eq!(chosen(&device, Some("10.0.0.1")), ("mlx5_1".into(), 2, Match::Rank));
        let index = RdmaConfig { gid_index: Some(1), ..device };
        assert_eq!(chosen(&index, None), ("mlx5_1".into(), 1, Match::Rank));
    }

    #[test]
    fn addresses_and_networks_narrow_the_choice() {
        let gid = RdmaConfig { gid: Some("10.0.1.2".parse().unwrap()), ..RdmaConfig::default() };
        assert_eq!(chosen(&gid, Some("10.0.0.1")), ("mlx5_1".into(), 2, Match::Rank));
        let subnet = |subnet: &str| RdmaConfig { subnet: Some(subnet.into()), ..RdmaConfig::default() };
        assert_eq!(chosen(&subnet("2001:db8::/32"), None), ("mlx5_1".into(), 1, Match::Rank));
        assert_eq!(chosen(&subnet("10.0.0.0/24"), Some("10.0.1.2")), ("mlx5_0".into(), 3, Match::Rank));
        let (devices, interfaces) = machine();
        let error = choose(&devices, &interfaces, &subnet("192.0.2.0/24"), None).unwrap_err();
        assert!(error.to_string().contains("an address in 192.0.2.0/24 is configured"), "{error}");
    }

    #[test]
    fn an_address_knows_its_network() {
        let (devices, interfaces) = machine();
        let all = addresses(&devices, &interfaces, &RdmaConfig::default(), None).unwrap();
        let prefix = |ip: &str| all.iter().find(|s| s.gid.gid.ip().to_string() == ip).unwrap().prefix;
        assert_eq!(["10.0.0.1", "2001:db8::2"].map(prefix), [120, 24]);
        assert!(all.is_sorted_by_key(|s| (s.matched, s.gid.kind)));
        let ips: Vec<_> = all.iter().map(|s| s.gid.gid.ip().to_string()).collect();
        assert_eq!(ips, ["10.0.0.1", "10.0.1.2", "2001:db8::2"], "each once, and none of a segment alone");
        let local = RdmaConfig { gid_index: Some(0), device: Some("mlx5_1".into()), ..RdmaConfig::default() };
        assert_eq!(
            addresses(&devices, &interfaces, &local, None).unwrap()[0].prefix,
            64,
            "unless it is the only one"
        );
    }

    #[test]
    fn an_address_of_several_devices_is_that_of_the_device_whose_interface_has_it() {
        let (mut devices, interfaces) = machine();
        // As for a macvlan `eth1` upon `eth0`.
        devices[0].ports[0].gids.push(gid(4, "10.0.1.2", GidKind::RoceV2Ipv4, "eth1"));
        let all = addresses(&devices, &interfaces, &RdmaConfig::default(), None).unwrap();
        let shared: Vec<_> = all.iter().filter(|s| s.gid.gid.ip().to_string() == "10.0.1.2").collect();
        assert_eq!(shared.len(), 1);
        assert_eq!(shared[0].device, "mlx5_1");
    }

    #[test]
    fn missing_device_is_named_with_what_there_is() {
        let (devices, interfaces) = machine();
        let config = RdmaConfig { device: Some("rxe0".into()), ..RdmaConfig::default() };
        let error = choose(&devices, &interfaces, &config, None).unwrap_err();
        assert_eq!(error.to_string(), "rxe0 is configured, the machine has mlx5_0, mlx5_1");
        assert!(error.remedy().contains("set `rdma.device` to one of these"), "{}", error.remedy());
        let config = RdmaConfig { port: Some(2), ..RdmaConfig::default() };
        let error = choose(&devices, &interfaces, &config, None).unwrap_err();
        assert_eq!(error.to_string(), "port 2 is configured, the machine has mlx5_0, mlx5_1");
        let none = choose(&[], &interfaces, &RdmaConfig::default(), None);
        assert!(matches!(none, Err(Unavailable::NoDevice { .. })));
    }

    #[test]
    fn devices_without_reliable_queue_pairs_are_passed_over_and_named() {
        let (mut devices, interfaces) = machine();
        devices[0].unsuited = Some(Unsuited::NoReliableQueuePairs("efa"));
        let other = choose(&devices, &interfaces, &RdmaConfig::default(), None).unwrap();
        assert_eq!(other.device, "mlx5_1");
        devices.pop();
        let error = choose(&devices, &interfaces, &RdmaConfig::default(), None).unwrap_err();
        assert_eq!(error.to_string(), "mlx5_0 (driver efa) has no reliable connected queue pairs (RC)");
    }

    #[test]
    fn missing_gid_is_named_with_what_there_is() {
        let (devices, interfaces) = machine();
        let config =
            RdmaConfig { device: Some("mlx5_0".into()), gid_index: Some(9), ..RdmaConfig::default() };
        let error = choose(&devices, &interfaces, &config, None).unwrap_err();
        let words = "entry 9 of its GID table is configured, the entries in use are 0 (fe80::1), 1 (fe80::1), 2 (10.0.0.1), \
                     3 (10.0.0.1)";
        assert!(error.to_string().ends_with(words), "{error}");
        assert!(error.remedy().contains("`rdma.gid_index`"), "{}", error.remedy());
    }

    #[test]
    fn port_that_is_down_is_passed_over_and_named_if_it_is_the_only_one() {
        let (mut devices, interfaces) = machine();
        devices[0].ports[0].active = false;
        devices[0].ports[0].state = "DOWN".to_owned();
        let local = Some("10.0.0.1".parse().unwrap());
        let other = choose(&devices, &interfaces, &RdmaConfig::default(), local).unwrap();
        assert_eq!((other.device.as_str(), other.matched), ("mlx5_1", Match::Rank));
        devices.pop();
        let error = choose(&devices, &interfaces, &RdmaConfig::default(), local).unwrap_err();
        assert_eq!(error.to_string(), "port 1 of mlx5_0 is DOWN, not ACTIVE");
    }

    #[test]
    fn empty_gid_table_is_the_reason_even_beside_a_port_that_is_down() {
        let (mut devices, interfaces) = machine();
        devices[0].ports[0].active = false;
        devices[1].ports[0].gids.clear();
        let error = choose(&devices, &interfaces, &RdmaConfig::default(), None).unwrap_err();
        assert!(matches!(error, Unavailable::NoGid { .. }), "{error:?}");
    }
}
