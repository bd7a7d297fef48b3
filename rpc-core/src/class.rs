//! What calls are for, so that some need not wait behind others.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a call is for. A channel has a connection for each class, made when the first call of that class needs it, so that
/// calls of one class never wait for what those of another have to send, receive or be read.
///
/// They still share both processes' CPUs and memory. They share the network, too, unless it is told to tell them apart:
/// packets are marked as `dscp` and `service_level` of the configuration say, of TCP and RDMA apart, and by default not
/// at all.
///
/// Every connection has the whole of the peer's limits to itself, and counts for the server's `limits.connections`; by RDMA
/// each has a queue pair of its own, which counts for `rdma.connections`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TrafficClass {
    /// What nothing else is said of.
    #[default]
    Normal,
    /// What must not wait behind data: heartbeats, leases, elections.
    Urgent,
    /// What may wait, and what nothing else should wait for: backups, rebalancing.
    Bulk,
}

impl TrafficClass {
    /// All that there are, each at the place of its number in HELLO.
    pub(crate) const ALL: [Self; 3] = [Self::Normal, Self::Urgent, Self::Bulk];

    /// What a HELLO says. A class that a later version has is served as normal.
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
    /// That of [`TrafficClass::Normal`]. Default 0.
    pub normal: u8,
    /// That of [`TrafficClass::Urgent`]. Default: as `normal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub urgent: Option<u8>,
    /// That of [`TrafficClass::Bulk`]. Default: as `normal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk: Option<u8>,
}

impl ByClass {
    /// That of a class.
    pub fn of(&self, class: TrafficClass) -> u8 {
        let own = match class {
            TrafficClass::Normal => None,
            TrafficClass::Urgent => self.urgent,
            TrafficClass::Bulk => self.bulk,
        };
        own.unwrap_or(self.normal)
    }

    /// Whether none is above `most`.
    ///
    /// # Errors
    ///
    /// The first class of which it is, as a part of `setting`.
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
    fn what_is_too_much_is_named() {
        let mut dscp = ByClass { normal: 63, ..ByClass::default() };
        assert_eq!(dscp.check("tcp.dscp", 63), Ok(()));
        dscp.bulk = Some(64);
        assert_eq!(dscp.check("tcp.dscp", 63), Err("tcp.dscp.bulk must be at most 63".into()));
    }
}
