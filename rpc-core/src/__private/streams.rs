//! Support for methods that take or answer with streams.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use super::errors::{ErrorType, StatusIn, is_status};
use super::{Argument, CallName, Returned, Signature, error_shape, fail};
use crate::call_streams::Source;
use crate::client::{Arguments, Finish, StreamCall, Stub, stream_of};
use crate::codec::{Carry, Decode, Encode, Shape};
use crate::payload::{Encoder, Payload};
use crate::service::{Failure, Kind, Method, Outcome, Reply, ServiceInfo};
use crate::status::{Blame, Code, Executed, Status};
use crate::stream::{Stream, StreamItem, Streaming, Streams};

/// The codec's functions for a method that answers with a stream of items `I`, or with an `R` in its place; see
/// [`streamed`]. The client gets a `Streaming<T, E>`.
#[derive(Debug)]
pub struct Streamed<I, T, E, R> {
    shape: fn(&mut Shape),
    encode: fn(&CallName<'_>, &I, &mut Encoder, StatusIn) -> Result<(), Reply>,
    refuse: fn(&CallName<'_>, &R, StatusIn) -> Reply,
    /// Functions that find the status in an error among the items, and in an error in place of the stream.
    status_in: [StatusIn; 2],
    finish: Finish<Result<Streaming<T, E>, R>>,
    flat: Flat<I, T, E>,
}

/// The codec's functions for a stream, and the types of its two errors.
pub type WithErrors<I, T, E, R> = (Streamed<I, T, E, R>, ErrorType<E>, ErrorType<R>);

/// Returns the codec's functions for a stream of results `I`, or an `R` in its place. `C`, `D` and `F` are the codec,
/// and `E` is the error type of `I`. They are separate so that the compiler reports missing bounds at the right tokens,
/// as with [`returned`](super::returned).
pub fn streamed<I, C, D, E, F, R>() -> WithErrors<I, I::Ok, E, R>
where
    I: Outcome<Ok: Send + 'static, Err = E>,
    C: Carry<I::Ok>,
    D: Carry<E>,
    E: Failure + Send + 'static,
    F: Carry<R>,
    R: Failure + Send + 'static,
{
    let streamed = Streamed::<I, I::Ok, E, R> {
        shape: |answer| {
            answer.opaque("stream<");
            <C as Decode<I::Ok>>::shape(answer);
            answer.opaque(" | ");
            error_shape::<D, E>(answer);
            answer.opaque("> | ");
            error_shape::<F, R>(answer);
        },
        encode: |call, item, out, status_in| match item.as_result() {
            Ok(item) => <C as Encode<I::Ok>>::encode(item, out).map_err(|e| {
                let message = format!("{call}: an item of the stream can't be encoded: {e}");
                let status = Status::new(Code::Internal, message).with_blame(Blame::Application);
                Reply::Status(status.with_executed(Executed::Yes))
            }),
            Err(error) => Err(fail::<D, E>(call, error, status_in)),
        },
        refuse: fail::<F, R>,
        status_in: [is_status; 2],
        finish: Finish::decoding::<C>(stream_of::<I::Ok, E, R, C, D, F>),
        flat: Flat {
            next: |stream, cx| Pin::new(stream).poll_next(cx).map(|item| item.map(I::from_result)),
            failed: |error| I::from_result(Err(error)),
        },
    };
    (streamed, ErrorType(PhantomData), ErrorType(PhantomData))
}

impl<I, T, E, R> Streamed<I, T, E, R> {
    /// Sets the functions that find the status in an error among the items, and in an error in place of the stream.
    #[must_use]
    pub fn with_status_in(self, items: StatusIn, refusal: StatusIn) -> Self {
        Self { status_in: [items, refusal], ..self }
    }
}

impl Signature {
    /// Adds the argument that is a stream. It is listed after the others, wherever it stands.
    pub fn rows<T>(&mut self, argument: Argument<T>, name: &str) {
        let mut shape = Shape::default();
        if argument.named {
            shape.opaque(&format!("{name}: "));
        }
        shape.opaque("stream<");
        (argument.shape)(&mut shape);
        shape.opaque(">");
        self.note_refusal(&shape, name);
        self.rows = Some(shape.text().to_owned());
        self.messages[1].extend(shape.messages());
    }

    /// Adds the stream that the method answers with.
    pub fn streams<I, T, E, R>(self, streamed: Streamed<I, T, E, R>) -> Method {
        let kind = if self.rows.is_some() { Kind::BidiStreaming } else { Kind::ServerStreaming };
        self.method(kind, streamed.shape)
    }
}

/// Answers with a stream.
pub async fn answer<S, T, E, R>(
    streams: Option<Streams>,
    service: &ServiceInfo,
    method: usize,
    stream: S,
    streamed: Streamed<S::Item, T, E, R>,
) -> Reply
where
    S: Stream + Send,
{
    let call = CallName { service, method };
    let Some(streams) = streams else { return no_streams(&call) };
    streams.answer(stream, |item, out| (streamed.encode)(&call, item, out, streamed.status_in[0])).await
}

/// Answers with an error in place of a stream.
pub fn refuse<I, T, E, R>(
    service: &ServiceInfo,
    method: usize,
    error: R,
    streamed: Streamed<I, T, E, R>,
) -> Reply {
    (streamed.refuse)(&CallName { service, method }, &error, streamed.status_in[1])
}

/// Returns the stream that the client sends.
pub fn requests<T>(
    streams: Option<&Streams>,
    service: &ServiceInfo,
    method: usize,
    argument: Argument<T>,
) -> Result<Streaming<T>, Reply> {
    let none = || no_streams(&CallName { service, method });
    streams.map(|streams| Streaming::requests(streams, argument.decode)).ok_or_else(none)
}

/// Answers a call without streams. No caller sees this answer, because the server looks up the kind with the method
/// first.
#[cold]
fn no_streams(call: &CallName<'_>) -> Reply {
    let status = Status::new(Code::Internal, format!("{call}: the call has no streams"));
    Reply::Status(status.with_blame(Blame::Bug).with_executed(Executed::No))
}

/// The stream that a caller sends.
pub struct Items(Box<dyn Source>);

impl Items {
    /// Encodes the items of a stream. An error among them cancels the call, which ends with that error.
    pub fn of<T: 'static>(
        service: &Arc<ServiceInfo>,
        method: usize,
        items: impl Stream<Item: StreamItem<T>> + Send + 'static,
        argument: Argument<T>,
    ) -> Self {
        let (service, encode) = (service.clone(), argument.encode);
        let encode_item = move |item: &_, out: &mut Encoder| {
            let item = StreamItem::as_item(item).map_err(|status| {
                // On this side the application is the caller.
                let is_own = status.blame() == Blame::Application;
                let blame = if is_own { Blame::Caller } else { status.blame() };
                Reply::Status(status.clone().with_blame(blame).with_executed(Executed::Maybe))
            })?;
            encode(item, out).map_err(|e| {
                let call = CallName { service: &service, method };
                let message = format!("{call}: an item of the argument can't be encoded: {e}");
                let status = Status::new(Code::Internal, message).with_blame(Blame::Caller);
                Reply::Status(status.with_executed(Executed::Maybe))
            })
        };
        Self(Box::new(Arguments::new(items, encode_item)))
    }
}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Items")
    }
}

