//! An endpoint's registered memory: receives, what replaces them, and sends; and who was promised how many receives.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::config::RdmaConfig;
use crate::device::{Device, PostError, Queues, Slab, SlabLayout, Slot, Unavailable};

/// Bytes of a receive, header included; also of a send that does not fit into its work request.
pub(crate) const SLOT: usize = 8192;

/// Receives of each peer beside its window: one each for a CREDIT, PING, PONG and CLOSE.
pub(crate) const CONTROL_RECEIVES: u32 = 4;

/// The least window a peer is admitted with.
const MIN_WINDOW: u32 = 4;

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
    receives: Pool,
    sends: Pool,
    ledger: Mutex<Ledger>,
    /// The receives of a step for whose sends there was no memory: registered for good, so kept for the next try.
    half: Mutex<Option<Arc<Slab>>>,
}

/// Free slots of one kind.
#[derive(Debug, Default)]
pub(crate) struct Pool(RwLock<Vec<Arc<Slab>>>);

impl Pool {
    pub(crate) fn take(&self) -> Option<Slot> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().find_map(|slab| slab.take())
    }

    fn add(&self, slab: Arc<Slab>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(slab);
    }
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
pub(crate) struct Promise {
    memory: Arc<Memory>,
    window: u32,
}

impl Memory {
    /// How many receives the shared receive queue may have to hold.
    pub(super) fn max_receives(config: &RdmaConfig) -> u32 {
        Self::max_steps(config) * POSTED
    }

    fn max_steps(config: &RdmaConfig) -> u32 {
        u32::try_from(config.memory / STEP_BYTES).unwrap_or(u32::MAX).clamp(1, 1024)
    }

    /// No memory yet, and room for as many receives as `queue` holds.
    pub(super) fn new(config: &RdmaConfig, queue: u32) -> Arc<Self> {
        let max_steps = Self::max_steps(config).min(queue / POSTED);
        let ledger = Mutex::new(Ledger { steps: 0, max_steps, promised: 0 });
        Arc::new(Self { receives: Pool::default(), sends: Pool::default(), ledger, half: Mutex::default() })
    }

    /// What replaces a receive whose content stays in its slot.
    pub(crate) fn receives(&self) -> &Pool {
        &self.receives
    }

    /// What sends are encoded into.
    pub(crate) fn sends(&self) -> &Pool {
        &self.sends
    }

    /// Promises a peer up to `want` receives, or fewer when they run short, after getting more memory if that helps.
    /// Blocks. `Ok(None)`: there are none left, and there may be no more memory.
    pub(super) fn promise(
        self: &Arc<Self>,
        device: &dyn Device,
        queues: &dyn Queues,
        want: u32,
    ) -> Result<Option<Promise>, Unavailable> {
        let want = want.max(MIN_WINDOW);
        let mut refused = None;
        while self.ledger().is_short(want) && self.ledger().may_grow() {
            if let Err(unavailable) = self.grow(device, queues) {
                // Less than wanted may still be enough.
                refused = Some(unavailable);
                break;
            }
        }
        match (self.ledger().promise(want), refused) {
            (Some(window), _) => Ok(Some(Promise { memory: Arc::clone(self), window })),
            (None, Some(refused)) => Err(refused),
            (None, None) => Ok(None),
        }
    }

