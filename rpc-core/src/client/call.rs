//! A call from the caller's side: options, then a future.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::Stub;
use super::under_way::UnderWay;
use crate::class::TrafficClass;
use crate::codec::Decode;
use crate::connection::{Answered, Connection};
use crate::context::Context;
use crate::payload::Payload;
use crate::service::Outcome;
use crate::status::{Code, Status};

/// A call that has not begun: set its options, then `.await` it.
///
/// `O` is what the method returns, `C` its codec. Nothing is sent before it is awaited, which must happen within a tokio
/// runtime.
///
/// ```
/// use std::time::Duration;
/// # use std::sync::Arc;
/// # use farcall_core::client::{Call, Stub, in_process};
/// # use farcall_core::codec::Raw;
/// # use farcall_core::payload::Payload;
/// # use farcall_core::service::{HandlerFuture, Method, Reply, Request, Service, ServiceInfo};
/// # use farcall_core::status::{Code, Executed, Status};
/// # struct Echo(Arc<ServiceInfo>);
/// # impl Service for Echo {
/// #     fn info(&self) -> &ServiceInfo { &self.0 }
/// #     fn call(&self, method: usize, request: Request) -> HandlerFuture {
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
/// # let info = Arc::new(ServiceInfo { name: "Echo".into(), codec: "raw", methods });
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let client = Client(Stub::new(in_process(Echo(info.clone())), info));
///
/// assert_eq!(client.echo("hello").await?, "hello");
/// assert_eq!(client.echo("hello").deadline(Duration::from_secs(5)).await?, "hello");
///
/// let late = client.hang().deadline(Duration::from_millis(5)).await.unwrap_err();
/// assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::Maybe));
///
/// let response = client.echo("hello").with_response().await?;
/// assert_eq!((&response.value[..], response.attempts), (&b"hello"[..], 1));
/// assert_eq!(
///     format!("{response:?}"),
///     r#"Response { value: b"hello", peer: None, transport: "memory", attempts: 1 }"#
/// );
/// # Ok::<(), Status>(()) }).unwrap();
/// ```
///
/// # Cancel safety
///
/// Dropping the future cancels the call: what has not been sent is taken back, and the server drops the handler's future.
/// What the handler had done by then is done.
///
/// # Errors
///
/// Besides what the handler returns, with [`Executed`] saying whether the handler may have run:
///
/// - DEADLINE_EXCEEDED, naming what the call waited for: a connection, a place among the server's
///   `limits.concurrent_calls`, or the answer.
/// - UNAVAILABLE, if there is no connection or it was lost. A call that was certainly not executed is sent again, up to
///   four times in all, before its caller hears of it; one that may have been is not.
/// - RESOURCE_EXHAUSTED, if a message is longer than the receiver's `limits.max_message`.
/// - UNIMPLEMENTED or FAILED_PRECONDITION, if the server does not have the method, or has it with another signature.
/// - INTERNAL, if the handler panicked or a message can't be decoded.
///
/// [`Executed`]: crate::status::Executed
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<O, C> {
    stub: Stub,
    method: usize,
    arguments: Result<Payload, Status>,
    timeout: Option<Duration>,
    inherits: Inherits,
    returns: PhantomData<fn() -> (O, C)>,
}

/// Which deadline besides its own a call has, perhaps.
#[derive(Clone, Copy)]
enum Inherits {
    /// That of the handler that is being polled when the call is awaited.
    Current,
    Given(Option<Instant>),
}

impl<O, C> Call<O, C> {
    #[inline]
    pub(super) fn new(stub: Stub, method: usize, arguments: Result<Payload, Status>) -> Self {
        Self { stub, method, arguments, timeout: None, inherits: Inherits::Current, returns: PhantomData }
    }

