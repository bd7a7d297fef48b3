//! Streams for applications: [`Streaming`], and how a handler answers with one.

mod end;
mod read_item;
mod remote;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll, ready};

pub use futures_core::Stream;
use tokio::time::Instant;

pub(crate) use self::end::OnEnd;
use self::end::{End, undecoded};
pub use self::end::{EndReason, StreamEnd};
pub(crate) use self::read_item::ReadItem;
use self::remote::Remote;
pub use crate::call_streams::{Available, OutgoingWindow, Streams};
use crate::call_streams::{CallStreams, Ended, Reader, poll_share};
use crate::codec::CodecError;
use crate::compress::Compression;
use crate::connection::Connection;
use crate::context::Parent;
use crate::metadata::Metadata;
use crate::payload::Payload;
use crate::progress_watch::ProgressAlarm;
use crate::status::Status;

/// An item of a stream that a client sends: a `T`, or a `Result<T, Status>`. An error cancels the call, which then ends
/// with that error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no item of a stream of `{T}`",
    label = "a stream of other items",
    note = "a stream that a client sends has items of `{T}`, or of `Result<{T}, farcall::Status>`"
)]
pub trait StreamItem<T> {
    /// Returns the item.
    ///
    /// # Errors
    ///
    /// The status that ends the stream in place of an item.
    fn as_item(&self) -> Result<&T, &Status>;
}

impl<T> StreamItem<T> for T {
    fn as_item(&self) -> Result<&T, &Status> {
        Ok(self)
    }
}

impl<T> StreamItem<T> for Result<T, Status> {
    fn as_item(&self) -> Result<&T, &Status> {
        self.as_ref()
    }
}

/// An answer that is a stream and has begun.
pub(crate) struct Begun {
    pub(crate) reader: Reader,
    pub(crate) connection: Weak<Connection>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) progress: Option<ProgressAlarm>,
    pub(crate) parent: Option<Parent>,
    pub(crate) metadata: Metadata,
    pub(crate) unread: Unread,
}

/// The duty to give up an answer that nobody comes to read, as middleware may drop one.
pub(crate) struct Unread {
    /// `None`: a reader has the stream.
    streams: Option<Arc<CallStreams>>,
    on_end: Vec<OnEnd>,
}

impl Unread {
    pub(crate) fn new(streams: Arc<CallStreams>, on_end: Vec<OnEnd>) -> Self {
        Self { streams: Some(streams), on_end }
    }

    /// Adds a callback for the end of the stream.
    pub(crate) fn on_end(&mut self, told: OnEnd) {
        self.on_end.push(told);
    }

    /// Leaves the duty to a reader. Returns the callbacks.
    fn hand_over(mut self) -> Vec<OnEnd> {
        self.streams = None;
        std::mem::take(&mut self.on_end)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(streams) = self.streams.take() else { return };
        if let Some(table) = streams.table() {
            table.give_up_answer(streams.call(), 0, Ended::gave_up());
        }
        let end = StreamEnd::cancelled();
        self.on_end.drain(..).for_each(|told| told(&end));
    }
}

