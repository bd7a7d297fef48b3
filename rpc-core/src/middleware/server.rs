//! Middleware of servers, around a single service or all of them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::request::Arrived;
use super::{Dispatch, Next, Request, Response};
use crate::compress::Compression;
use crate::decoding::in_task;
use crate::service::{self, HandlerFuture, Reply, Service, ServiceInfo};
use crate::status::{Blame, Code, Executed, Result, Status};
use crate::transport::BoxFuture;

struct Handlers;

impl Dispatch for Handlers {
    fn dispatch(&self, request: Request) -> BoxFuture<Result<Response>> {
        Box::pin(async move {
            let Arrived { service, method, request, sooner, outer, passed } = request.into_arrived()?;
            let context = request.context.clone();
            let unfinished = context.unfinished();
            let handler = context.scope(service::call(service, method, request));
            let reply = match sooner {
                None => Ok(handler.await),
                Some(deadline) => tokio::time::timeout_at(deadline, handler).await,
            };
            let reply = match reply {
                Ok(mut reply) => {
                    unfinished.done();
                    outer.choose_as(&context);
                    reply.judge();
                    reply
                }
                Err(_) => Reply::Status(late()),
            };
            let response = Response::answered(reply, context.take_answer()).map_err(|(status, initial)| {
                outer.reply_metadata(|metadata| metadata.extend(&initial));
                status
            });
            passed.ended(&response);
            response
        })
    }
}

fn late() -> Status {
    Status::new(
        Code::DeadlineExceeded,
        "the time that the server's middleware allows passed while the handler ran",
    )
    .with_executed(Executed::Maybe)
    .with_blame(Blame::Application)
}

/// The middleware of a server. Any of its services can be put behind it.
#[derive(Clone, Debug)]
#[must_use = "middleware does nothing until it is put around a service"]
pub struct Stack(Next);

/// No middleware.
impl Default for Stack {
    fn default() -> Self {
        Self(Next::new(Handlers))
    }
}

impl Stack {
    /// Adds an interceptor in front of those that were added before.
    pub fn intercept<F, R>(self, by: F) -> Self
    where
        F: Fn(Request, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response>> + Send + 'static,
    {
        Self(self.0.intercepted(by))
    }

    /// Adds a layer of `tower` in front of the middleware that was added before.
    #[cfg(feature = "tower")]
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: tower_layer::Layer<Next>,
        L::Service: super::Middleware,
    {
        Self(self.0.layered(layer))
    }

    /// Returns a service that is behind this middleware.
    pub fn around(&self, service: Arc<dyn Service>) -> Layered {
        Layered { inner: service, stack: self.0.clone() }
    }
}

/// A service behind middleware.
#[derive(Clone)]
#[must_use = "the service is not served until it is added to a server"]
pub struct Layered {
    inner: Arc<dyn Service>,
    stack: Next,
}

impl Service for Layered {
    fn info(&self) -> &ServiceInfo {
        self.inner.info()
    }

    fn call(&self, method: usize, request: service::IncomingCall) -> HandlerFuture {
        let request = Request::arrived(self.inner.clone(), method, request);
        let (stack, passed) = (self.stack.clone(), request.passed());
        Box::pin(async move {
            let refused = |status| match passed.judge(status) {
                status if status.executed() == Executed::No => Reply::Refused(status),
                status => Reply::Status(status),
            };
            stack.run(request).await.map_or_else(refused, Response::into_reply)
        })
    }
}

impl fmt::Debug for Layered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layered").field("service", &self.inner.info().name).finish_non_exhaustive()
    }
}

/// A service whose answers are compressed.
#[derive(Clone)]
#[must_use = "the service is not served until it is added to a server"]
pub struct Compressed {
    inner: Arc<dyn Service>,
    by: Compression,
}

impl Service for Compressed {
    fn info(&self) -> &ServiceInfo {
        self.inner.info()
    }

    fn call(&self, method: usize, request: service::IncomingCall) -> HandlerFuture {
        let request = service::IncomingCall { context: request.context.given(), ..request };
        match request.context.compress(self.by) {
            Ok(()) => self.inner.call(method, request),
            Err(status) => Box::pin(std::future::ready(Reply::Status(status))),
        }
    }
}

impl fmt::Debug for Compressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let service = &self.inner.info().name;
        f.debug_struct("Compressed").field("service", service).field("by", &self.by).finish()
    }
}

/// A service whose handlers each start in their own task.
#[derive(Clone)]
#[must_use = "the service is not served until it is added to a server"]
pub struct Spawned {
    inner: Arc<dyn Service>,
}

impl Spawned {
    pub(crate) fn new(inner: Arc<dyn Service>) -> Self {
        Self { inner }
    }
}

impl Service for Spawned {
    fn info(&self) -> &ServiceInfo {
        self.inner.info()
    }

    fn call(&self, method: usize, request: service::IncomingCall) -> HandlerFuture {
        let inner = self.inner.clone();
        Box::pin(async move {
            in_task().await;
            service::call(inner, method, request).await
        })
    }
}

impl fmt::Debug for Spawned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawned").field("service", &self.inner.info().name).finish()
    }
}

/// Middleware for a single service, as in `.add(KvServer::new(store).intercept(check))`.
///
/// It sees calls that have a handler: not those of unknown methods, nor those beyond a limit.
pub trait ServiceExt: Service + Sized {
    /// Routes calls through `by` before they reach the service, and answers on their way back. The interceptor that was
    /// added last sees a call first.
    fn intercept<F, R>(self, by: F) -> Layered
    where
        F: Fn(Request, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response>> + Send + 'static,
    {
        Stack::default().intercept(by).around(Arc::new(self))
    }

    /// Sets how the service's answers are compressed, overriding the server's settings. A handler can
    /// [choose](crate::context::Context::compress) otherwise. If this build lacks `by`, calls of the service end
    /// FAILED_PRECONDITION, not executed.
    fn compress(self, by: Compression) -> Compressed {
        Compressed { inner: Arc::new(self), by }
    }

    /// Starts each handler in its own task, including the decoding of its arguments. Use it for handlers that compute
    /// for more than some 100 µs. Other handlers start in the task that receives their call. This saves a task, but a
    /// long computation holds up the connection's other calls, and with RDMA the calls of all connections of the
    /// runtime. `#[rpc(spawn)]` does the same for a single method, `calls.spawn_handlers` for a server.
    fn spawn_handlers(self) -> Spawned {
        Spawned::new(Arc::new(self))
    }

    /// Puts a layer of tower around the service. Calls go through it before they reach the service.
    #[cfg(feature = "tower")]
    fn layer<L>(self, layer: L) -> Layered
    where
        L: tower_layer::Layer<Next>,
        L::Service: super::Middleware,
    {
        Stack::default().layer(layer).around(Arc::new(self))
    }
}

impl<S: Service> ServiceExt for S {}
