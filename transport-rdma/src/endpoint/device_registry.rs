//! A machine's open devices and endpoints: one device for the process, one endpoint for each runtime that uses it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use farcall_core::origin::Origin;
use tokio::runtime::{Handle, Id};

use super::setup_turns::{SetupTurn, SetupTurns};
use super::{Endpoint, Shard};
use crate::config::RdmaConfig;
use crate::device::{
    Device, DeviceSummary, Host, Interface, LocalPath, Paths, Selection, Unavailable, addresses,
};
use crate::resources::{Control, DeviceCounts, OwnAtomics, Registrations, RendezvousPool};
use crate::stats::DeviceStats;
use crate::verbs::SystemHost;

/// A machine, as far as RDMA goes.
#[derive(Debug)]
pub(crate) struct DeviceRegistry {
    host: Arc<dyn Host>,
    /// The last discovery, and when it began.
    found: Mutex<Option<(Instant, Found)>>,
    open: Mutex<Open>,
    /// The pairs of addresses that have failed.
    paths: Arc<Paths>,
    /// By device, for the life of the process.
    counts: Mutex<BTreeMap<String, DeviceCounts>>,
}

/// The devices and interfaces of a machine.
type Found = Arc<(Vec<DeviceSummary>, Vec<Interface>)>;

#[derive(Debug, Default)]
struct Open {
    devices: HashMap<String, Weak<OpenDevice>>,
    endpoints: HashMap<(String, Id), Weak<Endpoint>>,
}

/// The addresses of a machine that links may leave from.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// The best first. At least one.
    pub(crate) list: Vec<Selection>,
    /// The NUMA node that this process runs on, if it is one.
    pub(crate) home: Option<u32>,
    found: Found,
}

fn absent(what: &str) -> Unavailable {
    Unavailable::NoDevice { detail: format!("{what} has just vanished") }
}

/// A device that is in use. Closed on its control thread when the last user is gone.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    /// The machine that it is in.
    pub(super) host: Arc<dyn Host>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) control: Control,
    pub(crate) rendezvous_pool: Arc<RendezvousPool>,
    pub(crate) registrations: Arc<Registrations>,
    pub(crate) own_atomics: Arc<OwnAtomics>,
    /// Turns of links that are being set up, as client and as server: those a client holds while it waits for a server's
    /// must not be what that waits for, and both may be in one process.
    setups: [SetupTurns; 2],
    failed: AtomicBool,
    ports_down: Mutex<HashMap<u8, Instant>>,
    /// The shards that hear of the device's events.
    shards: Mutex<Vec<Weak<Shard>>>,
}

impl DeviceRegistry {
    pub(crate) fn new(host: Arc<dyn Host>) -> Arc<Self> {
        let (found, open, paths, counts) = Default::default();
        Arc::new(Self { host, found, open, paths, counts })
    }

    /// The one that this process runs on.
    pub(crate) fn this() -> Arc<Self> {
        static THIS: OnceLock<Arc<DeviceRegistry>> = OnceLock::new();
        Arc::clone(THIS.get_or_init(|| Self::new(Arc::new(SystemHost::default()))))
    }

    pub(crate) fn paths(&self) -> &Arc<Paths> {
        &self.paths
    }

    /// Returns the addresses that a session's links may leave from, the best first. They are there now, or were after `asked`.
    /// `local` is the local address of its TCP connection. Blocks for milliseconds.
    pub(crate) fn addresses(
        &self,
        asked: Instant,
        config: &RdmaConfig,
        local: Option<IpAddr>,
    ) -> Result<Addresses, Unavailable> {
        let found = self.look(asked)?;
        let (devices, interfaces) = &*found;
        let list = addresses(devices, interfaces, config, local)?;
        Ok(Addresses { list, home: self.host.home_node(), found })
    }

    /// Returns the endpoint of this runtime on the device of the `index`th of these addresses, and the path from there. Blocks for
    /// milliseconds.
    pub(crate) fn endpoint(
        &self,
        addresses: &Addresses,
        index: usize,
        config: &RdmaConfig,
        runtime: &Handle,
    ) -> Result<(Arc<Endpoint>, LocalPath), Unavailable> {
        let chosen = addresses.list.get(index).ok_or_else(|| absent("the address"))?;
        let (devices, _) = &*addresses.found;
        let summary = chosen.summary(devices)?;

        let mut open = self.open();
        open.forget();
        let key = (chosen.device.clone(), runtime.id());
        let endpoint = match open.endpoints.get(&key).and_then(Weak::upgrade).filter(|e| e.is_usable()) {
            Some(endpoint) => endpoint,
            None => {
                let device = match open
                    .devices
                    .get(&chosen.device)
                    .and_then(Weak::upgrade)
                    .filter(|d| !d.has_failed())
                {
                    Some(device) => device,
                    None => {
                        let device = self.open_device(summary, config)?;
                        open.devices.insert(chosen.device.clone(), Arc::downgrade(&device));
                        device
                    }
                };
                let endpoint = Endpoint::start(device, config, runtime)?;
                self.count(&chosen.device, endpoint.shard());
                open.endpoints.insert(key, Arc::downgrade(&endpoint));
                endpoint
            }
        };
        drop(open);
        let status = endpoint.shard().device.device.port(chosen.port)?;
        Ok((endpoint, LocalPath::new(chosen.port, &chosen.gid, status, config)))
    }

