//! The stream of a call that this side sends.

use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll, Waker};

use super::{CallStreams, State};
use crate::call_streams::outgoing_window::Available;
use crate::call_streams::pump;
use crate::proto::message::Message;
use crate::proto::stream::SendHalf;
use crate::proto::wire::{Content, EndHead, EndReason, Window};
use crate::session::Sender;
use crate::slots::exchange;

/// The stream that this side sends.
pub(super) struct Out {
    pub(super) half: SendHalf,
    /// Whether a message is on its way that nothing may follow until it has been sent.
    pub(super) busy: bool,
    pub(super) waker: Option<Waker>,
    /// The tasks that wait for more room.
    pub(super) watchers: Vec<Waker>,
}

impl Out {
    pub(super) fn new(granted: Window, busy: bool) -> Self {
        Self { half: SendHalf::new(granted), busy, waker: None, watchers: Vec::new() }
    }

    /// Takes the wakers of all that wait for anything.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = std::mem::take(&mut self.watchers);
        wakers.extend(self.waker.take());
        wakers
    }
}

/// Whether another ITEM may be queued.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::call_streams) enum Room {
    /// This many items may be queued.
    Items(u64),
    /// This many items may be queued once the message on its way has been sent.
    Later(u64),
    /// Not now.
    Wait,
    /// The peer wants no more, or the call is over.
    Closed,
}

impl CallStreams {
    /// Ends the outgoing stream and returns the number of its items for the END. `None` if it has ended already.
    pub(crate) fn end_sending(&self) -> Option<u64> {
        self.state().out.as_mut()?.half.end()
    }

    /// Returns how many items the next ITEM may have. If none may be queued now, its sender is woken when one may.
    pub(in crate::call_streams) fn room(&self, cx: &TaskContext<'_>) -> Room {
        let _before;
        let mut state = self.state();
        let over = state.over;
        let Some(out) = &mut state.out else { return Room::Closed };
        if over || out.half.is_stopped() {
            return Room::Closed;
        }
        let items = out.half.room();
        if items > 0 && !out.busy {
            return Room::Items(items);
        }
        _before = exchange(out.waker.get_or_insert_with(|| cx.waker().clone()), cx);
        if items > 0 { Room::Later(items) } else { Room::Wait }
    }

    /// Notes that items are taken from the source. They count when their message is [sent](Self::send).
    pub(in crate::call_streams) fn begin_taking(&self) {
        // A thread that learns of a taken item sees this, too: it learns of the item through the source's lock.
        self.taking.store(true, Ordering::Relaxed);
    }

    /// Notes that all items that were taken count. Returns the tasks to wake.
    fn end_taking(&self, out: &mut Out) -> Vec<Waker> {
        self.taking.store(false, Ordering::Relaxed);
        std::mem::take(&mut out.watchers)
    }

    /// Returns what is left of the peer's window.
    pub(in crate::call_streams) fn left(&self) -> Available {
        self.left_in(&self.state())
    }

    fn left_in(&self, state: &State) -> Available {
        match &state.out {
            Some(out) if !state.over && !self.taking.load(Ordering::Relaxed) => {
                let Window { items, bytes } = out.half.left();
                Available { items, bytes }
            }
            _ => Available::NONE,
        }
    }

    /// Ready when `fits` holds of what is left of the peer's window. Otherwise the task is woken when that has changed, or the
    /// peer wants no more.
    pub(in crate::call_streams) fn poll_left(
        &self,
        cx: &TaskContext<'_>,
        fits: impl FnOnce(Available) -> bool,
    ) -> Poll<()> {
        let mut state = self.state();
        if fits(self.left_in(&state)) {
            return Poll::Ready(());
        }
        let over = state.over;
        if let Some(out) = state.out.as_mut().filter(|out| !over && !out.half.is_stopped())
            && !out.watchers.iter().any(|watcher| watcher.will_wake(cx.waker()))
        {
            out.watchers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Whether an END may be queued now. If not, its sender is woken when it may.
    pub(in crate::call_streams) fn is_free(&self, cx: &TaskContext<'_>) -> bool {
        let _before;
        let mut state = self.state();
        let over = state.over;
        let Some(out) = &mut state.out else { return true };
        let free = over || !out.busy;
        if !free {
            _before = exchange(out.waker.get_or_insert_with(|| cx.waker().clone()), cx);
        }
        free
    }

    /// Registers the sender, who has sent all items that it took, to be woken when the call is over or the peer wants no more.
    /// Returns false if that is so already.
    pub(in crate::call_streams) fn watch(&self, cx: &TaskContext<'_>) -> bool {
        let _before;
        let mut state = self.state();
        let over = state.over;
        let Some(out) = state.out.as_mut().filter(|out| !over && !out.half.is_stopped()) else {
            return false;
        };
        _before = exchange(out.waker.get_or_insert_with(|| cx.waker().clone()), cx);
        let wakers = self.end_taking(out);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    /// Queues an ITEM, for which there was [room](Self::room), unless the peer wants no more by now or the call is
    /// over. `all`: with it, every item that was taken from the source counts.
    pub(in crate::call_streams) fn send(
        &self,
        items: u64,
        message: Message,
        all: bool,
        enqueue: impl FnOnce(Message) -> usize,
    ) {
        let mut state = self.state();
        let over = state.over;
        let Some(out) = state.out.as_mut().filter(|out| !over && !out.half.is_stopped()) else { return };
        out.half.sent(items, message.len() as u64);
        out.busy = message.holds_back();
        let wakers = if all { self.end_taking(out) } else { Vec::new() };
        enqueue(message);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Client: ends the stream of arguments.
    pub(crate) fn send_end(&self, sender: &Sender, reason: EndReason) {
        let mut state = self.state();
        let over = state.over;
        let Some(out) = state.out.as_mut().filter(|_| !over) else { return };
        if let Some(items) = out.half.end() {
            let end = pump::end(self.call, EndHead { reason, items }, Content::default());
            sender.enqueue(end.expect("what is empty has room"));
        }
    }

    /// Whether this side waits for the peer before it may send another item.
    pub(crate) fn is_held_up(&self) -> bool {
        let state = self.state();
        state.out.as_ref().is_some_and(|out| out.busy || out.half.room() == 0)
    }
}
