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
//! /// Made by a task, which is held back by its reader and ends with it.
//! fn ticks() -> impl Stream<Item = farcall::Result<u64>> {
//!     let (sender, ticks) = stream::channel(16);
//!     tokio::spawn(async move {
//!         for n in 0.. {
//!             if sender.send(Ok(n)).await.is_err() {
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

mod generate;

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use farcall_core::stream::Stream;
use tokio::sync::mpsc;

pub use self::generate::{Generate, Items, generate};

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

/// What is sent into one end, for others to feed a stream. It is tokio's bounded channel: `send` waits while `capacity`
/// items are there that nobody has taken, and fails when the receiver is gone, of which `closed` tells as well. The
/// stream ends when all senders are gone, and panics then if one of them was dropped by a panic: its call fails, INTERNAL.
/// A task that ends early in another way, as one that is aborted does, sends an error first; else its stream looks complete.
///
/// # Panics
///
/// If `capacity` is 0.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, items) = mpsc::channel(capacity);
    let cut_short = Arc::new(AtomicBool::new(false));
    (Sender { sender, cut_short: cut_short.clone() }, Receiver { items, cut_short })
}

/// The end of a [`channel`] that feeds it: tokio's, which also tells the other end of a panic.
pub struct Sender<T> {
    sender: mpsc::Sender<T>,
    /// A sender was dropped by a panic.
    cut_short: Arc<AtomicBool>,
}

impl<T> Deref for Sender<T> {
    type Target = mpsc::Sender<T>;

    fn deref(&self) -> &mpsc::Sender<T> {
        &self.sender
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), cut_short: self.cut_short.clone() }
    }
}

/// Before tokio's sender is dropped, which the stream may end by.
impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.cut_short.store(true, Ordering::Release);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sender.fmt(f)
    }
}

/// The end of a [`channel`] that is a stream.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Receiver<T> {
    items: mpsc::Receiver<T>,
    cut_short: Arc<AtomicBool>,
}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let polled = self.items.poll_recv(cx);
        let is_end = matches!(polled, Poll::Ready(None));
        assert!(!(is_end && self.cut_short.load(Ordering::Acquire)), "what feeds a stream has panicked");
        polled
    }
}