/// Returns a call that is answered with a stream.
pub fn call_for_stream<I, T, E, R>(
    stub: &Stub,
    method: usize,
    arguments: Result<Payload, Status>,
    items: Option<Items>,
    streamed: Streamed<I, T, E, R>,
) -> StreamCall<Result<Streaming<T, E>, R>> {
    StreamCall::new(stub.clone(), method, arguments, items.map(|items| items.0), streamed.finish)
}

/// Returns a call with a stream of arguments and a single answer.
pub fn call_with_stream<O>(
    stub: &Stub,
    method: usize,
    arguments: Result<Payload, Status>,
    items: Items,
    returned: Returned<O>,
) -> StreamCall<O> {
    StreamCall::new(stub.clone(), method, arguments, Some(items.0), returned.finish)
}

/// Returns the stream that a call is answered with. The call starts when the stream is first polled. A refusal becomes
/// the first item.
pub fn flatten<I, T, E>(
    call: StreamCall<Result<Streaming<T, E>, E>>,
    streamed: Streamed<I, T, E, E>,
) -> Flattened<I, T, E> {
    Flattened { state: State::Called(call), flat: streamed.flat }
}

/// The stream that [`flatten`] returns.
#[derive(Debug)]
pub struct Flattened<I, T, E> {
    state: State<T, E>,
    flat: Flat<I, T, E>,
}

/// Functions that turn a `Streaming<T, E>` into a stream of `I`.
#[derive(Debug)]
struct Flat<I, T, E> {
    next: fn(&mut Streaming<T, E>, &mut TaskContext<'_>) -> Poll<Option<I>>,
    failed: fn(E) -> I,
}

#[derive(Debug)]
enum State<T, E> {
    Called(StreamCall<Result<Streaming<T, E>, E>>),
    Begun(Streaming<T, E>),
    Refused,
}

impl<I, T, E> Stream for Flattened<I, T, E> {
    type Item = I;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<I>> {
        let Self { state, flat } = self.get_mut();
        loop {
            *state = match state {
                State::Called(call) => match ready!(Pin::new(call).poll(cx)) {
                    Ok(stream) => State::Begun(stream),
                    Err(error) => {
                        *state = State::Refused;
                        return Poll::Ready(Some((flat.failed)(error)));
                    }
                },
                State::Begun(stream) => return (flat.next)(stream, cx),
                State::Refused => return Poll::Ready(None),
            }
        }
    }
}
