//! Looks at a machine.

use std::net::IpAddr;
use std::sync::Arc;

use super::view::View;
use super::{
    Counters, Kind, Probe, Report, access, addresses, counters, devices, finding, firewall, limits, network,
    placement, software, trial, unseen,
};
use crate::device::{Device, DeviceSummary, Host, LocalPath, RdmaConfig, Selection, Unavailable, choose};
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
    let (device, path) = open(host, config, local)?;
    Memory::try_out(&*device)?;
    Ok(Probe {
        device: device.name().to_owned(),
        port: path.port,
        gid_index: path.gid_index,
        gid: path.gid.ip(),
        mtu: path.status.active_mtu.bytes(),
    })
}

/// Opens the device that a connection would use, and returns the path from there.
pub(super) fn open(
    host: &dyn Host,
    config: &RdmaConfig,
    local: Option<IpAddr>,
) -> Result<(Arc<dyn Device>, LocalPath), Unavailable> {
    let devices = host.devices()?;
    let chosen = choose(&devices, &host.interfaces(), config, local)?;
    open_chosen(host, config, &devices, &chosen)
}

/// Opens the device of an address, and returns the path from there.
pub(super) fn open_chosen(
    host: &dyn Host,
    config: &RdmaConfig,
    devices: &[DeviceSummary],
    chosen: &Selection,
) -> Result<(Arc<dyn Device>, LocalPath), Unavailable> {
    let device = host.open(chosen.summary(devices)?, config)?;
    let status = device.port(chosen.port)?;
    let path = LocalPath::new(chosen.port, &chosen.gid, status, config);
    Ok((device, path))
}

/// The kinds of findings that there are.
pub static KINDS: &[&[&Kind]] = &[
    finding::UNAVAILABLE,
    software::KINDS,
    access::KINDS,
    devices::KINDS,
    addresses::KINDS,
    limits::KINDS,
    placement::KINDS,
    network::KINDS,
    firewall::KINDS,
    counters::KINDS,
    trial::KINDS,
    unseen::KINDS,
];

/// Looks at a machine, for a process with this configuration. Changes nothing. Opens no device itself; ibv_devinfo(1), where
/// it is installed, opens the chosen one.
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
    report.extend(access::check(&view));
    report.extend(devices::check(&view));
    report.extend(addresses::check(&view));
    report.extend(limits::check(&view));
    report.extend(placement::check(&view));
    report.extend(network::check(&view));
    report.extend(firewall::check(&view));
    report.extend(Counters::of(&view).not_zero());
    report.extend(unseen::finding(&view.unseen()));
    report
}

#[cfg(test)]
mod tests;
