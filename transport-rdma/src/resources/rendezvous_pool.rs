//! Registered memory for long messages: what peers may read, and what is read from them. One for each open device.
//!
//! It grows on demand, on the device's control thread: what was registered once serves all later messages. Arenas that
//! nobody uses are given up only for a message that no arena has room for. Requests and responses have a half each, so that a process that is full of requests can still receive the
//! answers that let it go on.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};

use farcall_core::transport::{self, Direction};
use tokio::sync::oneshot;

use super::control::Control;
use crate::device::{Arena, Device, Extent, ReadTarget, lockable};
use crate::machine::Machine;

/// The first arena of each half. A message of up to that length never waits for memory to be registered.
const FIRST: u64 = 4 << 20;

/// Nothing is registered in smaller steps than this: each costs system calls, and one of the device's translation entries.
const LEAST: u64 = 2 << 20;

/// How long memory that was refused is not asked for again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest answer that is copied, in bytes. An application that keeps a copy keeps no registered memory.
pub(crate) const SHORT: usize = 8 << 10;

/// How many targets for such answers are kept ready.
const MOST_READY: usize = 16;

/// See the module's documentation.
pub(crate) struct RendezvousPool {
    device: Arc<dyn Device>,
    control: Control,
    requests: Half,
    responses: Half,
    /// Targets of READs for short answers, which nobody uses now.
    ready: Mutex<Vec<Arc<ReadTarget>>>,
    begun: Once,
}

#[derive(Default)]
struct Half {
    arenas: RwLock<Vec<Arc<Arena>>>,
    growth: Mutex<Growth>,
}

#[derive(Default)]
struct Growth {
    /// Bytes that may still be registered.
    left: u64,
    /// Bytes that are.
    have: u64,
    /// A step is being taken, or is about to be; these wait for its end, whatever comes of it. One at a time: each counts on
    /// what it found left.
    running: bool,
    waiting: Vec<Waiter>,
    /// There was no memory for a message of this length, then.
    refused: Option<(u64, Instant)>,
}

/// Told when there may be memory.
pub(crate) type Waiter = Box<dyn FnOnce() + Send>;

impl RendezvousPool {
    /// Memory of at most this many bytes, and of at most half of what may be locked: the rest is for short messages,
    /// without which there are none at all.
    pub(crate) fn new(device: Arc<dyn Device>, control: Control, bytes: u64) -> Arc<Self> {
        let limits = device.limits();
        // Neither end of a READ is of use without the other: most messages have an answer.
        let usable = limits.windows > 0 && limits.reads > 0 && limits.reads_served > 0;
        let bytes = bytes.min(lockable(&Machine::this()).map_or(u64::MAX, |lockable| lockable / 2));
        let half = || {
            let left = if usable { bytes / 2 } else { 0 };
            Half { growth: Mutex::new(Growth { left, ..Growth::default() }), ..Half::default() }
        };
        let (requests, responses) = (half(), half());
        let (ready, begun) = (Mutex::default(), Once::new());
        let bulk = Arc::new(Self { device, control, requests, responses, ready, begun });
        registry().push(Arc::downgrade(&bulk));
        bulk
    }

    /// Registers the first of it, if nobody has. Blocks for milliseconds.
    pub(crate) fn begin(&self) {
        self.begun.call_once(|| {
            for half in [&self.requests, &self.responses] {
                let first = FIRST.min(half.growth().left);
                // A task that wants memory before there is a peer may be growing it already. Then this is the first step.
                if half.growth().claim() {
                    half.grow(&*self.device, first);
                }
            }
        });
    }

