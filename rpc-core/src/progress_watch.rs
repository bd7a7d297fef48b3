//! A watch over calls of which nothing moves.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::connection::Moved;
use crate::status::{Blame, Code, Executed, Status};

/// How often a call is looked at within its limit. Nothing is noted when something moves, so that this costs the other calls
/// nothing. The price is that the limit may pass by one part in so many before it is noticed.
const LOOKS: u32 = 8;

/// The longest limit. Longer ones might not be times that a clock can tell.
const LONGEST: Duration = Duration::from_secs(86_400 * 365);

/// A watch over what moves of a call. It says when nothing has moved for a limit of time.
#[derive(Clone, Debug)]
pub(crate) struct ProgressWatch {
    limit: Duration,
    /// The time at which something was last seen to have moved.
    since: Instant,
    /// The time of the next look.
    next: Instant,
    seen: Moved,
}

impl ProgressWatch {
    /// Returns a watch over a call of which nothing has been sent.
    pub(crate) fn new(limit: Duration) -> Self {
        let (limit, now) = (limit.min(LONGEST), Instant::now());
        Self { limit, since: now, next: now + limit, seen: Moved::default() }
    }

    /// Starts the time anew: the call is about to be sent, or to be watched in another place.
    pub(crate) fn begin(&mut self) {
        self.since = Instant::now();
        self.next = self.since + self.interval();
    }

    /// Returns when to look.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Looks at what has moved so far. Returns false if nothing has for the limit of time.
    pub(crate) fn look(&mut self, moved: Moved) -> bool {
        let now = Instant::now();
        if moved.is_progress_after(&self.seen) {
            (self.seen, self.since) = (moved, now);
        }
        let end = self.since + self.limit;
        self.next = end.min(now + self.interval());
        now < end
    }

    fn interval(&self) -> Duration {
        (self.limit / LOOKS).max(Duration::from_millis(1))
    }

    /// Returns a message that says what was seen.
    pub(crate) fn message(&self) -> String {
        format!("nothing of the call has moved for {:?} (its progress timeout): {}", self.limit, self.seen)
    }
}

/// A watch with a timer of its own, over the streams of a call whose answer has begun.
#[derive(Debug)]
pub(crate) struct ProgressAlarm {
    watch: ProgressWatch,
    timer: Pin<Box<Sleep>>,
}

impl ProgressAlarm {
    pub(crate) fn new(mut watch: ProgressWatch) -> Self {
        watch.begin();
        let timer = Box::pin(tokio::time::sleep_until(watch.next()));
        Self { watch, timer }
    }

    /// Returns the status that ends the call, once nothing has moved for the limit of time. `moved` returns what has moved so
    /// far, or `None` if nothing is expected to.
    pub(crate) fn poll(
        &mut self,
        cx: &mut TaskContext<'_>,
        moved: impl Fn() -> Option<Moved>,
    ) -> Poll<Status> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            match moved() {
                None => self.watch.begin(),
                Some(moved) if self.watch.look(moved) => {}
                Some(_) => {
                    let status = Status::new(Code::DeadlineExceeded, self.watch.message());
                    return Poll::Ready(status.with_executed(Executed::Maybe).with_blame(Blame::Peer));
                }
            }
            self.timer.as_mut().reset(self.watch.next());
        }
    }
}
