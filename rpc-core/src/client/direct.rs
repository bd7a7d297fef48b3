//! The end of a client's middleware, which makes calls from the requests that arrive there.

use std::future::poll_fn;

use super::finish::Finish;
use super::in_flight::InFlightCall;
use super::{RawChannel, StreamCall, Stub};
use crate::middleware::{Dispatch, OutgoingCall, Request, Response};
use crate::service::Kind;
use crate::status::Result;
use crate::transport::BoxFuture;

/// Sends requests by a channel that has no middleware itself.
pub(super) struct SendService(pub(super) RawChannel);

impl Dispatch for SendService {
    fn dispatch(&self, request: Request) -> BoxFuture<Result<Response>> {
        let channel = self.0.clone();
        Box::pin(async move {
            let OutgoingCall { service, method, arguments, class, options, deadline, passed } =
                request.into_outgoing()?;
            let kind = options.kind;
            let stub = Stub::new(channel.class(class), service);
            let mut call = InFlightCall::behind_middleware(stub, method, arguments, options, deadline);
            if kind == Kind::Unary {
                let answer = poll_fn(|cx| call.poll(cx)).await;
                passed.ended(&answer);
                return Response::received(answer, None, call.parts());
            }
            let mut call = StreamCall::of(call, Finish::here(|_, answer, begun| (answer, begun)));
            let (answer, begun) = (&mut call).await;
            passed.ended(&answer);
            Response::received(answer, begun, call.parts())
        })
    }
}
