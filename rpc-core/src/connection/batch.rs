//! What frames that are taken in together ask for: decided under one lock, done outside of it.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::task::AbortHandle;

use super::Connection;
use super::receive::Receiving;
use crate::dispatch::{ENOUGH, Jobs};
use crate::proto::inbox::Described;
use crate::proto::wire::{CloseCode, Goaway, WireError};
use crate::status::Status;
use crate::transport::{Link, Reason, Unavailable};

/// What is to be done. Of its parts, answers come first: nothing can depend on what comes after them.
#[derive(Default)]
pub(super) struct ReceiveBatch {
    /// Calls of this side that were answered.
    pub(super) answers: Vec<(u64, Result<Bytes, Status>)>,
    /// Calls of the peer.
    pub(super) jobs: Jobs,
    pub(super) actions: Vec<Action>,
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
    static KEPT: Cell<Option<Box<ReceiveBatch>>> = const { Cell::new(None) };
}

impl Connection {
    /// Has `take` take in what has arrived, under the lock, and does what that asks for.
    pub(super) fn take_in<T>(
        &self,
        take: impl FnOnce(&mut Receiving, &mut ReceiveBatch) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let mut batch = KEPT.take().unwrap_or_default();
        let mut receiving = self.receiving.lock();
        let taken = take(&mut receiving, &mut batch);
        let begun = self.begin(&mut receiving, &mut batch);
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

    /// Begins the calls of a batch that have not begun.
    #[inline]
    pub(super) fn begin(&self, receiving: &mut Receiving, batch: &mut ReceiveBatch) -> Result<(), WireError> {
        self.dispatch
            .as_ref()
            .map_or(Ok(()), |dispatch| dispatch.begin(&mut receiving.in_order, &mut batch.jobs))
    }

    fn act(&self, batch: &mut ReceiveBatch) -> Result<(), WireError> {
        let ReceiveBatch { answers, jobs, actions, wakers } = batch;
        let mut answered = Ok(());
        // To drain nothing has a cost, too, and most batches are of one kind.
        if !answers.is_empty() {
            answered = self.calls.answer(answers.drain(..), wakers);
        }
        if !wakers.is_empty() {
            wakers.drain(..).for_each(Waker::wake);
        }
        jobs.reset();
        if !jobs.is_empty()
            && let Some(dispatch) = &self.dispatch
        {
            dispatch.run(jobs);
        }
        if !actions.is_empty() {
            actions.drain(..).for_each(|action| self.act_on(action));
        }
        answered
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

impl ReceiveBatch {
    /// Whether it is no longer than most are. Those that an UP lets in may be thousands.
    fn is_short(&self) -> bool {
        let most = 2 * ENOUGH;
        self.answers.capacity().max(self.actions.capacity()) <= most && self.jobs.is_short(most)
    }
}
