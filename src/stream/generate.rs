//! A stream whose items a future sends.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use farcall_core::stream::Stream;

/// Makes a stream of the items that a future sends. The stream polls the future when it is asked for an item: the future needs no
/// task, keeps the handler's context, and is dropped with the stream. The stream ends with the future; an error of the future is
/// the last item.
///
/// The future runs in step with its reader: [`Items::send`] returns only when the reader asks for the item after. So an
/// action between two items, such as [`Context::compress`](crate::Context::compress), takes effect with the second of
/// them.
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
    let place = Arc::new(Place(Mutex::default()));
    let make = make(Items(place.clone()));
    Generate { make: Some(Box::pin(make)), place, error: None }
}

/// The place where the future of [`generate`] sends its items.
pub struct Items<T>(Arc<Place<T>>);

impl<T> Items<T> {
    /// Sends an item, and waits until the reader has taken it and asks for more. Several futures may send at once, each an item:
    /// these are read in the order in which they were sent.
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, the item is sent, even if the future is dropped then.
    pub async fn send(&self, item: T) {
        let mut item = Some(item);
        let mut number = 0;
        poll_fn(|cx| {
            if let Some(item) = item.take() {
                number = self.0.put(item);
            }
            self.0.poll_taken(number, cx)
        })
        .await;
    }
}

impl<T> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items").finish_non_exhaustive()
    }
}

/// See [`generate`].
#[must_use = "streams do nothing unless polled"]
pub struct Generate<T, E, F> {
    /// `None`: the future is done.
    make: Option<Pin<Box<F>>>,
    place: Arc<Place<T>>,
    /// The error that the future has ended with.
    error: Option<E>,
}

impl<T, E, F> Unpin for Generate<T, E, F> {}

impl<T, E, F> Stream for Generate<T, E, F>
where
    F: Future<Output = Result<(), E>>,
{
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T, E>>> {
        let Self { make, place, error } = &mut *self;
        if let Some(item) = place.ask(cx) {
            return Poll::Ready(Some(Ok(item)));
        }
        let Some(future) = make else { return Poll::Ready(error.take().map(Err)) };
        if let Poll::Ready(result) = future.as_mut().poll(cx) {
            (*make, *error) = (None, result.err());
        }
        match (place.take(), make) {
            (Some(item), _) => Poll::Ready(Some(Ok(item))),
            (None, Some(_)) => Poll::Pending,
            (None, None) => Poll::Ready(error.take().map(Err)),
        }
    }
}

impl<T, E, F> Drop for Generate<T, E, F> {
    fn drop(&mut self) {
        self.place.close();
    }
}

impl<T, E, F> fmt::Debug for Generate<T, E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generate").field("is_done", &self.make.is_none()).finish_non_exhaustive()
    }
}

/// State that a stream and its future share. No foreign code runs under its lock.
struct Place<T>(Mutex<Sent<T>>);

struct Sent<T> {
    /// The items that were sent and not taken: one of each future that sends.
    items: VecDeque<T>,
    /// How many items were taken.
    taken: u64,
    /// The stream polls the future now, and will look at `items` when it has.
    is_polling: bool,
    /// The reader that polls the stream, or has polled it last.
    reader: Option<Waker>,
    /// The tasks that wait until their item is taken. The reader's own is not among them: it polls the future anyway.
    senders: Vec<Waker>,
    /// The stream was dropped.
    is_closed: bool,
}

impl<T> Default for Sent<T> {
    fn default() -> Self {
        let (items, senders) = (VecDeque::new(), Vec::new());
        Self { items, taken: 0, is_polling: false, reader: None, senders, is_closed: false }
    }
}

impl<T> Place<T> {
    fn lock(&self) -> MutexGuard<'_, Sent<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an item there. Returns how many have been taken when it is.
    fn put(&self, item: T) -> u64 {
        let mut sent = self.lock();
        if sent.is_closed {
            return 0;
        }
        sent.items.push_back(item);
        let number = sent.taken + sent.items.len() as u64;
        let reader = if sent.is_polling { None } else { sent.reader.take() };
        drop(sent);
        if let Some(reader) = reader {
            reader.wake();
        }
        number
    }

