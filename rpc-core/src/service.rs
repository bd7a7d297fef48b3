//! The interface between `#[farcall::service]` and the server and client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::call_streams::Streams;
use crate::codec::{Codec, Raw};
use crate::context::{Context, current_turn};
use crate::decoding;
pub use crate::interface::{Kind, Method, ServiceInfo, stable_hash};
use crate::payload::Payload;
pub use crate::reply::{Reply, Sent, WithMetadata};
use crate::status::Status;

/// One call on its way into a handler.
#[derive(Debug)]
pub struct IncomingCall {
    /// The context of the call. The handler edits its reply metadata through [`Context::current`].
    pub context: Context,
    /// The arguments.
    pub payload: Payload,
    /// The streams of the call, if it has any.
    pub streams: Option<Streams>,
}

/// A running handler. It is boxed once, when the request is decoded, because it may outlive that moment.
///
/// It is first polled where its request was received, by the task that reads the connection (with RDMA: all connections
/// of this runtime). The waker of that poll does nothing. If the handler is not done then, it becomes its own task and
/// is polled again. So a handler that computes for long, or blocks, holds up the other calls of that task, as it would
/// hold up a thread of the runtime.
///
/// - For a handler that computes, use `#[rpc(spawn)]`, or
///   [`spawn_handlers`](crate::middleware::ServiceExt::spawn_handlers) for a whole service.
/// - For one that blocks, use `tokio::task::spawn_blocking`. A handler that blocks on a call of its own may wait for
///   ever, because it may be holding up that call's answer.
///
/// The handler is dropped at its current `await` when its caller gives up, its deadline passes or its connection ends.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A service that can be added to a server. `#[farcall::service]` implements it for the generated `…Server` types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a service that can be added to a server",
    label = "not a service",
    note = "what implements the trait `Kv` is served by the type that was made with it: write `KvServer::new({Self})`"
)]
pub trait Service: Send + Sync + 'static {
    /// Returns the names and fingerprints of the service and its methods.
    fn info(&self) -> &ServiceInfo;

    /// Starts the handler of method `method`, an index into [`ServiceInfo::methods`]. It only reads the arguments and
    /// makes the future: many threads may call it at once.
    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture;
}

/// Calls a service whose arguments may take long to decode.
pub(crate) async fn call(service: Arc<dyn Service>, method: usize, request: IncomingCall) -> Reply {
    // `Raw` has nothing to decode.
    if !decoding::is_long(&request.payload) || service.info().codec == Raw::NAME {
        return service.call(method, request).await;
    }
    // Shares the state of the current context, which is not current in the thread that decodes.
    let mut context = request.context.given();
    let request = IncomingCall { context: context.clone(), ..request };
    let handler =
        decoding::apart(current_turn(), move || context.enter(|| service.call(method, request))).await;
    handler.await
}

/// A `Result` behind any type alias, for generated code that needs its two types.
#[diagnostic::on_unimplemented(
    message = "a method of a service, and a stream of it, gives a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "every call can fail, and every stream be cut short, if only by a deadline: write `farcall::Result<..>`, or \
            `Result<.., E>` with an error type of your own"
)]
pub trait Outcome {
    /// The type of a success.
    type Ok;
    /// The type of an error.
    type Err;

    /// Returns the result itself.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;

    /// Returns references to the success or error.
    fn as_result(&self) -> Result<&Self::Ok, &Self::Err>;

    /// Wraps a result.
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

/// The error type of a method. It must be `From<Status>`, because any call can fail on its way.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the error type of a method, for it is not `From<farcall::Status>`",
    label = "not `From<farcall::Status>`",
    note = "any call can fail for reasons of farcall's own, such as its deadline: write `impl From<farcall::Status> for \
            {Self}`, or return `Result<.., farcall::CallError<{Self}>>`, or `farcall::Result<..>`"
)]
pub trait Failure: From<Status> {}

#[diagnostic::do_not_recommend]
impl<E: From<Status>> Failure for E {}