/// The items of a stream that the peer sends, as they arrive.
///
/// It is a [`Stream`] of `Result<T, E>`. [`message`](Self::message) reads it without that trait. An error is the last
/// item. So a stream that was cut short never looks complete, whether by a deadline, a lost connection or a failure of
/// its sender.
///
/// ```
/// # mod farcall { pub use farcall_core::{status::{Result, Status}, stream::*}; }
/// # struct Iter<I>(I);
/// # impl<I: Iterator + Unpin> farcall::Stream for Iter<I> {
/// #     type Item = I::Item;
/// #     fn poll_next(
/// #         mut self: std::pin::Pin<&mut Self>,
/// #         _: &mut std::task::Context<'_>,
/// #     ) -> std::task::Poll<Option<I::Item>> {
/// #         std::task::Poll::Ready(self.0.next())
/// #     }
/// # }
/// # fn iter<I: IntoIterator>(items: I) -> Iter<I::IntoIter> { Iter(items.into_iter()) }
/// use farcall::{EndReason, Streaming};
///
/// async fn sum(rows: &mut Streaming<u64>) -> farcall::Result<u64> {
///     let mut sum = 0;
///     while let Some(row) = rows.message().await? {
///         sum += row;
///     }
///     Ok(sum) // of all of them: a stream that was cut short has failed
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut rows = Streaming::new(iter([Ok(1), Ok(2)]));
/// assert_eq!(sum(&mut rows).await?, 3);
/// assert_eq!(rows.end_reason(), Some(EndReason::Completed));
/// # Ok::<(), farcall::Status>(()) }).unwrap();
/// ```
///
/// If nobody reads the stream, its sender waits, at the latest when it is `limits.stream_window` ahead. No other call
/// is held up.
///
/// Dropping the stream gives it up. On a client, that cancels the call. On a server, it tells the client to send no
/// more, and the call goes on.
pub struct Streaming<T, E = Status> {
    from: Origin<T, E>,
    end: Option<EndReason>,
    metadata: Metadata,
    trailers: Metadata,
    /// Callbacks for the end.
    on_end: Vec<OnEnd>,
}

enum Origin<T, E> {
    Peer(Box<Remote<T, E>>),
    Local(Local<T, E>),
}

/// Items of this process.
struct Local<T, E> {
    items: Pin<Box<dyn Stream<Item = Result<T, E>> + Send>>,
    /// How many were read.
    read: u64,
}

pub(crate) type ReadError<E> = fn(Payload) -> Result<E, CodecError>;

impl<T> Streaming<T> {
    /// Returns the stream of the client's arguments. `item` decodes one of them. Must be called only once for a call.
    pub(crate) fn requests(streams: &Streams, item: ReadItem<T>) -> Self {
        let error = |_: Payload| Err(CodecError::new("a client's stream has no error"));
        let (reader, connection) = (streams.reader(), Weak::new());
        let remote = Remote {
            reader,
            connection,
            item,
            apart: None,
            error,
            is_answer: false,
            alarm: None,
            progress: None,
            parent: None,
        };
        Self::from(Origin::Peer(Box::new(remote)), Metadata::new())
    }
}

impl<T, E: From<Status>> Streaming<T, E> {
    /// Returns a stream of local items, for a handler that passes on its own items, for a reader of local and remote inputs, and for
    /// tests. As with streams of peers, a reader of items that are always there gives other tasks their turns.
    pub fn new(items: impl Stream<Item = Result<T, E>> + Send + 'static) -> Self {
        Self::from(Origin::Local(Local { items: Box::pin(items), read: 0 }), Metadata::new())
    }

    /// Returns the next item. `None`: the stream is complete, or an error was its last item.
    ///
    /// # Cancel safety
    ///
    /// No item is lost when the future is dropped.
    ///
    /// # Errors
    ///
    /// - The status or error that the sender has failed with. INTERNAL after a panic, RESOURCE_EXHAUSTED if an item was
    ///   longer than this side's `limits.max_message`.
    /// - DEADLINE_EXCEEDED, if the deadline of the call has passed.
    /// - UNAVAILABLE, if the connection was lost.
    /// - CANCELLED, if the call is over.
    /// - The error that the caller's own stream of arguments has failed with.
    /// - INTERNAL, if an item can't be decoded.
    ///
    /// Except for the sender's own error, it is unknown whether the handler ran to its end:
    /// [`Executed::Maybe`](crate::status::Executed::Maybe).
    pub async fn message(&mut self) -> Result<Option<T>, E> {
        poll_fn(|cx| self.poll_item(cx)).await.transpose()
    }

