//! What frames that are taken in together ask for: decided under one lock, done outside of it.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Connection;
use super::receive::Receiving;
use super::serve::Job;
use super::slots::NeverMade;
use crate::proto::inbox::Described;
use crate::proto::shorts::Shorts;
use crate::proto::wire::{CloseCode, Goaway, WireError};
use crate::status::Status;
use crate::sync::lock;
use crate::transport::{Link, Reason, Unavailable};

/// How many frames make a batch at most. What a thread keeps for batches is bounded by it, and so is how long answers that are
/// ready wait for others.
pub(super) const ENOUGH: usize = 64;

/// What is to be done. Of its parts, answers come first: nothing can depend on what comes after them.
#[derive(Default)]
pub(super) struct Batch {
    /// Calls of this side that were answered.
    pub(super) answers: Vec<(u64, Result<Bytes, Status>)>,
    /// Calls of the peer.
    pub(super) jobs: Vec<Job>,
    /// How many of them have [begun](Connection::begin).
    pub(super) begun: usize,
    /// When the first of them was looked at: the time of all of them counts from then on.
    pub(super) now: Option<Instant>,
    pub(super) actions: Vec<Action>,
    /// The answers of handlers that were done at their first poll.
    results: Shorts,
    pub(super) wakers: Vec<Waker>,
}

/// What a message asks for besides making or answering a call.
pub(super) enum Action {
    /// By the link that it came by; the session may have another when this is done.
    Pull(Arc<dyn Link>, Box<Described>),
    Abort(Option<AbortHandle>),
    Goaway(Goaway),
    /// The session can't go on, for a reason of this side's.
    Fail(Box<Status>),
    /// The answer of a call of this side has ended, which was a stream.
    StreamOver,
    /// More than this side holds back came by the link of this epoch before its UP.
    Fall(u32),
}

thread_local! {
    /// Emptied, for the next: so that a frame costs no allocation.
    static KEPT: Cell<Option<Box<Batch>>> = const { Cell::new(None) };
}

impl Connection {
    /// Has `take` take in what has arrived, under the lock, and does what that asks for.
    pub(super) fn take_in<T>(
        &self,
        take: impl FnOnce(&mut Receiving, &mut Batch) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let mut batch = KEPT.take().unwrap_or_default();
        let mut receiving = lock(&self.receiving);
        let taken = take(&mut receiving, &mut batch);
        let begun = self.begin(&mut batch);
        drop(receiving);
        // Whatever is wrong, what came before it counts.
        let done = self.act(&mut batch);
        if batch.is_short() {
            KEPT.set(Some(batch));
        }
        begun?;
        done?;
        taken
    }

    fn act(&self, batch: &mut Batch) -> Result<(), WireError> {
        let Batch { answers, jobs, begun, now, actions, results, wakers } = batch;
        (*begun, *now) = (0, None);
        let mut answered = Ok(());
        // To drain nothing has a cost, too, and most batches are of one kind.
        if !answers.is_empty() {
            answered = self.calls.slots.answer(answers.drain(..), wakers);
        }
        if !wakers.is_empty() {
            wakers.drain(..).for_each(Waker::wake);
        }
        if !jobs.is_empty() {
            self.serve_all(jobs, results);
        }
        if !actions.is_empty() {
            actions.drain(..).for_each(|action| self.act_on(action));
        }
        answered.map_err(|NeverMade| WireError::new("response.call", "was never made"))
    }

    fn act_on(&self, action: Action) {
        match action {
            Action::Pull(link, described) => self.pull(&*link, *described),
            Action::StreamOver => self.close_if_drained(),
            Action::Fail(status) => self.close(CloseCode::Internal, *status),
            Action::Abort(task) => {
                task.inspect(AbortHandle::abort);
                self.sender.progress().note();
            }
            Action::Goaway(goaway) => {
                self.on_goaway(&goaway);
                self.close_if_drained();
            }
            Action::Fall(epoch) => {
                let why = Unavailable::at_peer(Reason::Other, "it sent too much before its UP");
                self.fall(epoch, &why);
            }
        }
    }
}

impl Batch {
    /// Whether it is no longer than most are. Those that an UP lets in may be thousands.
    fn is_short(&self) -> bool {
        self.answers.capacity().max(self.jobs.capacity()).max(self.actions.capacity()) <= 2 * ENOUGH
    }
}
