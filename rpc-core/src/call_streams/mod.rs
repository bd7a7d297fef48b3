//! The streams of calls, on either side: what was sent, what was received, and how they end.
//!
//! A call with streams has an entry here from when its REQUEST is queued or received until the call is over. Frames are
//! handled under the lock of `receiving`, so that they are in order whichever link they come by. The lock of a call's
//! streams may be taken while the locks of receiving and sending are held. Under it only the sender's queue may be
//! locked.

mod call;
mod handlers;
mod items_by;
#[cfg(all(test, farcall_loom))]
mod loom_tests;
mod outgoing_window;
mod pump;
mod reader;
mod table;
mod unpack;

use std::task::{Context as TaskContext, Poll, ready};

use tokio::task::coop;

pub(crate) use self::call::{CallStreams, Ended, StreamsMoved};
pub use self::handlers::Streams;
pub(crate) use self::items_by::ItemsBy;
pub use self::outgoing_window::{Available, OutgoingWindow};
pub(crate) use self::pump::{Encoded, Pump, Pumped, Source, end};
pub(crate) use self::reader::{NextItem, Reader};
pub(crate) use self::table::StreamTable;

use crate::proto::wire::Window;

/// The initial window of each stream that this side receives.
pub(crate) const FIRST: Window = Window { items: 1024, bytes: 64 << 10 };

/// The most items that a window grows to.
const MOST_ITEMS: u64 = 64 << 10;

/// How many items consume one unit of tokio's cooperative budget, as one message of a channel does. A message of a
/// stream may have thousands of items, and other tasks would wait for all of them.
const SHARE: u64 = 32;

/// Ready if the task may continue with the next item. `done` is the number of items taken so far; every [`SHARE`] items
/// consume a unit of the budget.
#[inline]
pub(crate) fn poll_share(done: u64, cx: &mut TaskContext<'_>) -> Poll<()> {
    if done % SHARE == SHARE - 1 {
        ready!(coop::poll_proceed(cx)).made_progress();
    }
    Poll::Ready(())
}
