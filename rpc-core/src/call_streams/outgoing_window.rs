//! The window of a stream that this side sends, as its source sees it.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll};

use super::CallStreams;

thread_local! {
    /// The streams whose source this thread polls.
    static CURRENT: RefCell<Option<Arc<CallStreams>>> = const { RefCell::new(None) };
}

/// The rest of a stream's window: how much may be sent before its reader has taken something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Available {
    /// The number of items.
    pub items: u64,
    /// The number of bytes, as they are encoded. An item that is longer than what is left goes beyond it.
    pub bytes: u64,
}

impl Available {
    /// More than any stream sends.
    pub const UNLIMITED: Self = Self { items: u64::MAX, bytes: u64::MAX };
    /// Nothing.
    pub const NONE: Self = Self { items: 0, bytes: 0 };
}

/// The window of a stream that is sent to a peer. Its clones are of one stream. It does not keep the stream's call.
#[derive(Clone)]
pub struct OutgoingWindow(Weak<CallStreams>);

impl OutgoingWindow {
    /// Returns the window of the stream whose source is being polled. `None`: nobody sends what is polled to a peer.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(|current| current.as_ref().map(Arc::downgrade).map(Self))
    }

    /// Returns how much is left. Nothing is left while items are taken from the source, because they are not counted yet, and if
    /// the reader wants no more or the call is over.
    pub fn available(&self) -> Available {
        self.0.upgrade().map_or(Available::NONE, |streams| streams.left())
    }

    /// Ready when `fits` holds of what is left. Otherwise the task is woken when that has changed, unless the call is over.
    pub fn poll_until(&self, cx: &mut TaskContext<'_>, fits: impl FnOnce(Available) -> bool) -> Poll<()> {
        self.0.upgrade().map_or(Poll::Pending, |streams| streams.poll_left(cx, fits))
    }
}

impl fmt::Debug for OutgoingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OutgoingWindow").field(&self.available()).finish()
    }
}

/// The polling of a source. When it is dropped, the source of before is current again.
pub(super) struct Polling(Option<Arc<CallStreams>>);

impl Polling {
    pub(super) fn of(streams: &Arc<CallStreams>) -> Self {
        streams.begin_taking();
        Self(CURRENT.replace(Some(streams.clone())))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
