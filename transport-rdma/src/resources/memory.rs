//! An endpoint's registered memory: receives, what replaces them, and sends; and who was promised how many receives.
//!
//! Every peer is promised a small window for as long as its link lives. One that uses all of it is lent more, as long as
//! others leave some; when a new peer finds none, those who were lent some are asked to give it back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use super::control::Control;
use super::shares::NoRoom;
use crate::config::RdmaConfig;
use crate::device::{Device, PostError, Queues, Slab, SlabLayout, Slot, Unavailable};

/// Bytes of a receive, header included; also of a send that does not fit into its work request.
pub(crate) const SLOT: usize = 8192;

/// The window that every peer has, whatever others do: enough to go on, if not to go fast.
pub(crate) const BASE_WINDOW: u32 = 4;

/// Receives of each peer beside its window: one each for a CREDIT, PING, PONG and CLOSE.
pub(crate) const CONTROL_RECEIVES: u32 = 4;

/// Receives of a peer that nobody else can have.
pub(crate) const BASE: u32 = BASE_WINDOW + CONTROL_RECEIVES;

/// A receive for the FORFEIT of a peer that was lent some: it comes beside the CREDIT for which there is one already.
const FORFEIT_RECEIVES: u32 = 1;

/// Memory grows in steps: a slab of receives, 2 MiB, and one of sends.
const RECEIVE_SLOTS: u32 = 256;
const SEND_SLOTS: u32 = 64;

/// How many of a step's receives are posted. The others replace those whose content is with a reader.
const POSTED: u32 = 192;

/// How many of those are promised: five in a hundred less, so that nobody depends on the last one.
const PROMISED: u32 = POSTED * 95 / 100;

const STEP_BYTES: u64 = (RECEIVE_SLOTS + SEND_SLOTS) as u64 * SLOT as u64;
const _: () = assert!(STEP_BYTES == RdmaConfig::LEAST_MEMORY, "the least that may be configured is one step");

/// Slabs and the promises that were made of them.
#[derive(Debug)]
pub(crate) struct Memory {
    device: Arc<dyn Device>,
    control: Control,
    /// Where receives are posted. The shard keeps them.
    queues: Weak<dyn Queues>,
    receives: Pool,
    sends: Pool,
    /// The most that a peer's window grows to.
    window: u32,
    ledger: Mutex<Ledger>,
    begun: Mutex<Begun>,
    /// The control thread was asked for another step, so that more can be lent.
    growing: AtomicBool,
    /// Told when somebody has given receives back.
    freed: Notify,
}

/// Free slots of one kind.
#[derive(Debug, Default)]
pub(crate) struct Pool(RwLock<Vec<Arc<Slab>>>);

impl Pool {
    pub(crate) fn take(&self) -> Option<Slot> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().find_map(|slab| slab.take())
    }

    fn add(&self, slab: Option<Arc<Slab>>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(slab);
    }
}

/// The part of a step that could not be finished, for the next try: registered memory stays registered.
#[derive(Debug, Default)]
struct Begun {
    receives: Option<Arc<Slab>>,
    sends: Option<Arc<Slab>>,
    /// To be posted yet.
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Ledger {
    /// Steps of memory that there are, and that there may be.
    steps: u32,
    max_steps: u32,
    promised: u32,
}

/// Receives that a peer was promised: its window and those for control frames. Given back when the link is gone.
#[derive(Debug)]
pub(crate) struct CreditLease {
    memory: Arc<Memory>,
    window: u32,
    /// How many it was asked to give back, and when. Nothing is lent to it meanwhile.
    asked: Option<(u32, Instant)>,
}

impl Memory {
    /// How many receives the shared receive queue may have to hold.
    pub(crate) fn max_receives(config: &RdmaConfig) -> u32 {
        Self::max_steps(config) * POSTED
    }

    fn max_steps(config: &RdmaConfig) -> u32 {
        u32::try_from(config.memory / STEP_BYTES).unwrap_or(u32::MAX).clamp(1, 1024)
    }

    /// No memory yet, and room for as many receives as `room`, which is how many the queues hold.
    pub(crate) fn new(
        config: &RdmaConfig,
        device: Arc<dyn Device>,
        control: Control,
        queues: &Arc<dyn Queues>,
        room: u32,
    ) -> Arc<Self> {
        let max_steps = Self::max_steps(config).min(room / POSTED);
        Arc::new(Self {
            device,
            control,
            queues: Arc::downgrade(queues),
            receives: Pool::default(),
            sends: Pool::default(),
            window: config.window.max(BASE_WINDOW),
            ledger: Mutex::new(Ledger { steps: 0, max_steps, promised: 0 }),
            begun: Mutex::default(),
            growing: AtomicBool::new(false),
            freed: Notify::new(),
        })
    }

    /// Returns the pool of slots that replace a receive whose content stays in its slot.
    pub(crate) fn receives(&self) -> &Pool {
        &self.receives
    }

    /// Returns the pool of slots that sends are encoded into.
    pub(crate) fn sends(&self) -> &Pool {
        &self.sends
    }

    /// Gets the first of it. Blocks. Where this is refused, nothing can be had, and it is better known before the first peer
    /// comes.
    pub(crate) fn begin(&self) -> Result<(), Unavailable> {
        self.grow(0)
    }

    /// Registers as much as the first peer needs, for who only wants to know whether that can be had. Blocks.
    pub(crate) fn try_out(device: &dyn Device) -> Result<(), Unavailable> {
        device.add_slab(SlabLayout { slot_size: SLOT, slots: RECEIVE_SLOTS })?;
        device.add_slab(SlabLayout { slot_size: SLOT, slots: SEND_SLOTS })?;
        Ok(())
    }

