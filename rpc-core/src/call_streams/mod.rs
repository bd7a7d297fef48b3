//! The streams of calls, on either side: what is sent of them, what has come, and how they end.
//!
//! A call with streams has an entry here from when its REQUEST is queued, or taken in, until the call is over. Frames are put
//! to it under the lock of `receiving`, so that they are in order whichever link they come by. The lock of a call's streams
//! may be taken with the locks of receiving and sending held. Under it only the sender's queue may be locked.

mod call;
mod handlers;
mod items_by;
#[cfg(all(test, farcall_loom))]
mod loom_tests;
mod pump;
mod reader;
mod table;
mod unpack;

use std::task::{Context as TaskContext, Poll, ready};

use tokio::task::coop;

pub(crate) use self::call::{CallStreams, Ended};
pub use self::handlers::Streams;
pub(crate) use self::items_by::ItemsBy;
pub(crate) use self::pump::{Encoded, Pump, Pumped, Source, end};
pub(crate) use self::reader::{NextItem, Reader};
pub(crate) use self::table::StreamTable;

use crate::proto::wire::Window;

/// How much of each stream this side takes at first.
pub(crate) const FIRST: Window = Window { items: 1024, bytes: 64 << 10 };

/// The most items that a window grows to.
const MOST_ITEMS: u64 = 64 << 10;

/// So many items cost as much of a task's turn as one message of a channel does: a message of a stream may have thousands,
/// and others would wait for all of them.
const SHARE: u64 = 32;

/// Ready if the task may go on with the item after so many of the same message: its turn lasts for some [`SHARE`]s.
#[inline]
fn poll_share(done: u64, cx: &mut TaskContext<'_>) -> Poll<()> {
    if done % SHARE == SHARE - 1 {
        ready!(coop::poll_proceed(cx)).made_progress();
    }
    Poll::Ready(())
}
