//! Permits to send an item, as far as the window of the stream's reader goes.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use farcall_core::stream::{Available, OutgoingWindow};
use tokio::sync::{Notify, mpsc};

use super::channel::{Closed, Queued, Sender};

/// The reader of a channel's stream, as far as the channel's senders know it.
#[derive(Default)]
pub(super) struct Reader {
    state: Mutex<State>,
    /// Notified when the state, or the window of the peer, has changed in favour of those that wait.
    changed: Arc<Changed>,
    /// Held by the one that waits at the head of the line.
    line: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Changed(Notify);

impl Wake for Changed {
    fn wake(self: Arc<Self>) {
        self.0.notify_waiters();
    }
}

#[derive(Default)]
struct State {
    reads: Reads,
    /// The bytes of permits, and of items that were sent by permits and not taken.
    reserved: u64,
    /// The most bytes that were ever left of the window.
    largest: u64,
}

/// How the stream is read.
#[derive(Default)]
enum Reads {
    /// Not yet.
    #[default]
    Unread,
    /// In this process.
    Here,
    /// By a peer.
    There(OutgoingWindow),
}

impl Reader {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the stream is polled for the first time.
    #[cold]
    pub(super) fn attach(&self) {
        self.lock().reads = OutgoingWindow::current().map_or(Reads::Here, Reads::There);
        self.changed.0.notify_waiters();
    }

    /// Gives back what was reserved.
    #[cold]
    pub(super) fn give_back(&self, bytes: u64) {
        self.lock().reserved -= bytes;
        self.changed.0.notify_waiters();
    }

    /// Returns what is left, apart from what is reserved. `held` is the number of items that wait to be taken, and of permits.
    pub(super) fn available(&self, held: u64) -> Available {
        let state = self.lock();
        let mut left = state.left();
        left.items = left.items.saturating_sub(held);
        left.bytes = left.bytes.saturating_sub(state.reserved);
        left
    }

    /// Reserves so many bytes and returns true, if there is room for them and for all items that are held. Otherwise `changed` is
    /// notified when that may be so.
    fn try_reserve(&self, bytes: u64, held: u64) -> bool {
        let mut state = self.lock();
        let State { reads, reserved, largest } = &mut *state;
        let mut fits = |left: Available| {
            *largest = left.bytes.max(*largest);
            // A reader need not grant more before half of its window is used up.
            let needed = bytes.min(*largest / 2).max(1);
            left.items >= held && left.bytes.saturating_sub(*reserved) >= needed
        };
        let has_room = match reads {
            Reads::Unread => false,
            Reads::Here => fits(Available::UNLIMITED),
            Reads::There(window) => {
                // One waker for all, so that the window holds no more of them however many ask.
                let waker = Waker::from(self.changed.clone());
                window.poll_until(&mut Context::from_waker(&waker), fits).is_ready()
            }
        };
        if has_room {
            *reserved = reserved.saturating_add(bytes);
        }
        has_room
    }
}

impl State {
    fn left(&self) -> Available {
        match &self.reads {
            Reads::Unread => Available::NONE,
            Reads::Here => Available::UNLIMITED,
            Reads::There(window) => window.available(),
        }
    }
}

impl<T, E> Sender<T, E> {
    /// Waits until the channel has a place, and the window of the stream's reader has room for another item of `bytes` bytes.
    /// Returns a permit to send it at once. So an application decides what to send when it can be sent, instead of being held
    /// up with an item that grows old meanwhile.
    ///
    /// `bytes` is the length of the encoded item, as far as it is known; an estimate will do. The reader grants more when half of
    /// its window is used up, so a permit for more than half of it waits for half. Permits are given in the order in which
    /// they were asked for. Items that are sent [without](Self::send) a permit take their bytes from the window only when the
    /// stream takes them.
    ///
    /// If the stream is not sent to a peer, only the channel's capacity counts.
    ///
    /// # Errors
    ///
    /// [`Closed`], if the reader has gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is reserved.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> farcall::Result<()> {
    /// use farcall::{Streaming, stream};
    ///
    /// let (sender, versions) = stream::channel::<u64, farcall::Status>(1);
    /// let (newest, latest) = tokio::sync::watch::channel(1);
    /// tokio::spawn(async move {
    ///     // The reader gets what is newest when it can get anything.
    ///     while let Ok(permit) = sender.reserve(8).await {
    ///         permit.send(*latest.borrow());
    ///     }
    /// });
    /// let mut versions = Streaming::new(versions);
    /// newest.send_replace(2);
    /// assert_eq!(versions.message().await?, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve(&self, bytes: usize) -> Result<Permit<'_, T, E>, Closed<()>> {
        let bytes = bytes as u64;
        let reader = &self.shared.reader;
        let _head_of_line = reader.line.lock().await;
        let place = self.items.reserve().await.map_err(|_| Closed(()))?;
        let mut closed = pin!(self.items.closed());
        loop {
            let mut changed = pin!(reader.changed.0.notified());
            changed.as_mut().enable();
            let reserved = poll_fn(|cx| {
                if closed.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(Closed(())));
                }
                if reader.try_reserve(bytes, self.held()) {
                    return Poll::Ready(Ok(true));
                }
                changed.as_mut().poll(cx).map(|()| Ok(false))
            });
            if reserved.await? {
                return Ok(Permit { place: Some(place), reserved: Reserved { reader, bytes } });
            }
        }
    }

    /// Returns what is left of the window of the stream's reader, apart from permits and from items that wait in the channel.
    /// Nothing before the stream is read. Without limit if the stream is not sent to a peer.
    pub fn available(&self) -> Available {
        self.shared.reader.available(self.held())
    }

    /// Returns how many items and permits the channel holds.
    fn held(&self) -> u64 {
        (self.items.max_capacity() - self.items.capacity()) as u64
    }
}

/// A permit to send one item, from [`Sender::reserve`]. Dropping it gives back what it reserves.
#[must_use = "a permit that is dropped is given back"]
pub struct Permit<'a, T, E> {
    /// Given back before the bytes: those who wait for these look at the places, too.
    place: Option<mpsc::Permit<'a, Queued<T, E>>>,
    reserved: Reserved<'a>,
}

/// Reserved bytes. Dropping this gives them back.
struct Reserved<'a> {
    reader: &'a Reader,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.reader.give_back(self.bytes);
        } else {
            self.reader.changed.0.notify_waiters();
        }
    }
}

impl<T, E> Permit<'_, T, E> {
    /// Sends the item. If the reader has gone meanwhile, nobody reads it.
    pub fn send(mut self, item: T) {
        if let Some(place) = self.place.take() {
            // From now on, the item holds the bytes.
            let bytes = std::mem::take(&mut self.reserved.bytes);
            place.send(Queued { item: Ok(item), bytes });
        }
    }
}

impl<T, E> fmt::Debug for Permit<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("bytes", &self.reserved.bytes).finish_non_exhaustive()
    }
}
