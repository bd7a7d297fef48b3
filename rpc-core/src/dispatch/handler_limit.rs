//! How many handlers there are, which may be more than calls: one that was cancelled lives until its task is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The handlers that have become tasks and were not dropped, and those that may be made meanwhile.
#[derive(Debug)]
pub(super) struct HandlerLimit {
    count: AtomicUsize,
    most: usize,
    /// How many wait for there to be fewer.
    waiting: AtomicUsize,
    fewer: Notify,
}

/// A handler that has become a task.
#[derive(Debug)]
pub(super) struct HandlerPermit(Arc<HandlerLimit>);

/// A place for the handler that is made and polled the first time, one after the other.
pub(super) struct Reserved<'a>(&'a HandlerLimit);

impl HandlerLimit {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let (count, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { count, most, waiting, fewer: Notify::new() })
    }

    /// Keeps a place for handlers that are made here. It may be one too many: see [`has_room`](Reserved::has_room).
    pub(super) fn reserve(&self) -> Reserved<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        Reserved(self)
    }

    /// Waits until another one may be made.
    pub(super) async fn room(self: Arc<Self>) -> HandlerPermit {
        // First this, then to look: who leaves does it the other way round, so one of the two sees the other.
        let _waiting = Waiting::begin(&self);
        loop {
            let more = |count: usize| (count < self.most).then_some(count + 1);
            if self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
                // Of several that have gone only one has left word, if nobody was there yet to be told.
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
    /// A handler that was made in a reserved place has become a task, and the place is for the next.
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
