//! Reads from sysfs which RDMA devices the machine has.
//!
//! sysfs and not the library, because it also tells what the library keeps to itself: the types of GIDs, their network
//! interfaces, and devices that may not be opened.

use super::{DeviceSummary, Gid, GidEntry, GidKind, LinkLayer, PortSummary, Unsuited};
use crate::Unavailable;
use crate::machine::Machine;

/// The directory of all devices.
const CLASS: &str = "/sys/class/infiniband";

impl Machine {
    /// Returns the machine's devices in order of name. Devices that cannot be opened are among them.
    pub fn devices(&self) -> Result<Vec<DeviceSummary>, Unavailable> {
        let devices: Vec<_> = self.names(CLASS).into_iter().filter_map(|name| self.device(name)).collect();
        if devices.is_empty() {
            return Err(Unavailable::NoDevice { detail: format!("{CLASS} is absent or empty") });
        }
        Ok(devices)
    }

    fn device(&self, name: String) -> Option<DeviceSummary> {
        let path = format!("{CLASS}/{name}");
        let ports = self.names(&format!("{path}/ports"));
        let mut ports: Vec<_> = ports.iter().filter_map(|port| self.port(&path, port)).collect();
        ports.sort_by_key(|port| port.number);
        let node = format!("/dev/infiniband/{}", self.uverbs(&name)?);
        let numa_node = self.read(&format!("{path}/device/numa_node")).and_then(|node| node.parse().ok());
        Some(DeviceSummary { unsuited: self.unsuited(&path), name, node, numa_node, ports })
    }

    /// Returns the NUMA node of all these CPUs, which are as in `Cpus_allowed_list` of proc_pid_status(5), if it is one.
    pub fn node_of(&self, cpus: &str) -> Option<u32> {
        let allowed = ranges(cpus);
        let nodes = self.names("/sys/devices/system/node").into_iter().filter_map(|name| {
            let number: u32 = name.strip_prefix("node")?.parse().ok()?;
            let of_node = ranges(&self.read(&format!("/sys/devices/system/node/{name}/cpulist"))?);
            let is_shared = allowed.iter().any(|a| of_node.iter().any(|n| a.0 <= n.1 && n.0 <= a.1));
            is_shared.then_some(number)
        });
        let nodes: Vec<_> = nodes.collect();
        if let [node] = nodes[..] { Some(node) } else { None }
    }

    /// The name of the device's node: the `uverbs` device that says it belongs to it.
    fn uverbs(&self, device: &str) -> Option<String> {
        const VERBS: &str = "/sys/class/infiniband_verbs";
        let belongs =
            |name: &String| self.read(&format!("{VERBS}/{name}/ibdev")).is_some_and(|of| of == device);
        self.names(VERBS).into_iter().find(belongs)
    }

    /// Returns why the device can't be used, whatever its ports are. `node_type` is as in the kernel's `enum rdma_node_type`: 4 is
    /// iWARP, 5 and 6 are usNIC, 7 is a device that fits no other type, as AWS' EFA.
    fn unsuited(&self, device: &str) -> Option<Unsuited> {
        let node_type = self.read(&format!("{device}/node_type"))?;
        let (number, _) = node_type.split_once(':')?;
        match number.trim().parse() {
            Ok(4) => Some(Unsuited::Iwarp),
            Ok(5 | 6) => Some(Unsuited::NoReliableQueuePairs("usnic_verbs")),
            Ok(7) if self.link(&format!("{device}/device/driver")).is_some_and(|driver| driver == "efa") => {
                Some(Unsuited::NoReliableQueuePairs("efa"))
            }
            _ => None,
        }
    }

    /// Whether the device's node may be opened.
    pub fn check_access(&self, device: &DeviceSummary) -> Result<(), Unavailable> {
        match self.open(&device.node) {
            Ok(_) => Ok(()),
            Err(libc::EACCES | libc::EPERM) => {
                Err(Unavailable::NoPermission { path: device.node.clone().into() })
            }
            Err(errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                Err(Unavailable::NoDevice { detail: format!("{}: {}: {why}", device.name, device.node) })
            }
        }
    }

    fn port(&self, device: &str, number: &str) -> Option<PortSummary> {
        let port = format!("{device}/ports/{number}");
        let number = number.parse().ok()?;
        // "4: ACTIVE"
        let state = self.read(&format!("{port}/state"))?;
        let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name);
        let link_layer = match self.read(&format!("{port}/link_layer")).as_deref() {
            Some("InfiniBand") => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        };
        // Work requests name the entry in eight bits, so later ones are out of reach.
        let gids = (0..=u8::MAX).filter_map(|index| self.gid(&port, index, link_layer)).collect();
        Some(PortSummary { number, active: state == "ACTIVE", state: state.to_owned(), link_layer, gids })
    }

    fn gid(&self, port: &str, index: u8, link_layer: LinkLayer) -> Option<GidEntry> {
        let gid = parse_gid(&self.read(&format!("{port}/gids/{index}"))?)?;
        // The kernel fails with EINVAL when asked for type or interface of an empty entry.
        if gid.0 == [0; 16] || gid.0[8..] == [0; 8] {
            return None;
        }
        let kind = match link_layer {
            LinkLayer::InfiniBand => GidKind::InfiniBand,
            LinkLayer::Ethernet => roce_kind(&self.read(&format!("{port}/gid_attrs/types/{index}"))?, gid)?,
        };
        let netdev = self.read(&format!("{port}/gid_attrs/ndevs/{index}"));
        Some(GidEntry { index, gid, kind, netdev })
    }
}

/// The ranges in a list such as `0-3,8`.
pub(crate) fn ranges(list: &str) -> Vec<(u32, u32)> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    list.split(',').filter_map(range).collect()
}

fn roce_kind(gid_type: &str, gid: Gid) -> Option<GidKind> {
    match gid_type {
        "RoCE v2" if gid.ip().is_ipv4() => Some(GidKind::RoceV2Ipv4),
        "RoCE v2" if gid.0[..2] == [0xfe, 0x80] => Some(GidKind::RoceV2LinkLocal),
        "RoCE v2" => Some(GidKind::RoceV2Ipv6),
        "IB/RoCE v1" => Some(GidKind::RoceV1),
        // A type that later kernels may have and this program cannot judge.
        _ => None,
    }
}

/// From `fe80:0000:0000:0000:dcef:72ff:fed4:4261`; always eight groups.
fn parse_gid(text: &str) -> Option<Gid> {
    let ip: std::net::Ipv6Addr = text.parse().ok()?;
    Some(Gid(ip.octets()))
}

#[cfg(test)]
mod tests;
