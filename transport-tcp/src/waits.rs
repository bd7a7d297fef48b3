//! How a link waits for its peer: it looks for a moment before it sleeps, where that pays.
//!
//! To look is to ask the socket again and again, past the runtime, on the thread that has just sent: the link's task
//! when it has answered, or a caller when it has asked. It does not give way to other tasks meanwhile. A task that
//! wakes itself wakes another thread of its runtime as well, to see whether there is more to do; that thread takes the
//! runtime's place at the sockets, wakes for all that comes, and finds it gone. For the same reason who has found
//! something many times in a row sleeps once: then the runtime's threads change places.

use std::cell::Cell;
use std::sync::{LazyLock, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use farcall_core::transport::spin::SpinWindow;

use crate::config::Completion;

/// The longest look: all else that the thread has to do waits for it.
const LONGEST: Duration = Duration::from_micros(25);

/// The most that is read at once, in bytes.
const ROOM: usize = 16 * 1024;

/// So many frames that come together are more than one call. After a sleep one read brings what all of them have sent;
/// looking takes a read for each.
const TOGETHER: usize = 4;

/// Where what is looked for is read to. One link of the process looks at a time: it keeps a thread, and a CPU, from all else.
static LOOKER: Mutex<[u8; ROOM]> = Mutex::new([0; ROOM]);

/// Reading past the runtime is known not to confuse epoll(7). On one CPU the peer can do nothing while this side polls.
static CAN_LOOK: LazyLock<bool> = LazyLock::new(|| cfg!(target_os = "linux") && cpus() > 1);

/// Where a thread that only looks would keep the peer, or the kernel's network code, from running.
static GIVES_WAY: LazyLock<bool> = LazyLock::new(|| cpus() <= 2);

thread_local! {
    /// This thread delivers what a link has read: handlers run, and others of the batch wait behind them.
    static DELIVERS: Cell<bool> = const { Cell::new(false) };
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Whether links that are configured so look at all.
pub(crate) fn can_look(completion: Completion) -> bool {
    completion == Completion::Adaptive && *CAN_LOOK
}

/// Nobody looks on this thread as long as this is there.
pub(crate) struct Delivering(());

impl Delivering {
    pub(crate) fn begin() -> Self {
        DELIVERS.set(true);
        Self(())
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        DELIVERS.set(false);
    }
}

/// The waits of a link.
#[derive(Debug)]
pub(crate) struct Waits {
    window: SpinWindow,
    /// There has been nothing to do since then, and what was last came by itself.
    since: Option<Instant>,
    /// Callers wait here: it is they who look.
    has_callers: bool,
}

impl Waits {
    pub(crate) fn new(completion: Completion) -> Self {
        let window = if can_look(completion) { SpinWindow::conservative() } else { SpinWindow::none() };
        Self { window, since: None, has_callers: false }
    }

    /// Every wait begins with a look.
    #[cfg(test)]
    pub(crate) fn looking() -> Self {
        Self { window: SpinWindow::always(), since: None, has_callers: false }
    }

    /// So many frames have come, and were perhaps answered; there are no more. Whether to look for what comes next.
    pub(crate) fn answered(&mut self, frames: usize, answered: bool) -> bool {
        if frames == 0 || self.window.is_off() {
            return false;
        }
        let alone = answered && frames < TOGETHER && !self.has_callers;
        self.since = alone.then(Instant::now);
        alone && !self.window.get().is_zero()
    }

    /// A caller has asked something, and nothing else is asked. Whether to look for the answer.
    pub(crate) fn asked(&mut self) -> bool {
        self.has_callers = true;
        self.since = Some(Instant::now());
        !self.window.get().is_zero() && !DELIVERS.get()
    }

    /// Has `look` read again and again. False: nothing has come, or another link of the process looks.
    pub(crate) fn look<E>(&mut self, mut look: impl FnMut(&mut [u8]) -> Result<bool, E>) -> Result<bool, E> {
        let mut room = match LOOKER.try_lock() {
            Ok(room) => room,
            Err(TryLockError::Poisoned(room)) => room.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let (begin, window) = (Instant::now(), self.window.get().min(LONGEST));
        while !look(&mut room[..])? {
            if begin.elapsed() >= window {
                return Ok(false);
            }
            if *GIVES_WAY {
                thread::yield_now();
            }
        }
        if let Some(since) = self.since.take() {
            self.window.found(since.elapsed());
        }
        Ok(true)
    }

    /// Something has come that was slept for.
    pub(crate) fn slept(&mut self) {
        if let Some(since) = self.since.take() {
            self.window.slept(since.elapsed());
        }
    }
}