    /// Returns the control threads on which the pool grows.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    fn half(&self, direction: Direction) -> &Half {
        match direction {
            Direction::Request => &self.requests,
            Direction::Response => &self.responses,
        }
    }

    /// Memory for a message of this length. `None`: there is none now; see [`grow`](Self::grow).
    pub(crate) fn take(self: &Arc<Self>, direction: Direction, len: usize) -> Option<Extent> {
        let half = self.half(direction);
        let (taken, free) = {
            let arenas = half.arenas.read().unwrap_or_else(PoisonError::into_inner);
            (
                arenas.iter().find_map(|arena| arena.take(len)),
                arenas.iter().map(|arena| arena.free()).sum::<usize>(),
            )
        };
        // The next message should not have to wait.
        let is_short = |growth: &Growth| free as u64 <= growth.have / 4 && growth.step(len as u64).is_some();
        if taken.is_some() && is_short(&half.growth()) {
            self.grow(direction, len, None);
        }
        taken
    }

    /// Returns memory for a message of this length. `None`: there is none now, and more is asked for.
    pub(crate) fn take_or_grow(self: &Arc<Self>, direction: Direction, len: usize) -> Option<Extent> {
        let taken = self.take(direction, len);
        if taken.is_none() {
            self.grow(direction, len, None);
        }
        taken
    }

    /// Returns memory for an answer of this length that a device writes. `None`: there is none now, and more is asked for.
    pub(crate) fn target(self: &Arc<Self>, len: usize) -> Option<Arc<ReadTarget>> {
        let is_short = len <= SHORT;
        if is_short && let Some(ready) = self.ready().pop() {
            return Some(ready);
        }
        let len = if is_short { SHORT } else { len };
        self.take_or_grow(Direction::Response, len).map(ReadTarget::new)
    }

    /// Keeps the target of a short answer for the next one.
    pub(crate) fn keep(&self, target: Arc<ReadTarget>) {
        let mut ready = self.ready();
        if ready.len() < MOST_READY {
            ready.push(target);
        }
    }

    /// Gets more memory, for a message of this length, on the control thread, and tells the waiter. False: there may be no
    /// more, and nobody is told anything.
    pub(crate) fn grow(self: &Arc<Self>, direction: Direction, len: usize, waiter: Option<Waiter>) -> bool {
        let mut growth = self.half(direction).growth();
        if !growth.running && !growth.is_hopeful(len as u64) {
            return false;
        }
        growth.waiting.extend(waiter);
        if growth.claim() {
            let bulk = Arc::clone(self);
            self.control.spawn(move || {
                // A buffer that is kept ready must not keep an arena from being given up.
                bulk.ready().clear();
                bulk.half(direction).grow(&*bulk.device, len as u64);
            });
        }
        true
    }

    /// Returns memory for a message of this length, and waits while it is being registered. `None`: there may be no more.
    async fn take_when_grown(self: &Arc<Self>, direction: Direction, len: usize) -> Option<Extent> {
        loop {
            let taken = self.take(direction, len);
            if taken.is_some() {
                return taken;
            }
            let (sender, grown) = oneshot::channel();
            let tell = move || {
                let _ = sender.send(());
            };
            if !self.grow(direction, len, Some(Box::new(tell))) {
                return None;
            }
            // An error means that nothing can be registered any more.
            grown.await.ok()?;
        }
    }

    /// Bytes that messages and views of them have.
    pub(crate) fn in_use(&self) -> usize {
        let taken = |half: &Half| {
            let arenas = half.arenas.read().unwrap_or_else(PoisonError::into_inner);
            arenas.iter().map(|arena| arena.bytes() - arena.free()).sum::<usize>()
        };
        let ready = self.ready().len() * Arena::taken_for(SHORT);
        (taken(&self.requests) + taken(&self.responses)).saturating_sub(ready)
    }

    fn ready(&self) -> MutexGuard<'_, Vec<Arc<ReadTarget>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these bytes lie in this memory, where a peer can be let read them.
    pub(crate) fn contains(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr() as usize;
        self.contains_range(start..start + bytes.len())
    }

    /// As [`contains`](Self::contains), for memory to which no reference may exist.
    pub(crate) fn contains_range(&self, range: Range<usize>) -> bool {
        [&self.requests, &self.responses].into_iter().any(|half| {
            let arenas = half.arenas.read().unwrap_or_else(PoisonError::into_inner);
            arenas.iter().any(|arena| arena.contains(range.clone()))
        })
    }
}

impl Half {
    /// Takes a step that was [claimed](Growth::claim).
    fn grow(&self, device: &dyn Device, len: u64) {
        if self.growth().step(len).is_none() {
            self.give_up_unused(device, len);
        }
        let step = self.growth().step(len);
        let added = step.map(|step| device.add_arena(step as usize));
        let mut growth = self.growth();
        match added {
            Some(Ok(arena)) => {
                let bytes = arena.bytes() as u64;
                growth.have += bytes;
                growth.left = growth.left.saturating_sub(bytes);
                self.arenas().push(arena);
            }
            Some(Err(why)) => {
                growth.left = 0;
                let (have, why) = (growth.have >> 20, transport::Unavailable::from(why));
                tracing::warn!(device = device.name(), %why, "no more memory for long messages than {have} MiB: \
                    what does not fit is copied");
            }
            None => growth.refused = Some((len, Instant::now())),
        }
        growth.running = false;
        let waiting = std::mem::take(&mut growth.waiting);
        drop(growth);
        waiting.into_iter().for_each(|tell| tell());
    }

