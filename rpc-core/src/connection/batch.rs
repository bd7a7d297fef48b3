//! A batch of received frames: what they ask for is decided under one lock and done outside of it.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::task::AbortHandle;

use super::Connection;
use super::receive::Receiving;
use crate::dispatch::{ENOUGH, Jobs};
use crate::proto::inbox::Described;
use crate::proto::wire::{Access, Accessed, CloseCode, Goaway, Operation, Target, WireError};
use crate::status::Status;
use crate::transport::{Link, Reason, Unavailable};

/// The work that received frames ask for. Answers are handled first: no other part can depend on being handled before
/// them.
#[derive(Default)]
pub(super) struct ReceiveBatch {
    /// Answered calls of this side.
    pub(super) answers: Vec<(u64, Result<Bytes, Status>)>,
    /// Calls of the peer.
    pub(super) jobs: Jobs,
    pub(super) actions: Vec<Action>,
    pub(super) wakers: Vec<Waker>,
}

/// Work that a message asks for besides making or answering a call.
pub(super) enum Action {
    /// A READ by the link that the message came by. The session may have another link when this is done.
    Pull(Arc<dyn Link>, Box<Described>),
    /// A READ that waits until this side has memory for the message.
    PullLater(Arc<dyn Link>, Box<Described>),
    Abort(Option<AbortHandle>),
    Goaway(Goaway),
    /// The session can't continue, for a reason on this side.
    Fail(Box<Status>),
    /// A stream that answers a call of this side has ended.
    StreamOver,
    /// The outcome of an access of this side, by its number.
    Accessed(u64, Box<Result<Accessed, Status>>),
    /// An access to memory of this side, by its number.
    Serve(u64, Box<Access>),
    /// An access to memory of this side, which has no memory for it.
    Refuse(u64),
    /// More frames came by the link of this epoch before its UP than this side holds back.
    Fall(u32),
}

thread_local! {
    /// An empty batch for reuse, so that a frame costs no allocation.
    static KEPT: Cell<Option<Box<ReceiveBatch>>> = const { Cell::new(None) };
}

impl Connection {
    /// Runs `take` on received frames under the lock, then does the work that they ask for.
    pub(super) fn take_in<T>(
        &self,
        take: impl FnOnce(&mut Receiving, &mut ReceiveBatch) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let mut batch = KEPT.take().unwrap_or_default();
        let mut receiving = self.receiving.lock();
        let taken = take(&mut receiving, &mut batch);
        let begun = self.begin(&mut receiving, &mut batch);
        if receiving.measure() {
            self.note_amid_message();
        }
        drop(receiving);
        // On an error, everything that came before it still counts.
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
        // Draining an empty list has a cost, too, and most batches have work of one kind.
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
        let mut served = Ok(());
        if !actions.is_empty() {
            for action in actions.drain(..) {
                let acted = self.act_on(action);
                served = served.and(acted);
            }
        }
        answered.and(served)
    }

    fn act_on(&self, action: Action) -> Result<(), WireError> {
        match action {
            Action::Serve(number, access) => {
                // A withdrawal is of the peer's own memory.
                if let Target::Loan { call, .. } = access.target
                    && access.operation != Operation::Withdraw
                {
                    self.calls.check_lender(call)?;
                }
                return self.accesses.serve(number, *access);
            }
            Action::Refuse(number) => return self.accesses.refuse(number),
            Action::Accessed(number, outcome) => {
                self.accesses.on_accessed(number, *outcome)?;
                self.access_ended();
            }
            Action::Pull(link, described) => self.pull(&*link, *described),
            Action::PullLater(link, described) => self.pull_later(link, described),
            Action::StreamOver => self.close_if_drained(),
            Action::Fail(status) => self.close_as(CloseCode::Internal, *status),
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
        Ok(())
    }
}

impl ReceiveBatch {
    /// Whether the batch has a usual size, so that its memory is worth keeping. An UP may release thousands of frames.
    fn is_short(&self) -> bool {
        let most = 2 * ENOUGH;
        self.answers.capacity().max(self.actions.capacity()) <= most && self.jobs.is_short(most)
    }
}
