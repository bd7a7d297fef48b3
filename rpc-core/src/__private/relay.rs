//! A stream that a future feeds, so that its type contains all that the future borrows, each with its own lifetime.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use crate::stream::Stream;

/// Returns a stream of the items that the future of `pass_on` passes on.
pub fn relay<T, F: Future<Output = ()>>(pass_on: impl FnOnce(Relayed<T>) -> F) -> Relay<T, F> {
    let place = Arc::new(Place(Mutex::new(None)));
    Relay { future: Some(Box::pin(pass_on(Relayed(place.clone())))), place }
}

/// The end of a relay that the future passes items to.
pub struct Relayed<T>(Arc<Place<T>>);

/// The item that was passed on last, until it is taken.
struct Place<T>(Mutex<Option<T>>);

impl<T> Place<T> {
    fn replace(&self, item: Option<T>) -> Option<T> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), item)
    }
}

impl<T> Relayed<T> {
    /// Passes on all items of a stream.
    pub async fn all(self, stream: impl Stream<Item = T>) {
        let mut stream = pin!(stream);
        while let Some(item) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
            self.0.replace(Some(item));
            // Waits until the stream is polled again. The item is taken at once, so then another one is wanted.
            let mut is_taken = false;
            poll_fn(|_| if std::mem::replace(&mut is_taken, true) { Poll::Ready(()) } else { Poll::Pending })
                .await;
        }
    }
}

impl<T> fmt::Debug for Relayed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relayed")
    }
}

/// The stream that [`relay`] returns.
pub struct Relay<T, F> {
    /// `None` once it has ended.
    future: Option<Pin<Box<F>>>,
    place: Arc<Place<T>>,
}

impl<T, F> Unpin for Relay<T, F> {}

impl<T, F: Future<Output = ()>> Stream for Relay<T, F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(future) = &mut self.future else { return Poll::Ready(None) };
        if future.as_mut().poll(cx).is_ready() {
            self.future = None;
            return Poll::Ready(None);
        }
        match self.place.replace(None) {
            Some(item) => Poll::Ready(Some(item)),
            None => Poll::Pending,
        }
    }
}

impl<T, F> fmt::Debug for Relay<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relay")
    }
}
