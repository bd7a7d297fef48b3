//! Streams to begin with, so that a program needs no further crate for its first ones.
//!
//! Whatever implements [`Stream`] can be streamed: it is the trait of the `futures` crate, and with the
//! combinators of `futures` or `tokio-stream` a stream is made of others.
//!
//! ```
//! use farcall::{Stream, stream};
//!
//! /// Made on the way: what is not read is not made.
//! fn squares(up_to: u64) -> impl Stream<Item = farcall::Result<u64>> {
//!     stream::iter((0..up_to).map(|n| Ok(n * n)))
//! }
//!
//! /// Made by a task, which waits for its reader and ends with it.
//! fn ticks() -> impl Stream<Item = farcall::Result<u64>> {
//!     let (sender, ticks) = stream::channel(16);
//!     tokio::spawn(async move {
//!         for n in 0.. {
//!             if sender.send(n).await.is_err() {
//!                 break; // nobody reads them any more
//!             }
//!         }
//!     });
//!     ticks
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> farcall::Result<()> {
//! let mut squares = farcall::Streaming::new(squares(3));
//! assert_eq!(squares.message().await?, Some(0));
//! let mut ticks = farcall::Streaming::new(ticks());
//! assert_eq!((ticks.message().await?, ticks.message().await?), (Some(0), Some(1)));
//! # Ok(())
//! # }
//! ```

mod channel;
mod generate;
mod permit;

use std::pin::Pin;
use std::task::{Context, Poll};

use farcall_core::stream::Stream;

pub use self::channel::{Closed, Receiver, Sender, TrySendError, channel};
pub use self::generate::{Generate, Items, generate};
pub use self::permit::Permit;
pub use farcall_core::stream::{Available, StreamItem};

/// The items of an iterator, each of which is there at once.
pub fn iter<I: IntoIterator>(items: I) -> Iter<I::IntoIter> {
    Iter(items.into_iter())
}

/// See [`iter`].
#[derive(Clone, Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Iter<I>(I);

impl<I> Unpin for Iter<I> {}

impl<I: Iterator> Stream for Iter<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}
