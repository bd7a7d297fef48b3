//! Whether this machine can use RDMA, without using it.

use std::net::IpAddr;

use crate::device::{Host, LocalPath, RdmaConfig, Unavailable, choose};
use crate::resources::Memory;
use crate::verbs::SystemHost;

/// The device that a connection would use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// The device's name in the kernel.
    pub device: String,
    /// The device's port, counted from 1.
    pub port: u8,
    /// The entry in the port's GID table.
    pub gid_index: u8,
    /// The address in that entry; an IP address on RoCE.
    pub gid: IpAddr,
    /// Bytes of payload in the largest packet of the link.
    pub mtu: usize,
}

/// Finds what a connection would use whose TCP side has this local address, and opens the device and registers memory once
/// to see that it may.
///
/// Blocks for milliseconds. Without an address, or with a loopback one, it is the machine's best port.
pub fn probe(config: &RdmaConfig, local: Option<IpAddr>) -> Result<Probe, Unavailable> {
    probe_host(&SystemHost::default(), config, local)
}

fn probe_host(host: &dyn Host, config: &RdmaConfig, local: Option<IpAddr>) -> Result<Probe, Unavailable> {
    let devices = host.devices()?;
    let chosen = choose(&devices, &host.interfaces(), config, local)?;
    let absent = || Unavailable::NoDevice { detail: format!("{} has just vanished", chosen.device) };
    let summary = devices.iter().find(|device| device.name == chosen.device).ok_or_else(absent)?;
    let device = host.open(summary, config)?;
    Memory::try_out(&*device)?;
    let status = device.port(chosen.port)?;
    let path = LocalPath::new(chosen.port, &chosen.gid, status, config);
    Ok(Probe {
        device: chosen.device,
        port: path.port,
        gid_index: path.gid_index,
        gid: path.gid.ip(),
        mtu: status.active_mtu.bytes(),
    })
}
