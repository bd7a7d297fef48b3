//! Events that a device reports outside of any work request, and what follows for its links.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use farcall_core::transport::LinkEnd;

use super::{OpenDevice, Shard};
use crate::device::{Blame, DeviceEvent, DeviceSummary, LocalPath};

/// How long a port may be down before its links are given up. Links that are in use notice in about half a second.
const FLAP: Duration = Duration::from_secs(1);

impl OpenDevice {
    /// Tells every endpoint of an event: whichever has read it, it may be another's.
    pub(super) fn broadcast(&self, event: DeviceEvent) {
        let device = self.device.name();
        match event {
            DeviceEvent::PortUp { .. } | DeviceEvent::PortChanged { .. } => {
                tracing::info!(device, "RDMA: {event}");
            }
            DeviceEvent::Other { .. } if event.blame() == Blame::Environment => {
                tracing::debug!(device, "RDMA: {event}");
            }
            _ => tracing::warn!(device, "RDMA: {event}; {}", event.remedy()),
        }
        match event {
            DeviceEvent::PortDown { port } => {
                self.ports_down().entry(port).or_insert_with(Instant::now);
            }
            DeviceEvent::PortUp { port } => {
                self.ports_down().remove(&port);
            }
            DeviceEvent::DeviceFailed => self.fail(),
            _ => {}
        }
        self.shards().iter().for_each(|shard| shard.notify_event(event));
    }
}

impl Shard {
    pub(super) fn notify_event(self: &Arc<Self>, event: DeviceEvent) {
        match event {
            DeviceEvent::QpFailed { .. }
            | DeviceEvent::QueueFailed { .. }
            | DeviceEvent::DeviceFailed
            | DeviceEvent::Other { .. } => self.resources.mailbox.event(event),
            DeviceEvent::PortDown { port } => self.await_port(port),
            DeviceEvent::PortUp { port } | DeviceEvent::PortChanged { port } => self.check_addresses(port),
        }
    }

    /// Ends the links of a port if it stays down.
    fn await_port(self: &Arc<Self>, port: u8) {
        let Some(since) = self.device.ports_down().get(&port).copied() else { return };
        let shard = Arc::downgrade(self);
        self.spawn(async move {
            tokio::time::sleep_until((since + FLAP).into()).await;
            let Some(shard) = shard.upgrade() else { return };
            if shard.device.ports_down().get(&port) == Some(&since) {
                shard.give_up(port, |_| Some(format!("port {port} has been down for {FLAP:?}")));
            }
        });
    }

    /// Ends the links of a port whose own address is gone. Looks for that on the control thread.
    fn check_addresses(self: &Arc<Self>, port: u8) {
        let shard = Arc::clone(self);
        self.device.control.spawn(move || {
            let device = &shard.device;
            let devices = device.host.devices().unwrap_or_default();
            let Some(summary) = devices.iter().find(|summary| summary.name == device.device.name()) else {
                return;
            };
            let lid = device.device.port(port).ok().map(|status| status.lid);
            shard.give_up(port, |path| missing_address(summary, lid, path));
        });
    }

    /// Ends the links of a port for which there is a reason.
    fn give_up(&self, port: u8, why: impl Fn(&LocalPath) -> Option<String>) {
        let links: Vec<_> =
            self.links.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for link in links.iter().filter(|link| link.path().port == port) {
            if let Some(why) = why(link.path()) {
                let remedy = "calls go on over TCP";
                let end = LinkEnd::failed(format!("{}: {why}; {remedy}", link.ends()));
                self.resources.mailbox.failed(link.number(), end);
            }
        }
    }
}

/// Returns what a path has lost that was there when it was made.
fn missing_address(device: &DeviceSummary, lid: Option<u16>, path: &LocalPath) -> Option<String> {
    let port = device.ports.iter().find(|port| port.number == path.port)?;
    let is_there = |gid: &crate::device::GidEntry| gid.index == path.gid_index && gid.gid == path.gid;
    if !port.gids.iter().any(is_there) {
        let (ip, number) = (path.gid.ip(), path.port);
        return Some(format!("its address {ip} (gid {}) is gone from port {number}", path.gid_index));
    }
    let before = path.status.lid;
    lid.filter(|&now| now != before).map(|now| format!("its port's LID was {before} and is now {now}"))
}
