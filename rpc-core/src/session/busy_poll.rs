//! Busy polling: a caller that waits for its answer polls the link itself for a while, if the link asks for it.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use tokio::task::coop;

use super::Sender;
use crate::transport::{BusyPoll, Link};

/// The state of busy polling by a caller that waits for an answer, or for the end of an operation on the peer's memory. Nothing
/// else depends on whether the caller continues it.
pub(crate) enum BusyPolling {
    Since(Instant, Arc<dyn Link>),
    Over,
}

impl BusyPolling {
    /// Starts polling, if the upgraded link asks for it. The first poll comes after other tasks have had their turn, so
    /// that their messages are on the way by then.
    pub(crate) fn begin(sender: &Sender, cx: &mut TaskContext<'_>) -> Self {
        // Without an upgraded link there is nothing to poll.
        if !sender.was_upgraded() {
            return Self::Over;
        }
        let Some(link) = sender.upgraded() else { return Self::Over };
        let polling = Self::by(link);
        polling.again(cx);
        polling
    }

    /// Starts polling an upgraded link, if it asks for that.
    pub(crate) fn by(link: Arc<dyn Link>) -> Self {
        match link.busy_poll(Duration::ZERO) {
            BusyPoll::Again => Self::Since(Instant::now(), link),
            BusyPoll::Found | BusyPoll::Sleep => Self::Over,
        }
    }

    /// Polls instead of sleeping. Returns true if something has arrived or ended, perhaps what the caller awaits.
    pub(crate) fn poll(&mut self) -> bool {
        let Self::Since(since, link) = self else { return false };
        // At least 1 ns, because zero would begin anew.
        let polled = link.busy_poll(since.elapsed().max(Duration::from_nanos(1)));
        if polled != BusyPoll::Again {
            // The answer that was found may be another call's. Then several callers wait, and the link's own task
            // serves all of them better than each polling for itself.
            *self = Self::Over;
        }
        polled == BusyPoll::Found
    }

    /// Schedules another poll of the caller, after the runtime's other tasks, timers and sockets, while it should poll
    /// the link.
    pub(crate) fn again(&self, cx: &mut TaskContext<'_>) {
        if let Self::Since(..) = self {
            // The first poll of `yield_now` registers the waker with the runtime, and nothing else is needed of it.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
    }
}

/// Whether a lone call polls the stream link at once, before its caller is woken by anything.
pub(crate) fn polls_at_once(sender: &Sender) -> bool {
    // Without remaining budget a poll must end, so that the runtime gets its turn.
    !sender.was_upgraded() && sender.stream().description().busy_polls && coop::has_budget_remaining()
}

/// Polls the stream link for a moment.
pub(crate) fn poll_at_once(sender: &Sender, cx: &mut TaskContext<'_>) {
    if sender.stream().busy_poll(Duration::ZERO) == BusyPoll::Found
        && let Poll::Ready(budget) = coop::poll_proceed(cx)
    {
        budget.made_progress();
    }
}

impl fmt::Debug for BusyPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BusyPolling")
    }
}
