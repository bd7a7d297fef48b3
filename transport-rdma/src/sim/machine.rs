//! Simulated machines, their device, and what can be made to fail there.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use farcall_core::transport::Words;

use super::Fabric;
use super::fabric::Port;
use super::queues::SimQueues;
use crate::device::{
    Arena, Device, DeviceError, DeviceEvent, DeviceEvents, DeviceSummary, Gid, GidEntry, GidKind, Host,
    Interface, Limits, LinkLayer, MAX_READS, Mtu, PortStatus, PortSummary, QueueSize, Queues, RdmaConfig,
    RemoteAccess, Slab, SlabLayout, Unavailable,
};
use crate::dma::{Mapping, RegisteredWords};
use crate::unavailable::Memlock;

const DEVICE: &str = "sim0";

/// A machine on a [`Fabric`], with one device of one port. Clones are the same machine.
#[derive(Debug, Clone)]
pub struct SimHost(Arc<Machine>);

#[derive(Debug)]
struct Machine {
    fabric: Arc<Fabric>,
    gid: Gid,
    faults: Mutex<Faults>,
}

#[derive(Debug)]
struct Faults {
    discovery: Option<Unavailable>,
    open: Option<Unavailable>,
    without_gid: bool,
    mtu: u8,
    memory: Option<u64>,
    registered: u64,
    cqe: u32,
    windows: u32,
    atomics: bool,
    calls_until_failure: Option<u32>,
    stalled: Option<(&'static str, Receiver<()>)>,
}

impl SimHost {
    pub(super) fn new(fabric: Arc<Fabric>, address: IpAddr) -> Self {
        let gid = Gid::from(address);
        let port = Port { up: true, events: VecDeque::new(), waiting: Vec::new() };
        fabric.with(|state| state.ports.insert(gid, port));
        let faults = Faults {
            discovery: None,
            open: None,
            without_gid: false,
            mtu: 3,
            memory: None,
            registered: 0,
            cqe: u32::MAX,
            windows: 4096,
            atomics: true,
            calls_until_failure: None,
            stalled: None,
        };
        Self(Arc::new(Machine { fabric, gid, faults: Mutex::new(faults) }))
    }

    pub(super) fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }

    pub(super) fn gid(&self) -> Gid {
        self.0.gid
    }

    /// Lets [`Host::devices`] fail from now on: no library, no device.
    pub fn fail_discovery(&self, reason: Option<Unavailable>) {
        self.faults().discovery = reason;
    }

    /// Lets [`Host::open`] fail from now on: no permission.
    pub fn fail_open(&self, reason: Option<Unavailable>) {
        self.faults().open = reason;
    }

    /// Takes the port's address away, or gives it back.
    pub fn set_gid(&self, present: bool) {
        self.faults().without_gid = !present;
    }

    /// Pulls the port's cable or puts it back: an event, and all packets are lost while it is out.
    pub fn set_link(&self, up: bool) {
        let event = if up { DeviceEvent::PortUp { port: 1 } } else { DeviceEvent::PortDown { port: 1 } };
        self.fabric().with(|state| {
            if let Some(port) = state.ports.get_mut(&self.gid()) {
                port.up = up;
            }
            state.event(self.gid(), event);
        });
    }

    /// Sets the port's MTU by its code, 1 to 5; 3 is 1024 bytes.
    pub fn set_mtu(&self, mtu: Mtu) {
        self.faults().mtu = mtu.code();
    }

    /// Limits the bytes that can be registered.
    pub fn limit_memory(&self, bytes: Option<u64>) {
        self.faults().memory = bytes;
    }

    /// Makes completion queues smaller than was asked for, so that they overflow.
    pub fn limit_completion_queues(&self, entries: u32) {
        self.faults().cqe = entries;
    }

    /// Limits the windows of a device; zero makes it one without.
    pub fn limit_windows(&self, windows: u32) {
        self.faults().windows = windows;
    }

    /// Makes the device one that does no atomic operations.
    pub fn without_atomics(&self) {
        self.faults().atomics = false;
    }

    pub(super) fn windows(&self) -> usize {
        self.faults().windows as usize
    }

    /// Lets the call fail that comes after this many of the device, its queues and its queue pairs, and no other.
    pub fn fail_call_after(&self, calls: u32) {
        self.faults().calls_until_failure = Some(calls);
    }

    /// Whether [`fail_call_after`](Self::fail_call_after) has come to its call.
    pub fn has_failed(&self) -> bool {
        self.faults().calls_until_failure.is_none()
    }

