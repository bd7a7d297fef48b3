//! A device's operations on numbers in memory of this process, for this process.
//!
//! As long as peers have a device change numbers, only that device may change them: its operations are atomic with no one else's. So this
//! process asks the device, too, as a peer would: by a queue pair that is connected with another of this process, on the same device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use farcall_core::status::Executed;
use farcall_core::transport::{Atomic, BoxFuture, DeviceAtomics, DeviceId, Words};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::sync::watch;

use super::{Control, DropOnControlThread, Part, Registrations, UsedWords};
use crate::device::{
    Arena, Completion, Cq, Device, Exposure, LocalPath, NUMBER, PostError, QpSize, QueuePair, QueueSize,
    Queues, ReadTarget, RemoteAccess, RemoteRange, Unavailable, Work, connect_with_itself,
};

/// How long the device may take for one operation. It gives up by itself long before, if it gives up.
const LIMIT: Duration = Duration::from_secs(10);

/// For so long an operation is waited for without sleeping: some times as long as one takes.
const SPIN: Duration = Duration::from_millis(1);

/// The access of the queue pair that asks.
const ATOMICS: RemoteAccess = RemoteAccess { read: false, write: false, atomics: true };

/// Each request has a completion, because somebody waits for it.
const QP_SIZE: QpSize = QpSize { sends: 16, signal_every: 1, inline: 0 };

