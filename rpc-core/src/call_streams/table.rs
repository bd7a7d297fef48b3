//! The streams of a connection's calls, by call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

use bytes::Bytes;

use super::call::{CallStreams, Ended};
use super::{FIRST, MOST_ITEMS};
use crate::compress::Unpacking;
use crate::interface::Kind;
use crate::memory::{Gauge, Use};
use crate::proto::wire::{FrameType, Hello, Window, WireError, features};
use crate::reply::Reply;
use crate::session::{InOrder, Role, Sender};
use crate::status::Status;
use crate::sync::{Mutex, rank};

/// The streams of a connection's calls.
#[derive(Debug)]
pub(crate) struct StreamTable {
    me: Weak<Self>,
    pub(super) sender: Arc<Sender>,
    unpacking: Arc<Unpacking>,
    /// The number of calls with streams, for a cheap check on every call.
    count: AtomicUsize,
    calls: Mutex<rank::StreamTable, HashMap<u64, Arc<CallStreams>>>,
    /// The bytes by which windows have grown.
    grown: AtomicU64,
}

/// Returns the initial window of each stream that the peer receives.
fn first_of(peer: &Hello) -> Window {
    Window { items: peer.stream_items.into(), bytes: peer.stream_bytes.into() }
}

impl StreamTable {
    pub(crate) fn new(sender: Arc<Sender>, unpacking: Arc<Unpacking>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            sender,
            unpacking,
            count: AtomicUsize::new(0),
            calls: Mutex::default(),
            grown: AtomicU64::new(0),
        })
    }

    /// Whether the peer supports streams; this side does.
    pub(crate) fn agreed(&self) -> bool {
        self.sender.terms().peer_has(features::STREAMS)
    }

    /// Whether no call has streams.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the bytes by which windows have grown.
    pub(crate) fn grown(&self) -> u64 {
        self.grown.load(Ordering::Relaxed)
    }

    /// Returns the sender of the streams.
    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }

    pub(crate) fn get(&self, call: u64) -> Option<Arc<CallStreams>> {
        if self.is_empty() { None } else { self.calls.lock().get(&call).cloned() }
    }

    /// Begins the streams of a call, if its kind has any. Called before its REQUEST is queued, or when it is received.
    #[cold]
    pub(crate) fn begin(&self, call: u64, kind: Kind) -> Option<Arc<CallStreams>> {
        if kind == Kind::Unary {
            return None;
        }
        let terms = self.sender.terms();
        let (to_server, to_client) = (kind.streams_requests(), kind.streams_answers());
        let (sends, receives) = match terms.role {
            Role::Client => (to_server, to_client),
            Role::Server => (to_client, to_server),
        };
        let granted = terms.peer().map(first_of).filter(|_| sends);
        let first = receives.then(|| (FIRST, Gauge::new(self.sender.account(), Use::Items)));
        let (me, unpacking) = (self.me.clone(), self.unpacking.clone());
        let streams = Arc::new(CallStreams::new(me, call, terms.role, granted, first, unpacking));
        let mut calls = self.calls.lock();
        calls.insert(call, streams.clone());
        self.count.store(calls.len(), Ordering::Release);
        Some(streams)
    }

    /// Removes the streams of a call that is over, so that no more frames reach them.
    pub(crate) fn remove(&self, call: u64) -> Option<Arc<CallStreams>> {
        if self.is_empty() {
            return None;
        }
        let mut calls = self.calls.lock();
        let removed = calls.remove(&call);
        self.count.store(calls.len(), Ordering::Release);
        removed
    }

    /// Handles a frame of a call's streams, and adds the wakers to wake. `last` returns the highest call so far.
    /// Returns whether the call is over with it.
    pub(crate) fn take_in(
        &self,
        _: &mut InOrder,
        kind: FrameType,
        call: u64,
        bytes: Bytes,
        last: impl FnOnce() -> u64,
        wakers: &mut Vec<Waker>,
    ) -> Result<bool, WireError> {
        if !self.agreed() {
            return Err(WireError::new("header.type", "is not one that was agreed on"));
        }
        let Some(streams) = self.get(call) else {
            // The frame has crossed the call's end.
            let was_made = call > 0 && call <= last();
            return if was_made { Ok(false) } else { Err(WireError::new("header.call", "was never made")) };
        };
        let is_over = streams.take(kind, bytes, wakers)?;
        if is_over {
            self.remove(call);
        }
        Ok(is_over)
    }

    /// Ends the streams of a call that is over on this side. Nothing more is sent, except the rest of a message that
    /// was sent in part.
    pub(crate) fn end(&self, call: u64, why: impl FnOnce() -> Ended) {
        if let Some(streams) = self.remove(call) {
            streams.end(why()).into_iter().for_each(Waker::wake);
        }
    }

    /// Ends all streams, because the connection is over.
    pub(crate) fn end_all(&self, status: &Status) {
        let all: Vec<_> = self.calls.lock().values().cloned().collect();
        for streams in all {
            self.remove(streams.call());
            streams.end(Ended::Lost(status.clone())).into_iter().for_each(Waker::wake);
        }
    }

    /// Client: gives up an answer that is a stream, and so its call. A reader that reads on is told `why`.
    pub(crate) fn give_up_answer(&self, call: u64, reason: u8, why: Ended) {
        if let Some(streams) = self.get(call) {
            let place = streams.take_place();
            self.end(call, || why);
            self.sender.cancel(call, reason, true);
            // Free the place only after CANCEL is queued. Otherwise the peer may briefly see one call more than its
            // limit.
            drop(place);
            self.sender.call_ended();
        }
    }

    /// Wakes the streams that wait until their last message has been sent. Returns the calls that can be completed now,
    /// with their replies.
    #[cold]
    pub(crate) fn on_sent(&self, calls: Vec<u64>) -> Vec<(u64, Reply)> {
        let mut replies = Vec::new();
        for call in calls {
            let Some(streams) = self.get(call) else { continue };
            let (waker, reply) = streams.has_left();
            if let Some(waker) = waker {
                waker.wake();
            }
            replies.extend(reply.map(|reply| (call, reply)));
        }
        replies
    }

    /// Counts the growth of a window, unless it exceeds the limit. Returns whether it may grow.
    pub(super) fn grow(&self, bytes: u64) -> bool {
        let most = self.sender.terms().settings.limits.stream_memory;
        let grow = |grown: u64| grown.checked_add(bytes).filter(|grown| *grown <= most);
        self.grown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok()
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.grown.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the largest window that a stream may have.
    pub(super) fn most(&self) -> Window {
        Window { items: MOST_ITEMS, bytes: self.sender.terms().settings.limits.stream_window }
    }
}