    /// Lets the next call of this name not return before the result is dropped.
    pub fn stall(&self, operation: &'static str) -> Sender<()> {
        let (release, stalled) = channel();
        self.faults().stalled = Some((operation, stalled));
        release
    }

    /// Whether the call that [`stall`](Self::stall) waits for has not come.
    pub fn is_stall_to_come(&self) -> bool {
        self.faults().stalled.is_some()
    }

    /// To be asked at the beginning of every call that can fail.
    pub(super) fn call(&self, operation: &'static str) -> Result<(), DeviceError> {
        let stalled = self.faults().stalled.take_if(|(name, _)| *name == operation);
        if let Some((_, stalled)) = stalled {
            // Nothing is ever sent.
            let _ = stalled.recv();
        }
        let mut faults = self.faults();
        match faults.calls_until_failure {
            Some(0) => {
                faults.calls_until_failure = None;
                Err(error(operation, libc::EIO))
            }
            left => {
                faults.calls_until_failure = left.map(|left| left - 1);
                Ok(())
            }
        }
    }

    fn register(&self, bytes: u64) -> Result<(), Unavailable> {
        let mut faults = self.faults();
        let sum = faults.registered.saturating_add(bytes);
        if let Some(limit) = faults.memory.filter(|&limit| sum > limit) {
            let in_use = faults.registered;
            return Err(Unavailable::Memlock(Memlock {
                asked: bytes,
                in_use,
                configured: sum,
                soft: Some(limit),
                hard: Some(limit),
            }));
        }
        faults.registered = sum;
        Ok(())
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self) -> bool {
        self.fabric().lock().ports.get(&self.gid()).is_some_and(|port| port.up)
    }
}

pub(super) fn error(operation: &'static str, errno: i32) -> DeviceError {
    DeviceError { device: DEVICE.to_owned(), operation, errno }
}

fn map_error(error: &io::Error) -> DeviceError {
    self::error("mmap", error.raw_os_error().unwrap_or(libc::EINVAL))
}

impl Host for SimHost {
    fn devices(&self) -> Result<Vec<DeviceSummary>, Unavailable> {
        let active = self.link();
        let faults = self.faults();
        if let Some(reason) = &faults.discovery {
            return Err(reason.clone());
        }
        let kind = if self.gid().ip().is_ipv4() { GidKind::RoceV2Ipv4 } else { GidKind::RoceV2Ipv6 };
        let entry = GidEntry { index: 1, gid: self.gid(), kind, netdev: Some("eth0".to_owned()) };
        let port = PortSummary {
            number: 1,
            active,
            state: if active { "ACTIVE" } else { "DOWN" }.to_owned(),
            link_layer: LinkLayer::Ethernet,
            gids: if faults.without_gid { Vec::new() } else { vec![entry] },
        };
        let node = "/dev/infiniband/uverbs0".into();
        Ok(vec![DeviceSummary {
            name: DEVICE.to_owned(),
            node,
            numa_node: None,
            unsuited: None,
            ports: vec![port],
        }])
    }

    fn interfaces(&self) -> Vec<Interface> {
        vec![Interface { name: "eth0".to_owned(), address: self.gid().ip(), prefix: 24 }]
    }

    fn open(&self, device: &DeviceSummary, _config: &RdmaConfig) -> Result<Arc<dyn Device>, Unavailable> {
        if let Some(reason) = &self.faults().open {
            return Err(reason.clone());
        }
        if device.name != DEVICE {
            return Err(Unavailable::NoDevice { detail: format!("{} is not simulated", device.name) });
        }
        self.call("ibv_open_device")?;
        Ok(Arc::new(SimDevice(Arc::new(Hca { host: self.clone(), regions: Mutex::default() }))))
    }
}

/// An open device.
#[derive(Debug)]
struct SimDevice(Arc<Hca>);

/// The device context that every object on it keeps.
#[derive(Debug)]
pub(super) struct Hca {
    pub(super) host: SimHost,
    regions: Mutex<Vec<Region>>,
}

#[derive(Debug)]
struct Region {
    mapping: Arc<Mapping>,
    /// Windows can be bound to it.
    arena: bool,
}

impl Hca {
    /// Whether a buffer lies in registered memory.
    pub(super) fn is_registered(&self, start: usize, len: usize) -> bool {
        self.regions().iter().any(|region| region.has(start, len))
    }

    /// Whether it lies in memory that can be exposed.
    pub(super) fn is_in_arena(&self, start: usize, len: usize) -> bool {
        self.regions().iter().any(|region| region.arena && region.has(start, len))
    }

