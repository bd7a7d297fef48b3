//! Streams for applications: [`Streaming`], and how a handler answers with one.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll, ready};

pub use futures_core::Stream;
use tokio::time::{Instant, Sleep};

pub use crate::call_streams::{Available, OutgoingWindow, Streams};
use crate::call_streams::{Ended, NextItem, Reader};
use crate::codec::{CodecError, all_read};
use crate::compress::Compression;
use crate::connection::Connection;
use crate::context::{Parent, parent_ended};
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::{Decoder, Payload};
use crate::progress_watch::ProgressAlarm;
use crate::proto::wire::{self, decode_status};
use crate::refusal::undecodable;
use crate::reply::Sent;
use crate::status::{Blame, Code, Executed, Status};

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

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The sender has sent all of it.
    Completed,
    /// The sender or the receiver has given it up.
    Cancelled,
    /// The deadline of the call has passed. A handler that fails with DEADLINE_EXCEEDED before that ends with
    /// [`Status`](Self::Status).
    Deadline,
    /// The connection was lost.
    ConnectionLost,
    /// The sender has failed: the last item was the error.
    Status,
}

/// How a stream has ended, as reported to [`Response::on_end`](crate::middleware::Response::on_end).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamEnd {
    /// The reason. If a client drops its stream, and so the call, the reason is `Cancelled`.
    pub reason: EndReason,
    /// The code of the status that it has ended with, if it ended with one.
    pub code: Option<Code>,
}

impl StreamEnd {
    /// Returns how the stream has ended in a word: `OK`, the name of a status, or `APPLICATION` for an error of the
    /// application's own type.
    pub fn outcome(&self) -> &'static str {
        match (self.code, self.reason) {
            (Some(code), _) => code.name(),
            (None, EndReason::Completed) => "OK",
            (None, EndReason::Cancelled) => Code::Cancelled.name(),
            (None, EndReason::Deadline) => Code::DeadlineExceeded.name(),
            (None, EndReason::ConnectionLost) => Code::Unavailable.name(),
            (None, EndReason::Status) => "APPLICATION",
        }
    }
}

/// A callback that runs when a stream ends.
pub(crate) type OnEnd = Box<dyn FnOnce(&StreamEnd) + Send>;

/// An answer that is a stream and has begun.
pub(crate) struct Begun {
    pub(crate) reader: Reader,
    pub(crate) connection: Weak<Connection>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) progress: Option<ProgressAlarm>,
    pub(crate) parent: Option<Parent>,
    pub(crate) metadata: Metadata,
    pub(crate) on_end: Vec<OnEnd>,
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
    Local(Pin<Box<dyn Stream<Item = Result<T, E>> + Send>>),
}

pub(crate) type ReadItem<T> = fn(&mut Decoder) -> Result<T, CodecError>;
pub(crate) type ReadError<E> = fn(Payload) -> Result<E, CodecError>;

/// The end of a stream, as it was read.
struct End<E> {
    reason: EndReason,
    /// The error that is read as the last item, if the stream has not ended well.
    error: Option<E>,
    /// The code of the status that the error was made from.
    code: Option<Code>,
    metadata: AnswerMetadata,
}

impl<E> End<E> {
    fn new(reason: EndReason, error: Option<E>) -> Self {
        Self { reason, error, code: None, metadata: AnswerMetadata::default() }
    }
}

impl<E: From<Status>> End<E> {
    fn failed(reason: EndReason, status: Status) -> Self {
        Self { code: Some(status.code()), ..Self::new(reason, Some(E::from(status))) }
    }

    /// Returns the end that the reader reports. `error` decodes the application's error. `is_late` means that the
    /// call's deadline has passed.
    #[cold]
    fn of(ended: Ended, error: ReadError<E>, is_late: bool) -> Box<Self> {
        Box::new(match ended {
            Ended::Lost(status) => Self::failed(EndReason::ConnectionLost, status),
            Ended::GivenUp(status) if status.code() == Code::DeadlineExceeded => {
                Self::failed(EndReason::Deadline, status)
            }
            Ended::GivenUp(status) => Self::failed(EndReason::Cancelled, status),
            Ended::Said { reason, payload, metadata } => {
                let end = Self::said(reason, payload, &metadata, error, is_late);
                Self { metadata, ..end }
            }
        })
    }

