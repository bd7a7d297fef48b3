//! A device's operations on numbers in memory of this process, for this process.
//!
//! As long as peers have a device change numbers, only that device may change them: its operations are atomic with no one else's. So this
//! process asks the device, too, as a peer would: by a queue pair that is connected with another of this process, on the same device.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use farcall_core::status::Executed;
use farcall_core::transport::{Atomic, BoxFuture, DeviceAtomics, DeviceId, Words};
use tokio::sync::Mutex as AsyncMutex;

use super::{Control, DropOnControlThread, Part, Registrations};
use crate::device::{
    Arena, Completion, Cq, CreateQpError, Device, DeviceError, ExposeError, Exposure, LocalPath, NUMBER,
    PostError, QpSize, QpTuning, QueuePair, QueueSize, Queues, ReadTarget, RemoteAccess, RemoteQp,
    RemoteRange, SharesWords, Unavailable, Work, random_psn,
};

/// How long the device may take for one operation. It gives up by itself long before, if it gives up.
const LIMIT: Duration = Duration::from_secs(10);

/// For so long an operation is waited for without sleeping: some times as long as one takes.
const SPIN: Duration = Duration::from_millis(1);

/// Each request has a completion, because somebody waits for it.
const QP_SIZE: QpSize = QpSize { sends: 16, signal_every: 1, inline: 0 };

/// Makes a device do operations for this process. One for each open device.
pub(crate) struct OwnAtomics {
    id: DeviceId,
    device: Arc<dyn Device>,
    control: Control,
    registrations: Arc<Registrations>,
    /// There is one as long as a region uses it.
    loopback: Mutex<Weak<Loopback>>,
}

impl OwnAtomics {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        control: Control,
        registrations: Arc<Registrations>,
    ) -> Arc<Self> {
        Arc::new(Self { id: DeviceId::unique(), device, control, registrations, loopback: Mutex::default() })
    }

    /// Returns the device's id, if the device changes numbers.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        let limits = self.device.limits();
        (limits.atomics && limits.windows > 0 && limits.reads > 0 && limits.reads_served > 0)
            .then_some(self.id)
    }

    /// Has the device change numbers in these words for this process, by this path.
    pub(crate) async fn of(self: Arc<Self>, words: Words, path: LocalPath) -> Option<Arc<dyn DeviceAtomics>> {
        let this = Arc::clone(&self);
        let open = move || {
            let words = this.registrations.register(&words, true)?;
            let loopback = this.loopback(&path)?;
            let exposure = loopback.expose(words)?;
            Ok::<_, Unavailable>(OwnNumbers { device: this.id, loopback, exposure })
        };
        let opened = self.control.set_up(Part::Connect, "connecting a device with itself", open);
        let why = match opened.await {
            Ok(Ok(numbers)) => return Some(Arc::new(numbers)),
            Ok(Err(why)) => farcall_core::transport::Unavailable::from(why),
            Err(failed) => failed.into(),
        };
        tracing::warn!(device = self.device.name(), %why, "peers can't change numbers by themselves: this process does it for them");
        None
    }

    /// The device has failed, and is to be closed.
    pub(crate) fn fail(self: &Arc<Self>) {
        let this = Arc::clone(self);
        self.control.spawn(move || {
            if let Some(loopback) = this.current().upgrade() {
                loopback.fail(&mut loopback.ends.blocking_lock(), "it has failed");
            }
        });
    }

    /// Returns the queue pairs by which this process asks. Blocks for as long as one operation.
    pub(crate) fn queue_pairs(&self) -> Vec<Arc<dyn QueuePair>> {
        let loopback = self.current().upgrade();
        let ends = loopback.as_ref().map(|loopback| loopback.ends.blocking_lock());
        let ends = ends.as_ref().and_then(|ends| ends.as_ref());
        ends.map_or(Vec::new(), |ends| [&ends.asking, &ends.owning].map(|end| Arc::clone(&end.qp)).into())
    }

    /// Returns the connection of the device with itself. Blocks.
    fn loopback(&self, path: &LocalPath) -> Result<Arc<Loopback>, Unavailable> {
        let mut loopback = self.current();
        if let Some(open) = loopback.upgrade().filter(|open| open.is_open()) {
            return Ok(open);
        }
        let opened = Arc::new(Loopback::open(&self.device, &self.control, path)?);
        *loopback = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// Locked while the device is connected with itself.
    fn current(&self) -> MutexGuard<'_, Weak<Loopback>> {
        self.loopback.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OwnAtomics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnAtomics").field(&self.id).finish()
    }
}

