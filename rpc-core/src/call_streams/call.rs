//! The streams of one call.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::{Bytes, BytesMut};

use super::outgoing_window::Available;
use super::table::StreamTable;
use crate::access::{Lending, Used};
use crate::compress::Unpacking;
use crate::memory::Gauge;
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::message::Message;
use crate::proto::stream::{RecvHalf, SendHalf};
use crate::proto::wire::{
    Content, EndHead, EndReason, FrameType, ItemHead, Stop, Window, WireError, encode_status,
};
use crate::reply::Reply;
use crate::session::{Role, Sender};
use crate::slots::{Place, exchange};
use crate::status::{Blame, Code, Executed, Status};
use crate::sync::{Mutex, MutexGuard, rank};

/// The streams of one call, on one side.
pub(crate) struct CallStreams {
    /// The table of the connection, which may be dropped before its messages are read.
    table: Weak<StreamTable>,
    call: u64,
    role: Role,
    is_answer: bool,
    unpacking: Arc<Unpacking>,
    /// Whether items were taken from the source that the window does not count yet. Cleared under the lock of `state`.
    taking: AtomicBool,
    state: Mutex<rank::CallStreams, State>,
}

struct State {
    out: Option<Out>,
    incoming: Option<Incoming>,
    /// Server: whether the peer has been told that the answer is a stream.
    begun: bool,
    /// Whether the call is over, so that nothing more is queued.
    over: bool,
    /// Server: the reply that ends the call once the message on its way has been sent.
    reply: Option<Reply>,
    /// Client: the call's place, from its answer on.
    place: Option<Place>,
    /// Client: what the call lends, from its answer on.
    lending: Option<Lending>,
}

/// The stream that this side sends.
struct Out {
    half: SendHalf,
    /// Whether a message is on its way that nothing may follow until it has been sent.
    busy: bool,
    waker: Option<Waker>,
    /// The tasks that wait for more room.
    watchers: Vec<Waker>,
}

impl Out {
    /// Takes the wakers of all that wait for anything.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = std::mem::take(&mut self.watchers);
        wakers.extend(self.waker.take());
        wakers
    }
}

/// The stream that this side receives.
struct Incoming {
    half: RecvHalf,
    first: Window,
    /// ITEMs as they arrived.
    queue: VecDeque<Bytes>,
    /// The sum of their lengths.
    queued: usize,
    gauge: Gauge,
    end: Option<Ended>,
    waker: Option<Waker>,
}

/// The items and bytes that the streams of a call have moved so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamsMoved {
    /// The items and bytes that this side has sent, and those that the peer has granted.
    pub(crate) out: Option<[Window; 2]>,
    /// The items and bytes that have arrived, and those that the application has taken.
    pub(crate) incoming: Option<[Window; 2]>,
    /// The use that the server has made of memory that the call lends.
    pub(crate) lent: Option<Used>,
}

/// How a received stream has ended.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// As its sender reports.
    Said { reason: EndReason, payload: Payload, metadata: AnswerMetadata },
    /// It was cut short.
    Lost(Status),
    /// The receiving side has given it up.
    GivenUp(Status),
}

impl Ended {
    /// Returns the end of a stream whose receiving side has given up the call.
    pub(crate) fn gave_up() -> Self {
        let status = Status::new(Code::Cancelled, "the stream's call is over");
        Self::GivenUp(status.with_executed(Executed::Maybe).with_blame(Blame::Caller))
    }
}