    /// Removes unused arenas until there may be one for a message of this length.
    fn give_up_unused(&self, device: &dyn Device, len: u64) {
        let unused = |arena: &Arc<Arena>| arena.free() == arena.bytes();
        while self.growth().step(len).is_none() {
            let taken = {
                let mut arenas = self.arenas();
                let first = arenas.iter().position(unused);
                first.map(|i| arenas.swap_remove(i))
            };
            let Some(arena) = taken else { return };
            if !device.remove_arena(&arena) {
                // Somebody had it before it was off the list.
                return self.arenas().push(arena);
            }
            let mut growth = self.growth();
            growth.have -= arena.bytes() as u64;
            growth.left += arena.bytes() as u64;
        }
    }

    fn arenas(&self) -> RwLockWriteGuard<'_, Vec<Arc<Arena>>> {
        self.arenas.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Growth {
    /// Whether the caller is the one to take a step now.
    fn claim(&mut self) -> bool {
        !std::mem::replace(&mut self.running, true)
    }

    /// How much to register next, so that a message of this length fits: as much as there is, so that there are few
    /// arenas.
    fn step(&self, len: u64) -> Option<u64> {
        let least = least(len)?;
        (least <= self.left).then(|| self.have.max(least).min(self.left))
    }

    /// Whether there may be memory for a message of this length if more is registered, or other is given up; not if that
    /// has just been tried.
    fn is_hopeful(&self, len: u64) -> bool {
        let in_vain = self.refused.is_some_and(|(refused, then)| len >= refused && then.elapsed() < PATIENCE);
        !in_vain && least(len).is_some_and(|least| least <= self.left + self.have)
    }
}

/// The least to register for a message of this length.
fn least(len: u64) -> Option<u64> {
    len.max(LEAST).checked_next_multiple_of(LEAST)
}

impl fmt::Debug for RendezvousPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = |half: &Half| half.growth().have;
        f.debug_struct("RendezvousPool")
            .field("requests", &have(&self.requests))
            .field("responses", &have(&self.responses))
            .finish_non_exhaustive()
    }
}

/// The memory of all open devices.
fn registry() -> MutexGuard<'static, Vec<Weak<RendezvousPool>>> {
    static REGISTRY: OnceLock<Mutex<Vec<Weak<RendezvousPool>>>> = OnceLock::new();
    let mut registry = REGISTRY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    registry.retain(|bulk| bulk.strong_count() > 0);
    registry
}

/// Bytes that messages and views of them have, of all open devices.
pub(crate) fn in_use_anywhere() -> usize {
    registry().iter().filter_map(Weak::upgrade).map(|bulk| bulk.in_use()).sum()
}

/// Memory of this length that a device of this process can let peers read: the first device's that has some.
pub(crate) fn take_anywhere(len: usize) -> Option<Extent> {
    let open: Vec<_> = registry().iter().filter_map(Weak::upgrade).collect();
    open.iter().find_map(|bulk| bulk.take_or_grow(Direction::Request, len))
}

