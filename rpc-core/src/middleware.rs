//! Middleware between a call and its answer, on either side: interceptors, and layers of `tower`.

mod authorize;
mod request;
mod response;
mod server;
#[cfg(feature = "tower")]
mod tower;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use crate::extensions::Extensions;
pub use crate::stream::StreamEnd;
pub use authorize::authorize;
pub use request::Request;
pub(crate) use request::{OutgoingCall, Passed};
pub use response::Response;
pub use server::{Compressed, Layered, ServiceExt, Spawned, Stack};
#[cfg(feature = "tower")]
pub use tower::Middleware;

use crate::status::Result;
use crate::transport::BoxFuture;

/// The rest of the middleware that an interceptor passes a request on to; the last is the connection or the handler.
/// Cheap to clone.
#[derive(Clone)]
pub struct Next(Arc<dyn Dispatch>);

impl Next {
    pub(crate) fn new(dispatch: impl Dispatch) -> Self {
        Self(Arc::new(dispatch))
    }

    /// Passes a request on. On a client, a stream has begun when this resolves, and [`Response::on_end`] reports its
    /// end. On a server, the handler is done by then, and its stream has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the call, or the handler.
    pub fn run(&self, request: Request) -> impl Future<Output = Result<Response>> + Send + use<> {
        self.0.dispatch(request)
    }

    /// Puts an interceptor before this.
    pub(crate) fn intercepted<F, R>(self, by: F) -> Self
    where
        F: Fn(Request, Self) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response>> + Send + 'static,
    {
        Self::new(Intercepted { by, next: self })
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// Something that answers requests.
pub(crate) trait Dispatch: Send + Sync + 'static {
    fn dispatch(&self, request: Request) -> BoxFuture<Result<Response>>;
}

struct Intercepted<F> {
    by: F,
    next: Next,
}

impl<F, R> Dispatch for Intercepted<F>
where
    F: Fn(Request, Next) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Response>> + Send + 'static,
{
    fn dispatch(&self, request: Request) -> BoxFuture<Result<Response>> {
        Box::pin((self.by)(request, self.next.clone()))
    }
}
