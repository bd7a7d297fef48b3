//! The work request table: what a device has of our memory, and which completion gives it back. Safe code; it stands here
//! because the verbs' safety rests on it, and the simulated device uses it too.
//!
//! A receive owns its [`Slot`]. A send holds clones of its [`Bytes`](bytes::Bytes), which keep the memory from being reused
//! or written; so does a window, for as long as the peer may read through it. A READ holds its
//! [`ReadTarget`](crate::dma::ReadTarget). `wr_id` names the entry, with a generation, so that a completion which a device reports twice, or after its queue pair
//! is gone, finds nothing.

mod sends;
mod windows;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub(crate) use sends::{Kept, SendRing, Ticket};
pub(crate) use windows::Step;

use crate::device::{Completion, QpSize, WcError, WcStatus};
use crate::dma::Slot;

/// The contents of a `wr_id`: kind, entry, generation.
///
/// Receive: `01`, 22 bits of index, 40 of generation. Whatever goes to a send queue: `10`, 22 bits of ring, 24 of the
/// ring's generation, 16 of sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WrId {
    Receive { index: u32, generation: u64 },
    Send { ring: RingKey, seq: u16 },
}

/// Names a queue pair's ring of sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RingKey {
    index: u32,
    generation: u32,
}

const INDEX_BITS: u32 = 22;
const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;
const RECEIVE_GENERATION: u64 = (1 << 40) - 1;
const RING_GENERATION: u32 = (1 << 24) - 1;

impl WrId {
    fn encode(self) -> u64 {
        match self {
            Self::Receive { index, generation } => 1 << 62 | u64::from(index) << 40 | generation,
            Self::Send { ring, seq } => {
                2 << 62 | u64::from(ring.index) << 40 | u64::from(ring.generation) << 16 | u64::from(seq)
            }
        }
    }

    fn decode(raw: u64) -> Option<Self> {
        let index = (raw >> 40) as u32 & MAX_INDEX;
        match raw >> 62 {
            1 => Some(Self::Receive { index, generation: raw & RECEIVE_GENERATION }),
            2 => {
                let generation = (raw >> 16) as u32 & RING_GENERATION;
                Some(Self::Send { ring: RingKey { index, generation }, seq: raw as u16 })
            }
            _ => None,
        }
    }
}

/// A completion as a device reports it: the fields that are valid on success and failure, and the length, which is valid on
/// the success of a receive, as is whether the peer's request was foreign. No opcode: it is undefined when a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) vendor: u32,
    pub(crate) qp_num: u32,
    pub(crate) len: u32,
    /// The peer's request carried immediate data, or invalidated a key.
    pub(crate) foreign: bool,
}

/// All that is in flight on one shard's queues.
#[derive(Debug)]
pub(crate) struct InFlight {
    receives: Mutex<Receives>,
    rings: RwLock<Vec<RingEntry>>,
    /// Sends that were posted, whose completions were asked for and not taken.
    awaited: Arc<AtomicUsize>,
    /// Completions that named nothing. A device that works reports none, unless a queue pair was destroyed undrained.
    strays: AtomicU64,
}

#[derive(Debug)]
struct RingEntry {
    generation: u32,
    ring: Option<Arc<SendRing>>,
}

impl InFlight {
    /// Room for this many receives; sends have their room with their queue pair.
    pub(crate) fn new(receives: u32) -> Self {
        let receives = Receives::new(receives.min(MAX_INDEX));
        Self {
            receives: Mutex::new(receives),
            rings: RwLock::default(),
            awaited: Arc::default(),
            strays: AtomicU64::new(0),
        }
    }

