//! Callers that look for their own answers while they wait, and so need not be woken by the driver, perhaps from another
//! thread.
//!
//! A helper takes what the driver would have taken a moment later, if the driver has not the intake just then. It owes
//! nobody anything: the driver looks, arms and sleeps as if there were no helpers, so nothing hangs on a caller that
//! helps and is never polled again. It need not be woken for what a helper has polled and leaves to it, either. A
//! completion from before it armed is in the intake at its second look, whoever has polled it. A later one makes an
//! event.
//!
//! Completions of sends follow the same rule. They lie in `Shard::done` until they are handled. A helper handles only those of READs,
//! WRITEs and atomic operations on regions, because these run no handler.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall_core::transport::BusyPoll;

use super::Shard;
use super::intake::Intake;
use super::wait::LOOK;
use crate::device::{Completion, Cq};
use crate::link::LinkCore;

/// Completions that a helper takes at once. If there are more, their order and their count are the driver's business.
const BATCH: usize = 16;

/// How often callers may look between two turns of the driver. Each look follows an operation of the device, which takes microseconds.
const LOOKS: u32 = 16;

/// The longest that a caller looks.
const LONGEST: Duration = Duration::from_millis(1);

/// State that callers that poll and the driver share.
#[derive(Debug)]
pub(super) struct BusyPolling {
    /// For how many microseconds it pays to poll.
    window: AtomicU32,
    /// Counts the times when something was found.
    found: AtomicU32,
    /// How often callers have looked since the driver's last turn.
    looks: AtomicU32,
    turn: Turn,
}

/// The turn to poll: one caller of an endpoint has it at a time, for the better use of time. It ends by itself, so that a
/// caller may stop without saying so.
#[derive(Debug)]
struct Turn {
    began: Instant,
    /// In microseconds from then.
    taken_until: AtomicU64,
}