    fn grow(&self, device: &dyn Device, queues: &dyn Queues) -> Result<(), Unavailable> {
        let mut half = self.half.lock().unwrap_or_else(PoisonError::into_inner);
        let receives = match half.take() {
            Some(receives) => receives,
            None => device.add_slab(SlabLayout { slot_size: SLOT, slots: RECEIVE_SLOTS })?,
        };
        let sends = match device.add_slab(SlabLayout { slot_size: SLOT, slots: SEND_SLOTS }) {
            Ok(sends) => sends,
            Err(unavailable) => {
                *half = Some(receives);
                return Err(unavailable);
            }
        };
        let mut slots: Vec<Slot> = (0..POSTED).map_while(|_| receives.take()).collect();
        while !slots.is_empty() {
            match queues.post_receives(&mut slots) {
                // The queue is as large as the ledger may grow, so this is not for lack of room.
                Ok(0) => break,
                Ok(_) => {}
                Err(PostError::Device(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        self.receives.add(receives);
        self.sends.add(sends);
        self.ledger().steps += 1;
        Ok(())
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    fn free(&self) -> u32 {
        (self.steps * PROMISED).saturating_sub(self.promised)
    }

    /// Whether a promise of `want` would take more than half of what is left.
    fn is_short(&self, want: u32) -> bool {
        self.free() < 2 * (want + CONTROL_RECEIVES)
    }

    fn may_grow(&self) -> bool {
        self.steps < self.max_steps
    }

    /// Promises all that is wanted, or, when it is short, half of what is left, so that the next peer gets some too.
    fn promise(&mut self, want: u32) -> Option<u32> {
        let most = if self.is_short(want) { self.free() / 2 } else { want + CONTROL_RECEIVES };
        let all = most.clamp(MIN_WINDOW + CONTROL_RECEIVES, want + CONTROL_RECEIVES);
        if all > self.free() {
            return None;
        }
        self.promised += all;
        Some(all - CONTROL_RECEIVES)
    }
}

impl Promise {
    /// Receives that the peer may use for anything.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.memory.ledger().promised -= self.window + CONTROL_RECEIVES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Host, QueueSize};
    use crate::sim::{Fabric, SimHost};

    struct Bench {
        host: SimHost,
        device: Arc<dyn Device>,
        queues: Arc<dyn Queues>,
        memory: Arc<Memory>,
    }

    impl Bench {
        fn new(steps: u64) -> Self {
            let host = Fabric::new(1).host([10, 0, 0, 1].into());
            let config = RdmaConfig { memory: steps * STEP_BYTES, ..RdmaConfig::default() };
            let device = host.open(&host.devices().unwrap()[0], &config).unwrap();
            let receives = Memory::max_receives(&config);
            let queues = device.create_queues(QueueSize { receives, sends: 64 }).unwrap();
            Self { host, device, queues, memory: Memory::new(&config, receives) }
        }

        fn promise(&self) -> Result<Option<Promise>, Unavailable> {
            self.memory.promise(&*self.device, &*self.queues, 64)
        }

        /// Promises until there are none left.
        fn promises(&self) -> Vec<Promise> {
            std::iter::from_fn(|| self.promise().unwrap()).collect()
        }

        fn check(&self, promises: &[Promise]) {
            let sum: u32 = promises.iter().map(|p| p.window + CONTROL_RECEIVES).sum();
            assert!(sum * 100 <= self.queues.receives_posted() as u32 * 95, "{sum} promised");
        }
    }

    #[test]
    fn memory_grows_with_peers_and_windows_shrink_when_it_may_not() {
        let bench = Bench::new(3);
        let promises = bench.promises();
        bench.check(&promises);
        assert_eq!(bench.queues.receives_posted(), 3 * POSTED as usize);
        let windows: Vec<_> = promises.iter().map(Promise::window).collect();
        assert!(windows.starts_with(&[64; 6]), "{windows:?}");
        assert!(windows.is_sorted_by(|a, b| a >= b) && windows.ends_with(&[MIN_WINDOW]), "{windows:?}");
    }

    #[test]
    fn promise_is_given_back() {
        let bench = Bench::new(1);
        let mut promises = bench.promises();
        let last = promises.pop().unwrap().window();
        let again = bench.promise().unwrap().unwrap();
        assert_eq!(again.window(), last);
        drop((again, promises));
        assert_eq!(bench.promise().unwrap().unwrap().window(), 64);
    }

    #[test]
    fn memory_limit_shrinks_windows_before_it_refuses() {
        let bench = Bench::new(100);
        bench.host.limit_memory(Some(2 * STEP_BYTES));
        let mut promises = Vec::new();
        let reason = loop {
            match bench.promise() {
                Ok(promise) => promises.extend(promise),
                Err(reason) => break reason,
            }
        };
        assert!(matches!(reason, Unavailable::Memlock(_)), "{reason}");
        assert!(promises.len() > 6, "{}", promises.len());
        bench.check(&promises);
    }

    #[test]
    fn step_that_failed_half_way_goes_on_from_there() {
        let bench = Bench::new(1);
        bench.host.limit_memory(Some(STEP_BYTES - 1));
        for _ in 0..10 {
            assert!(matches!(bench.promise(), Err(Unavailable::Memlock(_))));
        }
        bench.host.limit_memory(Some(STEP_BYTES));
        assert!(bench.promise().unwrap().is_some());
    }
}
