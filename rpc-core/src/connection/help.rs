//! What a caller does while it waits for its answer: for a while it looks itself, if its link lets it.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context as TaskContext;
use std::time::Instant;

use super::Connection;
use crate::transport::Link;

/// How far a waiting call is with it. Nobody depends on a call that helps to go on with it.
#[derive(Default)]
pub(super) enum Help {
    #[default]
    NotBegun,
    Until(Instant, Helper),
    Over,
}

/// A caller that helps, as long as this is there.
pub(super) struct Helper(Arc<dyn Link>);

impl Drop for Helper {
    fn drop(&mut self) {
        self.0.end_help();
    }
}

impl Help {
    /// Looks, in place of sleeping. True: answers have come, perhaps the one that is waited for.
    pub(super) fn look(&mut self, connection: &Connection) -> bool {
        match self {
            // First the others' turn: what they send now is under way when this one looks.
            Self::NotBegun => *self = Self::begin(connection),
            Self::Until(end, helper) => {
                let found = helper.0.help();
                if found || Instant::now() >= *end {
                    // What it has found may be another's. Then others wait too, and the link's own task does more for all of
                    // them than each for itself.
                    *self = Self::Over;
                }
                return found;
            }
            Self::Over => {}
        }
        false
    }

    fn begin(connection: &Connection) -> Self {
        // Nothing but a stream link was ever used: there is nobody to ask.
        if !connection.retaining.load(Ordering::Relaxed) {
            return Self::Over;
        }
        let Some(link) = connection.better() else { return Self::Over };
        match link.begin_help() {
            Some(window) => Self::Until(Instant::now() + window, Helper(link)),
            None => Self::Over,
        }
    }

    /// Has the caller polled again, after the runtime's other tasks, timers and sockets, as long as it should look.
    pub(super) fn again(&mut self, cx: &mut TaskContext<'_>) {
        if let Self::Until(..) = self {
            // Its first poll registers the waker with the runtime, which is all that is wanted of it.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
    }
}

impl fmt::Debug for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Help")
    }
}
