//! Two queue pairs that do what farcall asks of devices.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_core::transport::{Atomic, Words};

use crate::device::{
    Arena, Completion, Cq, Device, Exposure, LocalPath, NUMBER, QpSize, QueuePair, QueueSize, Queues,
    ReadTarget, RegisteredWords, RemoteAccess, RemoteRange, SlabLayout, WcStatus, Work, connect_with_itself,
};
use crate::dma::SharedExtent;
use crate::probe::stop::Stop;

/// The longest time that one step may take. A device gives up by itself long before.
const LIMIT: Duration = Duration::from_secs(5);

/// Each request has a completion, because each is waited for.
const QP_SIZE: QpSize = QpSize { sends: 8, signal_every: 1, inline: 0 };

/// Bytes that are read and written. Some packets of any size.
const LENGTH: usize = 64 << 10;

/// Bytes of a message.
const MESSAGE: usize = 4096;

/// Two queue pairs of the device that are connected with each other. One asks, the other owns the memory.
pub(super) struct Pair {
    asking: Arc<dyn QueuePair>,
    owning: Arc<dyn QueuePair>,
    queues: Arc<dyn Queues>,
    arena: Arc<Arena>,
    device: Arc<dyn Device>,
}

impl Pair {
    pub(super) fn new(device: &Arc<dyn Device>, path: &LocalPath) -> Result<Self, Stop> {
        let queues = device.create_queues(QueueSize { receives: 4, sends: 2 * QP_SIZE.reserve() })?;
        let [asking, owning] = connect_with_itself(&**device, &*queues, QP_SIZE, path)?;
        let slab = device.add_slab(SlabLayout { slot_size: MESSAGE, slots: 4 })?;
        let mut slots: Vec<_> = std::iter::from_fn(|| slab.take()).collect();
        queues.post_receives(&mut slots)?;
        let arena = device.add_arena(8 * LENGTH)?;
        Ok(Self { asking, owning, queues, arena, device: Arc::clone(device) })
    }

    /// Returns registered memory with numbers in it.
    fn filled(&self, length: usize) -> Result<Bytes, Stop> {
        let mut extent = self.arena.take(length).ok_or_else(Stop::no_memory)?;
        extent.iter_mut().zip(0..).for_each(|(byte, i): (&mut u8, u32)| *byte = ((i * 31) >> 3) as u8);
        Ok(extent.freeze(0..length))
    }

    pub(super) fn send(&mut self) -> Result<(), Stop> {
        let message = self.filled(MESSAGE)?;
        self.post_message(message.clone())?;
        let arrived = |completion| match completion {
            Completion::Received { slot, len, .. } => Some(slot.freeze(0..len)),
            _ => None,
        };
        let arrived = self.wait(Cq::Receive, arrived)?;
        self.sent()?;
        same(&arrived, &message)
    }

    fn post_message(&self, message: Bytes) -> Result<(), Stop> {
        let parts = [message, Bytes::new()];
        self.post(&self.asking, Work::Send { parts, signaled: true, solicited: true })
    }