    /// Looks at what there is. A look reads hundreds of files. So callers that asked before one began share it: nobody gets what was
    /// read before it asked.
    fn look(&self, asked: Instant) -> Result<Found, Unavailable> {
        let mut last = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = last.as_ref().filter(|(begun, _)| *begun > asked) {
            return Ok(Arc::clone(found));
        }
        let begun = Instant::now();
        let found = Arc::new((self.host.devices()?, self.host.interfaces()));
        *last = Some((begun, Arc::clone(&found)));
        Ok(found)
    }

    fn open_device(
        &self,
        summary: &DeviceSummary,
        config: &RdmaConfig,
    ) -> Result<Arc<OpenDevice>, Unavailable> {
        OpenDevice::new(Arc::clone(&self.host), self.host.open(summary, config)?, config)
    }

    fn count(&self, device: &str, shard: &Shard) {
        let mut counts = self.counts();
        counts
            .entry(device.to_owned())
            .or_insert_with(|| DeviceCounts::new(device))
            .begin(&shard.resources.counts);
    }

    /// Returns the work done on each device that has been used.
    pub(crate) fn stats(&self) -> Vec<DeviceStats> {
        self.counts().values_mut().map(DeviceCounts::stats).collect()
    }

    /// Makes every queue pair fail, and says how many there were. Returns when they have.
    pub(crate) fn fail_queue_pairs(&self) -> usize {
        let endpoints: Vec<_> = self.open().endpoints.values().filter_map(Weak::upgrade).collect();
        let devices: Vec<_> = self.open().devices.values().filter_map(Weak::upgrade).collect();
        let pairs = endpoints.iter().flat_map(|endpoint| endpoint.shard().queue_pairs());
        let own = devices.iter().flat_map(|device| device.own_atomics.queue_pairs());
        let pairs: Vec<_> = pairs.chain(own).collect();
        // One that has failed already is as good.
        pairs.iter().for_each(|pair| drop(pair.to_err()));
        pairs.len()
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, DeviceCounts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Drops what nobody uses any more.
    fn forget(&mut self) {
        self.devices.retain(|_, device| device.strong_count() > 0);
        self.endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
    }
}

impl OpenDevice {
    pub(super) fn new(
        host: Arc<dyn Host>,
        device: Arc<dyn Device>,
        config: &RdmaConfig,
    ) -> Result<Arc<Self>, Unavailable> {
        // The thread keeps the device, so that the last reference is not dropped where it must not block.
        let control = Control::start(device.name(), Arc::clone(&device))?;
        let rendezvous_pool = RendezvousPool::new(Arc::clone(&device), control.clone(), config.bulk_memory);
        let registrations = Registrations::new(Arc::clone(&device), control.clone());
        let own_atomics = OwnAtomics::new(Arc::clone(&device), control.clone(), Arc::clone(&registrations));
        let (setups, ports_down, shards) = Default::default();
        let failed = AtomicBool::new(false);
        Ok(Arc::new(Self {
            host,
            device,
            control,
            rendezvous_pool,
            registrations,
            own_atomics,
            setups,
            failed,
            ports_down,
            shards,
        }))
    }

    /// Waits for a turn to set up a link with this host.
    pub(super) async fn setup_turn(&self, is_client: bool, host: Origin) -> SetupTurn {
        self.setups[usize::from(is_client)].next(host).await
    }

    pub(super) fn join(&self, shard: &Arc<Shard>) {
        let mut shards = self.lock_shards();
        shards.retain(|other| other.strong_count() > 0);
        shards.push(Arc::downgrade(shard));
    }

    /// The endpoints on it.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        self.lock_shards().iter().filter_map(Weak::upgrade).collect()
    }

    /// It is of no use any more: who needs the device opens it anew.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.own_atomics.fail();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The ports that are down, and since when.
    pub(super) fn ports_down(&self) -> MutexGuard<'_, HashMap<u8, Instant>> {
        self.ports_down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_shards(&self) -> MutexGuard<'_, Vec<Weak<Shard>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the work done on each device that this process has used, by name. Never blocks for long; may be called from
/// anywhere.
pub fn stats() -> Vec<DeviceStats> {
    DeviceRegistry::this().stats()
}
