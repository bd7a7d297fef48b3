//! An endpoint: one runtime's share of a device, with all links that run there.
//!
//! The links share completion queues, a receive queue and memory; the driver, a task or a thread, takes what arrives on any
//! of them and delivers it. Sending goes past the driver: whoever has something to send posts it.

pub(crate) mod bulk;
mod busy;
pub(crate) mod control;
mod driver;
mod endings;
mod machine;
pub(crate) mod mailbox;
pub(crate) mod memory;
mod spin;
mod wait;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use self::control::Offload;
use self::driver::Driver;
use self::mailbox::Mailbox;
use self::memory::{Memory, Promise};
use crate::config::{Completion, RdmaConfig};
use crate::device::{
    CreateQpError, DeviceEvent, LocalPath, QpSize, QueuePair, QueueSize, Queues, Unavailable,
};
use crate::link::LinkCore;

pub(crate) use machine::{Machine, OpenDevice};

/// Requests that each link can have outstanding.
const SENDS: u16 = 96;

/// How large each link's queue pair is. What is inline is what fits into a small work request of common hardware.
const QP_SIZE: QpSize = QpSize { sends: SENDS, signal_every: 16, inline: 220 };

/// Keeps an endpoint running. When the last is gone, and the last link, the driver ends.
#[derive(Debug)]
pub(crate) struct Endpoint {
    shard: Arc<Shard>,
}

/// What the links of an endpoint share with its driver.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) device: Arc<OpenDevice>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) mailbox: Arc<Mailbox>,
    queues: Offload<dyn Queues>,
    config: RdmaConfig,
    runtime: Handle,
    /// By the number of the queue pair, from its creation to its destruction.
    links: Mutex<HashMap<u32, Arc<LinkCore>>>,
    dead: AtomicBool,
}

/// A queue pair in state INIT, and the receives that are promised to its peer.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) promise: Promise,
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
        let sends = config.connections.saturating_mul(QP_SIZE.reserve()).min(limits.max_cqe);
        let queues = device.device.create_queues(QueueSize { receives, sends })?;
        let shard = Arc::new(Shard {
            queues: Offload::new(queues, device.control.clone()),
            memory: Memory::new(config, receives),
            mailbox: Arc::default(),
            config: config.clone(),
            runtime: runtime.clone(),
            links: Mutex::default(),
            dead: AtomicBool::new(false),
            device,
        });
        shard.device.join(&shard);
        match config.completion {
            Completion::Busy => busy::start(&shard, runtime)?,
            Completion::Adaptive | Completion::Event => {
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
        !self.shard.dead.load(Ordering::Acquire)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shard.mailbox.leave();
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
        let promised = self.memory.promise(&*self.device.device, &**self.queues, self.config.window)?;
        let Some(promise) = promised else { return Ok(Err(NoRoom::Receives)) };
        let qp = match self.queues.create_qp(QP_SIZE) {
            Ok(qp) => qp,
            Err(CreateQpError::CqBudget) => return Ok(Err(NoRoom::Completions)),
            Err(CreateQpError::Device(error)) => return Err(error.into()),
        };
        qp.to_init(path)?;
        Ok(Ok(NewQp { qp, promise }))
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

    fn notify_event(&self, event: DeviceEvent) {
        self.mailbox.event(event);
    }

    fn links(&self) -> MutexGuard<'_, HashMap<u32, Arc<LinkCore>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between two looks at queues that were empty. With so few CPUs that a thread which only looks would keep the peer, or the
/// kernel's network code, from running, others run first.
fn relax() {
    static FEW_CPUS: LazyLock<bool> =
        LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|n| n.get() <= 2));
    if *FEW_CPUS {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// What there is too little of for another link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Receives: all are promised, and there may be no more memory.
    Receives,
    /// Completions of sends: there are as many links as there may be.
    Completions,
}

/// Sends of a link that are kept for control frames, one each for a CREDIT, PING, PONG and CLOSE.
pub(crate) const CONTROL_SENDS: usize = 4;

/// Sends of a link that other frames may use.
pub(crate) const DATA_SENDS: usize = SENDS as usize - CONTROL_SENDS - READS - 2 * WINDOWS;

/// READs of a link that can be outstanding.
pub(crate) const READS: usize = 8;

/// Memory windows of a link. Each may have a bind and an invalidation outstanding.
pub(crate) const WINDOWS: usize = 8;

#[cfg(test)]
mod tests;
