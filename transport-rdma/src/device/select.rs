//! Chooses device, port and GID from what the machine has.

use std::net::IpAddr;

use super::{DeviceSummary, GidEntry, GidKind, Interface, PortSummary, RdmaConfig};
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

/// The device, port and GID that were chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The device's name.
    pub device: String,
    /// The port, counted from 1.
    pub port: u8,
    /// The entry of the port's GID table.
    pub gid: GidEntry,
    /// The property that made it the best.
    pub matched: Match,
}

/// Chooses the entry that suits a TCP connection with this local address, within what `config` fixes.
///
/// Without an address, and for a loopback one, which no device has, the entries are ranked by kind.
pub fn choose(
    devices: &[DeviceSummary],
    interfaces: &[Interface],
    config: &RdmaConfig,
    local: Option<IpAddr>,
) -> Result<Selection, Unavailable> {
    let local = local.map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback());
    let netdev = local.and_then(|ip| interfaces.iter().find(|i| i.address == ip)).map(|i| i.name.as_str());
    let allowed = candidates(devices, config)?;

    let mut reason = None;
    let mut best: Option<(Match, GidKind, Selection)> = None;
    for (device, port) in allowed {
        let found = match usable(device, port, config) {
            Ok(gids) => gids,
            Err(unavailable) => {
                // A port that is up but lacks an address is nearer to working than one that is down.
                if reason.is_none() || matches!(unavailable, Unavailable::NoGid { .. }) {
                    reason = Some(unavailable);
                }
                continue;
            }
        };
        for gid in found {
            let matched = if Some(gid.gid.ip()) == local && gid.kind != GidKind::InfiniBand {
                Match::Address
            } else if netdev.is_some() && gid.netdev.as_deref() == netdev {
                Match::Interface
            } else {
                Match::Rank
            };
            // Strictly better only: among equals the first device, port and index stays.
            if best.as_ref().is_none_or(|(m, k, _)| (matched, gid.kind) < (*m, *k)) {
                let selection =
                    Selection { device: device.name.clone(), port: port.number, gid: gid.clone(), matched };
                best = Some((matched, gid.kind, selection));
            }
        }
    }
    match (best, reason) {
        (Some((.., selection)), _) => Ok(selection),
        (None, Some(reason)) => Err(reason),
        (None, None) => Err(no_port()),
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
    let numbered = |p: &&PortSummary| config.port.is_none_or(|number| number == p.number);
    let ports: Vec<_> = devices
        .iter()
        .filter(named)
        .flat_map(|device| device.ports.iter().filter(numbered).map(move |port| (device, port)))
        .collect();
    if ports.is_empty() {
        let configured = match (&config.device, config.port) {
            (Some(device), Some(port)) => format!("port {port} of {device}"),
            (Some(device), None) => device.clone(),
            (None, Some(port)) => format!("port {port}"),
            (None, None) => return Err(no_port()),
        };
        let present = devices.iter().map(|d| match d.ports.len() {
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
    let gids: Vec<_> =
        port.gids.iter().filter(|g| config.gid_index.is_none_or(|index| index == g.index)).collect();
    if gids.is_empty() {
        let detail = match config.gid_index {
            Some(index) if !port.gids.is_empty() => {
                let there: Vec<_> = port.gids.iter().map(|g| g.index.to_string()).collect();
                format!("entry {index} of its GID table is configured, those in use are {}", there.join(", "))
            }
            _ => "its GID table is empty".to_owned(),
        };
        return Err(Unavailable::NoGid { device: device.name.clone(), port: port.number, detail });
    }
    Ok(gids)
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
        let interface =
            |name: &str, ip: &str| Interface { name: name.to_owned(), address: ip.parse().unwrap() };
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
    fn missing_gid_is_named_with_what_there_is() {
        let (devices, interfaces) = machine();
        let config =
            RdmaConfig { device: Some("mlx5_0".into()), gid_index: Some(9), ..RdmaConfig::default() };
        let error = choose(&devices, &interfaces, &config, None).unwrap_err();
        let there: Vec<_> = devices[0].ports[0].gids.iter().map(|g| g.index.to_string()).collect();
        let words = format!("entry 9 of its GID table is configured, those in use are {}", there.join(", "));
        assert!(error.to_string().ends_with(&words), "{error}");
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