/// Returns memory of this length that a device can let peers read, and waits while more is being registered.
pub(crate) async fn grow_anywhere(len: usize) -> Option<Extent> {
    let open: Vec<_> = registry().iter().filter_map(Weak::upgrade).collect();
    for bulk in open {
        let taken = bulk.take_when_grown(Direction::Request, len).await;
        if taken.is_some() {
            return taken;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::config::RdmaConfig;
    use crate::device::Host as _;
    use crate::sim::{Fabric, SimHost};

    const MIB: usize = 1 << 20;

    fn not_begun(bytes: usize) -> (SimHost, Arc<RendezvousPool>) {
        let host = Fabric::new(1).host([10, 0, 0, 1].into());
        let device = host.open(&host.devices().unwrap()[0], &RdmaConfig::default()).unwrap();
        let control = Control::start("test", ()).unwrap();
        (host, RendezvousPool::new(device, control, bytes as u64))
    }

    fn bulk(bytes: usize) -> (SimHost, Arc<RendezvousPool>) {
        let (host, bulk) = not_begun(bytes);
        bulk.begin();
        (host, bulk)
    }

    /// Takes memory, after waiting for it if it has to be registered.
    fn take(bulk: &Arc<RendezvousPool>, direction: Direction, len: usize) -> Option<Extent> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(bulk.take_when_grown(direction, len))
    }

    #[test]
    fn it_grows_up_to_its_limit_and_no_direction_takes_the_other_ones() {
        let (_host, bulk) = bulk(64 * MIB);
        let requests: Vec<_> = std::iter::from_fn(|| take(&bulk, Direction::Request, MIB)).collect();
        assert_eq!(requests.len(), 32);
        assert!(take(&bulk, Direction::Request, 16 << 10).is_none());
        assert!(take(&bulk, Direction::Response, 28 * MIB).is_some());
        drop(requests);
        assert!(take(&bulk, Direction::Request, MIB).is_some());
    }

    #[test]
    fn one_step_is_taken_at_a_time() {
        let (_host, bulk) = not_begun(64 * MIB);
        let (hold, held) = channel::<()>();
        bulk.control().spawn(move || assert!(held.recv().is_err()));
        let (sender, grown) = channel();
        assert!(bulk.grow(Direction::Request, MIB, Some(Box::new(move || sender.send(()).unwrap()))));
        bulk.begin();
        assert!(grown.try_recv().is_err(), "its step has not been taken");
        drop(hold);
        grown.recv().unwrap();
        let have = [&bulk.requests, &bulk.responses].map(|half| half.growth().have);
        assert_eq!(have, [LEAST, FIRST]);
    }

    #[test]
    fn unused_memory_makes_room_for_a_message_that_fits_nowhere() {
        let (_host, bulk) = bulk(64 * MIB);
        // Arenas of 4, 4, 8 and 16 MiB.
        let many: Vec<_> = (0..30).map(|_| take(&bulk, Direction::Request, MIB).unwrap()).collect();
        assert!(take(&bulk, Direction::Request, 30 * MIB).is_none(), "all of them are in use");
        drop(many);
        std::thread::sleep(PATIENCE);
        assert_eq!(take(&bulk, Direction::Request, 30 * MIB).unwrap().len(), 30 * MIB);
        assert!(take(&bulk, Direction::Request, 33 * MIB).is_none(), "more than there may be");
    }

    #[test]
    fn a_buffer_kept_ready_is_not_in_use_and_keeps_no_arena() {
        let (_host, bulk) = bulk(64 * MIB);
        let short: Vec<_> = (0..20).map(|_| bulk.target(64).unwrap()).collect();
        assert!(bulk.in_use() > 0);
        short.into_iter().for_each(|target| bulk.keep(target));
        assert_eq!((bulk.in_use(), bulk.ready().len()), (0, MOST_READY));
        drop(bulk.target(SHORT).unwrap());
        assert_eq!(bulk.ready().len(), MOST_READY - 1);
        // No arena has room for it: those that there are must go first.
        assert_eq!(take(&bulk, Direction::Response, 30 * MIB).unwrap().len(), 30 * MIB);
        assert!(bulk.ready().is_empty());
    }

    #[test]
    fn device_that_registers_no_more_is_asked_no_more() {
        let (host, bulk) = bulk(64 * MIB);
        host.limit_memory(Some(8 << 20));
        let requests: Vec<_> = std::iter::from_fn(|| take(&bulk, Direction::Request, MIB)).collect();
        assert_eq!(requests.len(), 4, "what there was from the beginning");
        assert!(!bulk.grow(Direction::Request, MIB, None));
        assert!(take(&bulk, Direction::Response, 4 * MIB).is_some());
    }

    #[test]
    fn device_without_windows_has_none() {
        let host = Fabric::new(1).host([10, 0, 0, 1].into());
        host.limit_windows(0);
        let device = host.open(&host.devices().unwrap()[0], &RdmaConfig::default()).unwrap();
        let bulk = RendezvousPool::new(device, Control::start("test", ()).unwrap(), 64 << 20);
        bulk.begin();
        assert!(take(&bulk, Direction::Request, 16 << 10).is_none());
    }
}
