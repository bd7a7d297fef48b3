//! Where a client's middleware ends: calls of what it lets through.

use std::future::poll_fn;

use super::prepared::CallBuilder;
use super::stream_call::StreamFuture;
use super::{Caller, Stub};
use crate::middleware::{Dispatch, Outgoing, Request, Response};
use crate::service::Kind;
use crate::status::Result;
use crate::transport::BoxFuture;

/// Sends requests by a caller that has no middleware itself.
pub(super) struct SendService(pub(super) Caller);

impl Dispatch for SendService {
    fn dispatch(&self, request: Request) -> BoxFuture<Result<Response>> {
        let caller = self.0.clone();
        Box::pin(async move {
            let Outgoing { service, method, arguments, class, options, deadline } =
                request.into_outgoing()?;
            let kind = options.kind;
            let stub = Stub::new(caller.class(class), service);
            let prepared = CallBuilder::again(stub, method, arguments, options, deadline);
            if kind == Kind::Unary {
                let mut call = prepared.begin();
                let answer = poll_fn(|cx| call.poll(cx)).await;
                return Response::received(answer, None, call.parts());
            }
            let mut call = StreamFuture::new(prepared, |_, answer, begun| (answer, begun));
            let (answer, begun) = (&mut call).await;
            Response::received(answer, begun, call.parts())
        })
    }
}
