//! A stream that other tasks feed.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use farcall_core::status::{Blame, Code, Executed, Status};
use farcall_core::stream::Stream;
use tokio::sync::mpsc;

use super::permit::Reader;

/// Returns the two ends of a stream that other tasks feed. It holds up to `capacity` items that nobody has taken; then senders
/// wait.
///
/// The stream ends when all senders are dropped. If a panic drops one, the last item is an error, INTERNAL. A task that ends
/// early in another way, for example because it is aborted, calls [`Sender::fail`] first. Otherwise its stream looks complete.
///
/// The stream is an answer of a handler, or an argument of a client's call. An error that a client sends cancels its call, and
/// the call ends with it.
///
/// # Panics
///
/// If `capacity` is 0.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> farcall::Result<()> {
/// use farcall::{Code, Status, Streaming, stream};
///
/// let (sender, numbers) = stream::channel(2);
/// tokio::spawn(async move {
///     for n in 1..4 {
///         // An error says that nobody reads them any more.
///         let Ok(()) = sender.send(n).await else { return };
///     }
///     sender.fail(Status::new(Code::DataLoss, "the rest is lost")).await;
/// });
///
/// let mut numbers = Streaming::new(numbers);
/// assert_eq!(numbers.message().await?, Some(1));
/// assert_eq!(numbers.message().await?, Some(2));
/// assert_eq!(numbers.message().await?, Some(3));
/// assert_eq!(numbers.message().await.unwrap_err().code(), Code::DataLoss);
/// # Ok(())
/// # }
/// ```
pub fn channel<T, E>(capacity: usize) -> (Sender<T, E>, Receiver<T, E>) {
    let (items, receiver) = mpsc::channel(capacity);
    let shared = Arc::new(Shared { panicked: AtomicBool::new(false), reader: Reader::default() });
    (
        Sender { items, shared: shared.clone() },
        Receiver { items: receiver, shared, begun: false, ended: false },
    )
}

/// The end of a [`channel`] that feeds the stream. Its clones feed the same stream.
pub struct Sender<T, E = Status> {
    pub(super) items: mpsc::Sender<Queued<T, E>>,
    pub(super) shared: Arc<Shared>,
}

/// The state that both ends of a channel share.
pub(super) struct Shared {
    /// A panic has dropped a sender.
    panicked: AtomicBool,
    pub(super) reader: Reader,
}

/// An item in a channel.
pub(super) struct Queued<T, E> {
    pub(super) item: Result<T, E>,
    /// The bytes that a permit has reserved for it.
    pub(super) bytes: u64,
}

impl<T, E> From<Result<T, E>> for Queued<T, E> {
    fn from(item: Result<T, E>) -> Self {
        Self { item, bytes: 0 }
    }
}

impl<T, E> Sender<T, E> {
    /// Sends an item. Waits while the channel is full.
    ///
    /// # Errors
    ///
    /// [`Closed`] with the item, if the reader has gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the item is not sent and is lost.
    pub async fn send(&self, item: T) -> Result<(), Closed<T>> {
        match self.items.reserve().await {
            Ok(place) => {
                place.send(Ok(item).into());
                Ok(())
            }
            Err(_) => Err(Closed(item)),
        }
    }

    /// Sends an item without waiting.
    ///
    /// # Errors
    ///
    /// The item, if the channel is full or the reader has gone.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        match self.items.try_reserve() {
            Ok(place) => {
                place.send(Ok(item).into());
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(())) => Err(TrySendError::Full(item)),
            Err(mpsc::error::TrySendError::Closed(())) => Err(TrySendError::Closed(item)),
        }
    }

    /// Sends an item from a thread that may block, outside of async code. Waits while the channel is full.
    ///
    /// # Errors
    ///
    /// [`Closed`] with the item, if the reader has gone.
    ///
    /// # Panics
    ///
    /// If it is called in async code, whose thread it would block.
    pub fn blocking_send(&self, item: T) -> Result<(), Closed<T>> {
        self.items.blocking_send(Ok(item).into()).map_err(|unsent| match unsent.0.item {
            Ok(item) => Closed(item),
            Err(_) => unreachable!("an item was sent, no error"),
        })
    }

    /// Passes on what another stream gave: an item, or the error that ends it. Waits while the channel is full.
    ///
    /// # Errors
    ///
    /// [`Closed`] with the item or error, if the reader has gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the item is not sent and is lost.
    pub async fn pass_on(&self, item: Result<T, E>) -> Result<(), Closed<Result<T, E>>> {
        self.items.send(item.into()).await.map_err(|unsent| Closed(unsent.0.item))
    }

    /// Sends an error, after which the reader takes nothing more. Waits while the channel is full. Does nothing if the reader has
    /// gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the error is not sent.
    pub async fn fail(&self, error: E) {
        // Without a reader there is nobody to tell.
        let _ = self.items.send(Err(error).into()).await;
    }

    /// Returns when the reader has gone: nothing that is sent then is read. Cancel safe.
    pub async fn closed(&self) {
        self.items.closed().await;
    }

    /// Returns whether the reader has gone.
    pub fn is_closed(&self) -> bool {
        self.items.is_closed()
    }

    /// Returns how many items can be sent at once without waiting.
    pub fn capacity(&self) -> usize {
        self.items.capacity()
    }
}

