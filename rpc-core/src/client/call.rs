//! A call from the caller's side: a builder of options, and a future.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};

use super::finish::{Apart, Finish};
use super::in_flight::InFlightCall;
use super::options::options;
use super::{Parts, Response, Stub};
use crate::codec::Decode;
use crate::payload::Payload;
use crate::service::Outcome;
use crate::status::Status;

/// A call: set its options, then `.await` it, or give it to `tokio::spawn` or `join!`.
///
/// `O` is the method's return type, `C` its codec. Nothing is sent before the first poll, which must happen within a
/// tokio runtime. Options must be set before that.
///
/// ```
/// use std::time::Duration;
/// # use std::sync::Arc;
/// # use farcall_core::client::{Call, Stub};
/// # use farcall_core::in_process::in_process;
/// # use farcall_core::codec::Raw;
/// # use farcall_core::payload::Payload;
/// # use farcall_core::service::{HandlerFuture, Method, Reply, IncomingCall, Service, ServiceInfo};
/// # use farcall_core::status::{Code, Executed, Status};
/// # struct Echo(Arc<ServiceInfo>);
/// # impl Service for Echo {
/// #     fn info(&self) -> &ServiceInfo { &self.0 }
/// #     fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
/// #         Box::pin(async move {
/// #             if method == 1 { std::future::pending::<()>().await }
/// #             Reply::Ok(request.payload)
/// #         })
/// #     }
/// # }
/// # struct Client(Stub);
/// # impl Client {
/// #     fn call(&self, method: usize, text: &'static str) -> Call<Result<bytes::Bytes, Status>, Raw> {
/// #         self.0.call(method, Ok(Payload::from_body(text.into())))
/// #     }
/// #     fn echo(&self, text: &'static str) -> Call<Result<bytes::Bytes, Status>, Raw> { self.call(0, text) }
/// #     fn hang(&self) -> Call<Result<bytes::Bytes, Status>, Raw> { self.call(1, "") }
/// # }
/// # let methods = ["echo", "hang"].map(|name| Method::unary(name, name)).to_vec();
/// # let info = Arc::new(ServiceInfo { name: "Echo".into(), codec: "raw".into(), methods });
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let client = Client(Stub::new(in_process(Echo(info.clone())), info));
///
/// assert_eq!(client.echo("hello").await?, "hello");
/// assert_eq!(client.echo("hello").timeout(Duration::from_secs(5)).await?, "hello");
///
/// let late = client.hang().timeout(Duration::from_millis(5)).await.unwrap_err();
/// assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::Maybe));
///
/// let response = client.echo("hello").with_response().await?;
/// assert_eq!((&response.value[..], response.attempts), (&b"hello"[..], 1));
/// assert_eq!(
///     format!("{response:?}"),
///     r#"Response { value: b"hello", peer: None, transport: "memory", attempts: 1, metadata: {}, trailers: {} }"#
/// );
/// # Ok::<(), Status>(()) }).unwrap();
/// ```
///
/// # Cancel safety
///
/// Dropping the future cancels the call: unsent parts are taken back, and the server drops the handler's future.
/// Effects that the handler has had by then remain.
///
/// # Errors
///
/// Besides the handler's own errors, these. [`Executed`] says whether the handler may have run.
///
/// - DEADLINE_EXCEEDED, naming what the call waited for: a connection, a place among the server's
///   `limits.concurrent_calls`, or the answer.
/// - UNAVAILABLE, if the connection was lost or can't be made, unless the call [waits](Self::wait_for_ready) for one. A
///   call that was certainly not executed is sent again, up to four times in all, before its caller hears of it. One
///   that may have been executed is not.
/// - RESOURCE_EXHAUSTED, if a message is longer than the receiver's `limits.max_message`, or its metadata than its
///   `limits.max_metadata`, or if its values take more memory than they may.
/// - FAILED_PRECONDITION, if this build lacks the chosen [compression](Self::compress).
/// - INVALID_ARGUMENT, if a [metadata](Self::metadata) key or value is not allowed.
/// - UNIMPLEMENTED or FAILED_PRECONDITION, if the server lacks the method, has it with another signature, or runs a
///   version without metadata.
/// - INTERNAL, if the handler panicked or a message can't be decoded.
///
/// [`Executed`]: crate::status::Executed
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<O, C> {
    call: InFlightCall,
    apart: Apart<O>,
    returns: PhantomData<fn() -> (O, C)>,
}

