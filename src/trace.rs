//! Spans for calls, and the trace that they are part of.
//!
//! Two interceptors: [`client`] and [`server`] make a `tracing` span of each call, and pass the trace on in the
//! metadata `traceparent` and `tracestate`, as the [W3C](https://www.w3.org/TR/trace-context/) says. A handler's log
//! lines are in the span of its call, and its calls are in its trace.
//!
//! ```
//! # #[farcall::service]
//! # trait Greeter { async fn hello(&self) -> farcall::Result<bool>; }
//! # struct Polite;
//! # impl Greeter for Polite {
//! #     async fn hello(&self) -> farcall::Result<bool> { Ok(farcall::trace::TraceContext::current().is_some()) }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use farcall::{Channel, Server, trace};
//!
//! let server = Server::builder().add(GreeterServer::new(Polite)).intercept(trace::server);
//! # let server = server.bind("127.0.0.1:0").await?;
//! # let address = format!("farcall://{}", server.local_addr());
//! # tokio::spawn(server.serve());
//! let channel = Channel::connect(&address).await?.intercept(trace::client);
//! # assert!(GreeterClient::new(&channel).hello().await?);
//! # Ok(())
//! # }
//! ```
//!
//! The spans are called `call`, have the target `farcall::call` and the level INFO, and these fields, which are named as
//! OpenTelemetry's conventions for RPC say:
//!
//! | field | |
//! |---|---|
//! | `otel.name` | service and method, as in `shop.v1.Kv/get` |
//! | `otel.kind` | `client` or `server` |
//! | `rpc.system` | `farcall` |
//! | `rpc.service`, `rpc.method` | |
//! | `rpc.response.status_code` | how it ended: `OK`, `NOT_FOUND`, ...; `CANCELLED` too if it was dropped; `APPLICATION` for an error of the application's own type |
//! | `otel.status_code` | `ERROR`, if it did not end with OK: on a server only if that is its own fault |
//! | `network.peer.address` | where the server got the call from; what the client's answer came from |
//! | `network.transport` | what the client's answer came by, `tcp` or `rdma` |
//! | `farcall.attempts` | how often the request was sent, if more than once |
//! | `trace_id`, `span_id` | as in `traceparent` |
//!
//! A span ends with the call; if the answer is a stream, when that has ended or was dropped.
//!
//! # OpenTelemetry
//!
//! With `tracing-opentelemetry` the numbers of traces and spans are that crate's. Give its [`Propagator`] to [`client_with`] and
//! [`server_with`]; it has two functions of a few lines, which `examples/tracing.rs` shows. (They are not part of farcall
//! because the crates that they need change too often.)

mod context;

use std::future::Future;
use std::sync::Arc;

use tracing::field::{Empty, display};
use tracing::{Instrument, Span, info_span};

use crate::middleware::{Next, Request, Response};
use crate::{Code, Context, Result};

pub use context::{NoTraceParent, TraceContext, W3c};

/// Takes a trace from one process to the next.
pub trait Propagator: Send + Sync + 'static {
    /// Puts what names the trace of `span`, which is that of a call about to be made, to its metadata.
    fn inject(&self, span: &Span, request: &mut Request);

    /// Has `span`, which is that of a call that has arrived, be part of the trace that its metadata name.
    fn extract(&self, span: &Span, request: &mut Request);
}

/// An interceptor of clients that makes a span of each call.
pub fn client(request: Request, next: Next) -> impl Future<Output = Result<Response>> + Send + 'static {
    called(&W3c, request, next)
}

/// An interceptor of servers that makes a span of each call. The handler's log lines are in it.
pub fn server(request: Request, next: Next) -> impl Future<Output = Result<Response>> + Send + 'static {
    served(&W3c, request, next)
}

/// [`client`] with another propagator.
pub fn client_with(propagator: impl Propagator) -> impl Fn(Request, Next) -> BoxCall + Send + Sync + 'static {
    let propagator = Arc::new(propagator);
    move |request, next| Box::pin(called(&*propagator, request, next))
}

/// [`server`] with another propagator.
pub fn server_with(propagator: impl Propagator) -> impl Fn(Request, Next) -> BoxCall + Send + Sync + 'static {
    let propagator = Arc::new(propagator);
    move |request, next| Box::pin(served(&*propagator, request, next))
}

/// The future that an interceptor returns.
pub type BoxCall = std::pin::Pin<Box<dyn Future<Output = Result<Response>> + Send>>;

fn called<P: Propagator + ?Sized>(
    propagator: &P,
    mut request: Request,
    next: Next,
) -> impl Future<Output = Result<Response>> + Send + use<P> {
    let span = span(&request, "client");
    propagator.inject(&span, &mut request);
    let end = End { span: span.clone(), is_client: true, ended: false };
    async move {
        let mut end = end;
        let mut result = next.run(request).await;
        if let Ok(response) = &result {
            if let Some(connection) = response.connection() {
                let transport = connection.transport();
                end.span.record("network.transport", transport.name);
                if let Some(peer) = connection.peer() {
                    end.span.record("network.peer.address", display(peer));
                }
            }
            if response.attempts() > 1 {
                end.span.record("farcall.attempts", response.attempts());
            }
        }
        match &mut result {
            Ok(response) if response.is_stream() => response.on_end(move |stream| end.note(stream.outcome())),
            result => end.result(result),
        }
        result
    }
    .instrument(span)
}

fn served<P: Propagator + ?Sized>(
    propagator: &P,
    mut request: Request,
    next: Next,
) -> impl Future<Output = Result<Response>> + Send + use<P> {
    let span = span(&request, "server");
    propagator.extract(&span, &mut request);
    if let Some(peer) = request.context().and_then(Context::peer) {
        span.record("network.peer.address", display(peer));
    }
    let end = End { span: span.clone(), is_client: false, ended: false };
    async move {
        let mut end = end;
        let result = next.run(request).await;
        end.result(&result);
        result
    }
    .instrument(span)
}

fn span(request: &Request, kind: &'static str) -> Span {
    info_span!(
        target: "farcall::call",
        "call",
        otel.name = request.path(),
        otel.kind = kind,
        rpc.system = "farcall",
        rpc.service = request.service(),
        rpc.method = request.method(),
        rpc.response.status_code = Empty,
        otel.status_code = Empty,
        network.peer.address = Empty,
        network.transport = Empty,
        farcall.attempts = Empty,
        trace_id = Empty,
        span_id = Empty,
    )
}

/// Records how a call has ended, even if it is dropped.
struct End {
    span: Span,
    is_client: bool,
    ended: bool,
}

impl End {
    fn result(&mut self, result: &Result<Response>) {
        match result {
            Ok(response) => response.end().iter().for_each(|end| self.note(end.outcome())),
            Err(status) => self.note(status.code().name()),
        }
    }

    fn note(&mut self, outcome: &str) {
        self.ended = true;
        self.span.record("rpc.response.status_code", outcome);
        let is_error = if self.is_client { outcome != "OK" } else { SERVERS_FAULT.contains(&outcome) };
        if is_error {
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

/// Codes that are a server's fault; the others are its callers' business.
const SERVERS_FAULT: [&str; 6] =
    ["UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];

impl Drop for End {
    fn drop(&mut self) {
        if !self.ended {
            self.note(Code::Cancelled.name());
        }
    }
}
