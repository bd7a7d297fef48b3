//! The streams of one call.

mod incoming;
mod outgoing;

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::task::Waker;

use bytes::Bytes;

pub(crate) use self::incoming::Ended;
use self::incoming::Incoming;
use self::outgoing::Out;
pub(super) use self::outgoing::Room;
use super::table::StreamTable;
use crate::access::{Lending, Used};
use crate::compress::Unpacking;
use crate::memory::Gauge;
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::wire::{
    Content, EndHead, EndReason, FrameType, ItemHead, Stop, Window, WireError, encode_status,
};
use crate::reply::Reply;
use crate::session::Role;
use crate::slots::Place;
use crate::status::Status;
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
        let out = granted.map(|granted| Out::new(granted, role == Role::Client));
        let is_answer = if role == Role::Client { first.is_some() } else { granted.is_some() };
        let incoming = first.map(|(first, gauge)| Incoming::new(first, gauge));
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
                    incoming.push(bytes);
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

    /// Returns what the streams have moved so far, and what the server has done with memory that the call lends.
    pub(crate) fn moved(&self) -> StreamsMoved {
        let state = self.state();
        StreamsMoved {
            out: state.out.as_ref().map(|out| out.half.moved()),
            incoming: state.incoming.as_ref().map(|incoming| incoming.half.moved()),
            lent: state.lending.as_ref().map(Lending::used),
        }
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
