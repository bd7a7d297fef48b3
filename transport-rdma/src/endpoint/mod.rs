//! An endpoint: one runtime's share of a device, with all links that run there.
//!
//! The links share completion queues, a receive queue and memory; the driver, a task or a thread, takes what arrives on any
//! of them and delivers it. Sending goes past the driver: whoever has something to send posts it.

mod busy;
mod busy_poll;
mod candidate;
mod device_registry;
mod driver;
mod events;
mod intake;
mod link;
mod meter;
mod protection;
mod room;
mod setup_turns;
mod teardown;
mod wait;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use self::busy_poll::BusyPolling;
use self::driver::Driver;
use self::intake::Intake;
use self::meter::Meter;
use self::room::Room;
use crate::config::{Completion, RdmaConfig};
use crate::device::{
    Completion as Completed, CreateQpError, LocalPath, QpSize, QueuePair, QueueSize, Queues, Unavailable,
};
use crate::link::LinkCore;
use crate::resources::{DropOnControlThread, Memory, NewQp, NoRoom, Resources, Shares};

pub(crate) use self::candidate::{Offer, RdmaCandidate};
pub use self::device_registry::stats;
pub(crate) use self::device_registry::{Addresses, DeviceRegistry, OpenDevice};
pub(crate) use self::link::RdmaLink;

/// Requests that each link can have outstanding: fewer only where many links share a small completion queue.
const MAX_SENDS: u32 = 96;
const MIN_SENDS: u32 = 16;

/// Keeps an endpoint running. When the last is gone, and the last link, the driver ends.
#[derive(Debug)]
pub(crate) struct Endpoint {
    shard: Arc<Shard>,
}

/// State that the links of an endpoint share with its driver.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) device: Arc<OpenDevice>,
    pub(crate) resources: Resources,
    meter: Meter,
    queues: DropOnControlThread<dyn Queues>,
    /// The size of each link's queue pair.
    qp_size: QpSize,
    config: RdmaConfig,
    runtime: Handle,
    /// By the number of the queue pair, from its creation to its destruction.
    links: Mutex<BTreeMap<u32, Arc<LinkCore>>>,
    /// Links that make room for others, and those that wait for it.
    room: Arc<Room>,
    /// Only the driver waits for it.
    intake: Mutex<Intake>,
    /// Completions of sends, READs and their like that were polled, and not handled yet. Only the driver waits for it.
    done: Mutex<Vec<Completed>>,
    polling: BusyPolling,
    dead: AtomicBool,
}

impl Endpoint {
    /// Starts an endpoint and its driver. Blocks for milliseconds.
    fn start(
        device: Arc<OpenDevice>,
        config: &RdmaConfig,
        runtime: &Handle,
    ) -> Result<Arc<Self>, Unavailable> {
        let limits = device.device.limits();
        let receives = Memory::max_receives(config).min(limits.max_srq_wr).min(limits.max_cqe);
        let qp_size = qp_size(config.connections, limits.max_cqe);
        let sends = config.connections.saturating_mul(qp_size.reserve()).min(limits.max_cqe);
        let queues = device.device.create_queues(QueueSize { receives, sends })?;
        let (opened, control) = (Arc::clone(&device.device), device.control.clone());
        let resources = Resources {
            memory: Memory::new(config, opened, control, &queues, receives),
            rendezvous_pool: Arc::clone(&device.rendezvous_pool),
            registrations: Arc::clone(&device.registrations),
            own_atomics: Arc::clone(&device.own_atomics),
            mailbox: Arc::default(),
            counts: Arc::default(),
        };
        let shard = Arc::new(Shard {
            resources,
            queues: DropOnControlThread::new(queues, device.control.clone()),
            qp_size,
            meter: Meter::default(),
            config: config.clone(),
            runtime: runtime.clone(),
            links: Mutex::default(),
            room: Arc::default(),
            intake: Mutex::new(Intake::new()),
            done: Mutex::default(),
            polling: BusyPolling::default(),
            dead: AtomicBool::new(false),
            device,
        });
        shard.resources.memory.begin()?;
        shard.device.rendezvous_pool.begin();
        shard.device.join(&shard);
        match config.completion {
            // With few CPUs a thread more would only keep the others from theirs.
            Completion::Busy if config.busy_cpu.is_some() || !few_cpus() => busy::start(&shard, runtime)?,
            _ => {
                let watch = runtime.spawn(watch::watch(Arc::clone(&shard))).abort_handle();
                runtime.spawn(wait::drive(Driver::new(Arc::clone(&shard), watch)));
            }
        }
        Ok(Arc::new(Self { shard }))
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Whether links can be added.
    pub(crate) fn is_usable(&self) -> bool {
        !self.shard.dead.load(Ordering::Acquire) && !self.shard.device.has_failed()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shard.resources.mailbox.leave();
    }
}

impl Shard {
    pub(crate) fn config(&self) -> &RdmaConfig {
        &self.config
    }

    /// Runs a task where the driver runs.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Makes a queue pair that receives from this path. Blocks; belongs on the control thread.
    pub(crate) fn create_qp(&self, path: &LocalPath) -> Result<Result<NewQp, NoRoom>, Unavailable> {
        let lease = match self.resources.memory.admit() {
            Ok(lease) => lease,
            Err(full) => return Ok(Err(full)),
        };
        let qp = match self.queues.create_qp(self.qp_size) {
            // From here on, whoever gives it up: destroying it may take as long as the device likes.
            Ok(qp) => DropOnControlThread::new(qp, self.device.control.clone()),
            Err(CreateQpError::CqBudget) => return Ok(Err(NoRoom::Completions)),
            Err(CreateQpError::Device(error)) => return Err(error.into()),
        };
        qp.to_init(path)?;
        Ok(Ok(NewQp { qp, lease, shares: Shares::of(self.qp_size, self.config.bulk_window) }))
    }

    /// Adds a link, whose completions are delivered from now on. False: the driver has ended.
    #[must_use]
    pub(crate) fn add(&self, link: Arc<LinkCore>) -> bool {
        let mut links = self.links();
        // Under the lock, so that the driver's end is either seen here or sees the link.
        if self.dead.load(Ordering::Acquire) {
            return false;
        }
        links.insert(link.number(), link);
        true
    }

    fn queue_pairs(&self) -> Vec<Arc<dyn QueuePair>> {
        self.links().values().filter_map(|link| link.qp()).collect()
    }

    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) -> MutexGuard<'_, Vec<Completed>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, qp_num: u32) -> Option<Arc<LinkCore>> {
        self.links().get(&qp_num).cloned()
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<LinkCore>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a thread that only looks would keep the peer, or the kernel's network code, from running.
fn few_cpus() -> bool {
    static FEW: LazyLock<bool> =
        LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|n| n.get() <= 2));
    *FEW
}

/// Between two looks at queues that were empty.
fn relax() {
    if few_cpus() {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// How large each link's queue pair is, so that the completions of all fit into one queue. The inline length is what
/// fits into a small work request of common hardware.
fn qp_size(connections: u32, max_cqe: u32) -> QpSize {
    // One of each part is the marker's.
    let sends = (max_cqe / connections.max(1)).saturating_sub(1).clamp(MIN_SENDS, MAX_SENDS) as u16;
    QpSize { sends, signal_every: (sends / 4).min(16), inline: 220 }
}

#[cfg(test)]
mod tests;
