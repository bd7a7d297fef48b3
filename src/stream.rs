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

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use farcall_core::stream::Stream;
use tokio::sync::mpsc;

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

/// The items that a future sends, which is polled as they are asked for: it needs no task, keeps the handler's context, and is
/// dropped with the stream. The stream ends with it; an error that it ends with is the last item.
///
/// ```
/// use farcall::{Stream, Streaming, stream};
///
/// /// Answers line by line, as they come.
/// fn louder(mut lines: Streaming<String>) -> impl Stream<Item = farcall::Result<String>> {
///     stream::generate(async move |answers| {
///         while let Some(line) = lines.message().await? {
///             answers.send(line.to_uppercase()).await;
///         }
///         Ok(())
///     })
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> farcall::Result<()> {
/// let lines = Streaming::new(stream::iter([Ok("hello".to_owned())]));
/// let mut answers = Streaming::new(louder(lines));
/// assert_eq!(answers.message().await?.as_deref(), Some("HELLO"));
/// assert_eq!(answers.message().await?, None);
/// # Ok(())
/// # }
/// ```
pub fn generate<T, E, F>(make: impl FnOnce(Items<T>) -> F) -> Generate<T, E, F>
where
    F: Future<Output = Result<(), E>>,
{
    let (sender, items) = mpsc::channel(AHEAD);
    Generate { make: Some(Box::pin(make(Items(sender)))), items, error: None }
}

/// So many items are made before the first of them is taken: they go together.
const AHEAD: usize = 64;

/// Where the future of [`generate`] sends its items.
#[derive(Debug)]
pub struct Items<T>(mpsc::Sender<T>);

impl<T> Items<T> {
    /// Sends one, when there is room for it.
    ///
    /// # Cancel safety
    ///
    /// The item is lost if the future is dropped.
    pub async fn send(&self, item: T) {
        // If it fails nobody is there who could miss the item, nor polls this.
        let _ = self.0.send(item).await;
    }
}

/// See [`generate`].
#[must_use = "streams do nothing unless polled"]
pub struct Generate<T, E, F> {
    /// `None`: it is done.
    make: Option<Pin<Box<F>>>,
    items: mpsc::Receiver<T>,
    /// What it has ended with.
    error: Option<E>,
}

impl<T, E, F> Unpin for Generate<T, E, F> {}

impl<T, E, F> Stream for Generate<T, E, F>
where
    F: Future<Output = Result<(), E>>,
{
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T, E>>> {
        let Self { make, items, error } = &mut *self;
        loop {
            if let Ok(item) = items.try_recv() {
                return Poll::Ready(Some(Ok(item)));
            }
            let Some(future) = make else { return Poll::Ready(error.take().map(Err)) };
            match future.as_mut().poll(cx) {
                Poll::Ready(result) => (*make, *error) = (None, result.err()),
                Poll::Pending => {
                    let item = ready!(items.poll_recv(cx));
                    return item.map_or(Poll::Pending, |item| Poll::Ready(Some(Ok(item))));
                }
            }
        }
    }
}

impl<T, E, F> fmt::Debug for Generate<T, E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generate").field("is_done", &self.make.is_none()).finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::{Code, EndReason, Status, Streaming};

    #[tokio::test]
    async fn what_a_future_has_sent_comes_before_its_error() {
        let mut numbers = Streaming::new(generate(async |numbers| {
            for n in 0..1000 {
                numbers.send(n).await;
                if n % 100 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Err(Status::new(Code::DataLoss, "the rest is lost"))
        }));
        for n in 0..1000 {
            assert_eq!(numbers.message().await, Ok(Some(n)));
        }
        assert_eq!(numbers.message().await.map_err(|status| status.code()), Err(Code::DataLoss));
        assert_eq!(numbers.message().await, Ok(None));
    }

    #[tokio::test]
    async fn a_stream_ends_with_the_future_that_it_is_made_by() {
        let mut numbers = Streaming::<u8>::new(generate(async |numbers| {
            numbers.send(7).await;
            drop(numbers);
            tokio::task::yield_now().await;
            Ok(())
        }));
        assert_eq!(numbers.message().await, Ok(Some(7)));
        assert_eq!(numbers.message().await, Ok(None));
        assert_eq!(numbers.end_reason(), Some(EndReason::Completed));
    }

    #[tokio::test]
    async fn nothing_is_made_that_nobody_asks_for() {
        let made = Arc::new(AtomicBool::new(false));
        let making = made.clone();
        let mut numbers = Box::pin(generate::<u8, Status, _>(async move |numbers| {
            for _ in 0..=AHEAD {
                numbers.send(1).await;
            }
            making.store(true, Ordering::Relaxed);
            Ok(())
        }));
        assert!(matches!(poll_fn(|cx| numbers.as_mut().poll_next(cx)).await, Some(Ok(1))));
        assert!(!made.load(Ordering::Relaxed), "one more than there is room for");
    }
}
