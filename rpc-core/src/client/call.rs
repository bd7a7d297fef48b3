//! A call from the caller's side: options, then a future.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::Caller;
use crate::codec::{CodecError, Decode, from_payload};
use crate::connection::{Asked, Connection, Pending};
use crate::context::{Context, earlier};
use crate::payload::Payload;
use crate::proto::wire::Verdict;
use crate::service::{Outcome, ServiceInfo};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::BoxFuture;

/// How often a call that was certainly not executed is sent again without anybody noticing.
const TRANSPARENT_ATTEMPTS: u8 = 4;

/// A call that has not begun: set its options, then `.await` it.
///
/// `O` is what the method returns, `C` its codec. Nothing is sent before it is awaited, which must happen within a tokio
/// runtime.
///
/// ```
/// use std::time::Duration;
/// # use std::sync::Arc;
/// # use farcall_core::client::{Call, Caller, in_process};
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
/// # struct Client(Caller, Arc<ServiceInfo>);
/// # impl Client {
/// #     fn call(&self, method: usize, text: &'static str) -> Call<Result<bytes::Bytes, Status>, Raw> {
/// #         Call::new(&self.0, &self.1, method, Ok(Payload::from_body(text.into())))
/// #     }
/// #     fn echo(&self, text: &'static str) -> Call<Result<bytes::Bytes, Status>, Raw> { self.call(0, text) }
/// #     fn hang(&self) -> Call<Result<bytes::Bytes, Status>, Raw> { self.call(1, "") }
/// # }
/// # let methods = ["echo", "hang"].map(|name| Method::unary(name, name)).to_vec();
/// # let info = Arc::new(ServiceInfo { name: "Echo".into(), codec: "raw", methods });
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let client = Client(in_process(Echo(info.clone())), info);
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
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<O, C> {
    caller: Caller,
    service: Arc<ServiceInfo>,
    method: usize,
    arguments: Result<Payload, Status>,
    timeout: Option<Duration>,
    context: Inherit,
    returns: PhantomData<fn() -> (O, C)>,
}

enum Inherit {
    Current,
    Given(Context),
    Nothing,
}

impl<O, C> Call<O, C> {
    /// A call of the method with this index. Generated clients do this.
    pub fn new(
        caller: &Caller,
        service: &Arc<ServiceInfo>,
        method: usize,
        arguments: Result<Payload, Status>,
    ) -> Self {
        Self {
            caller: caller.clone(),
            service: service.clone(),
            method,
            arguments,
            timeout: None,
            context: Inherit::Current,
            returns: PhantomData,
        }
    }

    /// Gives up after `timeout`, counted from when the call is awaited; connecting and waiting for a turn count. The
    /// server is told, and drops the handler. A call made by a handler never outlasts the call that it serves,
    /// whatever is set here.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Inherits from `context` instead of from the handler that is being polled, for calls made by tasks that a
    /// handler has spawned.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Inherit::Given(context.clone());
        self
    }

    /// Inherits nothing: the call may outlast the handler that makes it.
    pub fn detached(mut self) -> Self {
        self.context = Inherit::Nothing;
        self
    }

    /// Gives, with the result, what is known of how it came: the connection and the number of attempts.
    pub fn with_response(self) -> ResponseFuture<O, C> {
        ResponseFuture { call: self.begin(), returns: PhantomData }
    }

    /// The call under way, before its answer is decoded.
    pub(crate) fn answered(self) -> impl Future<Output = Answered> + Send + use<O, C> {
        self.begin()
    }

    fn begin(self) -> Raw {
        let inherited = match self.context {
            Inherit::Current => Context::current().and_then(|c| c.deadline()),
            Inherit::Given(context) => context.deadline(),
            Inherit::Nothing => None,
        };
        let own = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let deadline = earlier(own, inherited);
        Raw {
            caller: self.caller,
            state: match self.arguments {
                Ok(payload) => State::Start(Asked {
                    service: self.service,
                    method: self.method,
                    payload,
                    deadline,
                    attempt: 1,
                }),
                Err(status) => State::Refused(status),
            },
            began: Instant::now(),
            sleep: deadline.map(tokio::time::sleep_until),
        }
    }
}

impl<O, C> fmt::Debug for Call<O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.service.methods.get(self.method).map_or("?", |m| m.name);
        write!(f, "Call({}/{method})", self.service.name)
    }
}