    fn register(&self, mapping: &Arc<Mapping>, arena: bool) -> Result<(), Unavailable> {
        self.host.register(mapping.range().len() as u64)?;
        self.regions().push(Region { mapping: Arc::clone(mapping), arena });
        Ok(())
    }

    fn regions(&self) -> MutexGuard<'_, Vec<Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Words of the application that are registered.
pub(super) struct Registration {
    hca: Arc<Hca>,
    bytes: u64,
    writable: bool,
}

impl Registration {
    /// Whether windows of this device may allow this.
    pub(super) fn allows(&self, hca: &Arc<Hca>, access: RemoteAccess) -> bool {
        Arc::ptr_eq(&self.hca, hca) && (self.writable || !access.changes())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.hca.host.faults().registered -= self.bytes;
    }
}

impl Region {
    fn has(&self, start: usize, len: usize) -> bool {
        let range = self.mapping.range();
        range.start <= start && start.checked_add(len).is_some_and(|end| end <= range.end)
    }
}

impl Drop for Hca {
    fn drop(&mut self) {
        let bytes: u64 = self.regions().iter().map(|region| region.mapping.range().len() as u64).sum();
        self.host.faults().registered -= bytes;
    }
}

impl Device for SimDevice {
    fn name(&self) -> &str {
        DEVICE
    }

    fn limits(&self) -> Limits {
        let faults = self.0.host.faults();
        Limits {
            max_cqe: 32767,
            max_srq_wr: 32767,
            max_qp_wr: 16384,
            max_qp: 4096,
            max_mr: 4096,
            windows: faults.windows,
            reads: MAX_READS,
            reads_served: MAX_READS,
            atomics: faults.atomics,
        }
    }

    fn port(&self, number: u8) -> Result<PortStatus, DeviceError> {
        self.0.host.call("ibv_query_port")?;
        let mtu = Mtu::from_code(self.0.host.faults().mtu).filter(|_| number == 1);
        let active_mtu = mtu.ok_or_else(|| error("ibv_query_port", libc::EINVAL))?;
        Ok(PortStatus { active_mtu, lid: 0, link_layer: LinkLayer::Ethernet })
    }

    fn add_slab(&self, layout: SlabLayout) -> Result<Arc<Slab>, Unavailable> {
        self.0.host.call("ibv_reg_mr")?;
        let slab = Slab::map(layout, None).map_err(|e| map_error(&e))?;
        self.0.register(slab.mapping(), false)?;
        Ok(slab)
    }

    fn add_arena(&self, bytes: usize) -> Result<Arc<Arena>, Unavailable> {
        self.0.host.call("ibv_reg_mr")?;
        let arena = Arena::map(bytes, None).map_err(|e| map_error(&e))?;
        self.0.register(arena.mapping(), true)?;
        Ok(arena)
    }

    fn remove_arena(&self, arena: &Arc<Arena>) -> bool {
        let retired = arena.retire();
        if retired {
            let mapping = arena.mapping();
            self.0.regions().retain(|region| !Arc::ptr_eq(&region.mapping, mapping));
            self.0.host.faults().registered -= mapping.range().len() as u64;
        }
        retired
    }

    fn add_words(&self, words: Words, writable: bool) -> Result<RegisteredWords, Unavailable> {
        self.0.host.call("ibv_reg_mr")?;
        RegisteredWords::new(words, |range| {
            let bytes = range.len() as u64;
            self.0.host.register(bytes)?;
            Ok(Registration { hca: Arc::clone(&self.0), bytes, writable })
        })
    }

    fn create_queues(&self, size: QueueSize) -> Result<Arc<dyn Queues>, DeviceError> {
        self.0.host.call("ibv_create_cq")?;
        let cqe = self.0.host.faults().cqe;
        Ok(Arc::new(SimQueues::new(Arc::clone(&self.0), size, cqe)))
    }

    fn events(&self) -> io::Result<Box<dyn DeviceEvents>> {
        Ok(Box::new(SimEvents(Arc::clone(&self.0))))
    }
}

#[derive(Debug)]
struct SimEvents(Arc<Hca>);

impl DeviceEvents for SimEvents {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<DeviceEvent>> {
        let host = &self.0.host;
        host.fabric().with(|state| {
            let Some(port) = state.ports.get_mut(&host.gid()) else { return Poll::Pending };
            match port.events.pop_front() {
                Some(event) => Poll::Ready(Ok(event)),
                None => {
                    port.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}
