//! Busy polling: a caller that waits for its answer polls its link itself for a while, if the link has it so.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use tokio::task::coop;

use crate::session::Sender;
use crate::transport::{BusyPoll, Link};

/// How far a waiting call is with it. Nothing else depends on a caller that goes on with it.
pub(crate) enum BusyPolling {
    Since(Instant, Arc<dyn Link>),
    Over,
}

impl BusyPolling {
    /// Begins, if the upgraded link has it so. It polls for the first time after the others' turn: what they send is under way
    /// then.
    pub(crate) fn begin(sender: &Sender, cx: &mut TaskContext<'_>) -> Self {
        // Nothing but a stream link was ever used: there is nobody to ask.
        if !sender.was_upgraded() {
            return Self::Over;
        }
        let Some(link) = sender.upgraded() else { return Self::Over };
        if link.busy_poll(Duration::ZERO) != BusyPoll::Again {
            return Self::Over;
        }
        let polling = Self::Since(Instant::now(), link);
        polling.again(cx);
        polling
    }

    /// Polls, in place of sleeping. True: answers have come, perhaps the one that is waited for.
    pub(crate) fn poll(&mut self) -> bool {
        let Self::Since(since, link) = self else { return false };
        // Never zero, which would begin anew.
        let polled = link.busy_poll(since.elapsed().max(Duration::from_nanos(1)));
        if polled != BusyPoll::Again {
            // What was found may be another's. Then others wait too, and the link's own task does more for all of them
            // than each for itself.
            *self = Self::Over;
        }
        polled == BusyPoll::Found
    }

    /// Has the caller polled again, after the runtime's other tasks, timers and sockets, as long as it should poll the link.
    pub(crate) fn again(&self, cx: &mut TaskContext<'_>) {
        if let Self::Since(..) = self {
            // Its first poll registers the waker with the runtime, which is all that is wanted of it.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
    }
}

/// Returns whether a call that is alone polls the stream link at once, before its caller is told of anything.
pub(super) fn polls_at_once(sender: &Sender) -> bool {
    // Where a poll has no budget left it must end, and the runtime have its turn.
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
