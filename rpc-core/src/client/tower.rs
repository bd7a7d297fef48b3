//! A channel as a `tower::Service`.

use std::task::{Context as TaskContext, Poll};

use tower_service::Service;

use super::RawChannel;
use crate::middleware::{Request, Response};
use crate::status::{Result, Status};
use crate::transport::BoxFuture;

/// Always ready, like [`Next`](crate::middleware::Next).
impl Service<Request> for RawChannel {
    type Response = Response;
    type Error = Status;
    type Future = BoxFuture<Result<Response>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        Service::call(&mut self.next(), request)
    }
}
