//! Stands in for `probe.rs` on platforms without verbs.

use std::net::IpAddr;

use crate::{RdmaConfig, Unavailable};

/// What a connection would use. There is none on this platform.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// The device's name in the kernel.
    pub device: String,
    /// The device's port, counted from 1.
    pub port: u8,
    /// The entry in the port's GID table.
    pub gid_index: u8,
    /// That entry; an IP address on RoCE.
    pub gid: IpAddr,
    /// Bytes of payload in the largest packet of the link.
    pub mtu: usize,
}

/// Says that this platform has no RDMA.
pub fn probe(_config: &RdmaConfig, _local: Option<IpAddr>) -> Result<Probe, Unavailable> {
    Err(Unavailable::UnsupportedPlatform)
}
