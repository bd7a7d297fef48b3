//! A simulated device: several machines in one process, joined by a simulated fabric. Safe code, no clock, no thread.
//!
//! For tests of what stands on [`crate::device`]. It keeps to what verbs promise and, where they promise nothing, does what
//! hurts most:
//!
//! - Nothing happens at once. Work runs when somebody polls or arms, or when somebody sleeps on an armed queue, and then in
//!   an order across queue pairs that the seed decides.
//! - Completions of a queue pair that are not polled when it is destroyed vanish. The buffers of receives that had
//!   completed before are posted again. Those that complete at the last moment stay with the queue for good. This can
//!   happen on a queue pair that was not set to ERR. Its number is given to the next one.
//! - A queue pair in ERR flushes its sends; of a shared receive queue it flushes nothing.
//! - A completion queue that overflows is lost, with everything that uses it.
//! - A posted receive slot is overwritten at once, and so is what a READ will write.
//! - A READ fails both ends if its key is not exactly that of a window which is bound now, on the queue pair it is asked of,
//!   or its range not within what that exposes: when it arrives, and again when its answer does. Its bytes are copied then.
//! - A queue pair with bound windows is not destroyed; it would hang a real device.
//!
//! Time does not pass: what waits for a receive, a lost packet or an acknowledgement waits until it comes, or until
//! [`Fabric::expire`]. A peer's queue pair that is gone is noticed at once.

mod fabric;
mod machine;
mod queues;
mod steps;
mod windows;
mod wire;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric::State;
pub use machine::SimHost;
pub use wire::Crossing;

use crate::device::{LocalPath, WcStatus};

/// The network that joins simulated machines.
#[derive(Debug)]
pub struct Fabric {
    state: Mutex<State>,
}

impl Fabric {
    /// A fabric without machines. Equal seeds and equal calls give equal completions.
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::new(seed)) })
    }

    /// Adds a machine with one device, `sim0`, whose only port has this address.
    pub fn host(self: &Arc<Self>, address: IpAddr) -> SimHost {
        SimHost::new(Arc::clone(self), address)
    }

    /// Loses all packets from now on, or none any more. The senders' devices repeat lost packets.
    pub fn set_traffic(&self, flows: bool) {
        self.with(|state| state.traffic = flows);
    }

    /// Delays everything until the one it goes to asks for an event: it comes after the last poll and before the arming, the
    /// moment at which those lose it who sleep without looking once more.
    pub fn set_spite(&self, spiteful: bool) {
        self.with(|state| state.spiteful = spiteful);
    }

    /// Loses acknowledgements only: messages arrive, and their senders don't learn it.
    pub fn set_acknowledgements(&self, flow: bool) {
        self.with(|state| state.acknowledgements = flow);
    }

    /// Holds back what READs ask for from now on, or no longer. Meanwhile [`expire`](Self::expire) lets them fail.
    pub fn set_reads(&self, flow: bool) {
        self.with(|state| state.reads = flow);
    }

    /// Sets whether later SENDs and WRITEs carry immediate data, as those of a peer that breaks the rules may.
    pub fn set_immediate_data(&self, carry: bool) {
        self.with(|state| state.immediate_data = carry);
    }

    /// Lets the next READ fail that arrives at its peer.
    pub fn fail_read(&self, status: WcStatus) {
        self.with(|state| state.read_failure = Some(status));
    }

    /// Puts somebody on the network who sees all that crosses it, with the queue pair that it goes to, and may change it.
    pub fn tap(&self, observer: impl FnMut(Crossing, u32, &mut Vec<u8>) + Send + 'static) {
        self.with(|state| state.wire.tap(Box::new(observer)));
    }

    /// Swaps the first two messages that wait for a queue pair. Returns false if fewer wait.
    pub fn swap_messages(&self, to: u32) -> bool {
        self.with(|state| state.swap_messages(to))
    }

    /// How many windows there are on all machines, and how many of them are bound.
    pub fn windows(&self) -> (usize, usize) {
        let state = self.lock();
        (state.windows.len(), state.windows.values().filter(|window| window.grant.is_some()).count())
    }

    /// Lets as much time pass as it takes for every send that waits now to run out of retries.
    pub fn expire(&self) {
        self.with(State::expire);
    }

    /// Lets a queue pair fail, as a device does that has lost its state. False if there is none of this number.
    pub fn kill_qp(&self, qp_num: u32) -> bool {
        self.with(|state| state.kill(qp_num, WcStatus::FATAL_ERR))
    }

    /// The numbers of the queue pairs that there are, on all machines.
    pub fn queue_pairs(&self) -> Vec<u32> {
        self.lock().qps.keys().copied().collect()
    }

    /// The paths of those of them that have been connected, in the order in which they were made.
    pub fn paths(&self) -> Vec<LocalPath> {
        self.lock().qps.values().filter_map(|qp| qp.local).collect()
    }

    /// How many completion events are asked for, on all machines: how many wait that do not poll.
    pub fn queues_armed(&self) -> usize {
        self.lock().shards.values().flat_map(|shard| &shard.cqs).filter(|cq| cq.armed.is_some()).count()
    }

    /// Runs `f`, and after it whatever it made possible for those who sleep.
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = f(&mut state);
        if state.somebody_sleeps() {
            state.run(None);
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
