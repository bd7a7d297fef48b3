//! What a caller does while it waits for its answer: for a while it looks itself, if its link lets it.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use tokio::task::coop;

use crate::session::Sender;
use crate::transport::Link;

/// How far a waiting call is with it. Nobody depends on a call that helps to go on with it.
pub(crate) enum Help {
    Until(Instant, Helper),
    Over,
}

/// A caller that helps, as long as this is there.
pub(crate) struct Helper(Arc<dyn Link>);

impl Drop for Helper {
    fn drop(&mut self) {
        self.0.end_help();
    }
}

impl Help {
    /// Looks, in place of sleeping. True: answers have come, perhaps the one that is waited for.
    pub(crate) fn look(&mut self) -> bool {
        let Self::Until(end, helper) = self else { return false };
        let found = helper.0.help();
        if found || Instant::now() >= *end {
            // What it has found may be another's. Then others wait too, and the link's own task does more for all of
            // them than each for itself.
            *self = Self::Over;
        }
        found
    }

    /// Begins, if the link lets it. It looks for the first time after the others' turn: what they send is under way then.
    pub(crate) fn begin(sender: &Sender, cx: &mut TaskContext<'_>) -> Self {
        // Nothing but a stream link was ever used: there is nobody to ask.
        if !sender.was_upgraded() {
            return Self::Over;
        }
        let Some(link) = sender.upgraded() else { return Self::Over };
        let Some(window) = link.begin_help() else { return Self::Over };
        let help = Self::Until(Instant::now() + window, Helper(link));
        help.again(cx);
        help
    }

    /// Has the caller polled again, after the runtime's other tasks, timers and sockets, as long as it should look.
    pub(crate) fn again(&self, cx: &mut TaskContext<'_>) {
        if let Self::Until(..) = self {
            // Its first poll registers the waker with the runtime, which is all that is wanted of it.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
    }
}

/// Returns whether a call that is alone looks for its answer at once, before its caller is told of anything.
pub(super) fn looks(sender: &Sender) -> bool {
    // Where a poll has no budget left it must end, and the runtime have its turn.
    !sender.was_upgraded() && sender.stream().looks() && coop::has_budget_remaining()
}

/// Looks for what the peer sends, for a moment.
pub(crate) fn look_for_answers(sender: &Sender, cx: &mut TaskContext<'_>) {
    if sender.stream().look()
        && let Poll::Ready(budget) = coop::poll_proceed(cx)
    {
        budget.made_progress();
    }
}

impl fmt::Debug for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Help")
    }
}