    /// Ready once so many items were taken, or none will be.
    fn poll_taken(&self, number: u64, cx: &Context<'_>) -> Poll<()> {
        let mut sent = self.lock();
        if sent.taken >= number || sent.is_closed {
            return Poll::Ready(());
        }
        let is_polled_by = |reader: &Waker| sent.is_polling && reader.will_wake(cx.waker());
        if !sent.reader.as_ref().is_some_and(is_polled_by)
            && !sent.senders.iter().any(|sender| sender.will_wake(cx.waker()))
        {
            sent.senders.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Takes an item. If there is none, those who have sent may go on.
    fn ask(&self, cx: &Context<'_>) -> Option<T> {
        let mut sent = self.lock();
        if let Some(item) = sent.next() {
            return Some(item);
        }
        if !sent.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            sent.reader = Some(cx.waker().clone());
        }
        sent.is_polling = true;
        let senders = mem::take(&mut sent.senders);
        drop(sent);
        senders.into_iter().for_each(Waker::wake);
        None
    }

    /// Takes an item after the future was polled.
    fn take(&self) -> Option<T> {
        let mut sent = self.lock();
        sent.is_polling = false;
        sent.next()
    }

    /// Takes no more.
    fn close(&self) {
        let mut sent = self.lock();
        sent.is_closed = true;
        let (items, senders) = (mem::take(&mut sent.items), mem::take(&mut sent.senders));
        drop(sent);
        drop(items);
        senders.into_iter().for_each(Waker::wake);
    }
}

impl<T> Sent<T> {
    fn next(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.taken += 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{Code, EndReason, Status, Streaming};

    #[tokio::test]
    async fn items_that_a_future_has_sent_come_before_its_error() {
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
    async fn the_next_item_is_begun_when_it_is_asked_for() {
        let begun = Arc::new(AtomicU32::new(0));
        let counted = begun.clone();
        let mut numbers = Streaming::<u32>::new(generate(async move |numbers| {
            for n in 1..=200 {
                counted.store(n, Ordering::Relaxed);
                numbers.send(n).await;
            }
            Ok(())
        }));
        for n in 1..=200 {
            assert_eq!(begun.load(Ordering::Relaxed), n - 1);
            assert_eq!(numbers.message().await, Ok(Some(n)));
        }
        assert_eq!(numbers.message().await, Ok(None));
    }

    #[tokio::test]
    async fn several_that_send_at_once_take_turns() {
        let mut letters = Streaming::<char>::new(generate(async |letters| {
            let send = async |letter| {
                for _ in 0..3 {
                    letters.send(letter).await;
                }
            };
            tokio::join!(biased; send('a'), send('b'));
            Ok(())
        }));
        let mut read = String::new();
        while let Ok(Some(letter)) = letters.message().await {
            read.push(letter);
        }
        assert_eq!(read, "ababab");
    }

    #[tokio::test]
    async fn an_item_is_sent_when_its_future_was_polled_once() {
        let mut numbers = Streaming::<u8>::new(generate(async |numbers| {
            tokio::select! {
                biased;
                () = numbers.send(1) => {}
                () = async {} => {}
            }
            Ok(())
        }));
        assert_eq!(numbers.message().await, Ok(Some(1)));
        assert_eq!(numbers.message().await, Ok(None));
    }

    #[tokio::test]
    async fn another_task_may_send() {
        let mut numbers = Streaming::<u8>::new(generate(async |numbers| {
            let sent = tokio::spawn(async move {
                for n in 0..100 {
                    numbers.send(n).await;
                }
            });
            sent.await.map_err(|_| Status::new(Code::Internal, "the task has panicked"))
        }));
        for n in 0..100 {
            assert_eq!(numbers.message().await, Ok(Some(n)));
        }
        assert_eq!(numbers.message().await, Ok(None));
    }

    #[tokio::test]
    async fn another_task_is_told_when_the_stream_is_dropped() {
        let (sender, items) = tokio::sync::oneshot::channel();
        let mut numbers = Box::pin(generate::<u8, Status, _>(async move |numbers| {
            let _ = sender.send(numbers);
            std::future::pending().await
        }));
        assert!(poll_fn(|cx| Poll::Ready(numbers.as_mut().poll_next(cx).is_pending())).await);
        let Ok(items) = items.await else { panic!("the future was polled") };
        let sent = tokio::spawn(async move {
            items.send(1).await;
            items.send(2).await;
            items.send(3).await;
        });
        assert!(matches!(poll_fn(|cx| numbers.as_mut().poll_next(cx)).await, Some(Ok(1))));
        drop(numbers);
        assert!(sent.await.is_ok());
    }
}