    /// Sleeps until the device says that a message is there.
    pub(super) fn event(&mut self) -> Result<(), Stop> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let _inside = runtime.enter();
        let mut channel = self.queues.channel()?;
        self.queues.arm(Cq::Receive, true)?;
        self.post_message(self.filled(64)?)?;
        let woken = runtime
            .block_on(async { tokio::time::timeout(LIMIT, poll_fn(|cx| channel.poll_event(cx))).await });
        woken.map_err(|_| Stop::silent(LIMIT))??;
        self.wait(Cq::Receive, |completion| matches!(completion, Completion::Received { .. }).then_some(()))?;
        self.sent()
    }

    /// Reads what the other queue pair exposes. Returns the exposure, which lasts.
    pub(super) fn read(&mut self) -> Result<Exposure, Stop> {
        self.owning.alloc_windows(2)?;
        let source = self.filled(LENGTH)?;
        let exposure = self.owning.expose(&source)?;
        self.post(&self.owning, Work::Bind(exposure))?;
        self.sent()?;
        let read = self.read_from(&exposure)?;
        same(&read, &source)?;
        Ok(exposure)
    }

    fn read_from(&self, exposure: &Exposure) -> Result<Bytes, Stop> {
        let into = self.target(LENGTH)?;
        let from = range(exposure);
        let work = Work::Read { into: Arc::clone(&into), at: 0, len: LENGTH, from, tag: 0 };
        self.post(&self.asking, work)?;
        self.moved()?;
        bytes_of(into)
    }

    /// Returns words that the peer may write to, and change numbers in.
    pub(super) fn words(&mut self) -> Result<(Words, Exposure), Stop> {
        let extent = self.arena.take(LENGTH).ok_or_else(Stop::no_memory)?;
        let words: Words = SharedExtent::new(extent);
        let registered = Arc::new(RegisteredWords::within_arena(Arc::clone(&words), LENGTH));
        let access = RemoteAccess { read: false, write: true, atomics: self.device.limits().atomics };
        let exposure = self.owning.expose_words(registered, access)?;
        self.post(&self.owning, Work::Bind(exposure))?;
        self.sent()?;
        Ok((words, exposure))
    }

    pub(super) fn write(&mut self, (words, exposure): &(Words, Exposure)) -> Result<(), Stop> {
        let bytes = self.filled(LENGTH)?;
        self.post(&self.asking, Work::Write { from: bytes.clone().into(), to: range(exposure), tag: 0 })?;
        self.moved()?;
        let words = (**words).as_ref().iter().take(LENGTH / NUMBER);
        let written: Vec<u8> = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        same(&written, &bytes)
    }

    pub(super) fn add(&mut self, (words, exposure): &(Words, Exposure)) -> Result<(), Stop> {
        let number = || (**words).as_ref().first().map_or(0, |word| word.load(Ordering::Relaxed));
        let before = number();
        let into = self.target(NUMBER)?;
        let work = Work::Atomic {
            atomic: Atomic::FetchAdd(7),
            on: range(exposure),
            into: Arc::clone(&into),
            tag: 0,
        };
        self.post(&self.asking, work)?;
        self.moved()?;
        let returned = bytes_of(into)?;
        same(&returned[..NUMBER], &before.to_ne_bytes())?;
        same(&number().to_ne_bytes(), &before.wrapping_add(7).to_ne_bytes())
    }

    /// Ends an exposure, and sees that the device then refuses to read.
    pub(super) fn end_access(&mut self, exposure: Exposure) -> Result<(), Stop> {
        self.post(&self.owning, Work::Invalidate(exposure))?;
        self.sent()?;
        match self.read_from(&exposure) {
            Err(Stop::Completion(error)) if error.status == WcStatus::REM_ACCESS_ERR => Ok(()),
            Err(stop) => Err(stop),
            Ok(_) => Err(Stop::Other("the device read memory whose window is gone".to_owned())),
        }
    }

    fn target(&self, length: usize) -> Result<Arc<ReadTarget>, Stop> {
        let extent = self.arena.take(length).ok_or_else(Stop::no_memory)?;
        Ok(ReadTarget::new(extent))
    }

    fn post(&self, qp: &Arc<dyn QueuePair>, work: Work) -> Result<(), Stop> {
        match qp.post(&mut [work].into())? {
            1 => Ok(()),
            _ => Err(Stop::Other("the send queue is full".to_owned())),
        }
    }

    fn sent(&self) -> Result<(), Stop> {
        self.wait(Cq::Send, |completion| matches!(completion, Completion::Sent { .. }).then_some(()))
    }

    fn moved(&self) -> Result<(), Stop> {
        self.wait(Cq::Send, |completion| matches!(completion, Completion::Moved { .. }).then_some(()))
    }

    /// Asks the device until there is a completion of a kind.
    fn wait<T>(&self, cq: Cq, mut wanted: impl FnMut(Completion) -> Option<T>) -> Result<T, Stop> {
        let (began, mut completions) = (Instant::now(), Vec::new());
        while began.elapsed() < LIMIT {
            self.queues.poll(cq, 16, &mut completions)?;
            for completion in completions.drain(..) {
                match completion {
                    Completion::SendFailed { error, .. } | Completion::ReceiveFailed { error, .. } => {
                        return Err(Stop::Completion(error));
                    }
                    other => {
                        if let Some(found) = wanted(other) {
                            return Ok(found);
                        }
                    }
                }
            }
            thread::yield_now();
        }
        Err(Stop::silent(LIMIT))
    }
}

fn range(exposure: &Exposure) -> RemoteRange {
    RemoteRange { addr: exposure.addr(), rkey: exposure.rkey() }
}

fn bytes_of(target: Arc<ReadTarget>) -> Result<Bytes, Stop> {
    let extent =
        ReadTarget::into_extent(target).map_err(|_| Stop::Other("the device keeps its memory".to_owned()))?;
    let length = extent.len();
    Ok(extent.freeze(0..length))
}

fn same(found: &[u8], expected: &[u8]) -> Result<(), Stop> {
    match found == expected {
        true => Ok(()),
        false => Err(Stop::Other("other bytes came than were sent".to_owned())),
    }
}
