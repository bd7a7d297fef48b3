//! Reads from sysfs which RDMA devices the machine has.
//!
//! sysfs and not the library, because it also tells what the library keeps to itself: the types of GIDs, their network
//! interfaces, and devices that may not be opened.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{DeviceSummary, Gid, GidEntry, GidKind, LinkLayer, PortSummary};
use crate::Unavailable;

/// The directories that tell of devices; the machine's own, or a test's.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/sys`
    pub sys: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into() }
    }
}

impl Roots {
    /// The machine's devices in order of name. Devices that cannot be opened are among them.
    pub fn devices(&self) -> Result<Vec<DeviceSummary>, Unavailable> {
        let class = self.sys.join("class/infiniband");
        let mut devices: Vec<_> = entries(&class).iter().filter_map(|path| self.device(path)).collect();
        if devices.is_empty() {
            return Err(Unavailable::NoDevice { detail: format!("{} is absent or empty", class.display()) });
        }
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(devices)
    }

    fn device(&self, path: &Path) -> Option<DeviceSummary> {
        let name = path.file_name()?.to_str()?.to_owned();
        let mut ports: Vec<_> =
            entries(&path.join("ports")).iter().filter_map(|port| read_port(port)).collect();
        ports.sort_by_key(|port| port.number);
        let node = self.dev.join("infiniband").join(self.uverbs(&name)?);
        let numa_node = read(&path.join("device/numa_node")).and_then(|node| node.parse().ok());
        Some(DeviceSummary { unsuited: unsuited(path), name, node, numa_node, ports })
    }

    /// The NUMA node of all these CPUs, which are as in `Cpus_allowed_list` of proc_pid_status(5), if it is one.
    pub fn node_of(&self, cpus: &str) -> Option<u32> {
        let allowed = ranges(cpus);
        let nodes = entries(&self.sys.join("devices/system/node"));
        let mut nodes = nodes.iter().filter_map(|path| {
            let number: u32 = path.file_name()?.to_str()?.strip_prefix("node")?.parse().ok()?;
            let of_node = ranges(&read(&path.join("cpulist"))?);
            let is_shared = allowed.iter().any(|a| of_node.iter().any(|n| a.0 <= n.1 && n.0 <= a.1));
            is_shared.then_some(number)
        });
        nodes.next().filter(|_| nodes.next().is_none())
    }

    /// The name of the device's node: the `uverbs` device that says it belongs to it.
    fn uverbs(&self, device: &str) -> Option<PathBuf> {
        let belongs = |path: &&PathBuf| read(&path.join("ibdev")).is_some_and(|ibdev| ibdev == device);
        let class = entries(&self.sys.join("class/infiniband_verbs"));
        Some(class.iter().find(belongs)?.file_name()?.into())
    }
}

/// Returns the driver of a device that has no reliable connected queue pairs. `node_type` is as in the kernel's
/// `enum rdma_node_type`: 5 and 6 are usNIC, 7 is a device that fits no other type, as AWS' EFA.
fn unsuited(path: &Path) -> Option<&'static str> {
    let node_type = read(&path.join("node_type"))?;
    let (number, _) = node_type.split_once(':')?;
    match number.trim().parse() {
        Ok(5 | 6) => Some("usnic_verbs"),
        Ok(7) if has_driver(path, "efa") => Some("efa"),
        _ => None,
    }
}

fn has_driver(path: &Path, name: &str) -> bool {
    fs::read_link(path.join("device/driver")).is_ok_and(|driver| driver.ends_with(name))
}

/// The ranges in a list such as `0-3,8`.
fn ranges(list: &str) -> Vec<(u32, u32)> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    list.split(',').filter_map(range).collect()
}

/// Whether the device's node may be opened.
pub fn check_access(device: &DeviceSummary) -> Result<(), Unavailable> {
    match fs::File::options().read(true).write(true).open(&device.node) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Err(Unavailable::NoPermission { path: device.node.clone() })
        }
        Err(e) => {
            Err(Unavailable::NoDevice { detail: format!("{}: {}: {e}", device.name, device.node.display()) })
        }
    }
}

fn read_port(path: &Path) -> Option<PortSummary> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    // "4: ACTIVE"
    let state = read(&path.join("state"))?;
    let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name);
    let link_layer = match read(&path.join("link_layer")).as_deref() {
        Some("InfiniBand") => LinkLayer::InfiniBand,
        _ => LinkLayer::Ethernet,
    };
    // Work requests name the entry in eight bits, so later ones are out of reach.
    let gids = (0..=u8::MAX).filter_map(|index| read_gid(path, index, link_layer)).collect();
    Some(PortSummary { number, active: state == "ACTIVE", state: state.to_owned(), link_layer, gids })
}

fn read_gid(port: &Path, index: u8, link_layer: LinkLayer) -> Option<GidEntry> {
    let gid = parse_gid(&read(&port.join(format!("gids/{index}")))?)?;
    // The kernel fails with EINVAL when asked for type or interface of an empty entry.
    if gid.0 == [0; 16] || gid.0[8..] == [0; 8] {
        return None;
    }
    let kind = match link_layer {
        LinkLayer::InfiniBand => GidKind::InfiniBand,
        LinkLayer::Ethernet => roce_kind(&read(&port.join(format!("gid_attrs/types/{index}")))?, gid)?,
    };
    let netdev = read(&port.join(format!("gid_attrs/ndevs/{index}")));
    Some(GidEntry { index, gid, kind, netdev })
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

/// A file's content without the newline; `None` if it cannot be read or is empty.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A directory's entries; none if it cannot be read.
fn entries(path: &Path) -> Vec<PathBuf> {
    let Ok(directory) = fs::read_dir(path) else { return Vec::new() };
    directory.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[cfg(test)]
mod tests;
