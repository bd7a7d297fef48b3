//! Addresses of ports: GIDs and what is known of them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use farcall_core::class::TrafficClass;

use super::RdmaConfig;

/// A port's 128-bit address. On RoCE it is an IP address, IPv4 in its IPv6 form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address it is on RoCE v2.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Whether both are in one InfiniBand subnet, so that a LID is enough to get there.
    pub fn same_subnet(self, other: Self) -> bool {
        self.0[..8] == other.0[..8]
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        let v6 = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self(v6.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How packets to and from a GID travel, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidKind {
    /// RoCE v2 over IPv4.
    RoceV2Ipv4,
    /// RoCE v2 over a routable IPv6 address.
    RoceV2Ipv6,
    /// RoCE v2 over a link-local IPv6 address: one network segment only.
    RoceV2LinkLocal,
    /// InfiniBand's own network.
    InfiniBand,
    /// RoCE v1: Ethernet frames, one segment only, dropped by many switches.
    RoceV1,
}

impl GidKind {
    const CODES: [(u8, Self); 5] = [
        (1, Self::RoceV2Ipv4),
        (2, Self::RoceV2Ipv6),
        (3, Self::RoceV2LinkLocal),
        (4, Self::InfiniBand),
        (5, Self::RoceV1),
    ];

    /// Whether routers pass its packets on.
    pub fn is_routable(self) -> bool {
        matches!(self, Self::RoceV2Ipv4 | Self::RoceV2Ipv6 | Self::InfiniBand)
    }

    /// The number by which HELLO names it.
    pub fn code(self) -> u8 {
        Self::CODES.iter().find(|(_, kind)| *kind == self).map_or(0, |(code, _)| *code)
    }

    /// The kind of this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::CODES.iter().find(|(of, _)| *of == code).map(|(_, kind)| *kind)
    }
}

/// One entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidEntry {
    /// The entry's place in the table; work requests name the entry by it.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// How its packets travel.
    pub kind: GidKind,
    /// The network interface it belongs to; none on InfiniBand.
    pub netdev: Option<String>,
}

/// The network that a port is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE: addressed by GID.
    Ethernet,
    /// InfiniBand: addressed by LID, and by GID across subnets.
    InfiniBand,
}

/// The largest payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u8);

impl Mtu {
    /// From InfiniBand's code: 1 is 256 bytes, 5 is 4096.
    pub fn from_code(code: u8) -> Option<Self> {
        matches!(code, 1..=5).then_some(Self(code))
    }

    /// InfiniBand's code, as it goes to the device and over the wire.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    pub fn bytes(self) -> usize {
        128 << self.0
    }
}

/// A port's state as its device reports it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortStatus {
    /// The largest packet of the link as it is set up now.
    pub active_mtu: Mtu,
    /// The local identifier; zero on Ethernet, and on InfiniBand before a subnet manager has come by.
    pub lid: u16,
    /// The network that the port is connected to.
    pub link_layer: LinkLayer,
}

/// This end of a connection's path: one of the [`super::select::addresses`], with what the device says of its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalPath {
    /// The port, counted from 1.
    pub port: u8,
    /// The entry in its GID table.
    pub gid_index: u8,
    /// The address in that entry.
    pub gid: Gid,
    /// The port's state when the path was made.
    pub status: PortStatus,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// The IP traffic class of what is sent.
    pub traffic_class: u8,
    /// InfiniBand's service level of what is sent.
    pub service_level: u8,
}

/// Below the DSCP in a traffic class: a switch with a queue may say so rather than drop.
const ECN_CAPABLE: u8 = 0b10;

impl LocalPath {
    /// The path from a port's table entry, with what the configuration says of the packets of normal connections.
    pub fn new(port: u8, entry: &GidEntry, status: PortStatus, config: &RdmaConfig) -> Self {
        Self {
            port,
            gid_index: entry.index,
            gid: entry.gid,
            status,
            pkey_index: config.pkey_index,
            traffic_class: 0,
            service_level: 0,
        }
        .for_class(TrafficClass::Normal, config)
    }

    /// Returns this path with what the configuration says of the packets of this class's connections.
    #[must_use]
    pub fn for_class(self, class: TrafficClass, config: &RdmaConfig) -> Self {
        let ecn = if config.ecn { ECN_CAPABLE } else { 0 };
        let traffic_class = config.dscp.of(class) << 2 | ecn;
        Self { traffic_class, service_level: config.service_level.of(class), ..self }
    }
}

/// The other end of a connection's path, as its owner tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteQp {
    /// The queue pair's number.
    pub qp_num: u32,
    /// The number of the first packet it will send.
    pub psn: u32,
    /// Its port's address.
    pub gid: Gid,
    /// Its port's local identifier; zero on Ethernet.
    pub lid: u16,
}

impl RemoteQp {
    /// Checks the numbers that a peer tells, which have 24 bits. `Err` names the fault.
    pub(crate) fn check(self) -> Result<Self, String> {
        const MOST: u32 = 0xff_ffff;
        let Self { qp_num, psn, .. } = self;
        if qp_num > MOST || psn > MOST {
            return Err(format!("its queue pair is {qp_num:#x}, its first packet {psn:#x}"));
        }
        Ok(self)
    }
}