/// Makes a device do operations for this process. One for each open device.
pub(crate) struct OwnAtomics {
    /// `None` if the device changes no numbers.
    id: Option<DeviceId>,
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
        let limits = device.limits();
        let changes = limits.atomics && limits.windows > 0 && limits.reads > 0 && limits.reads_served > 0;
        let id = changes.then(DeviceId::unique);
        Arc::new(Self { id, device, control, registrations, loopback: Mutex::default() })
    }

    /// Returns the device's id, if the device changes numbers.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.id
    }

    /// Has the device change numbers in these words for this process, by this path. `in_effect` is dropped when it can do so no more.
    pub(crate) async fn of(
        self: Arc<Self>,
        words: Words,
        path: LocalPath,
        in_effect: watch::Sender<()>,
    ) -> Option<Arc<dyn DeviceAtomics>> {
        match self.open(words, path, in_effect).await {
            Ok(numbers) => return numbers.map(|numbers| Arc::new(numbers) as _),
            Err(why) => {
                let device = self.device.name();
                tracing::warn!(device, %why, "peers can't change numbers by themselves: this process does it for them");
            }
        }
        None
    }

    async fn open(
        self: &Arc<Self>,
        words: Words,
        path: LocalPath,
        in_effect: watch::Sender<()>,
    ) -> Result<Option<OwnNumbers>, farcall_core::transport::Unavailable> {
        let Some(device) = self.id else { return Ok(None) };
        // As long as the kernel takes to pin them: seconds for gigabytes. So this is no part of the set-up, which has a limit.
        let this = Arc::clone(self);
        let registered = tokio::task::spawn_blocking(move || this.registrations.register(&words, true));
        // An error means that the runtime ends.
        let Ok(registered) = registered.await else { return Ok(None) };
        let (this, registered) = (Arc::clone(self), registered?);
        let expose = move || {
            let loopback = this.loopback(&path)?;
            let exposure = loopback.expose(UsedWords::new(registered, Box::new(in_effect)))?;
            Ok::<_, Unavailable>(exposure.map(|exposure| OwnNumbers {
                device,
                loopback,
                exposure,
                is_exposed: Arc::new(()),
            }))
        };
        Ok(self.control.set_up(Part::Connect, "connecting a device with itself", expose).await??)
    }

    /// The device has failed, and is to be closed.
    pub(crate) fn fail(self: &Arc<Self>) {
        let this = Arc::clone(self);
        self.control.spawn(move || {
            if let Some(loopback) = this.current().upgrade() {
                fail(&mut loopback.ends(), "it has failed");
            }
        });
    }

    /// Returns the queue pairs by which this process asks.
    pub(crate) fn queue_pairs(&self) -> Vec<Arc<dyn QueuePair>> {
        let loopback = self.current().upgrade();
        let pairs = |ends: &Ends| [&ends.asking, &ends.owning].map(|end| Arc::clone(&end.qp)).into();
        loopback.and_then(|loopback| loopback.ends().as_ref().map(pairs)).unwrap_or_default()
    }

    /// Returns the connection of the device with itself. Blocks.
    fn loopback(&self, path: &LocalPath) -> Result<Arc<Loopback>, Unavailable> {
        let mut loopback = self.current();
        if let Some(open) = loopback.upgrade().filter(|open| open.ends().is_some()) {
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
    /// Replaced before the exposure ends.
    is_exposed: Arc<()>,
}

impl DeviceAtomics for OwnNumbers {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn is_open(&self) -> bool {
        self.loopback.ends().is_some()
    }

    fn change(&self, offset: usize, atomic: Atomic) -> BoxFuture<Result<u64, Executed>> {
        let addr = self.exposure.addr().wrapping_add(offset as u64);
        let on = RemoteRange { addr, rkey: self.exposure.rkey() };
        Box::pin(Arc::clone(&self.loopback).change(on, atomic, Arc::downgrade(&self.is_exposed)))
    }
}

impl Drop for OwnNumbers {
    fn drop(&mut self) {
        if let Some(ends) = &*self.loopback.ends() {
            let (loopback, exposure) = (Arc::clone(&self.loopback), self.exposure);
            self.is_exposed = Arc::new(());
            ends.control.spawn(move || loopback.conceal(exposure));
        }
    }
}

/// Two queue pairs of a device that are connected with each other. One asks, the other owns the memory.
///
/// It has no task of its own. Each caller that waits drives it, and with it the operations of the others. So a caller that is not polled
/// holds nobody up.
#[derive(Debug)]
struct Loopback {
    /// `None` once an operation has failed: nothing must keep a device open that is of no use.
    ends: Mutex<Option<Ends>>,
}

/// The parts of a loopback. They are dropped in this order.
#[derive(Debug)]
struct Ends {
    asking: End,
    owning: End,
    queues: DropOnControlThread<dyn Queues>,
    memory: DropOnControlThread<Target>,
    /// The operation that was posted.
    current: Option<Posted>,
    /// Those that come after it.
    waiting: VecDeque<Asked>,
    control: Control,
}

/// One queue pair, and how many requests of it were posted, and have completed.
#[derive(Debug)]
struct End {
    qp: DropOnControlThread<dyn QueuePair>,
    posted: u64,
    completed: u64,
}

/// An operation, and the caller that waits for the number before it.
#[derive(Debug)]
struct Asked {
    on: RemoteRange,
    atomic: Atomic,
    /// Gone once the memory is not exposed any more. To use its key then would cost the queue pair.
    is_exposed: Weak<()>,
    caller: oneshot::Sender<Result<u64, Executed>>,
}

/// An operation that the device has.
#[derive(Debug)]
struct Posted {
    /// Of the queue pair's request.
    number: u64,
    on: RemoteRange,
    at: Instant,
    into: Arc<ReadTarget>,
    caller: oneshot::Sender<Result<u64, Executed>>,
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
        let size = QueueSize { receives: 1, sends: 2 * QP_SIZE.reserve() };
        let queues = DropOnControlThread::new(device.create_queues(size)?, control.clone());
        let pairs = connect_with_itself(&**device, &**queues, QP_SIZE, path)?;
        let end = |qp| End { qp: DropOnControlThread::new(qp, control.clone()), posted: 0, completed: 0 };
        let [asking, owning] = pairs.map(end);
        let target = Target { device: Arc::clone(device), arena: device.add_arena(NUMBER)? };
        let memory = DropOnControlThread::new(Arc::new(target), control.clone());
        let (current, waiting, control) = (None, VecDeque::new(), control.clone());
        let ends = Ends { asking, owning, queues, memory, current, waiting, control };
        Ok(Self { ends: Mutex::new(Some(ends)) })
    }

    fn ends(&self) -> MutexGuard<'_, Option<Ends>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one step of what there is to do. Nothing if that fails: then the loopback has failed.
    fn step<T>(&self, step: impl FnOnce(&mut Ends) -> Result<T, String>) -> Option<T> {
        let mut ends = self.ends();
        match step(ends.as_mut()?) {
            Ok(result) => Some(result),
            Err(why) => {
                fail(&mut ends, &why);
                None
            }
        }
    }

    async fn change(
        self: Arc<Self>,
        on: RemoteRange,
        atomic: Atomic,
        is_exposed: Weak<()>,
    ) -> Result<u64, Executed> {
        let (caller, mut answer) = oneshot::channel();
        let asked = Asked { on, atomic, is_exposed, caller };
        let enqueue = |ends: &mut Ends| {
            ends.waiting.push_back(asked);
            Ok(())
        };
        self.step(enqueue).ok_or(Executed::No)?;
        let began = Instant::now();
        loop {
            self.step(Ends::advance);
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(TryRecvError::Empty) => {}
                // Unreachable: each caller that still waits gets an answer.
                Err(TryRecvError::Closed) => return Err(Executed::Maybe),
            }
            if began.elapsed() < SPIN {
                tokio::task::yield_now().await;
            } else {
                // Another caller may drive the loopback meanwhile, and end the wait.
                if let Ok(answer) = tokio::time::timeout(SPIN, &mut answer).await {
                    return answer.unwrap_or(Err(Executed::Maybe));
                }
            }
        }
    }

    /// Lets the queue pair that asks change numbers. Blocks. `None`: the loopback has failed, or there are no words.
    fn expose(&self, words: UsedWords) -> Result<Option<Exposure>, Unavailable> {
        let Some(owning) = self.step(|ends| Ok(Arc::clone(&ends.owning.qp))) else { return Ok(None) };
        let exposure = words.expose(&*owning, ATOMICS)?;
        Ok(exposure.filter(|exposure| self.run(Work::Bind(*exposure)).is_some()))
    }

    /// Ends an exposure, whose memory is let go of then. Blocks.
    fn conceal(&self, exposure: Exposure) {
        let is_in_use = |ends: &mut Ends| {
            ends.advance()?;
            Ok(ends.current.as_ref().is_some_and(|posted| posted.on.rkey == exposure.rkey()))
        };
        // The device may be about to use it, for a caller that has gone. No other caller can begin to.
        while self.step(is_in_use) == Some(true) {
            std::thread::yield_now();
        }
        // If that fails, the memory goes with the queue pair.
        let _ = self.run(Work::Invalidate(exposure));
    }

    /// Does something about a window, and waits until it is done. Blocks. `None`: it has failed.
    fn run(&self, work: Work) -> Option<()> {
        let (number, began) = (self.step(|ends| ends.owning.post(work))?, Instant::now());
        loop {
            let is_done = self.step(|ends| {
                ends.poll()?;
                ends.owning.has_done(number, began)
            });
            if is_done? {
                return Some(());
            }
            std::thread::yield_now();
        }
    }
}

