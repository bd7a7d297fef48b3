//! Which device, port and address RDMA uses, where the choice is not left to [`crate::probe`].

use serde::{Deserialize, Serialize};

/// Overrides for the choice of device and of addressing. The default leaves every choice to farcall, which is right on
/// most machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// The kernel's name of the device, as in `/sys/class/infiniband` (`mlx5_0`). Default: the one that has the address
    /// of the TCP connection.
    pub device: Option<String>,
    /// The device's port, counted from 1. Default: any that is active.
    pub port: Option<u8>,
    /// Index in the port's GID table. Default: the RoCE v2 entry with the TCP connection's local address.
    pub gid_index: Option<u8>,
    /// Index in the port's partition key table.
    pub pkey_index: u16,
    /// The IP traffic class (DSCP and ECN bits) of RoCE packets, for example 106 for DSCP 26 with ECN.
    pub traffic_class: u8,
    /// InfiniBand's service level, 0 to 15.
    pub service_level: u8,
    /// Lets the device write payloads to memory in any order, which some machines (AMD's) need for full speed. Ignored by
    /// devices and libraries that do not know it.
    pub relaxed_ordering: bool,
}