/// The numbers of some words.
#[derive(Debug)]
struct OwnNumbers {
    device: DeviceId,
    loopback: Arc<Loopback>,
    exposure: Exposure,
}

impl DeviceAtomics for OwnNumbers {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn is_open(&self) -> bool {
        self.loopback.is_open()
    }

    fn change(&self, offset: usize, atomic: Atomic) -> BoxFuture<Result<u64, Executed>> {
        let addr = self.exposure.addr().wrapping_add(offset as u64);
        let on = RemoteRange { addr, rkey: self.exposure.rkey() };
        Box::pin(Arc::clone(&self.loopback).change(on, atomic))
    }
}

impl Drop for OwnNumbers {
    fn drop(&mut self) {
        if let Some(control) = &*self.loopback.control() {
            let (loopback, exposure) = (Arc::clone(&self.loopback), self.exposure);
            control.spawn(move || loopback.conceal(exposure));
        }
    }
}

/// Two queue pairs of a device that are connected with each other. One asks, the other owns the memory.
#[derive(Debug)]
struct Loopback {
    /// `None` once an operation has failed: no handle must keep a device open that is of no use.
    control: Mutex<Option<Control>>,
    /// Locked for each operation; `None` once one has failed.
    ends: AsyncMutex<Option<Ends>>,
}

/// The parts of a loopback. They are dropped in this order.
#[derive(Debug)]
struct Ends {
    asking: End,
    owning: End,
    queues: DropOnControlThread<dyn Queues>,
    memory: DropOnControlThread<Target>,
}

/// One queue pair, and how many requests of it were posted, and have completed.
#[derive(Debug)]
struct End {
    qp: DropOnControlThread<dyn QueuePair>,
    posted: u64,
    completed: u64,
}

/// Memory for the number before an operation: one extent. It is registered until this is dropped.
#[derive(Debug)]
struct Target {
    device: Arc<dyn Device>,
    arena: Arc<Arena>,
}

impl Drop for Target {
    fn drop(&mut self) {
        self.device.remove_arena(&self.arena);
    }
}

impl Loopback {
    /// Connects a device with itself. Blocks for milliseconds.
    fn open(device: &Arc<dyn Device>, control: &Control, path: &LocalPath) -> Result<Self, Unavailable> {
        let refused = |operation, errno| DeviceError { device: device.name().to_owned(), operation, errno };
        let size = QueueSize { receives: 1, sends: 2 * QP_SIZE.reserve() };
        let queues = DropOnControlThread::new(device.create_queues(size)?, control.clone());
        let create = || {
            let qp = queues.create_qp(QP_SIZE).map_err(|error| match error {
                CreateQpError::Device(error) => error,
                CreateQpError::CqBudget => refused("ibv_create_qp", libc::ENOMEM),
            })?;
            let qp = DropOnControlThread::new(qp, control.clone());
            qp.to_init(path)?;
            let psn = random_psn().map_err(|_| refused("getrandom", libc::EIO))?;
            let name = RemoteQp { qp_num: qp.number(), psn, gid: path.gid, lid: path.status.lid };
            Ok::<_, DeviceError>((End { qp, posted: 0, completed: 0 }, name))
        };
        let ((asking, asks), (owning, owns)) = (create()?, create()?);
        let tuning = QpTuning::new(path.status.active_mtu);
        asking.qp.to_rtr(path, &owns, &tuning)?;
        owning.qp.to_rtr(path, &asks, &tuning)?;
        asking.qp.to_rts(asks.psn, &tuning)?;
        owning.qp.to_rts(owns.psn, &tuning)?;
        let target = Target { device: Arc::clone(device), arena: device.add_arena(NUMBER)? };
        let memory = DropOnControlThread::new(Arc::new(target), control.clone());
        let ends = Ends { asking, owning, queues, memory };
        Ok(Self { control: Mutex::new(Some(control.clone())), ends: AsyncMutex::new(Some(ends)) })
    }

    fn is_open(&self) -> bool {
        self.control().is_some()
    }

