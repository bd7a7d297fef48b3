//! A call with streams from the caller's side: a builder of options, and a future.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context as TaskContext, Poll};

use super::finish::{Apart, Finish, read_error};
use super::in_flight::InFlightCall;
use super::options::options;
use super::{Parts, Response, Stub};
use crate::call_streams::{Encoded, Ended, ItemsBy, Pump, Pumped, Reader, Source};
use crate::calls::Answered;
use crate::codec::{Decode, from_payload};
use crate::connection::Connection;
use crate::context::Context;
use crate::payload::{Encoder, Payload};
use crate::progress_watch::ProgressAlarm;
use crate::proto::wire::EndReason;
use crate::service::{Kind, Outcome, Reply};
use crate::status::{Blame, Code, Executed, Status};
use crate::stream::{Begun, ReadItem, Stream, Streaming, Unread};

/// A call with a stream of arguments, of answers or both, that has not begun. Set its options, then `.await` it.
///
/// If the answer is a stream, awaiting returns it as soon as it begins. A stream of arguments is polled by the call's
/// future, or by its own task once the answer has begun. Nothing is sent before the call is awaited.
///
/// # Cancel safety
///
/// Dropping the future cancels the call, as with [`Call`](super::Call).
///
/// # Errors
///
/// The errors of a [`Call`](super::Call). A call is not sent again automatically once part of its stream of arguments
/// was taken. If that stream panics, the call ends INTERNAL, or CANCELLED if its answer has begun, and its handler is
/// cancelled.
#[must_use = "a call does nothing until it is awaited"]
pub struct StreamCall<O> {
    call: InFlightCall,
    /// Boxed, because it is large and most calls have none.
    pump: Option<Box<Pump<Box<dyn Source>>>>,
    apart: Apart<O>,
    finish: Finish<O>,
}

options!(StreamCall<O>);

impl<O> StreamCall<O> {
    pub(crate) fn new(
        stub: Stub,
        method: usize,
        arguments: Result<Payload, Status>,
        items: Option<Box<dyn Source>>,
        finish: Finish<O>,
    ) -> Self {
        let kind = stub.service().methods.get(method).map_or(Kind::Unary, |method| method.kind);
        let mut call = InFlightCall::new(stub, method, arguments);
        call.set_kind(kind, items);
        Self::of(call, finish)
    }

    /// Returns the streaming form of a call that exists already.
    pub(super) fn of(call: InFlightCall, finish: Finish<O>) -> Self {
        Self { call, pump: None, apart: Apart::new(), finish }
    }

    /// Returns the result with its [`Response`]. If the answer is a stream, it has no trailers yet: see
    /// [`Streaming::trailers`] when it has ended.
    pub fn with_response(self) -> impl Future<Output = Result<Response<O::Ok>, O::Err>> + Send
    where
        O: Outcome + 'static,
        O::Err: From<Status>,
    {
        let call = self.with_parts();
        async {
            let (outcome, parts) = call.await;
            Ok(parts.of_result(outcome.into_result()?)?)
        }
    }

    /// Returns the result and, beside it, its [`Parts`]: the connection, the number of attempts, the metadata. A call
    /// that fails has these, too.
    pub fn with_parts(self) -> impl Future<Output = (O, Parts)> + Send
    where
        O: 'static,
    {
        let mut call = self;
        async move {
            let outcome = poll_fn(|cx| Pin::new(&mut call).poll(cx)).await;
            (outcome, call.parts())
        }
    }
}

impl<O> Unpin for StreamCall<O> {}

