//! Traffic classes: calls of one class do not wait behind those of another.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The purpose of a call. A channel has one connection for each class, made when the first call of that class needs it.
/// So calls of one class never wait for the other classes' calls to be sent, received or read.
///
/// A call's [own](crate::client::Call::class) class comes first, then its method's (`#[rpc(class = Bulk)]`), then that of the channel's
/// [view](crate::client::RawChannel::class).
///
/// The classes still share both processes' CPUs and memory. They also share the network, unless it prioritizes by
/// packet marks. The settings `dscp` and `service_level` mark the packets of each class, separately for TCP and RDMA.
/// By default packets are not marked.
///
/// Every connection has all of the peer's limits to itself, and counts towards the server's `limits.connections`. With
/// RDMA, each has its own queue pair, which counts towards `rdma.connections`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrafficClass {
    /// The default.
    #[default]
    Normal,
    /// Calls that must not wait behind data: heartbeats, leases, elections.
    Urgent,
    /// Calls that may wait, and that nothing else should wait for: backups, rebalancing.
    Bulk,
}

impl TrafficClass {
    /// All classes, each at the index that is its number in HELLO.
    #[doc(hidden)]
    pub const ALL: [Self; 3] = [Self::Normal, Self::Urgent, Self::Bulk];

    /// Returns the class with this number in a HELLO. An unknown number, from a later version, is served as normal.
    pub(crate) fn from_wire(class: u8) -> Self {
        Self::ALL.get(usize::from(class)).copied().unwrap_or_default()
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "normal",
            Self::Urgent => "urgent",
            Self::Bulk => "bulk",
        })
    }
}

/// A number for each [`TrafficClass`], as configuration.
///
/// ```
/// # use farcall_core::class::{ByClass, TrafficClass};
/// let mut dscp = ByClass::default();
/// dscp.normal = 26;
/// dscp.urgent = Some(46);
/// assert_eq!([TrafficClass::Urgent, TrafficClass::Bulk].map(|class| dscp.of(class)), [46, 26]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ByClass {
    /// The number for [`TrafficClass::Normal`]. Default 0.
    pub normal: u8,
    /// The number for [`TrafficClass::Urgent`]. Default: as `normal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub urgent: Option<u8>,
    /// The number for [`TrafficClass::Bulk`]. Default: as `normal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk: Option<u8>,
}

impl ByClass {
    /// Returns the number for a class.
    pub fn of(&self, class: TrafficClass) -> u8 {
        let own = match class {
            TrafficClass::Normal => None,
            TrafficClass::Urgent => self.urgent,
            TrafficClass::Bulk => self.bulk,
        };
        own.unwrap_or(self.normal)
    }

    /// Checks that no number is above `most`.
    ///
    /// # Errors
    ///
    /// The first class whose number is too large, as a part of `setting`.
    pub fn check(&self, setting: &str, most: u8) -> Result<(), String> {
        match TrafficClass::ALL.into_iter().find(|class| self.of(*class) > most) {
            Some(class) => Err(format!("{setting}.{class} must be at most {most}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_hello_is_a_class_and_one_that_is_not_known_is_normal() {
        for class in TrafficClass::ALL {
            assert_eq!(TrafficClass::from_wire(class as u8), class);
        }
        for unknown in 3..=u8::MAX {
            assert_eq!(TrafficClass::from_wire(unknown), TrafficClass::Normal);
        }
    }

    #[test]
    fn a_mark_above_the_most_is_named() {
        let mut dscp = ByClass { normal: 63, ..ByClass::default() };
        assert_eq!(dscp.check("tcp.dscp", 63), Ok(()));
        dscp.bulk = Some(64);
        assert_eq!(dscp.check("tcp.dscp", 63), Err("tcp.dscp.bulk must be at most 63".into()));
    }
}