    fn control(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the queue pairs back, and with them all memory that they hold.
    fn fail(&self, ends: &mut Option<Ends>, why: &str) {
        drop(self.control().take());
        if ends.take().is_some() {
            tracing::warn!(why, "a device changes no numbers any more for this process");
        }
    }

    async fn change(self: Arc<Self>, on: RemoteRange, atomic: Atomic) -> Result<u64, Executed> {
        let (mut ends, mut begun, began) = (self.ends.lock().await, None, Instant::now());
        loop {
            let looked = ends.as_mut().ok_or(Executed::No)?.advance(&mut begun, on, atomic);
            let why = match looked {
                Ok(Some(before)) => return Ok(before),
                Ok(None) if began.elapsed() < SPIN => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(None) if began.elapsed() < LIMIT => {
                    tokio::time::sleep(SPIN).await;
                    continue;
                }
                Ok(None) => SILENT.to_owned(),
                Err(why) => why,
            };
            self.fail(&mut ends, &why);
            return Err(if begun.is_some() { Executed::Maybe } else { Executed::No });
        }
    }

    /// Lets the queue pair that asks change numbers. Blocks.
    fn expose(&self, words: Arc<dyn SharesWords>) -> Result<Exposure, Unavailable> {
        let mut ends = self.ends.blocking_lock();
        let access = RemoteAccess { read: false, write: false, atomics: true };
        let gone = || Unavailable::NoDevice { detail: "the device has just failed".into() };
        let owning = &ends.as_ref().ok_or_else(gone)?.owning;
        let mut exposed = owning.qp.expose_words(Arc::clone(&words), access);
        if exposed == Err(ExposeError::NoWindow) {
            owning.qp.alloc_windows(1)?;
            exposed = owning.qp.expose_words(words, access);
        }
        let exposure = exposed.map_err(|_| gone())?;
        self.run(&mut ends, Work::Bind(exposure)).map_err(|_| gone())?;
        Ok(exposure)
    }

    /// Ends an exposure, whose memory is let go of then. Blocks.
    fn conceal(&self, exposure: Exposure) {
        // If that fails, the memory goes with the queue pair.
        let _ = self.run(&mut self.ends.blocking_lock(), Work::Invalidate(exposure));
    }

    /// Does something about a window, and waits until it is done.
    fn run(&self, ends: &mut Option<Ends>, work: Work) -> Result<(), ()> {
        let began = Instant::now();
        let why = match ends.as_mut().ok_or(())?.owning.post(work) {
            Ok(number) => loop {
                let ends = ends.as_mut().ok_or(())?;
                match ends.poll() {
                    Ok(()) if ends.owning.completed >= number => return Ok(()),
                    Ok(()) if began.elapsed() < LIMIT => std::thread::yield_now(),
                    Ok(()) => break SILENT.to_owned(),
                    Err(why) => break why,
                }
            },
            Err(why) => why,
        };
        self.fail(ends, &why);
        Err(())
    }
}

const SILENT: &str = "it does not answer";

impl Ends {
    /// Begins an operation if that was not done, and the memory for it is free. Returns the number before if the operation is done.
    fn advance(
        &mut self,
        begun: &mut Option<(Arc<ReadTarget>, u64)>,
        on: RemoteRange,
        atomic: Atomic,
    ) -> Result<Option<u64>, String> {
        // One that nobody waits for any more may have the extent.
        if begun.is_none()
            && let Some(extent) = self.memory.arena.take(NUMBER)
        {
            let into = ReadTarget::new(extent);
            let number = self.asking.post(Work::Atomic { atomic, on, into: Arc::clone(&into), tag: 0 })?;
            *begun = Some((into, number));
        }
        self.poll()?;
        let Some((into, _)) = begun.take_if(|(_, number)| self.asking.completed >= *number) else {
            return Ok(None);
        };
        let extent = ReadTarget::into_extent(into).ok();
        Ok(extent.and_then(|extent| extent.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))))
    }

    /// Counts what has completed.
    fn poll(&mut self) -> Result<(), String> {
        let mut completions = Vec::new();
        self.queues.poll(Cq::Send, 16, &mut completions).map_err(|error| error.to_string())?;
        for completion in completions {
            match completion {
                Completion::Sent { qp_num, count } | Completion::Moved { qp_num, count, .. } => {
                    let ends = [&mut self.asking, &mut self.owning];
                    for end in ends.into_iter().filter(|end| end.qp.number() == qp_num) {
                        end.completed += count as u64;
                    }
                }
                Completion::SendFailed { error, .. } => return Err(error.to_string()),
                Completion::Received { .. }
                | Completion::ReceiveFailed { .. }
                | Completion::Drained { .. } => {}
            }
        }
        Ok(())
    }
}

impl End {
    /// Posts a request. Returns its number.
    fn post(&mut self, work: Work) -> Result<u64, String> {
        match self.qp.post(&mut [work].into()) {
            Ok(1) => {}
            Ok(_) => return Err("its queue is full".to_owned()),
            Err(PostError::Device(error)) => return Err(error.to_string()),
            Err(error) => return Err(format!("{error:?}")),
        }
        self.posted += 1;
        Ok(self.posted)
    }
}