    fn poll_item(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Result<T, E>>> {
        if let (None, Origin::Peer(remote)) = (self.end, &mut self.from) {
            let read = remote.item;
            let end = match ready!(remote.next(cx)) {
                Some(Ok(input)) if read.is_long(input) => {
                    remote.read_apart();
                    return self.poll_more(cx);
                }
                Some(Ok(input)) => match read.whole(input) {
                    Ok(item) => return Poll::Ready(Some(Ok(item))),
                    Err(error) => undecoded(&error),
                },
                Some(Err(end)) => end,
                None => return self.poll_more(cx),
            };
            return Poll::Ready(self.end_with(*end).map(Err));
        }
        self.poll_more(cx)
    }

    /// Handles everything that is not needed for each item of a peer.
    #[inline(never)]
    fn poll_more(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Result<T, E>>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        match &mut self.from {
            Origin::Peer(remote) => match ready!(remote.poll(cx)) {
                Ok(Some(item)) => Poll::Ready(Some(Ok(item))),
                // The message that has arrived contains an item.
                Ok(None) => self.poll_item(cx),
                Err(end) => Poll::Ready(self.end_with(*end).map(Err)),
            },
            Origin::Local(local) => {
                // As a peer's items do, or a task that reads both would never let the peer's arrive.
                ready!(poll_share(local.read, cx));
                let item = ready!(local.items.as_mut().poll_next(cx));
                local.read += 1;
                match &item {
                    None => self.end = Some(EndReason::Completed),
                    Some(Err(_)) => self.end = Some(EndReason::Status),
                    Some(Ok(_)) => {}
                }
                Poll::Ready(item)
            }
        }
    }

    /// Ends the stream. Returns the error that is read as its last item, if any.
    #[cold]
    fn end_with(&mut self, end: End<E>) -> Option<E> {
        let End { reason, error, code, is_unreadable, metadata } = end;
        if let Origin::Peer(remote) = &self.from {
            remote.give_up(u8::from(reason == EndReason::Deadline));
        }
        self.metadata.extend(&metadata.initial);
        self.trailers = metadata.trailing;
        self.has_ended(StreamEnd { reason, code, is_unreadable });
        error
    }
}

impl<T, E> Streaming<T, E> {
    fn from(from: Origin<T, E>, metadata: Metadata) -> Self {
        Self { from, end: None, metadata, trailers: Metadata::new(), on_end: Vec::new() }
    }

    /// Returns the stream that a call was answered with, given how to decode an item and the error.
    pub(crate) fn answered(begun: Begun, (item, error): (ReadItem<T>, ReadError<E>)) -> Self {
        let Begun { reader, connection, deadline, progress, parent, metadata, unread } = begun;
        let alarm = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        let remote =
            Remote { reader, connection, item, apart: None, error, is_answer: true, alarm, progress, parent };
        let mut stream = Self::from(Origin::Peer(Box::new(remote)), metadata);
        stream.on_end = unread.hand_over();
        stream
    }

    fn has_ended(&mut self, end: StreamEnd) {
        self.end = Some(end.reason);
        self.on_end.drain(..).for_each(|told| told(&end));
    }

    /// Returns how the stream has ended. `None` until its end is read.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.end
    }

    /// Returns the initial metadata that the handler sent before the stream began. Metadata that the handler set later
    /// are added when the stream ends. Empty for a client's stream, whose metadata belong to its
    /// [call](crate::context::Context::metadata).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the trailing metadata that the handler sent at the end. Empty until the end is read, and if the stream
    /// was cut short.
    pub fn trailers(&self) -> &Metadata {
        &self.trailers
    }

    /// Returns how the item that was read last was compressed on its way.
    pub fn compression(&self) -> Compression {
        match &self.from {
            Origin::Peer(remote) => remote.reader.compression(),
            Origin::Local(_) => Compression::None,
        }
    }

    /// Returns the connection that an answer comes by. `None` if the stream is a client's or local, or the connection
    /// is gone.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        match &self.from {
            Origin::Peer(remote) => remote.connection.upgrade(),
            Origin::Local(_) => None,
        }
    }
}

impl<T, E> Drop for Streaming<T, E> {
    fn drop(&mut self) {
        if let (None, Origin::Peer(remote)) = (self.end, &self.from) {
            remote.give_up(0);
            self.has_ended(StreamEnd::cancelled());
        }
    }
}

impl<T, E: From<Status>> Stream for Streaming<T, E> {
    type Item = Result<T, E>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx)
    }
}

impl<T, E> Unpin for Streaming<T, E> {}

impl<T, E> fmt::Debug for Streaming<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming").field("end", &self.end).finish_non_exhaustive()
    }
}