impl<O, C> IntoFuture for Call<O, C>
where
    O: Outcome,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = O;
    type IntoFuture = CallFuture<O, C>;

    fn into_future(self) -> CallFuture<O, C> {
        CallFuture { call: self.begin(), returns: PhantomData }
    }
}

pin_project! {
    /// A call under way. Dropping it cancels the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct CallFuture<O, C> {
        #[pin]
        call: Raw,
        returns: PhantomData<fn() -> (O, C)>,
    }
}

impl<O, C> Future for CallFuture<O, C>
where
    O: Outcome,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = O;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<O> {
        let answered = ready!(self.project().call.poll(cx));
        Poll::Ready(O::from_result(answered.decode::<O::Ok, C, O::Err, C>().map(|r| r.value)))
    }
}

pin_project! {
    /// A call under way whose result comes with a [`Response`]. Dropping it cancels the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<O, C> {
        #[pin]
        call: Raw,
        returns: PhantomData<fn() -> (O, C)>,
    }
}

impl<O, C> Future for ResponseFuture<O, C>
where
    O: Outcome,
    O::Err: From<Status>,
    C: Decode<O::Ok> + Decode<O::Err>,
{
    type Output = Result<Response<O::Ok>, O::Err>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let answered = ready!(self.project().call.poll(cx));
        Poll::Ready(answered.decode::<O::Ok, C, O::Err, C>())
    }
}

impl<O, C> fmt::Debug for CallFuture<O, C> {
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

/// The answer to a call, or why there is none.
pub(crate) struct Answered(Result<Answer, Status>);

impl Answered {
    /// What it says: a `T` as `C` reads it, or an `E` as `D` does.
    pub(crate) fn decode<T, C: Decode<T>, E: From<Status>, D: Decode<E>>(self) -> Result<Response<T>, E> {
        let Answer { verdict, payload, connection, attempts, call } = self.0?;
        let malformed = |what: &str, why: &CodecError| {
            let message =
                format!("{call}: the {what} can't be decoded: {why}; do both sides have the same types?");
            Status::new(Code::Internal, message).with_executed(Executed::Yes).with_blame(Blame::Peer)
        };
        match verdict {
            Verdict::Ok => {
                let value = from_payload::<C, T>(payload).map_err(|e| malformed("result", &e))?;
                Ok(Response { value, connection, attempts })
            }
            _ => Err(from_payload::<D, E>(payload).map_err(|e| malformed("error", &e))?),
        }
    }
}

struct Answer {
    verdict: Verdict,
    payload: Payload,
    connection: Arc<Connection>,
    attempts: u8,
    call: String,
}

pin_project! {
    /// A call under way, before its answer is decoded.
    struct Raw {
        caller: Caller,
        state: State,
        began: Instant,
        #[pin]
        sleep: Option<Sleep>,
    }
}

enum State {
    Refused(Status),
    Start(Asked),
    Connecting(Asked, BoxFuture<Result<Arc<Connection>, Status>>),
    /// The peer takes no more calls at once.
    Placing(Asked, Arc<Connection>, BoxFuture<Result<OwnedSemaphorePermit, Status>>),
    Waiting(Asked, Pending),
    Done,
}

impl Future for Raw {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Poll::Ready(answer) = step(this.caller, this.state, cx) else {
            let expired = this.sleep.as_pin_mut().is_some_and(|sleep| sleep.poll(cx).is_ready());
            if !expired {
                return Poll::Pending;
            }
            let state = std::mem::replace(this.state, State::Done);
            return Poll::Ready(Answered(Err(expire(this.caller, state, this.began.elapsed()))));
        };
        *this.state = State::Done;
        Poll::Ready(Answered(answer))
    }
}

