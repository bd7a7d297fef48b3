//! A limit on handlers. There may be more handlers than calls, because a cancelled one lives until its task is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The count of handlers that are tasks and were not dropped, and of reserved places.
#[derive(Debug)]
pub(super) struct HandlerLimit {
    count: AtomicUsize,
    most: usize,
    /// How many tasks wait for the count to drop.
    waiting: AtomicUsize,
    fewer: Notify,
}

/// The permit of a handler that has become a task.
#[derive(Debug)]
pub(super) struct HandlerPermit(Arc<HandlerLimit>);

/// A place for handlers that are made and first polled, one after the other.
pub(super) struct Reserved<'a>(&'a HandlerLimit);

impl HandlerLimit {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let (count, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { count, most, waiting, fewer: Notify::new() })
    }

    /// Reserves a place for handlers that are made here. It may exceed the limit: see [`has_room`](Reserved::has_room).
    pub(super) fn reserve(&self) -> Reserved<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        Reserved(self)
    }

    /// Waits until another handler may be made.
    pub(super) async fn room(self: Arc<Self>) -> HandlerPermit {
        // Registers before the check. A leaving handler does the reverse, so one of the two sees the other.
        let _waiting = Waiting::begin(&self);
        loop {
            let more = |count: usize| (count < self.most).then_some(count + 1);
            if self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
                // If several handlers left while nobody waited, only one notification was stored, so pass it on.
                self.fewer.notify_one();
                return HandlerPermit(self.clone());
            }
            self.fewer.notified().await;
        }
    }

    fn leave(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.fewer.notify_one();
        }
    }
}

impl Reserved<'_> {
    /// Whether a handler may be made now.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.0.count.load(Ordering::SeqCst) <= self.0.most
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl HandlerPermit {
    /// Returns the permit of a handler that was made in a reserved place and has become a task. The place serves the
    /// next one.
    pub(super) fn new(limit: &Arc<HandlerLimit>) -> Self {
        limit.count.fetch_add(1, Ordering::SeqCst);
        Self(limit.clone())
    }
}

impl Drop for HandlerPermit {
    fn drop(&mut self) {
        self.0.leave();
    }
}

struct Waiting<'a>(&'a HandlerLimit);

impl<'a> Waiting<'a> {
    fn begin(limit: &'a HandlerLimit) -> Self {
        limit.waiting.fetch_add(1, Ordering::SeqCst);
        Self(limit)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
