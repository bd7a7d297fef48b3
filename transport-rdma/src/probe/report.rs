//! A machine and the findings about it, as data.

use std::cmp::Reverse;
use std::net::IpAddr;

use serde::Serialize;

use super::{Finding, Severity};

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

/// The devices of a machine, and the findings about it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The RDMA devices, in order of name.
    pub devices: Vec<DeviceView>,
    /// The address that a connection would leave from. It is one of a device's, marked as chosen. `None`: there is none.
    pub chosen: Option<String>,
    /// The steps in which the device was [tried](super::trial). Empty: it was not.
    pub tried: Vec<Step>,
    /// The findings, the worst first, and within that by area.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns how bad the worst finding is. `None`: there is none.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Whether programs gave no answer, so that less was looked at than could be. A finding of the kind `not-looked-at` names them.
    pub fn is_partial(&self) -> bool {
        self.findings.iter().any(|finding| finding.code == NOT_LOOKED_AT)
    }

    /// Adds findings, where they belong. One whose code and text are there already is left out. Those about programs that gave no answer
    /// become one.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            if !self.findings.contains(&finding)
                && let Some(finding) = merge(&mut self.findings, finding)
            {
                self.findings.push(finding);
            }
        }
        self.findings.sort_by_key(|finding| (Reverse(finding.severity), finding.area));
    }
}

/// The kind of finding that names the programs which gave no answer.
const NOT_LOOKED_AT: &str = "not-looked-at";

/// The beginning of such a finding.
pub(super) const BEGINNING: &str = "not looked at: ";

/// Adds a finding of that kind to the one that is there. Returns any other.
fn merge(findings: &mut [Finding], more: Finding) -> Option<Finding> {
    let is_known = |known: &&mut Finding| more.code == NOT_LOOKED_AT && known.code == more.code;
    let Some(known) = findings.iter_mut().find(is_known) else { return Some(more) };
    let seen = more.seen.trim_start_matches(BEGINNING);
    if !known.seen.contains(seen) {
        known.seen = format!("{}; {seen}", known.seen);
    }
    if !known.fix.contains(&more.fix) {
        known.fix = format!("{}; {}", known.fix, more.fix);
    }
    None
}

/// A device, as one sees it without opening it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeviceView {
    /// The device's name in the kernel.
    pub name: String,
    /// Its driver: of the PCI device that it is on, or `rxe` for Soft-RoCE.
    pub driver: Option<String>,
    /// Whether the kernel does its work.
    pub is_software: bool,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// The NUMA node it is attached to, if the machine has several.
    pub numa_node: Option<u32>,
    /// Its ports.
    pub ports: Vec<PortView>,
}

/// A port, as one sees it without opening the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PortView {
    /// Counted from 1.
    pub number: u8,
    /// The kernel's name of its state.
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: &'static str,
    /// Its speed, as the kernel says it.
    pub rate: Option<String>,
    /// The network interface that shares it.
    pub netdev: Option<String>,
    /// The network interface's largest packet, in bytes.
    pub netdev_mtu: Option<u64>,
    /// The switch and its port that it is connected to, if LLDP tells.
    pub switch: Option<String>,
    /// The filled entries of its GID table.
    pub addresses: Vec<Address>,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Address {
    /// Its index in the table.
    pub index: u8,
    /// The address.
    pub address: IpAddr,
    /// The kind of packets that leave from there.
    pub kind: &'static str,
    /// The network interface that has it.
    pub netdev: Option<String>,
    /// Whether a connection would leave from there that could leave from any address.
    pub is_chosen: bool,
    /// The setting or rule by which it is chosen. `None`: it is not.
    pub reason: Option<String>,
}

/// Something that a device was tried with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// The name of the step.
    pub what: &'static str,
    /// The outcome.
    pub result: StepResult,
    /// The time that it took, in microseconds, the set-up included.
    pub micros: u64,
}

/// The outcome of a [`Step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum StepResult {
    /// It worked.
    Worked,
    /// It failed. A finding says why.
    Failed,
    /// The device can't do it, and farcall does without.
    Skipped,
}
