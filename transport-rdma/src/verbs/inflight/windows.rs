//! A queue pair's memory windows: which memory each lets the peer use, and until when.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lock;
use crate::device::{Exposure, RemoteAccess};
use crate::dma::Exposed;

/// The windows of one queue pair. Whatever a window may let the peer use is kept here until the device has said that the
/// invalidation is done, or the window is gone.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    windows: Vec<WindowState>,
    /// Taken at the front and put back at the end, so that a key, which differs from the one before in eight bits only,
    /// comes again as late as possible.
    free: VecDeque<usize>,
}

#[derive(Debug)]
struct WindowState {
    /// The key of the current exposure, or of the next.
    rkey: u32,
    generation: u64,
    stage: Stage,
    exposed: Option<Exposed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    /// For an exposure that was not bound yet.
    Taken,
    /// The bind was posted.
    Bound,
    /// The invalidation was posted.
    Ending,
}

/// The next step of posting a request about a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Post,
    /// The exposure is over, or is now, without a request.
    Skip,
}

impl Windows {
    /// Adds a window that the device has made, with its first key.
    pub(crate) fn add(&self, rkey: u32) {
        let mut table = lock(&self.0);
        let number = table.windows.len();
        let rkey = next(rkey);
        table.windows.push(WindowState { rkey, generation: 0, stage: Stage::Free, exposed: None });
        table.free.push_back(number);
    }

    /// Takes a free window for this memory, of which there is one byte at least.
    pub(crate) fn take(&self, exposed: Exposed, access: RemoteAccess) -> Option<Exposure> {
        static GENERATION: AtomicU64 = AtomicU64::new(1);
        let mut table = lock(&self.0);
        let number = table.free.pop_front()?;
        let window = table.windows.get_mut(number)?;
        window.stage = Stage::Taken;
        let range = exposed.range();
        window.exposed = Some(exposed);
        // A number of the whole process, so that an exposure of another queue pair is recognised, too.
        window.generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        Some(Exposure {
            addr: range.start as u64,
            len: range.len(),
            rkey: window.rkey,
            window: number,
            generation: window.generation,
            access,
        })
    }

    /// A bind is about to be posted.
    pub(crate) fn bind(&self, exposure: &Exposure) -> Step {
        lock(&self.0).advance(exposure, Stage::Taken, Stage::Bound)
    }

    /// An invalidation is about to be posted. A window that was not bound needs none, and is free at once.
    pub(crate) fn invalidate(&self, exposure: &Exposure) -> Step {
        let mut table = lock(&self.0);
        if table.advance(exposure, Stage::Taken, Stage::Free) == Step::Post {
            table.free(exposure.window);
            return Step::Skip;
        }
        table.advance(exposure, Stage::Bound, Stage::Ending)
    }

    /// The bind was not posted.
    pub(crate) fn withdraw_bind(&self, exposure: &Exposure) {
        lock(&self.0).advance(exposure, Stage::Bound, Stage::Taken);
    }

    /// The invalidation was not posted.
    pub(crate) fn withdraw_invalidate(&self, exposure: &Exposure) {
        lock(&self.0).advance(exposure, Stage::Ending, Stage::Bound);
    }

    /// The device has invalidated the window: its bytes are nobody else's any more.
    pub(crate) fn release(&self, exposure: &Exposure) {
        let mut table = lock(&self.0);
        if table.advance(exposure, Stage::Ending, Stage::Free) == Step::Post {
            let window = &mut table.windows[exposure.window];
            window.rkey = next(window.rkey);
            table.free(exposure.window);
        }
    }

    /// Returns the memory of an exposure that is not over.
    pub(crate) fn exposed(&self, exposure: &Exposure) -> Option<Exposed> {
        let table = lock(&self.0);
        let window = table.windows.get(exposure.window);
        window.filter(|window| window.generation == exposure.generation)?.exposed.clone()
    }

    /// How many may let the peer use something.
    pub(crate) fn bound(&self) -> usize {
        let table = lock(&self.0);
        table.windows.iter().filter(|window| matches!(window.stage, Stage::Bound | Stage::Ending)).count()
    }

    /// Leaks all memory, because the peer may still use it.
    pub(super) fn leak(&self) {
        std::mem::forget(std::mem::take(&mut *lock(&self.0)));
    }
}

impl Table {
    /// Moves an exposure that is not over from one stage to another.
    fn advance(&mut self, exposure: &Exposure, from: Stage, to: Stage) -> Step {
        let window = self.windows.get_mut(exposure.window);
        match window.filter(|window| window.generation == exposure.generation && window.stage == from) {
            Some(window) => {
                window.stage = to;
                Step::Post
            }
            None => Step::Skip,
        }
    }

    fn free(&mut self, number: usize) {
        self.windows[number].exposed = None;
        self.free.push_back(number);
    }
}

/// The key after this one: the upper 24 bits name the window, the lower eight change with each bind.
fn next(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}
