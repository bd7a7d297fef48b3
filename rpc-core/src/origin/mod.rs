//! The address by which limits count a peer's connections.

mod queue;

use std::net::{IpAddr, Ipv6Addr};

pub use self::queue::OriginQueue;

/// The address of a host, or the network of an IPv6 host: its first 64 bits, of which a host may well have all addresses
/// (RFC 4291, section 2.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(Option<IpAddr>);

impl Origin {
    /// The origin of connections without addresses.
    pub const NONE: Self = Self(None);

    /// Returns the origin of connections from this address.
    pub fn of(address: Option<IpAddr>) -> Self {
        Self(address.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
            v4 => v4,
        }))
    }

    /// Returns the address, or the lowest one of the network.
    pub fn address(self) -> Option<IpAddr> {
        self.0
    }
}