impl Turn {
    /// Takes the turn, if nobody has it.
    fn take(&self, now: Duration, window: Duration) -> bool {
        let (now, end) = (now.as_micros() as u64, (now + window).as_micros() as u64);
        let until = self.taken_until.load(Ordering::Relaxed);
        until <= now
            && self.taken_until.compare_exchange(until, end, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn end(&self) {
        self.taken_until.store(0, Ordering::Relaxed);
    }
}

impl Default for BusyPolling {
    fn default() -> Self {
        let turn = Turn { began: Instant::now(), taken_until: AtomicU64::new(0) };
        let [window, found, looks] = Default::default();
        Self { window, found, looks, turn }
    }
}

impl BusyPolling {
    pub(super) fn set_window(&self, window: Duration) {
        self.window.store(window.min(LONGEST).as_micros() as u32, Ordering::Relaxed);
    }

    fn window(&self) -> Duration {
        Duration::from_micros(self.window.load(Ordering::Relaxed).into())
    }

    /// Notes that the driver has a turn, so that callers may look again.
    pub(super) fn driver_turns(&self) {
        self.looks.store(0, Ordering::Relaxed);
    }

    pub(super) fn found(&self) -> u32 {
        self.found.load(Ordering::Relaxed)
    }
}

impl Shard {
    /// Polls for a caller that has done so for `waited`, in its turn; the first time only takes the turn. See
    /// [`Link::busy_poll`](farcall_core::transport::Link::busy_poll).
    pub(crate) fn busy_poll(&self, waited: Duration) -> BusyPoll {
        let BusyPolling { turn, .. } = &self.polling;
        let window = self.polling.window();
        if waited.is_zero() {
            let begins = !window.is_zero() && turn.take(turn.began.elapsed(), window);
            return if begins { BusyPoll::Again } else { BusyPoll::Sleep };
        }
        let found = self.poll_for_answers();
        if !found && waited < window {
            return BusyPoll::Again;
        }
        turn.end();
        if found { BusyPoll::Found } else { BusyPoll::Sleep }
    }

    /// Looks for answers and delivers them. Returns whether there were any.
    pub(super) fn poll_for_answers(&self) -> bool {
        let end = Instant::now() + LOOK;
        loop {
            // Taken: by the driver, which may have called the handler that this is. Poisoned: the driver has panicked, and
            // is about to say so to all links.
            let Ok(mut intake) = self.intake.try_lock() else { return false };
            match self.take_answers(&mut intake) {
                Looked::Found => {
                    self.polling.found.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Looked::NotMine => return false,
                Looked::Nothing => {}
            }
            drop(intake);
            if self.take_moved() {
                self.polling.found.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            super::relax();
        }
    }

    fn take_answers(&self, intake: &mut Intake) -> Looked {
        if intake.is_ready() {
            return Looked::NotMine;
        }
        let polled = match intake.poll(self, BATCH) {
            Ok(0) => return Looked::Nothing,
            Ok(polled) => polled,
            // The driver will meet the same error.
            Err(_) => return Looked::NotMine,
        };
        let mut looked = Looked::NotMine;
        while polled < BATCH
            && let Some(link) = intake.next_with_answers()
        {
            if let Some(end) = intake.deliver(&link, BATCH).over {
                self.resources.mailbox.failed(link.number(), end);
            }
            looked = Looked::Found;
        }
        looked
    }

    /// Looks once, on behalf of a caller that has just begun an operation. Returns false without looking if callers have looked 16 times
    /// since the driver's last turn: this one waits for the next turn, so that callers who never wait do not keep the driver from the
    /// thread.
    pub(crate) fn look(&self) -> bool {
        let looks = self.polling.looks.fetch_add(1, Ordering::Relaxed) < LOOKS;
        if looks {
            self.take_moved();
        }
        looks
    }

    /// Looks once for what the device has done with regions of peers, and tells those who wait for it. Returns whether there was any. It
    /// ends at the first completion of another kind: that one and those behind it are the driver's.
    pub(super) fn take_moved(&self) -> bool {
        if !self.queues.awaits_sends() {
            return false;
        }
        let Ok(mut done) = self.done.try_lock() else { return false };
        // The driver will meet the same error.
        if !done.is_empty() || self.queues.poll(Cq::Send, BATCH, &mut done).is_err() {
            return false;
        }
        let mut taken = 0;
        while let Some(Completion::Moved { qp_num, tag, .. }) = done.get(taken)
            && LinkCore::is_granted(*tag)
        {
            taken += 1;
            if self.link(*qp_num).is_some_and(|link| link.on_moved()) {
                // The driver sees to what waits for room in the queue.
                self.resources.mailbox.changed(*qp_num);
            }
        }
        done.drain(..taken);
        taken > 0
    }
}

enum Looked {
    /// Answers, which were delivered.
    Found,
    Nothing,
    /// The completions are for the driver.
    NotMine,
}

#[cfg(all(test, not(farcall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_caller_has_the_turn_until_it_ends_it_or_its_time_is_over() {
        let turn = BusyPolling::default().turn;
        let us = Duration::from_micros;
        assert!(turn.take(us(10), us(50)) && !turn.take(us(59), us(50)));
        assert!(turn.take(us(60), us(50)));
        turn.end();
        assert!(turn.take(us(61), us(50)));
    }
}

/// Every interleaving of a device, the driver and helpers: `RUSTFLAGS="--cfg farcall_loom" cargo test -p farcall-rdma --lib
/// loom`.
#[cfg(all(test, farcall_loom))]
mod loom_tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::super::wait::arm_and_look;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Frame {
        Answer,
        Request,
    }
    use Frame::{Answer, Request};

    /// A model of the endpoint's parts.
    #[derive(Default)]
    struct World {
        /// The completion queue, and whether the next completion makes an event.
        device: Mutex<(VecDeque<Frame>, bool)>,
        /// Completions that were polled and not delivered, and the counts of requests and answers that were.
        intake: Mutex<Intake>,
        /// There was an event.
        woken: Mutex<bool>,
        waking: Condvar,
    }

    #[derive(Default)]
    struct Intake {
        arrivals: VecDeque<Frame>,
        delivered: Vec<Frame>,
    }

    impl World {
        fn complete(&self, frame: Frame) {
            let mut device = self.device.lock().unwrap();
            device.0.push_back(frame);
            let event = std::mem::take(&mut device.1);
            drop(device);
            if event {
                *self.woken.lock().unwrap() = true;
                self.waking.notify_one();
            }
        }

        /// The driver's turn: how much there was to do.
        fn turn(&self) -> usize {
            let mut intake = self.intake.lock().unwrap();
            intake.arrivals.append(&mut self.device.lock().unwrap().0);
            let Intake { arrivals, delivered } = &mut *intake;
            let count = arrivals.len();
            delivered.extend(arrivals.drain(..));
            count
        }

        fn has_delivered(&self, frame: Frame) -> bool {
            self.intake.lock().unwrap().delivered.contains(&frame)
        }

        /// Sleeps without end if it is not woken: then the model fails.
        fn drive(&self) {
            while !self.has_delivered(Request) {
                let arm = |_: &mut ()| -> Result<(), Infallible> {
                    self.device.lock().unwrap().1 = true;
                    Ok(())
                };
                let Ok(busy) = arm_and_look(&mut (), arm, |_| Ok(self.turn() > 0));
                if busy {
                    continue;
                }
                let mut woken = self.woken.lock().unwrap();
                while !std::mem::take(&mut *woken) {
                    woken = self.waking.wait(woken).unwrap();
                }
            }
        }

        fn help(&self) {
            let Ok(mut intake) = self.intake.try_lock() else { return };
            let Intake { arrivals, delivered } = &mut *intake;
            if arrivals.is_empty() {
                arrivals.append(&mut self.device.lock().unwrap().0);
                while arrivals.front() == Some(&Answer) {
                    delivered.extend(arrivals.pop_front());
                }
            }
        }
    }

    /// A driver that has to deliver a request, beside helpers.
    fn check(frames: &'static [Frame], helpers: usize, looks: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let world = Arc::new(World::default());
            let mut threads = Vec::new();
            for _ in 0..helpers {
                let world = Arc::clone(&world);
                threads.push(thread::spawn(move || {
                    for _ in 0..looks {
                        world.help();
                    }
                }));
            }
            let driven = Arc::clone(&world);
            threads.push(thread::spawn(move || driven.drive()));
            frames.iter().for_each(|&frame| world.complete(frame));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let intake = world.intake.lock().unwrap();
            assert_eq!(intake.delivered[..], frames[..intake.delivered.len()], "in order, each once");
        });
    }

    #[test]
    fn the_driver_never_sleeps_through_a_completion() {
        check(&[Request], 0, 0);
        check(&[Answer, Request], 0, 0);
    }

    #[test]
    fn nor_through_what_helpers_leave_to_it() {
        check(&[Request], 1, 1);
        check(&[Answer, Request], 1, 2);
        check(&[Request], 2, 1);
    }
}
