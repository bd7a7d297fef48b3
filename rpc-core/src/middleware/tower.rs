//! Layers of `tower`.

use std::error::Error;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use tokio::sync::Mutex;
use tower_layer::Layer;
use tower_service::Service;

use super::{Dispatch, Next, Request, Response};
use crate::status::{Blame, Code, Executed, Result, Status};
use crate::transport::BoxFuture;

type BoxError = Box<dyn Error + Send + Sync>;

/// A `tower::Service` that answers a [`Request`] with a [`Response`]. A layer must make one from a [`Next`].
pub trait Middleware:
    Service<Request, Response = Response, Error: Into<BoxError>, Future: Send + 'static> + Send + 'static
{
}

impl<S> Middleware for S where
    S: Service<Request, Response = Response, Error: Into<BoxError>, Future: Send + 'static> + Send + 'static
{
}

impl Next {
    /// Puts a layer before this.
    pub(crate) fn layered<L>(self, layer: L) -> Self
    where
        L: Layer<Self>,
        L::Service: Middleware,
    {
        Self::new(Towered(Arc::new(Mutex::new(layer.layer(self)))))
    }
}

/// One service for the calls of all callers. So the clones of a client share a rate limit, and a service need not be
/// `Clone`. While it is not ready, callers queue for it.
pub(crate) struct Towered<S>(Arc<Mutex<S>>);

impl<S: Middleware> Dispatch for Towered<S> {
    fn dispatch(&self, request: Request) -> BoxFuture<Result<Response>> {
        let service = self.0.clone();
        Box::pin(async move {
            let answer = {
                let mut service = service.lock().await;
                poll_fn(|cx| service.poll_ready(cx)).await.map_err(into_status)?;
                service.call(request)
            };
            answer.await.map_err(into_status)
        })
    }
}

/// Converts a layer's error into a status. It finds a status among the error and its causes, and knows the errors of
/// `tower` itself.
fn into_status(error: impl Into<BoxError>) -> Status {
    let error = error.into();
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(known) = cause {
        if let Some(status) = known.downcast_ref::<Status>() {
            return status.clone();
        }
        if known.is::<tower::timeout::error::Elapsed>() {
            let status = Status::new(Code::DeadlineExceeded, "the time that a layer allows has passed");
            return status.with_executed(Executed::Maybe).with_blame(Blame::Caller).with_source(error);
        }
        if known.is::<tower::load_shed::error::Overloaded>() {
            let status = Status::new(Code::ResourceExhausted, "a layer has refused the call: overloaded");
            return status.with_executed(Executed::No).with_blame(Blame::Environment).with_source(error);
        }
        cause = known.source();
    }
    let status = Status::new(Code::Unknown, format!("a layer has failed: {error}"));
    status.with_executed(Executed::Maybe).with_blame(Blame::Application).with_source(error)
}

/// Always ready. A call waits for a connection or a place in its future instead, where its deadline applies.
impl Service<Request> for Next {
    type Response = Response;
    type Error = Status;
    type Future = BoxFuture<Result<Response>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.0.dispatch(request)
    }
}