    /// Promises another peer its base, after getting more memory if that helps. Blocks. `Err`: there is none left, and there
    /// may be no more memory.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<CreditLease, NoRoom> {
        let mut refused = None;
        while self.ledger().is_short() && self.ledger().may_grow() {
            let steps = self.ledger().steps;
            if let Err(unavailable) = self.grow(steps) {
                // The memory that is there may be enough.
                refused = Some(unavailable);
                break;
            }
        }
        if self.ledger().take(BASE) {
            return Ok(CreditLease { memory: Arc::clone(self), window: BASE_WINDOW, asked: None });
        }
        Err(NoRoom::Receives(refused))
    }

    /// Resolves when somebody gives receives back after this call.
    pub(crate) fn freed(&self) -> impl Future<Output = ()> {
        self.freed.notified()
    }

    /// Another step, on the control thread, unless one is on its way.
    fn grow_soon(self: &Arc<Self>) {
        if self.ledger().may_grow() && !self.growing.swap(true, Ordering::AcqRel) {
            let memory = Arc::clone(self);
            self.control.spawn(move || {
                let steps = memory.ledger().steps;
                if let Err(unavailable) = memory.grow(steps) {
                    tracing::debug!(%unavailable, "no more memory for receives: windows stay as they are");
                }
                memory.growing.store(false, Ordering::Release);
            });
        }
    }

    /// Another step, if there are still so many.
    fn grow(&self, steps: u32) -> Result<(), Unavailable> {
        let Some(queues) = self.queues.upgrade() else { return Ok(()) };
        let device = &*self.device;
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at once more with the lock held: somebody else may just have done it.
        if self.ledger().steps != steps || !self.ledger().may_grow() {
            return Ok(());
        }
        let Begun { receives, sends, slots } = &mut *begun;
        if receives.is_none() {
            let slab = device.add_slab(SlabLayout { slot_size: SLOT, slots: RECEIVE_SLOTS })?;
            slots.extend((0..POSTED).map_while(|_| slab.take()));
            *receives = Some(slab);
        }
        if sends.is_none() {
            *sends = Some(device.add_slab(SlabLayout { slot_size: SLOT, slots: SEND_SLOTS })?);
        }
        while !slots.is_empty() {
            match queues.post_receives(slots) {
                // The queue is as large as the ledger may grow, so this is not for lack of room.
                Ok(0) => break,
                Ok(_) => {}
                Err(PostError::Device(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        slots.clear();
        self.receives.add(receives.take());
        self.sends.add(sends.take());
        self.ledger().steps += 1;
        Ok(())
    }

    /// How many receives are promised.
    #[cfg(test)]
    pub(crate) fn promised(&self) -> u32 {
        self.ledger().promised
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    fn free(&self) -> u32 {
        (self.steps * PROMISED).saturating_sub(self.promised)
    }

    /// Whether another peer would leave nothing for one more.
    fn is_short(&self) -> bool {
        self.free() < 2 * BASE
    }

    fn may_grow(&self) -> bool {
        self.steps < self.max_steps
    }

    /// Promises this many, if there are.
    fn take(&mut self, count: u32) -> bool {
        let there_are = count <= self.free();
        if there_are {
            self.promised += count;
        }
        there_are
    }
}

impl CreditLease {
    /// Receives that the peer may use for anything.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// How much of the window was lent.
    pub(crate) fn lent(&self) -> u32 {
        self.window - BASE_WINDOW
    }

    /// The receives behind a window, control frames included.
    fn receives(window: u32) -> u32 {
        window + CONTROL_RECEIVES + if window > BASE_WINDOW { FORFEIT_RECEIVES } else { 0 }
    }

    /// The peer uses its whole window: doubles it, or widens it by half of what is free, so that others get some too,
    /// and gets more memory for the next time if that is less. Returns by how much. Never blocks.
    pub(crate) fn lend(&mut self) -> u32 {
        let want = self.window.min(self.memory.window - self.window);
        if want == 0 || self.asked.is_some() {
            return 0;
        }
        let lent = {
            let mut ledger = self.memory.ledger();
            let beside = Self::receives(self.window + 1) - Self::receives(self.window) - 1;
            let lent = want.min((ledger.free() / 2).saturating_sub(beside));
            if lent > 0 && ledger.take(lent + beside) { lent } else { 0 }
        };
        self.window += lent;
        if lent < want {
            self.memory.grow_soon();
        }
        lent
    }

    /// Asks for what was lent, unless that was done before: how much is to be asked for.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<u32> {
        let count = self.lent();
        if count == 0 || self.asked.is_some() {
            return None;
        }
        self.asked = Some((count, now));
        Some(count)
    }

    /// When the peer was asked to give back and has not answered yet.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        self.asked.map(|(_, then)| then)
    }

    /// Whether the peer was asked for this many, or more.
    pub(crate) fn was_asked_for(&self, count: u32) -> bool {
        self.asked.is_some_and(|(asked, _)| count <= asked)
    }

    /// Takes back what the peer [was asked for](Self::was_asked_for) and answers with.
    pub(crate) fn give_back(&mut self, count: u32) {
        self.asked = None;
        let before = Self::receives(self.window);
        self.window = self.window.saturating_sub(count);
        self.memory.ledger().promised -= before - Self::receives(self.window);
        self.memory.freed.notify_waiters();
    }
}

impl Drop for CreditLease {
    fn drop(&mut self) {
        self.memory.ledger().promised -= Self::receives(self.window);
        self.memory.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
