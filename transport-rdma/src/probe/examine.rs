//! Looks at a machine.

use std::net::IpAddr;

use super::view::View;
use super::{
    Counters, Kind, Probe, Report, addresses, counters, devices, finding, firewall, limits, network,
    placement, software, trial,
};
use crate::device::{Host, LocalPath, RdmaConfig, Unavailable, choose};
use crate::machine::Machine;
use crate::resources::Memory;
use crate::verbs::SystemHost;

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

/// The kinds of findings that there are.
pub static KINDS: &[&[&Kind]] = &[
    finding::UNAVAILABLE,
    software::KINDS,
    devices::KINDS,
    addresses::KINDS,
    limits::KINDS,
    placement::KINDS,
    network::KINDS,
    firewall::KINDS,
    counters::KINDS,
    trial::KINDS,
];

/// Looks at a machine, for a process with this configuration. Opens no device, and changes nothing.
///
/// Blocks for up to some seconds: it reads up to a few thousand small files, and runs programs. Files and programs that are not there
/// are no failure: some findings are then not possible.
pub fn examine(machine: &Machine, config: &RdmaConfig) -> Report {
    let view = View::new(machine, config);
    let mut report = Report {
        devices: view.devices(),
        chosen: view.chosen_name(),
        tried: Vec::new(),
        findings: Vec::new(),
    };
    report.extend(software::check(&view));
    report.extend(devices::check(&view));
    report.extend(addresses::check(&view));
    report.extend(limits::check(&view));
    report.extend(placement::check(&view));
    report.extend(network::check(&view));
    report.extend(firewall::check(&view));
    report.extend(Counters::read(machine).not_zero());
    report
}

#[cfg(test)]
mod tests;