    /// Gives up after `timeout`, counted from when the call is awaited; connecting and waiting for a turn count. The
    /// server is told, and drops the handler. A call made by a handler never outlasts the call that it serves,
    /// whatever is set here.
    #[inline]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes the call by the connection of this class, whichever the client's is. That costs an allocation, which a client
    /// on a [view](super::Caller::class) of the channel saves.
    pub fn class(mut self, class: TrafficClass) -> Self {
        self.stub = self.stub.class(class);
        self
    }

    /// Inherits from `context` instead of from the handler that is being polled, for calls made by tasks that a
    /// handler has spawned.
    pub fn context(mut self, context: &Context) -> Self {
        self.inherits = Inherits::Given(context.deadline());
        self
    }

    /// Inherits nothing: the call may outlast the handler that makes it.
    pub fn detached(mut self) -> Self {
        self.inherits = Inherits::Given(None);
        self
    }

    /// Gives, with the result, what is known of how it came: the connection and the number of attempts.
    pub fn with_response(self) -> ResponseFuture<O, C> {
        ResponseFuture { call: self.begin(), returns: PhantomData }
    }

    /// The future of the call; `finish` makes its result of the answer.
    #[inline]
    pub(crate) fn finished_by(self, finish: Finish<O>) -> CallFuture<O> {
        CallFuture { call: self.begin(), finish }
    }

    #[inline]
    fn begin(self) -> UnderWay {
        let inherited = match self.inherits {
            Inherits::Current => Context::current_deadline(),
            Inherits::Given(deadline) => deadline,
        };
        UnderWay::new(self.stub, self.method, self.arguments, inherited, self.timeout)
    }
}

impl<O, C> fmt::Debug for Call<O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let service = self.stub.service();
        let method = service.methods.get(self.method).map_or("?", |m| m.name);
        write!(f, "Call({}/{method})", service.name)
    }
}

impl<O, C> IntoFuture for Call<O, C>
where
    O: Outcome,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = O;
    type IntoFuture = CallFuture<O>;

    #[inline]
    fn into_future(self) -> CallFuture<O> {
        self.finished_by(|call, answer| O::from_result(call.decode::<O::Ok, C, O::Err, C>(answer)))
    }
}

/// Makes the result of a call of what it was answered.
pub(crate) type Finish<O> = fn(&UnderWay, Answered) -> O;

/// A call under way. Dropping it cancels the call.
#[must_use = "futures do nothing unless polled"]
pub struct CallFuture<O> {
    call: UnderWay,
    finish: Finish<O>,
}

impl<O> Future for CallFuture<O> {
    type Output = O;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<O> {
        let answer = ready!(self.call.poll(cx));
        Poll::Ready((self.finish)(&self.call, answer))
    }
}

/// A call under way whose result comes with a [`Response`]. Dropping it cancels the call.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<O, C> {
    call: UnderWay,
    returns: PhantomData<fn() -> (O, C)>,
}

impl<O, C> Future for ResponseFuture<O, C>
where
    O: Outcome,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = Result<Response<O::Ok>, O::Err>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.call.poll(cx));
        let value = self.call.decode::<O::Ok, C, O::Err, C>(answer);
        let attempts = self.call.attempts();
        Poll::Ready(value.and_then(|value| match self.call.connection() {
            Some(connection) => Ok(Response { value, connection: connection.clone(), attempts }),
            // There is a value only of an answer, and an answer comes by a connection.
            None => Err(Status::new(Code::Internal, "an answer came by no connection").into()),
        }))
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

/// A result, and how it came.
#[non_exhaustive]
pub struct Response<T> {
    /// The result.
    pub value: T,
    /// The connection that it came by.
    pub connection: Arc<Connection>,
    /// How often the request was sent: more than once only if it was certainly not executed before.
    pub attempts: u8,
}

/// The value, and of the connection what tells it from others.
impl<T: fmt::Debug> fmt::Debug for Response<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("value", &self.value)
            .field("peer", &self.connection.peer())
            .field("transport", &self.connection.transport().name)
            .field("attempts", &self.attempts)
            .finish()
    }
}