/// Goes on until the call waits for something, or is done.
fn step(caller: &Caller, state: &mut State, cx: &mut TaskContext<'_>) -> Poll<Result<Answer, Status>> {
    loop {
        *state = match std::mem::replace(state, State::Done) {
            // Not sent any more; the timer says so.
            State::Start(asked) if asked.is_expired() => {
                *state = State::Start(asked);
                return Poll::Pending;
            }
            State::Refused(status) => return Poll::Ready(Err(status)),
            State::Start(asked) => match caller.connected() {
                Some(connection) => match connection.try_place() {
                    Some(place) => send(&connection, asked, place)?,
                    None => {
                        let place = Box::pin(connection.clone().place());
                        State::Placing(asked, connection, place)
                    }
                },
                None => {
                    let caller = caller.clone();
                    State::Connecting(asked, Box::pin(async move { caller.connection().await }))
                }
            },
            State::Connecting(asked, mut connecting) => match connecting.as_mut().poll(cx) {
                Poll::Pending => {
                    *state = State::Connecting(asked, connecting);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(_)) => State::Start(asked),
                Poll::Ready(Err(status)) => return Poll::Ready(Err(named(&asked, status))),
            },
            State::Placing(asked, connection, mut placing) => match placing.as_mut().poll(cx) {
                Poll::Pending => {
                    *state = State::Placing(asked, connection, placing);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(_)) if asked.is_expired() => State::Start(asked),
                Poll::Ready(Ok(place)) => send(&connection, asked, place)?,
                Poll::Ready(Err(status)) => again(asked, status)?,
            },
            State::Waiting(asked, mut pending) => match pending.poll(cx) {
                Poll::Pending => {
                    *state = State::Waiting(asked, pending);
                    return Poll::Pending;
                }
                Poll::Ready(Ok((verdict, payload))) => {
                    return Poll::Ready(Ok(Answer {
                        verdict,
                        payload,
                        connection: pending.connection().clone(),
                        attempts: asked.attempt,
                        call: asked.to_string(),
                    }));
                }
                Poll::Ready(Err(status)) => again(asked, status)?,
            },
            State::Done => {
                return Poll::Ready(Err(Status::new(Code::Internal, "a call was polled after it was done")
                    .with_blame(Blame::Caller)));
            }
        };
    }
}

fn send(connection: &Arc<Connection>, asked: Asked, place: OwnedSemaphorePermit) -> Result<State, Status> {
    match connection.call(asked.clone(), place) {
        Ok(pending) => Ok(State::Waiting(asked, pending)),
        Err(status) => again(asked, status),
    }
}

/// Begins a call again that was certainly not executed and may fare better elsewhere.
fn again(mut asked: Asked, status: Status) -> Result<State, Status> {
    let elsewhere = status.code() == Code::Unavailable
        && status.executed() == Executed::No
        && status.blame() != Blame::Application;
    if !elsewhere || asked.attempt >= TRANSPARENT_ATTEMPTS {
        return Err(named(&asked, status));
    }
    asked.attempt += 1;
    Ok(State::Start(asked))
}

/// Puts the call's name before a status of farcall's own making, and behind one that names the fingerprint of this side's
/// signature, the signature.
fn named(asked: &Asked, status: Status) -> Status {
    if status.blame() == Blame::Application {
        return status;
    }
    let refused = status.code() == Code::FailedPrecondition && status.executed() == Executed::No;
    let method = asked
        .service
        .methods
        .get(asked.method)
        .filter(|m| refused && status.message().contains(&format!("{:016x}", m.fingerprint)));
    let ours = method.map_or_else(String::new, |m| format!("; the caller's signature is `{}`", m.signature));
    status.map_message(|m| format!("{asked}: {m}{ours}"))
}

/// The deadline has passed: says what the call was waiting for.
fn expire(caller: &Caller, state: State, after: Duration) -> Status {
    let (asked, when, executed) = match state {
        State::Waiting(asked, pending) => {
            pending.expire();
            (asked, "no answer".to_owned(), Executed::Maybe)
        }
        State::Connecting(asked, _) => (asked, format!("not connected to {}", caller.target()), Executed::No),
        State::Placing(asked, ..) => {
            let when = "no place free among the server's limits.concurrent_calls";
            (asked, when.to_owned(), Executed::No)
        }
        State::Start(asked) => (asked, "not sent".to_owned(), Executed::No),
        State::Refused(status) => return status,
        State::Done => return Status::new(Code::DeadlineExceeded, "the deadline passed"),
    };
    Status::new(Code::DeadlineExceeded, format!("{asked}: {when} after {after:.1?}"))
        .with_executed(executed)
        .with_blame(Blame::Caller)
}

impl Asked {
    fn is_expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.service.methods.get(self.method).map_or("?", |m| m.name);
        write!(f, "{}/{method}", self.service.name)
    }
}
