//! Registered memory for long messages: what peers may read, and what is read from them. One for each open device.
//!
//! It grows on demand, on the device's control thread, and never shrinks: what was registered once serves all later
//! messages. Requests and responses have a half each, so that a process that is full of requests can still receive the
//! answers that let it go on.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock, Weak};

use farcall_core::transport::Direction;

use super::control::Control;
use crate::device::{Arena, Device, Extent, lockable};

/// The first arena of each half. A message of up to that length never waits for memory to be registered.
const FIRST: u64 = 4 << 20;

/// Nothing is registered in smaller steps than this: each costs system calls, and one of the device's translation entries.
const LEAST: u64 = 2 << 20;

/// See the module's documentation.
pub(crate) struct Bulk {
    device: Arc<dyn Device>,
    control: Control,
    requests: Half,
    responses: Half,
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
    /// A step is being taken; these wait for its end, whatever comes of it.
    running: bool,
    waiting: Vec<Waiter>,
}

/// Told when there may be memory.
pub(crate) type Waiter = Box<dyn FnOnce() + Send>;

impl Bulk {
    /// Memory of at most this many bytes, and of at most half of what may be locked: the rest is for short messages,
    /// without which there are none at all.
    pub(super) fn new(device: Arc<dyn Device>, control: Control, bytes: u64) -> Arc<Self> {
        let limits = device.limits();
        // Neither end of a READ is of use without the other: most messages have an answer.
        let usable = limits.windows > 0 && limits.reads > 0 && limits.reads_served > 0;
        let bytes = bytes.min(lockable().map_or(u64::MAX, |lockable| lockable / 2));
        let half = || {
            let left = if usable { bytes / 2 } else { 0 };
            Half { growth: Mutex::new(Growth { left, ..Growth::default() }), ..Half::default() }
        };
        let bulk =
            Arc::new(Self { device, control, requests: half(), responses: half(), begun: Once::new() });
        registry().push(Arc::downgrade(&bulk));
        bulk
    }

    /// Registers the first of it, if nobody has. Blocks for milliseconds.
    pub(super) fn begin(&self) {
        self.begun.call_once(|| {
            for half in [&self.requests, &self.responses] {
                let first = FIRST.min(half.growth().left);
                half.grow(&*self.device, first);
            }
        });
    }

    /// Where it grows.
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
        if taken.is_some() && free as u64 <= half.growth().have / 4 {
            self.grow(direction, len, None);
        }
        taken
    }

    /// Gets more memory, for a message of this length, on the control thread, and tells the waiter. False: there may be no
    /// more, and nobody is told anything.
    pub(crate) fn grow(self: &Arc<Self>, direction: Direction, len: usize, waiter: Option<Waiter>) -> bool {
        let mut growth = self.half(direction).growth();
        if !growth.running && growth.step(len as u64).is_none() {
            return false;
        }
        growth.waiting.extend(waiter);
        if !std::mem::replace(&mut growth.running, true) {
            let bulk = Arc::clone(self);
            self.control.spawn(move || bulk.half(direction).grow(&*bulk.device, len as u64));
        }
        true
    }

    /// Whether these bytes lie in this memory, where a peer can be let read them.
    pub(crate) fn contains(&self, bytes: &[u8]) -> bool {
        [&self.requests, &self.responses].into_iter().any(|half| {
            let arenas = half.arenas.read().unwrap_or_else(PoisonError::into_inner);
            arenas.iter().any(|arena| arena.contains(bytes))
        })
    }
}

impl Half {
    fn grow(&self, device: &dyn Device, len: u64) {
        let step = self.growth().step(len);
        let added = step.map(|step| device.add_arena(step as usize));
        let mut growth = self.growth();
        match added {
            Some(Ok(arena)) => {
                let bytes = arena.bytes() as u64;
                growth.have += bytes;
                growth.left = growth.left.saturating_sub(bytes);
                self.arenas.write().unwrap_or_else(PoisonError::into_inner).push(arena);
            }
            Some(Err(why)) => {
                growth.left = 0;
                let have = growth.have >> 20;
                tracing::warn!(device = device.name(), %why, "no more memory for long messages than {have} MiB: \
                    what does not fit is copied");
            }
            None => {}
        }
        growth.running = false;
        let waiting = std::mem::take(&mut growth.waiting);
        drop(growth);
        waiting.into_iter().for_each(|tell| tell());
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Growth {
    /// How much to register next, so that a message of this length fits: as much as there is, so that there are few
    /// arenas.
    fn step(&self, len: u64) -> Option<u64> {
        let least = len.max(LEAST).checked_next_multiple_of(LEAST)?;
        (least <= self.left).then(|| self.have.max(least).min(self.left))
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = |half: &Half| half.growth().have;
        f.debug_struct("Bulk")
            .field("requests", &have(&self.requests))
            .field("responses", &have(&self.responses))
            .finish_non_exhaustive()
    }
}

/// The memory of all open devices.
fn registry() -> MutexGuard<'static, Vec<Weak<Bulk>>> {
    static REGISTRY: OnceLock<Mutex<Vec<Weak<Bulk>>>> = OnceLock::new();
    let mut registry = REGISTRY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    registry.retain(|bulk| bulk.strong_count() > 0);
    registry
}

/// Memory of this length that a device of this process can let peers read: the first device's that has some.
pub(crate) fn take_anywhere(len: usize) -> Option<Extent> {
    let open: Vec<_> = registry().iter().filter_map(Weak::upgrade).collect();
    open.iter().find_map(|bulk| {
        let taken = bulk.take(Direction::Request, len);
        if taken.is_none() {
            bulk.grow(Direction::Request, len, None);
        }
        taken
    })
}