    fn said(
        reason: wire::EndReason,
        payload: Payload,
        metadata: &AnswerMetadata,
        error: ReadError<E>,
        is_late: bool,
    ) -> Self {
        match reason {
            wire::EndReason::Completed => Self::new(EndReason::Completed, None),
            wire::EndReason::Cancelled => {
                let status = Status::new(Code::Cancelled, "the stream was given up by its sender");
                let status = status.with_executed(Executed::Maybe).with_blame(Blame::Peer);
                Self::failed(EndReason::Cancelled, status)
            }
            wire::EndReason::Deadline => Self::failed(EndReason::Deadline, deadline_passed()),
            wire::EndReason::Status => {
                let (body, _) = payload.into_parts();
                let status = decode_status(body).unwrap_or_else(|error| malformed(error.to_string()));
                // A server may relay the stream of another one with the same deadline, and then passes that server's
                // status on.
                let reason = match status.code() {
                    Code::DeadlineExceeded if is_late => EndReason::Deadline,
                    _ => EndReason::Status,
                };
                Self::failed(reason, status.received_with(metadata))
            }
            wire::EndReason::Error => match error(payload) {
                Ok(error) => Self::new(EndReason::Status, Some(error)),
                Err(error) => {
                    let message = format!("the stream's error can't be decoded: {error}");
                    Self::failed(EndReason::Status, malformed(message))
                }
            },
        }
    }
}

/// A stream that comes by a connection.
struct Remote<T, E> {
    reader: Reader,
    /// Set for a client's call only.
    connection: Weak<Connection>,
    item: ReadItem<T>,
    error: ReadError<E>,
    /// Whether this is a client's answer, whose end ends the call.
    is_answer: bool,
    alarm: Option<Pin<Box<Sleep>>>,
    /// The limit of time in which nothing of the call moves.
    progress: Option<ProgressAlarm>,
    /// The parent of its call, unless that is the handler that reads it.
    parent: Option<Parent>,
}

impl EndReason {
    /// Returns how a stream has ended that this side sent.
    pub(crate) fn of(sent: &Sent) -> Self {
        match sent.reason() {
            wire::EndReason::Completed => Self::Completed,
            wire::EndReason::Deadline => Self::Deadline,
            _ => Self::Cancelled,
        }
    }
}