options!(Call<O, C>);

impl<O, C> Call<O, C> {
    #[inline]
    pub(super) fn new(stub: Stub, method: usize, arguments: Result<Payload, Status>) -> Self {
        Self { call: InFlightCall::new(stub, method, arguments), apart: Apart::new(), returns: PhantomData }
    }

    /// Returns the result with its [`Response`]: the connection, the number of attempts, the metadata.
    pub fn with_response(self) -> ResponseFuture<O, C> {
        ResponseFuture { call: self.call, apart: self.apart, returns: PhantomData }
    }

    /// Returns the result and, beside it, its [`Parts`]: the connection, the number of attempts, the metadata. A call
    /// that fails has these, too.
    pub fn with_parts(self) -> PartsFuture<O, C> {
        PartsFuture { call: self.call, apart: self.apart, returns: PhantomData }
    }

    /// Returns the future of the call. `finish` converts the answer into its result.
    #[inline]
    pub(crate) fn finished_by(self, finish: Finish<O>) -> CallFuture<O> {
        CallFuture { call: self.call, apart: self.apart, finish }
    }
}

impl<O, C> fmt::Debug for Call<O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({})", self.call.name())
    }
}

impl<O, C> Future for Call<O, C>
where
    O: Outcome + Send + 'static,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = O;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<O> {
        let Self { call, apart, .. } = &mut *self;
        apart.poll_decoding::<C>(call, cx)
    }
}

/// A call with a function that decodes its result. Dropping it cancels the call.
#[must_use = "futures do nothing unless polled"]
pub struct CallFuture<O> {
    call: InFlightCall,
    apart: Apart<O>,
    finish: Finish<O>,
}

impl<O> Future for CallFuture<O> {
    type Output = O;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<O> {
        let Self { call, apart, finish } = &mut *self;
        apart.poll_call(call, *finish, cx)
    }
}

/// A call whose result comes with a [`Response`]. Dropping it cancels the call.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<O, C> {
    call: InFlightCall,
    apart: Apart<O>,
    returns: PhantomData<fn() -> (O, C)>,
}

impl<O, C> Future for ResponseFuture<O, C>
where
    O: Outcome + Send + 'static,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = Result<Response<O::Ok>, O::Err>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Self { call, apart, .. } = &mut *self;
        let outcome = ready!(apart.poll_decoding::<C>(call, cx));
        let parts = call.parts();
        Poll::Ready(outcome.into_result().and_then(|value| Ok(parts.of_result(value)?)))
    }
}

/// A call whose result comes with [`Parts`]. Dropping it cancels the call.
#[must_use = "futures do nothing unless polled"]
pub struct PartsFuture<O, C> {
    call: InFlightCall,
    apart: Apart<O>,
    returns: PhantomData<fn() -> (O, C)>,
}

impl<O, C> Future for PartsFuture<O, C>
where
    O: Outcome + Send + 'static,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = (O, Parts);

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Self { call, apart, .. } = &mut *self;
        let outcome = ready!(apart.poll_decoding::<C>(call, cx));
        Poll::Ready((outcome, call.parts()))
    }
}

impl<O> fmt::Debug for CallFuture<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").finish_non_exhaustive()
    }
}

impl<O, C> fmt::Debug for ResponseFuture<O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<O, C> fmt::Debug for PartsFuture<O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartsFuture").finish_non_exhaustive()
    }
}