/// Gives the queue pairs back, and with them all memory that they hold. Tells the callers.
fn fail(ends: &mut Option<Ends>, why: &str) {
    let Some(ends) = ends.take() else { return };
    tracing::warn!(why, "a device changes no numbers any more for this process");
    // Their futures may have been dropped.
    if let Some(Posted { caller, .. }) = ends.current {
        let _ = caller.send(Err(Executed::Maybe));
    }
    for Asked { caller, .. } in ends.waiting {
        let _ = caller.send(Err(Executed::No));
    }
}

impl Ends {
    /// Answers the operation that is done, and posts the next one.
    fn advance(&mut self) -> Result<(), String> {
        self.poll()?;
        if let Some(posted) = &self.current
            && self.asking.has_done(posted.number, posted.at)?
            && let Some(Posted { into, caller, .. }) = self.current.take()
        {
            // It is no use to anybody else: its request has completed.
            let before = ReadTarget::into_extent(into).ok();
            let before =
                before.and_then(|extent| extent.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)));
            let _ = caller.send(before.ok_or(Executed::Maybe));
        }
        while self.current.is_none()
            && let Some(Asked { on, atomic, is_exposed, caller }) = self.waiting.pop_front()
        {
            if caller.is_closed() {
                continue;
            }
            if is_exposed.strong_count() == 0 {
                // Its future may have been dropped.
                let _ = caller.send(Err(Executed::No));
                continue;
            }
            let extent = self.memory.arena.take(NUMBER).ok_or("its memory is in use")?;
            let into = ReadTarget::new(extent);
            let number = self.asking.post(Work::Atomic { atomic, on, into: Arc::clone(&into), tag: 0 })?;
            self.current = Some(Posted { number, on, at: Instant::now(), into, caller });
        }
        Ok(())
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

    /// Whether the request of this number has completed. An error if it takes too long.
    fn has_done(&self, number: u64, since: Instant) -> Result<bool, String> {
        let is_done = self.completed >= number;
        if is_done || since.elapsed() < LIMIT { Ok(is_done) } else { Err("it does not answer".to_owned()) }
    }
}
