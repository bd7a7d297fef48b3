//! Callers that look for their own answers while they wait, and so need not be woken by the driver, perhaps from another
//! thread.
//!
//! A helper takes what the driver would have taken a moment later, if the driver has not the intake just then. It owes
//! nobody anything: the driver looks, arms and sleeps as if there were no helpers, and is woken for what they leave to it.
//! So nothing hangs on a caller that helps and is never polled again.

use std::sync::TryLockError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Shard;

/// Completions that a helper takes at once. If there are more, their order and their count are the driver's business.
const BATCH: usize = 16;

/// How long a helper looks before other tasks get their turn.
const LOOK: Duration = Duration::from_micros(5);

/// What helpers and the driver tell each other.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    /// For how many microseconds it pays to look.
    window: AtomicU32,
    /// Counts the times when something was found.
    found: AtomicU32,
    /// There is one. Only for the better use of time: one that is forgotten keeps others from helping, and nothing else.
    busy: AtomicBool,
}

impl Helpers {
    pub(super) fn set_window(&self, window: Duration) {
        self.window.store(window.as_micros() as u32, Ordering::Relaxed);
    }

    pub(super) fn found(&self) -> u32 {
        self.found.load(Ordering::Relaxed)
    }
}

impl Shard {
    /// For how long a caller that begins to wait should look for its answer, if it should.
    pub(crate) fn begin_help(&self) -> Option<Duration> {
        let window = self.helpers.window.load(Ordering::Relaxed);
        let begins = window > 0 && !self.helpers.busy.swap(true, Ordering::Relaxed);
        begins.then(|| Duration::from_micros(window.into()))
    }

    pub(crate) fn end_help(&self) {
        self.helpers.busy.store(false, Ordering::Relaxed);
    }

    /// Looks for answers and delivers them. Says whether there were any.
    pub(crate) fn help(&self) -> bool {
        let begin = Instant::now();
        loop {
            match self.look() {
                Looked::Found => return true,
                Looked::NotMine => return false,
                Looked::Nothing if begin.elapsed() >= LOOK => return false,
                Looked::Nothing => super::relax(),
            }
        }
    }

    fn look(&self) -> Looked {
        let mut intake = match self.intake.try_lock() {
            Ok(intake) => intake,
            // The driver, which may have called the handler that this is, or another helper.
            Err(TryLockError::WouldBlock) => return Looked::NotMine,
            // The driver has panicked, and is about to say so to all links.
            Err(TryLockError::Poisoned(_)) => return Looked::NotMine,
        };
        if intake.waiting() > 0 {
            // It has the driver's attention already.
            return Looked::NotMine;
        }
        let polled = match intake.poll(self, BATCH) {
            Ok(0) => return Looked::Nothing,
            Ok(polled) => polled,
            Err(_) => 0,
        };
        let mut found = false;
        while polled < BATCH && intake.next_is_answer() {
            let Some((link, end)) = intake.accept() else { break };
            if let Some(end) = end {
                self.mailbox.failed(link.number(), end);
            }
            found = true;
        }
        intake.end_batch();
        let is_done = polled > 0 && intake.waiting() == 0;
        drop(intake);
        if found {
            self.helpers.found.fetch_add(1, Ordering::Relaxed);
        }
        if !is_done {
            // After the unlocking, so that the driver finds what is left, or the device's error.
            self.mailbox.wake();
        }
        if found { Looked::Found } else { Looked::NotMine }
    }
}

enum Looked {
    /// Answers, which were delivered.
    Found,
    Nothing,
    /// The driver is at it, or is woken for it.
    NotMine,
}
