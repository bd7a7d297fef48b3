//! The streams of calls, on either side: what is sent of them, what has come, and how they end.
//!
//! A call with streams has an entry here from when its REQUEST is queued, or taken in, until the call is over. Frames are put
//! to it under the lock of `receiving`, so that they are in order whichever link they come by. Its lock may be taken with those
//! of `receiving` and `sending` held, and with it held none but that of the queue.

mod call;
mod items_by;
#[cfg(all(test, farcall_loom))]
mod loom_tests;
mod pump;
mod reader;
mod unpack;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker, ready};

use bytes::Bytes;
use tokio::task::coop;

pub(crate) use call::{CallStreams, Ended};
pub(crate) use items_by::ItemsBy;
pub(super) use pump::end;
pub(crate) use pump::{Encoded, Pump, Pumped, Source};
pub(crate) use reader::{Next, Reader};

use super::{Connection, Role};
use crate::proto::wire::{FrameType, Hello, Window, WireError, features};
use crate::service::Kind;
use crate::session::OnSent;
use crate::status::Status;
use crate::sync::lock;

/// How much of each stream this side takes at first.
pub(super) const FIRST: Window = Window { items: 1024, bytes: 64 << 10 };

/// The most items that a window grows to.
const MOST_ITEMS: u64 = 64 << 10;

/// So many items cost as much of a task's turn as one message of a channel does: a message of a stream may have thousands,
/// and others would wait for all of them.
const SHARE: u64 = 32;

/// Those of a connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// How many calls have any, for who looks at each call.
    count: AtomicUsize,
    table: Mutex<HashMap<u64, Arc<CallStreams>>>,
    /// By how many bytes windows have grown.
    grown: AtomicU64,
}

impl Streams {
    /// Whether no call has any.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// By how many bytes windows have grown.
    pub(super) fn grown(&self) -> u64 {
        self.grown.load(Ordering::Relaxed)
    }

    pub(super) fn get(&self, call: u64) -> Option<Arc<CallStreams>> {
        if self.is_empty() { None } else { lock(&self.table).get(&call).cloned() }
    }

    fn add(&self, call: u64, streams: Arc<CallStreams>) {
        let mut table = lock(&self.table);
        table.insert(call, streams);
        self.count.store(table.len(), Ordering::Release);
    }

    /// The call is over. Nothing more is put to its streams.
    pub(super) fn remove(&self, call: u64) -> Option<Arc<CallStreams>> {
        if self.is_empty() {
            return None;
        }
        let mut table = lock(&self.table);
        let removed = table.remove(&call);
        self.count.store(table.len(), Ordering::Release);
        removed
    }

    fn all(&self) -> Vec<Arc<CallStreams>> {
        lock(&self.table).values().cloned().collect()
    }
}

/// Whether the peer has streams, as this side has.
pub(super) fn agreed(peer: &Hello) -> bool {
    peer.features & features::STREAMS != 0
}

/// How much the peer takes of each stream at first.
fn first_of(peer: &Hello) -> Window {
    Window { items: peer.stream_items.into(), bytes: peer.stream_bytes.into() }
}

impl Connection {
    /// Begins the streams of a call, if one of this kind has any: before its REQUEST is queued, or when that is taken in.
    #[cold]
    pub(super) fn begin_streams(&self, call: u64, kind: Kind) -> Option<Arc<CallStreams>> {
        if kind == Kind::Unary {
            return None;
        }
        let (to_server, to_client) = (kind.streams_requests(), kind.streams_answers());
        let (sends, receives) = match self.role {
            Role::Client => (to_server, to_client),
            Role::Server => (to_client, to_server),
        };
        let granted = self.sender.peer().map(first_of);
        let granted = granted.filter(|_| sends);
        let first = receives.then_some(FIRST);
        let streams = Arc::new(CallStreams::new(
            self.me.clone(),
            call,
            self.role,
            granted,
            first,
            self.unpacking.clone(),
        ));
        self.streams.add(call, streams.clone());
        Some(streams)
    }

    /// Takes in a frame of a call's streams. Under the lock of `receiving`; wakes nobody itself. `last`: the highest call that
    /// there has been. Says whether the call is over with it.
    pub(super) fn on_stream_frame(
        &self,
        kind: FrameType,
        call: u64,
        bytes: Bytes,
        last: impl FnOnce() -> u64,
        wakers: &mut Vec<Waker>,
    ) -> Result<bool, WireError> {
        if !self.sender.peer().is_some_and(agreed) {
            return Err(WireError::new("header.type", "is not one that was agreed on"));
        }
        let Some(streams) = self.streams.get(call) else {
            // It has crossed the call's end.
            let was_made = call > 0 && call <= last();
            return if was_made { Ok(false) } else { Err(WireError::new("header.call", "was never made")) };
        };
        let is_over = streams.take(kind, bytes, wakers)?;
        if is_over {
            self.streams.remove(call);
        }
        Ok(is_over)
    }

    /// The call is over on this side: nothing more of its streams leaves, but what has left in part.
    pub(super) fn end_streams(&self, call: u64, why: impl FnOnce() -> Ended) {
        if let Some(streams) = self.streams.remove(call) {
            streams.end(why()).into_iter().for_each(Waker::wake);
        }
    }

    /// The connection is over, and with it all streams.
    pub(super) fn fail_streams(&self, status: &Status) {
        for streams in self.streams.all() {
            self.streams.remove(streams.call());
            streams.end(Ended::Lost(status.clone())).into_iter().for_each(Waker::wake);
        }
    }
}

impl OnSent for Connection {
    /// Lets the streams go on that wait until their last message has left.
    #[cold]
    fn on_sent(&self, calls: Vec<u64>) {
        for call in calls {
            let Some(streams) = self.streams.get(call) else { continue };
            let (waker, reply) = streams.has_left();
            if let Some(waker) = waker {
                waker.wake();
            }
            if let Some(reply) = reply {
                self.complete(call, reply);
                self.sender.flush_soon();
            }
        }
    }
}

impl Connection {
    /// Whether a window may grow by so many bytes.
    fn grow(&self, bytes: u64) -> bool {
        let most = self.settings.limits.stream_memory;
        let grow = |grown: u64| grown.checked_add(bytes).filter(|grown| *grown <= most);
        self.streams.grown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.streams.grown.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn most(&self) -> Window {
        Window { items: MOST_ITEMS, bytes: self.settings.limits.stream_window }
    }
}

/// Ready if the task may go on with the item after so many of the same message: its turn lasts for some [`SHARE`]s.
#[inline]
fn poll_share(done: u64, cx: &mut TaskContext<'_>) -> Poll<()> {
    if done % SHARE == SHARE - 1 {
        ready!(coop::poll_proceed(cx)).made_progress();
    }
    Poll::Ready(())
}