impl<O> Future for StreamCall<O> {
    type Output = O;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<O> {
        let this = &mut *self;
        if this.apart.is_begun() {
            return this.apart.poll(&mut this.call, this.finish, cx);
        }
        loop {
            if let Poll::Ready(answer) = this.call.poll(cx) {
                return this.answered(answer, cx);
            }
            match this.pump(cx) {
                // The poll may have been missed while arguments were sent, so poll for the answer again.
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(status)) => {
                    return this.apart.read(&mut this.call, this.finish, Err(status), None, cx);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl<O> StreamCall<O> {
    /// Takes the metadata and other parts of the answer. Can be called once.
    pub(super) fn parts(&mut self) -> Parts {
        self.call.parts()
    }

    /// Sends arguments, once the call is sent. Ready when all were sent, or the caller's own stream has failed.
    fn pump(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Status>> {
        if self.call.streams().is_none() {
            // Not sent yet, or between two attempts.
            return Poll::Pending;
        }
        self.begin_pump();
        let Some(pump) = &mut self.pump else { return Poll::Pending };
        let polled = pump.poll(cx);
        if pump.has_begun() {
            self.call.is_last();
        }
        let Poll::Ready(end) = polled else { return Poll::Pending };
        let failed = finish(pump, end);
        self.pump = None;
        Poll::Ready(failed.map_or(Ok(()), Err))
    }

    /// Directs the arguments to the streams of the latest attempt, if the call was sent.
    fn begin_pump(&mut self) {
        let Some(streams) = self.call.streams().cloned() else { return };
        if let Some(items) = self.call.take_items() {
            let by = ItemsBy::Same(self.call.compression());
            self.pump = Some(Box::new(Pump::new(streams.clone(), items, by)));
        }
        if let Some(pump) = &mut self.pump {
            pump.send_by(&streams);
        }
    }

    fn answered(&mut self, answer: Answered, cx: &mut TaskContext<'_>) -> Poll<O> {
        if let Some(mut begun) = self.call.take_begun() {
            begun.parent = self.call.take_parent();
            return self.apart.read(&mut self.call, self.finish, answer, Some(begun), cx);
        }
        let begun = self.call.begun_streams(&answer).cloned().map(|streams| {
            // The answer may arrive before the pump was made.
            self.begin_pump();
            if let Some(pump) = self.pump.take() {
                self.go_on(pump);
            }
            Begun {
                reader: Reader::new(streams.clone()),
                connection: self.call.connection(),
                deadline: self.call.deadline(),
                progress: self.call.progress_alarm(),
                parent: self.call.take_parent(),
                metadata: self.call.initial_metadata(),
                unread: Unread::new(streams, self.call.take_on_end()),
            }
        });
        self.apart.read(&mut self.call, self.finish, answer, begun, cx)
    }

    /// Moves the sending of arguments into a task, because the answer has begun and its reader need not drive them.
    fn go_on(&self, mut pump: Box<Pump<Box<dyn Source>>>) {
        let context = Context::current().unwrap_or_else(Context::background);
        let (mut progress, connection) = (self.call.progress_alarm(), self.call.connection());
        let task = context.scope(async move {
            let end = poll_fn(|cx| poll_watched(&mut pump, &mut progress, &connection, cx)).await;
            if let Some(status) = finish(&pump, end) {
                tracing::debug!(%status, "a stream of arguments has failed; its call is cancelled");
                let streams = pump.streams();
                if let Some(table) = streams.table() {
                    let reason = u8::from(status.code() == Code::DeadlineExceeded);
                    table.give_up_answer(streams.call(), reason, Ended::GivenUp(status));
                }
            }
        });
        tokio::spawn(task);
    }
}

/// Sends arguments, until the peer has taken nothing for too long. The reader of the answer may be busy elsewhere.
fn poll_watched(
    pump: &mut Pump<Box<dyn Source>>,
    progress: &mut Option<ProgressAlarm>,
    connection: &Weak<Connection>,
    cx: &mut TaskContext<'_>,
) -> Poll<Pumped> {
    let polled = pump.poll(cx);
    let Some(alarm) = progress.as_mut().filter(|_| polled.is_pending()) else { return polled };
    let streams = pump.streams();
    let moved = || {
        let connection = connection.upgrade().filter(|_| streams.is_held_up())?;
        Some(connection.moved(streams.call(), Some(streams)))
    };
    alarm.poll(cx, moved).map(|status| Pumped::Failed(Reply::Status(status)))
}

/// Ends the stream of arguments. Returns the status if the caller's own stream has failed; the call must then be
/// cancelled.
fn finish(pump: &Pump<Box<dyn Source>>, end: Pumped) -> Option<Status> {
    let streams = pump.streams();
    let table = streams.table()?;
    let reason = match end {
        Pumped::Done => EndReason::Completed,
        Pumped::Closed => EndReason::Cancelled,
        Pumped::Failed(Reply::Status(status)) => return Some(status),
        Pumped::Failed(_) => {
            let status = Status::new(
                Code::Internal,
                "a stream of arguments failed with an error that is not a Status",
            );
            return Some(status.with_executed(Executed::Maybe).with_blame(Blame::Bug));
        }
    };
    streams.send_end(table.sender(), reason);
    table.sender().flush_soon();
    None
}

impl Source for Box<dyn Source> {
    fn poll_next(&mut self, cx: &mut TaskContext<'_>, out: &mut Encoder) -> Poll<Option<Result<(), Reply>>> {
        (**self).poll_next(cx, out)
    }
}

/// A caller's stream with a function that encodes its items one by one.
pub(crate) struct Arguments<S, F> {
    stream: Pin<Box<S>>,
    encode: F,
}

impl<S, F> Arguments<S, F> {
    pub(crate) fn new(stream: S, encode: F) -> Self {
        Self { stream: Box::pin(stream), encode }
    }
}

impl<S, F> Source for Arguments<S, F>
where
    S: Stream + Send,
    F: FnMut(&S::Item, &mut Encoder) -> Result<(), Reply> + Send,
{
    fn poll_next(&mut self, cx: &mut TaskContext<'_>, out: &mut Encoder) -> Poll<Option<Result<(), Reply>>> {
        Encoded { stream: self.stream.as_mut(), encode: &mut self.encode }.poll_next(cx, out)
    }
}

impl<O> fmt::Debug for StreamCall<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamCall({})", self.call.name())
    }
}

/// Returns the answer of a method that streams items `T` with errors `E`, or the refusal `R`. `C`, `D` and `F` are
/// their codecs.
pub(crate) fn stream_of<T, E, R, C, D, F>(
    call: &dyn fmt::Display,
    answer: Answered,
    begun: Option<Begun>,
) -> Result<Streaming<T, E>, R>
where
    T: Send + 'static,
    C: Decode<T>,
    D: Decode<E>,
    F: Decode<R>,
    R: From<Status>,
{
    if let Some(begun) = begun {
        return Ok(Streaming::answered(begun, (ReadItem::by::<C>(), from_payload::<D, E>)));
    }
    let refused = read_error::<R, F>(call, answer);
    Err(refused.unwrap_or_else(|| {
        // An OK always begins a stream.
        Status::new(Code::Internal, "a stream began on no connection").with_blame(Blame::Bug).into()
    }))
}