impl<T, E> Clone for Sender<T, E> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), shared: self.shared.clone() }
    }
}

impl<T, E> Drop for Sender<T, E> {
    fn drop(&mut self) {
        // Before the channel's own end is dropped, by which the reader may see the end of the stream.
        if std::thread::panicking() {
            self.shared.panicked.store(true, Ordering::Release);
        }
    }
}

impl<T, E> fmt::Debug for Sender<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// The item that was not sent, because the reader of the stream has gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Closed<T>(pub T);

impl<T> fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closed").finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the stream has gone")
    }
}

impl<T> Error for Closed<T> {}

/// The item that was not sent at once.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrySendError<T> {
    /// The channel is full.
    Full(T),
    /// The reader of the stream has gone.
    Closed(T),
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the channel of the stream is full",
            Self::Closed(_) => "the reader of the stream has gone",
        })
    }
}

impl<T> Error for TrySendError<T> {}

/// A handler that sends to a caller that has gone was cancelled.
impl<T> From<Closed<T>> for Status {
    fn from(closed: Closed<T>) -> Self {
        Self::new(Code::Cancelled, closed.to_string())
    }
}

/// The end of a [`channel`] that is the stream.
#[must_use = "streams do nothing unless polled"]
pub struct Receiver<T, E = Status> {
    items: mpsc::Receiver<Queued<T, E>>,
    shared: Arc<Shared>,
    /// Whether it was polled.
    begun: bool,
    ended: bool,
}

impl<T, E> Unpin for Receiver<T, E> {}

impl<T, E: From<Status>> Stream for Receiver<T, E> {
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T, E>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if !self.begun {
            self.begun = true;
            self.shared.reader.attach();
        }
        let item = ready!(self.items.poll_recv(cx)).map(|Queued { item, bytes }| {
            if bytes > 0 {
                self.shared.reader.give_back(bytes);
            }
            item
        });
        self.ended = !matches!(item, Some(Ok(_)));
        if item.is_none() && self.shared.panicked.load(Ordering::Acquire) {
            let status = Status::new(Code::Internal, "the task that feeds the stream panicked");
            let status = status.with_executed(Executed::Maybe).with_blame(Blame::Application);
            return Poll::Ready(Some(Err(status.into())));
        }
        Poll::Ready(item)
    }
}

impl<T, E> fmt::Debug for Receiver<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn next<T, E: From<Status>>(stream: &mut Receiver<T, E>) -> Option<Result<T, E>> {
        poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
    }

    #[tokio::test]
    async fn a_panic_that_drops_a_sender_is_the_last_item() {
        let (sender, mut items) = channel::<u8, Status>(4);
        let other = sender.clone();
        let panics = tokio::spawn(async move {
            sender.send(1).await.unwrap();
            panic!("on purpose");
        });
        assert!(panics.await.is_err());
        other.send(2).await.unwrap();
        drop(other);
        assert_eq!(next(&mut items).await, Some(Ok(1)));
        assert_eq!(next(&mut items).await, Some(Ok(2)));
        let error = next(&mut items).await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.blame()), (Code::Internal, Blame::Application));
        assert_eq!(next(&mut items).await, None);
    }

    #[tokio::test]
    async fn nothing_follows_an_error() {
        let (sender, mut items) = channel(4);
        sender.fail(Status::new(Code::DataLoss, "gone")).await;
        sender.send(1).await.unwrap();
        assert_eq!(next(&mut items).await.unwrap().unwrap_err().code(), Code::DataLoss);
        assert_eq!(next(&mut items).await, None);
    }

    #[tokio::test]
    async fn a_sender_learns_that_nobody_reads() {
        let (sender, items) = channel::<_, Status>(1);
        assert_eq!(sender.capacity(), 1);
        sender.try_send(1).unwrap();
        assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
        drop(items);
        sender.closed().await;
        assert!(sender.is_closed());
        assert_eq!(sender.try_send(3), Err(TrySendError::Closed(3)));
        assert_eq!(sender.send(4).await, Err(Closed(4)));
        assert_eq!(sender.pass_on(Ok(5)).await, Err(Closed(Ok(5))));
        sender.fail(Status::new(Code::DataLoss, "gone")).await;
        let status = Status::from(Closed(6));
        assert_eq!(status.code(), Code::Cancelled);
    }
}