/// Whether another ITEM may be queued.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
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
    /// Returns streams with these windows: `granted` for the stream that this side sends, `first` for the one that it
    /// receives.
    pub(super) fn new(
        table: Weak<StreamTable>,
        call: u64,
        role: Role,
        granted: Option<Window>,
        first: Option<(Window, Gauge)>,
        unpacking: Arc<Unpacking>,
    ) -> Self {
        // A client's items must follow its REQUEST.
        let busy = role == Role::Client;
        let out = granted.map(|granted| Out {
            half: SendHalf::new(granted),
            busy,
            waker: None,
            watchers: Vec::new(),
        });
        let is_answer = if role == Role::Client { first.is_some() } else { granted.is_some() };
        let incoming = first.map(|(first, gauge)| Incoming {
            half: RecvHalf::new(first),
            first,
            queue: VecDeque::new(),
            queued: 0,
            gauge,
            end: None,
            waker: None,
        });
        let state =
            State { out, incoming, begun: false, over: false, reply: None, place: None, lending: None };
        let taking = AtomicBool::new(false);
        Self { table, call, role, is_answer, unpacking, taking, state: Mutex::new(state) }
    }

    /// Whether the call's answer is a stream.
    pub(crate) fn is_answer(&self) -> bool {
        self.is_answer
    }

    pub(super) fn unpacking(&self) -> &Arc<Unpacking> {
        &self.unpacking
    }

    pub(crate) fn call(&self) -> u64 {
        self.call
    }

    pub(crate) fn table(&self) -> Option<Arc<StreamTable>> {
        self.table.upgrade()
    }

    fn state(&self) -> MutexGuard<'_, rank::CallStreams, State> {
        self.state.lock()
    }

    /// Handles a received frame. Adds the wakers to wake, and returns whether the call is over with it.
    pub(super) fn take(
        &self,
        kind: FrameType,
        bytes: Bytes,
        wakers: &mut Vec<Waker>,
    ) -> Result<bool, WireError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let none = |what| WireError::new(what, "belongs to a direction without a stream");
        match kind {
            FrameType::ITEM => {
                let incoming = state.incoming.as_mut().ok_or_else(|| none("item"))?;
                if incoming.half.on_item(ItemHead::count(&bytes)?, bytes.len() as u64)? {
                    incoming.queued += bytes.len();
                    incoming.gauge.set(incoming.queued);
                    incoming.queue.push_back(bytes);
                    wakers.extend(incoming.waker.take());
                }
            }
            FrameType::END => {
                let (head, content) = EndHead::decode(bytes)?;
                let incoming = state.incoming.as_mut().ok_or_else(|| none("end"))?;
                let is_client = self.role == Role::Server;
                if is_client && !matches!(head.reason, EndReason::Completed | EndReason::Cancelled) {
                    return Err(WireError::new("end.reason", "is not a client's"));
                }
                incoming.half.on_end(head.items)?;
                let Content { metadata, payload } = content;
                incoming.end = Some(self.said(head.reason, metadata, payload)?);
                wakers.extend(incoming.waker.take());
                if !is_client {
                    state.over = true;
                    wakers.extend(state.out.iter_mut().flat_map(Out::take_wakers));
                    // Free the place now, because the caller may leave received items unread for long.
                    let (place, lending) = (state.place.take(), state.lending.take());
                    drop(guard);
                    drop(lending);
                    wakers.extend(place.and_then(Place::leave));
                    return Ok(true);
                }
            }
            FrameType::WINDOW => {
                let out = state.out.as_mut().ok_or_else(|| none("window"))?;
                if out.half.on_window(Window::decode(bytes)?)? {
                    wakers.extend(out.waker.take());
                }
                wakers.append(&mut out.watchers);
            }
            _ => {
                Stop::decode(bytes)?;
                let out = state.out.as_mut().ok_or_else(|| none("stop"))?;
                if out.half.on_stop() {
                    wakers.extend(out.take_wakers());
                }
            }
        }
        Ok(false)
    }

    /// Returns the end that an END reports. A server's END may have metadata; those of a client's are ignored.
    fn said(&self, reason: EndReason, block: Bytes, payload: Payload) -> Result<Ended, WireError> {
        let is_client = self.role == Role::Server;
        let metadata = match self.table() {
            Some(table) if !is_client && !block.is_empty() => {
                table.sender.terms().read_answer_metadata(block)?
            }
            _ => Ok(AnswerMetadata::default()),
        };
        Ok(match metadata {
            Ok(metadata) => Ended::Said { reason, payload, metadata },
            Err(status) => Ended::Said {
                reason: EndReason::Status,
                payload: Payload::from_body(encode_status(&status)),
                metadata: AnswerMetadata::default(),
            },
        })
    }

    /// Ends the streams because the call is over. `why` applies unless the sender has reported an end. Returns the
    /// wakers to wake.
    pub(crate) fn end(&self, why: Ended) -> Vec<Waker> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.over = true;
        let mut wakers = Vec::new();
        if let Some(incoming) = &mut state.incoming {
            incoming.end.get_or_insert(why);
            wakers.extend(incoming.waker.take());
        }
        wakers.extend(state.out.iter_mut().flat_map(Out::take_wakers));
        let (reply, place, lending) = (state.reply.take(), state.place.take(), state.lending.take());
        drop(guard);
        drop((reply, place, lending));
        wakers
    }

    /// Keeps the call's place and its loans until the call is over.
    pub(crate) fn keep(&self, place: Place, lending: Option<Lending>) {
        let mut state = self.state();
        if !state.over {
            (state.place, state.lending) = (Some(place), lending);
        }
    }

    /// Client: takes the call's place, to be freed when the peer has been told that the call is over.
    pub(crate) fn take_place(&self) -> Option<Place> {
        self.state().place.take()
    }

    /// Server: begins the answer, unless the call is over. Fails if the metadata that were set for it exceed the limit.
    pub(super) fn begin(&self) -> Result<(), Status> {
        let Some(table) = self.table() else { return Ok(()) };
        let message = super::pump::begin_answer(table.sender.terms(), self.call)?;
        let mut guard = self.state();
        let state = &mut *guard;
        if !state.over && !std::mem::replace(&mut state.begun, true) {
            if let Some(out) = &mut state.out {
                out.busy = message.holds_back();
            }
            table.sender.enqueue(message);
        }
        drop(guard);
        // The first item may take long.
        table.sender.flush_soon();
        Ok(())
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.state().begun
    }

    /// Records that the message on its way has been sent. Returns the waker to wake, and the reply that waited for it.
    pub(super) fn has_left(&self) -> (Option<Waker>, Option<Reply>) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(out) = &mut state.out else { return (None, None) };
        out.busy = false;
        (out.waker.take(), state.reply.take())
    }

    /// Keeps the reply while a message is on its way that nothing may follow. Otherwise returns it.
    pub(crate) fn keep_reply(&self, reply: Reply) -> Result<(), Reply> {
        let mut state = self.state();
        if state.out.as_ref().is_some_and(|out| out.busy) && !state.over {
            state.reply = Some(reply);
            return Ok(());
        }
        Err(reply)
    }

    /// Ends the outgoing stream and returns the number of its items for the END. `None` if it has ended already.
    pub(crate) fn end_sending(&self) -> Option<u64> {
        self.state().out.as_mut()?.half.end()
    }

    /// Returns how many items the next ITEM may have. If none may be queued now, its sender is woken when one may.
    pub(super) fn room(&self, cx: &TaskContext<'_>) -> Room {
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
    pub(super) fn begin_taking(&self) {
        // A thread that learns of a taken item sees this, too: it learns of the item through the source's lock.
        self.taking.store(true, Ordering::Relaxed);
    }

    /// Notes that all items that were taken count. Returns the tasks to wake.
    fn end_taking(&self, out: &mut Out) -> Vec<Waker> {
        self.taking.store(false, Ordering::Relaxed);
        std::mem::take(&mut out.watchers)
    }

    /// Returns what is left of the peer's window.
    pub(super) fn left(&self) -> Available {
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
    pub(super) fn poll_left(&self, cx: &TaskContext<'_>, fits: impl FnOnce(Available) -> bool) -> Poll<()> {
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
    pub(super) fn is_free(&self, cx: &TaskContext<'_>) -> bool {
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
    pub(super) fn watch(&self, cx: &TaskContext<'_>) -> bool {
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
    pub(super) fn send(
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
            let end = super::pump::end(self.call, EndHead { reason, items }, Content::default());
            sender.enqueue(end.expect("what is empty has room"));
        }
    }

    /// Returns what the streams have moved so far, and what the server has done with memory that the call lends.
    pub(crate) fn moved(&self) -> StreamsMoved {
        let state = self.state();
        StreamsMoved {
            out: state.out.as_ref().map(|out| out.half.moved()),
            incoming: state.incoming.as_ref().map(|incoming| incoming.half.moved()),
            lent: state.lending.as_ref().map(Lending::used),
        }
    }

    /// Whether this side waits for the peer before it may send another item.
    pub(crate) fn is_held_up(&self) -> bool {
        let state = self.state();
        state.out.as_ref().is_some_and(|out| out.busy || out.half.room() == 0)
    }

    /// Returns the next ITEM, or how the stream has ended.
    pub(super) fn next(&self, cx: &TaskContext<'_>) -> Poll<Result<Bytes, Ended>> {
        let _before;
        let mut state = self.state();
        let Some(incoming) = &mut state.incoming else { return Poll::Ready(Err(Ended::gave_up())) };
        if let Some(item) = incoming.queue.pop_front() {
            incoming.queued -= item.len();
            incoming.gauge.set(incoming.queued);
            return Poll::Ready(Ok(item));
        }
        if let Some(end) = &incoming.end {
            return Poll::Ready(Err(end.clone()));
        }
        _before = exchange(incoming.waker.get_or_insert_with(|| cx.waker().clone()), cx);
        Poll::Pending
    }

    /// Records that the application has taken items, and with them `bytes` of finished messages. Returns true if a
    /// frame was queued.
    pub(super) fn consumed(&self, items: u64, bytes: u64) -> bool {
        let Some(table) = self.table() else { return false };
        let mut state = self.state();
        let over = state.over;
        let Some(incoming) = state.incoming.as_mut().filter(|_| !over) else { return false };
        let window = incoming.half.consumed(items, bytes, table.most(), |bytes| table.grow(bytes));
        let Some(window) = window else { return false };
        let mut payload = BytesMut::with_capacity(16);
        window.encode(&mut payload);
        table.sender.enqueue(Message::new(FrameType::WINDOW, self.call, payload.freeze()));
        true
    }

    /// Stops the stream because the application takes no more. Returns true if a frame was queued.
    pub(crate) fn stop(&self) -> bool {
        let Some(table) = self.table() else { return false };
        let mut guard = self.state();
        let over = guard.over;
        let Some(incoming) = &mut guard.incoming else { return false };
        let queue = std::mem::take(&mut incoming.queue);
        incoming.queued = 0;
        incoming.gauge.set(0);
        let tells = incoming.half.stop() && !over;
        if tells {
            let mut payload = BytesMut::with_capacity(1);
            Stop { reason: 0 }.encode(&mut payload);
            table.sender.enqueue(Message::new(FrameType::STOP, self.call, payload.freeze()));
        }
        drop(guard);
        drop(queue);
        tells
    }
}

impl Drop for CallStreams {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let grown = state.incoming.as_ref().map_or(0, |incoming| incoming.half.grown(incoming.first));
        if let Some(table) = self.table.upgrade().filter(|_| grown > 0) {
            table.give_back(grown);
        }
    }
}

impl fmt::Debug for CallStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallStreams").field("call", &self.call).finish_non_exhaustive()
    }
}
