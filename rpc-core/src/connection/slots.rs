//! Where the calls of this side wait: each has a slot, and one of those who may end it gets what is in it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::PoisonError;

#[cfg(not(all(test, farcall_loom)))]
use std::sync::{Mutex, MutexGuard};

#[cfg(all(test, farcall_loom))]
use loom::sync::{Mutex, MutexGuard};

/// Call ids are counted up: their low bits are spread well enough.
#[derive(Default)]
pub(super) struct Counted(u64);

impl Hasher for Counted {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `write_u64` is used; this keeps the contract for any other key.
        self.0 = crate::service::stable_hash(bytes);
    }

    fn write_u64(&mut self, n: u64) {
        // hashbrown takes its seven control bits from the top.
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(super) type ByCall<T> = HashMap<u64, T, BuildHasherDefault<Counted>>;

/// The slots, with a `T` in each; calls are numbered from 1. After a reason `R` was given no more are opened.
#[derive(Debug)]
pub(super) struct Slots<T, R>(Mutex<Table<T, R>>);

#[derive(Debug)]
struct Table<T, R> {
    waiting: ByCall<T>,
    last: u64,
    answered: bool,
    refusing: Option<R>,
}

/// A call of this number was never made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NeverMade;

impl<T, R: Clone> Slots<T, R> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Table { waiting: ByCall::default(), last: 0, answered: false, refusing: None }))
    }

    /// Gives a call its number and a slot, and has `queue` queue its message: under the lock, so that whoever finds the
    /// call here finds its message, too, unless it has left.
    pub(super) fn open(&self, slot: T, queue: impl FnOnce(u64)) -> Result<u64, R> {
        let mut table = self.lock();
        if let Some(reason) = &table.refusing {
            return Err(reason.clone());
        }
        table.last += 1;
        let call = table.last;
        table.waiting.insert(call, slot);
        queue(call);
        Ok(call)
    }

    /// A call is answered. `None`: its caller waits no longer.
    pub(super) fn answer(&self, call: u64) -> Result<Option<T>, NeverMade> {
        let mut table = self.lock();
        if call > table.last {
            return Err(NeverMade);
        }
        table.answered = true;
        Ok(table.waiting.remove(&call))
    }

    /// A caller waits no longer. False: it need not be said to anybody, the call has ended.
    pub(super) fn forget(&self, call: u64) -> bool {
        self.lock().waiting.remove(&call).is_some()
    }

    /// Opens no more slots, for this reason unless there is one already.
    pub(super) fn refuse(&self, reason: R) {
        self.lock().refusing.get_or_insert(reason);
    }

    /// Empties the slots of these calls, and of all after `last`.
    pub(super) fn take(&self, calls: impl IntoIterator<Item = u64>, last: u64) -> Vec<T> {
        let mut table = self.lock();
        let later = table.waiting.keys().copied().filter(|call| *call > last);
        let calls: Vec<u64> = later.chain(calls).collect();
        calls.iter().filter_map(|call| table.waiting.remove(call)).collect()
    }

    /// Opens no more slots, for this reason, and empties all.
    pub(super) fn close(&self, reason: R) -> ByCall<T> {
        let mut table = self.lock();
        table.refusing = Some(reason);
        std::mem::take(&mut table.waiting)
    }

    /// Whether any call has been answered.
    pub(super) fn has_answered(&self) -> bool {
        self.lock().answered
    }

    /// Whether no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Table<T, R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every interleaving of a few threads: `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-core --lib loom`.
#[cfg(all(test, farcall_loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::Slots;

    /// The slots, and the queue of messages.
    struct World {
        slots: Slots<&'static str, &'static str>,
        queue: Mutex<Vec<u64>>,
    }

    impl World {
        fn call(&self) -> Result<u64, &'static str> {
            self.slots.open("slot", |call| self.queue.lock().unwrap().push(call))
        }
    }

    /// What an actor got of the call, if it was faster than the others.
    type Actor = fn(&World, u64) -> bool;

    /// The peer's answer.
    fn answer(world: &World, call: u64) -> bool {
        world.slots.answer(call).unwrap().is_some()
    }

    /// The caller has dropped the call, or its deadline has passed.
    fn forget(world: &World, call: u64) -> bool {
        world.slots.forget(call)
    }

    /// The connection's end.
    fn close(world: &World, _: u64) -> bool {
        !world.slots.close("closed").is_empty()
    }

    #[test]
    fn a_call_has_one_end() {
        loom::model(|| {
            let world = Arc::new(World { slots: Slots::new(), queue: Mutex::default() });
            let call = world.call().unwrap();
            let actors: [Actor; 3] = [answer, forget, close];
            let actors = actors.map(|act| {
                let world = Arc::clone(&world);
                thread::spawn(move || act(&world, call))
            });
            let ends = actors.into_iter().map(|actor| actor.join().unwrap());
            assert_eq!(ends.filter(|ended| *ended).count(), 1);
            assert!(world.slots.is_empty());
        });
    }

    #[test]
    fn a_call_made_while_the_connection_ends_is_refused_or_ended_with_its_message_there_to_be_taken_back() {
        loom::model(|| {
            let world = Arc::new(World { slots: Slots::new(), queue: Mutex::default() });
            let caller = {
                let world = Arc::clone(&world);
                thread::spawn(move || world.call())
            };
            let ended = world.slots.close("closed");
            let queued = world.queue.lock().unwrap().clone();
            match caller.join().unwrap() {
                Ok(call) => assert!(ended.contains_key(&call) && queued == [call]),
                Err(why) => assert!(ended.is_empty() && queued.is_empty() && why == "closed"),
            }
            assert!(world.slots.is_empty());
        });
    }
}