impl<T> Streaming<T> {
    /// Returns the stream of the client's arguments. `item` decodes one of them. Must be called only once for a call.
    pub(crate) fn requests(streams: &Streams, item: ReadItem<T>) -> Self {
        let error = |_: Payload| Err(CodecError::new("a client's stream has no error"));
        let (reader, connection) = (streams.reader(), Weak::new());
        let remote = Remote {
            reader,
            connection,
            item,
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
    /// Returns a stream of local items, for a handler that passes on its own items, and for tests.
    pub fn new(items: impl Stream<Item = Result<T, E>> + Send + 'static) -> Self {
        Self::from(Origin::Local(Box::pin(items)), Metadata::new())
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
    /// Except for the sender's own error, it is unknown whether the handler ran to its end: [`Executed::Maybe`].
    pub async fn message(&mut self) -> Result<Option<T>, E> {
        poll_fn(|cx| self.poll_item(cx)).await.transpose()
    }

    fn poll_item(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Result<T, E>>> {
        if let (None, Origin::Peer(remote)) = (self.end, &mut self.from) {
            let decode = remote.item;
            let end = match ready!(remote.next(cx)) {
                Some(Ok(input)) => match decode_item(decode, input) {
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
                // The message that has arrived contains an item.
                Ok(()) => self.poll_item(cx),
                Err(end) => Poll::Ready(self.end_with(*end).map(Err)),
            },
            Origin::Local(items) => {
                let item = ready!(items.as_mut().poll_next(cx));
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
        let End { reason, error, code, metadata } = end;
        if let Origin::Peer(remote) = &self.from {
            remote.give_up(u8::from(reason == EndReason::Deadline));
        }
        self.metadata.extend(&metadata.initial);
        self.trailers = metadata.trailing;
        self.has_ended(StreamEnd { reason, code });
        error
    }
}

impl<T, E> Streaming<T, E> {
    fn from(from: Origin<T, E>, metadata: Metadata) -> Self {
        Self { from, end: None, metadata, trailers: Metadata::new(), on_end: Vec::new() }
    }

    /// Returns the stream that a call was answered with, given how to decode an item and the error.
    pub(crate) fn answered(begun: Begun, (item, error): (ReadItem<T>, ReadError<E>)) -> Self {
        let Begun { reader, connection, deadline, progress, parent, metadata, on_end } = begun;
        let alarm = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        let remote = Remote { reader, connection, item, error, is_answer: true, alarm, progress, parent };
        let mut stream = Self::from(Origin::Peer(Box::new(remote)), metadata);
        stream.on_end = on_end;
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

impl<T, E: From<Status>> Remote<T, E> {
    /// Returns the next item of the current message.
    #[inline]
    fn next(&mut self, cx: &mut TaskContext<'_>) -> NextItem<'_, Box<End<E>>> {
        if self.parent.as_ref().is_some_and(Parent::has_ended) {
            return Poll::Ready(Some(Err(self.cut_short())));
        }
        let (error, alarm) = (self.error, &self.alarm);
        let next = ready!(self.reader.next(cx));
        Poll::Ready(next.map(|next| next.map_err(|ended| End::of(ended, error, has_passed(alarm)))))
    }

    /// Waits for more [items](Self::next). `Err`: how the stream has ended.
    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Box<End<E>>>> {
        match self.reader.poll(cx) {
            Poll::Ready(_) if self.parent.as_ref().is_some_and(Parent::has_ended) => {}
            Poll::Ready(polled) => {
                return Poll::Ready(
                    polled.map_err(|ended| End::of(ended, self.error, has_passed(&self.alarm))),
                );
            }
            Poll::Pending => {
                let late = self.alarm.as_mut().is_some_and(|alarm| alarm.as_mut().poll(cx).is_ready());
                let parent_cancelled =
                    self.parent.as_mut().is_some_and(|parent| parent.poll_ended(cx).is_ready());
                if !late && !parent_cancelled {
                    return self.poll_progress(cx).map(Err);
                }
            }
        }
        Poll::Ready(Err(self.cut_short()))
    }

    /// Ready once nothing of the call has moved for too long.
    fn poll_progress(&mut self, cx: &mut TaskContext<'_>) -> Poll<Box<End<E>>> {
        let Some(alarm) = &mut self.progress else { return Poll::Pending };
        let (streams, connection) = (self.reader.streams(), &self.connection);
        let moved = || Some(connection.upgrade()?.moved(streams.call(), Some(streams)));
        let status = ready!(alarm.poll(cx, moved));
        Poll::Ready(Box::new(End::failed(EndReason::Deadline, status)))
    }

    /// Returns the end of a stream whose deadline has passed, or whose parent call has ended early.
    #[cold]
    fn cut_short(&self) -> Box<End<E>> {
        Box::new(match has_passed(&self.alarm) {
            true => End::failed(EndReason::Deadline, deadline_passed()),
            false => End::failed(EndReason::Cancelled, parent_ended()),
        })
    }
}

impl<T, E> Remote<T, E> {
    /// Tells the peer that this side reads no more.
    fn give_up(&self, reason: u8) {
        let streams = self.reader.streams();
        let Some(table) = streams.table() else { return };
        if self.is_answer {
            table.give_up_answer(streams.call(), reason, Ended::gave_up());
        } else if streams.stop() {
            table.sender().flush_soon();
        }
    }
}

impl<T, E> Drop for Streaming<T, E> {
    fn drop(&mut self) {
        if let (None, Origin::Peer(remote)) = (self.end, &self.from) {
            remote.give_up(0);
            self.has_ended(StreamEnd { reason: EndReason::Cancelled, code: Some(Code::Cancelled) });
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

/// Whether the deadline that a call's alarm is set to has passed.
fn has_passed(alarm: &Option<Pin<Box<Sleep>>>) -> bool {
    alarm.as_ref().is_some_and(|alarm| alarm.deadline() <= Instant::now())
}

fn deadline_passed() -> Status {
    Status::new(Code::DeadlineExceeded, "the deadline of the call passed before its stream had ended")
        .with_executed(Executed::Maybe)
        .with_blame(Blame::Caller)
}

#[inline]
fn decode_item<T>(read: ReadItem<T>, input: &mut Decoder) -> Result<T, CodecError> {
    let value = read(input)?;
    all_read(input)?;
    Ok(value)
}

#[cold]
fn undecoded<E: From<Status>>(error: &CodecError) -> Box<End<E>> {
    let status = undecodable("an item of the stream can't be decoded", error, Executed::Yes);
    Box::new(End::failed(EndReason::Status, status))
}

fn malformed(message: String) -> Status {
    Status::new(Code::Internal, message).with_executed(Executed::Yes).with_blame(Blame::Peer)
}