    pub(crate) fn receives(&self) -> MutexGuard<'_, Receives> {
        lock(&self.receives)
    }

    /// A ring for a new queue pair.
    pub(crate) fn add_ring(&self, size: QpSize) -> Arc<SendRing> {
        let mut rings = self.rings.write().unwrap_or_else(PoisonError::into_inner);
        let index = rings.iter().position(|entry| entry.ring.is_none()).unwrap_or(rings.len());
        if index == rings.len() {
            rings.push(RingEntry { generation: 0, ring: None });
        }
        let entry = &mut rings[index];
        entry.generation = (entry.generation + 1) & RING_GENERATION;
        let key = RingKey { index: index as u32 & MAX_INDEX, generation: entry.generation };
        let ring = Arc::new(SendRing::new(key, size, Arc::clone(&self.awaited)));
        entry.ring = Some(Arc::clone(&ring));
        ring
    }

    /// Forgets the ring of a destroyed queue pair; its buffers are released when the queue pair lets go of it, too.
    pub(crate) fn remove_ring(&self, ring: &SendRing) {
        let mut rings = self.rings.write().unwrap_or_else(PoisonError::into_inner);
        let entry = rings
            .get_mut(ring.key().index as usize)
            .filter(|entry| entry.generation == ring.key().generation);
        if let Some(entry) = entry {
            entry.ring = None;
        }
    }

    /// Takes back what the device has finished with. `None` if it never had it, or was asked before.
    pub(crate) fn resolve(&self, raw: &RawCompletion) -> Option<Completion> {
        let completion = match WrId::decode(raw.wr_id) {
            Some(WrId::Receive { index, generation }) => {
                self.receives().remove(index, generation).map(|slot| received(slot, raw))
            }
            Some(WrId::Send { ring, seq }) => self.ring(ring).and_then(|ring| ring.complete(seq, raw)),
            None => None,
        };
        if completion.is_none() {
            self.strays.fetch_add(1, Ordering::Relaxed);
        }
        completion
    }

    /// Whether a completion of a send was asked for, and not taken. One that has failed may complete unasked.
    pub(crate) fn awaits_sends(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > 0
    }

    /// How many completions named nothing.
    #[cfg(test)]
    pub(crate) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    fn ring(&self, key: RingKey) -> Option<Arc<SendRing>> {
        let rings = self.rings.read().unwrap_or_else(PoisonError::into_inner);
        let entry = rings.get(key.index as usize).filter(|entry| entry.generation == key.generation)?;
        entry.ring.clone()
    }
}

fn received(slot: Slot, raw: &RawCompletion) -> Completion {
    let (qp_num, len) = (raw.qp_num, raw.len as usize);
    if raw.status != WcStatus::SUCCESS {
        return Completion::ReceiveFailed {
            qp_num,
            slot,
            error: WcError { status: raw.status, vendor: raw.vendor },
        };
    }
    if raw.foreign {
        // A WRITE with immediate data fills other memory than the slot, in which an earlier message may still stand. So
        // nothing of the slot is read.
        let error = WcError { status: WcStatus::FOREIGN_REQUEST, vendor: raw.vendor };
        return Completion::ReceiveFailed { qp_num, slot, error };
    }
    if len > slot.len() {
        // No device that works says this; without the check it would be a panic where the message is read.
        let error = WcError { status: WcStatus::LOC_LEN_ERR, vendor: raw.vendor };
        return Completion::ReceiveFailed { qp_num, slot, error };
    }
    Completion::Received { qp_num, slot, len }
}

/// The receives of a shared receive queue.
#[derive(Debug)]
pub(crate) struct Receives {
    entries: Vec<ReceiveEntry>,
    vacant: Vec<u32>,
}

#[derive(Debug, Default)]
struct ReceiveEntry {
    generation: u64,
    slot: Option<Slot>,
}

impl Receives {
    fn new(capacity: u32) -> Self {
        let entries = (0..capacity).map(|_| ReceiveEntry::default()).collect();
        Self { entries, vacant: (0..capacity).rev().collect() }
    }

    /// How many more can be inserted.
    pub(crate) fn room(&self) -> usize {
        self.vacant.len()
    }

    /// How many are in flight.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Takes a slot into the table and says which `wr_id` to post it with; gives it back if the table is full.
    pub(crate) fn insert(&mut self, slot: Slot) -> Result<u64, Slot> {
        let Some(index) = self.vacant.pop() else { return Err(slot) };
        let entry = &mut self.entries[index as usize];
        entry.generation = (entry.generation + 1) & RECEIVE_GENERATION;
        entry.slot = Some(slot);
        Ok(WrId::Receive { index, generation: entry.generation }.encode())
    }

    /// Takes back a slot that was inserted and not posted.
    pub(crate) fn withdraw(&mut self, wr_id: u64) -> Option<Slot> {
        match WrId::decode(wr_id)? {
            WrId::Receive { index, generation } => self.remove(index, generation),
            WrId::Send { .. } => None,
        }
    }

    /// The slot that was posted with this `wr_id`, for a device that is software.
    pub(crate) fn slot_mut(&mut self, wr_id: u64) -> Option<&mut Slot> {
        let Some(WrId::Receive { index, generation }) = WrId::decode(wr_id) else { return None };
        let entry = self.entries.get_mut(index as usize).filter(|entry| entry.generation == generation)?;
        entry.slot.as_mut()
    }

    /// Leaks all slots, because a device may still write to them.
    pub(crate) fn leak(&mut self) {
        for entry in &mut self.entries {
            std::mem::forget(entry.slot.take());
        }
    }

    fn remove(&mut self, index: u32, generation: u64) -> Option<Slot> {
        let entry = self.entries.get_mut(index as usize).filter(|entry| entry.generation == generation)?;
        let slot = entry.slot.take()?;
        self.vacant.push(index);
        Some(slot)
    }
}

/// These tables are valid after a panic of their holder: no operation on them stops half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
