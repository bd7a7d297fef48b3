//! What `#[farcall::service]` makes of a trait, as the server and the client see it.

use std::future::Future;
use std::pin::Pin;

use crate::call_streams::Streams;
use crate::context::Context;
pub use crate::interface::{Kind, Method, ServiceInfo, stable_hash};
use crate::payload::Payload;
pub use crate::reply::{Reply, Sent, WithMetadata};
use crate::status::Status;

/// One call on its way into a handler.
#[derive(Debug)]
pub struct IncomingCall {
    /// What the handler may know of its call. What goes with its answer it sets by [`Context::current`].
    pub context: Context,
    /// The arguments.
    pub payload: Payload,
    /// The streams of the call, if it has any.
    pub streams: Option<Streams>,
}

/// A handler at work. Boxed once, when the request is decoded, because it may outlive that moment.
///
/// It is polled the first time where its request was taken in, by what reads the connection (by RDMA: all connections of
/// this runtime), with a waker that wakes nobody; if it is not done at that, it becomes a task of its own and is polled
/// again. So a handler that computes for long, or blocks, holds up the other calls there, as it would hold up a thread of
/// the runtime. For one that computes there is `#[rpc(spawn)]`, or
/// [`spawn_handlers`](crate::middleware::ServiceExt::spawn_handlers) for a service; for one that blocks,
/// `tokio::task::spawn_blocking`. One that blocks in a
/// call of its own may wait for ever: what is held up is, perhaps, the answer. It is dropped where it waits when its caller
/// gives up, its deadline passes or its connection ends.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A service that can be added to a server. `#[farcall::service]` implements it for the generated `…Server` types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a service that can be added to a server",
    label = "not a service",
    note = "what implements the trait `Kv` is served by the type that was made with it: write `KvServer::new({Self})`"
)]
pub trait Service: Send + Sync + 'static {
    /// Its names and fingerprints.
    fn info(&self) -> &ServiceInfo;

    /// Starts the handler of method `method` (an index into [`ServiceInfo::methods`]). Does nothing but read the arguments and
    /// make the future: it may be called with many requests at once.
    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture;
}

/// Lets generated code see through type aliases to the two types of a result.
#[diagnostic::on_unimplemented(
    message = "a method of a service, and a stream of it, gives a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "every call can fail, and every stream be cut short, if only by a deadline: write `farcall::Result<..>`, or \
            `Result<.., E>` with an error type of your own"
)]
pub trait Outcome {
    /// What the method returns when it succeeds.
    type Ok;
    /// What it returns when it does not.
    type Err;

    /// The result itself.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;

    /// A view of it.
    fn as_result(&self) -> Result<&Self::Ok, &Self::Err>;

    /// Makes one from a result.
    fn from_result(result: Result<Self::Ok, Self::Err>) -> Self;
}

impl<T, E> Outcome for Result<T, E> {
    type Ok = T;
    type Err = E;

    fn into_result(self) -> Self {
        self
    }

    fn as_result(&self) -> Result<&T, &E> {
        self.as_ref()
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// What the error type of a method is: `From<Status>`, because any call can fail on its way.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the error type of a method, for it is not `From<farcall::Status>`",
    label = "not `From<farcall::Status>`",
    note = "any call can fail for reasons of farcall's own, such as its deadline: write `impl From<farcall::Status> for \
            {Self}`, or return `Result<.., farcall::CallError<{Self}>>`, or `farcall::Result<..>`"
)]
pub trait Failure: From<Status> {}

#[diagnostic::do_not_recommend]
impl<E: From<Status>> Failure for E {}
