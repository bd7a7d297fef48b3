//! A call on its way through middleware.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Extensions;
use crate::calls::CallOptions;
use crate::class::TrafficClass;
use crate::context::{Context, earlier};
use crate::metadata::Metadata;
use crate::payload::Payload;
use crate::service::{self, Kind, Method, Service, ServiceInfo};
use crate::status::{Blame, Code, Executed, Status};
use crate::stream::Streams;

/// A call on its way through the middleware of a client or a server: its method, metadata and deadline. Its arguments
/// are encoded; only their size can be read.
pub struct Request {
    target: Target,
    method: usize,
    arguments: Payload,
    metadata: Metadata,
    extensions: Extensions,
    deadline: Option<Instant>,
    passed: Passed,
}

/// How often a request has passed all middleware, which may repeat it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    passed: AtomicUsize,
    /// How often it came back as not executed.
    refused: AtomicUsize,
}

impl Passed {
    /// Returns whether the call may have been executed, while middleware has it.
    pub(crate) fn executed(&self) -> Executed {
        // Once a request has been refused, middleware may have gone elsewhere with it.
        if self.0.passed.load(Ordering::Acquire) > 0 { Executed::Maybe } else { Executed::No }
    }

    /// Notes that the request passes.
    fn passes(&self) {
        self.0.passed.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes how a request that has passed ended.
    pub(crate) fn ended<T>(&self, outcome: &Result<T, Status>) {
        if let Err(status) = outcome
            && status.executed() == Executed::No
        {
            self.0.refused.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns a status of the middleware with what it must say of execution. It may be the middleware's own, or that of another call.
    pub(crate) fn judge(&self, status: Status) -> Status {
        let may_have_run = self.0.passed.load(Ordering::Acquire) > self.0.refused.load(Ordering::Acquire);
        match status.executed() {
            // As statuses are made: this one is of middleware that lets nothing through.
            Executed::Yes if !may_have_run => status.with_executed(Executed::No),
            // Another call was not executed, but this one may have been.
            Executed::No if may_have_run => status.with_executed(Executed::Maybe),
            _ => status,
        }
    }
}

enum Target {
    /// The request will be sent.
    Server { service: Arc<ServiceInfo>, class: TrafficClass, options: Box<CallOptions> },
    /// The request has arrived.
    Handler { service: Arc<dyn Service>, context: Context, streams: Option<Streams> },
}

/// A request that will be sent.
pub(crate) struct OutgoingCall {
    pub(crate) service: Arc<ServiceInfo>,
    pub(crate) method: usize,
    pub(crate) arguments: Payload,
    pub(crate) class: TrafficClass,
    pub(crate) options: Box<CallOptions>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) passed: Passed,
}

/// A request that has arrived, for its handler.
pub(super) struct Arrived {
    pub(super) service: Arc<dyn Service>,
    pub(super) method: usize,
    pub(super) request: service::IncomingCall,
    /// The deadline that middleware has set, if it is earlier than the caller's.
    pub(super) sooner: Option<Instant>,
    /// The context outside the middleware.
    pub(super) outer: Context,
    pub(super) passed: Passed,
}

impl Request {
    /// Returns a request that will be sent.
    pub(crate) fn outgoing(outgoing: OutgoingCall) -> Self {
        let OutgoingCall { service, method, arguments, class, mut options, deadline, passed } = outgoing;
        let metadata = std::mem::take(&mut options.metadata);
        let target = Target::Server { service, class, options };
        let extensions = Extensions::default();
        Self { target, method, arguments, metadata, extensions, deadline, passed }
    }

    /// Returns a request that has arrived.
    pub(super) fn arrived(service: Arc<dyn Service>, method: usize, request: service::IncomingCall) -> Self {
        // Attaches shared state, so that what middleware sets for the answer is kept.
        let context = request.context.given();
        let (metadata, extensions) = (context.metadata().clone(), context.extensions());
        let deadline = context.deadline();
        let target = Target::Handler { service, context, streams: request.streams };
        let passed = Passed::default();
        Self { target, method, arguments: request.payload, metadata, extensions, deadline, passed }
    }

    /// Returns the count of how often the request has passed all middleware.
    pub(crate) fn passed(&self) -> Passed {
        self.passed.clone()
    }

    /// Returns the description of the service: its codec, and the signatures of its methods.
    pub fn info(&self) -> &ServiceInfo {
        match &self.target {
            Target::Server { service, .. } => service,
            Target::Handler { service, .. } => service.info(),
        }
    }

    /// Returns the arguments as the codec has encoded them, one after the other. Those of a stream are not among them.
    pub fn arguments(&self) -> &Payload {
        &self.arguments
    }

    /// Returns the name of the service, as in `shop.v1.Kv`.
    pub fn service(&self) -> &str {
        &self.info().name
    }

    /// Returns the method's name on the wire.
    pub fn method(&self) -> &str {
        self.called().map_or("?", |method| &method.name)
    }

    /// Returns the names of service and method, as in `shop.v1.Kv/get`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.service(), self.method())
    }

    /// Returns whether arguments and answer are streams.
    pub fn kind(&self) -> Kind {
        self.called().map_or(Kind::Unary, |method| method.kind)
    }

    fn called(&self) -> Option<&Method> {
        self.info().methods.get(self.method)
    }

    /// Returns the size of the encoded arguments in bytes, without any stream.
    pub fn size(&self) -> usize {
        self.arguments.len()
    }

    /// Returns the metadata that go with the arguments.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the metadata to be changed: on a client for the server, on a server for the handler.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Returns the values that go with the request within this process.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Returns the values that go with the request within this process, to be changed.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Returns the time at which the caller stops waiting.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Ends the call with DEADLINE_EXCEEDED `timeout` from now, unless its deadline is earlier.
    pub fn limit_time(&mut self, timeout: Duration) {
        self.deadline = earlier(self.deadline, Instant::now().checked_add(timeout));
    }

    /// Returns the context of a call that has arrived, with its caller and attempt number. `None` on a client.
    pub fn context(&self) -> Option<&Context> {
        match &self.target {
            Target::Server { .. } => None,
            Target::Handler { context, .. } => Some(context),
        }
    }

    /// Returns the class of a call that will be sent, which selects its connection. `None` on a server.
    pub fn class(&self) -> Option<TrafficClass> {
        match &self.target {
            Target::Server { class, .. } => Some(*class),
            Target::Handler { .. } => None,
        }
    }

    /// Returns a copy of the request, for middleware that repeats calls. `None` if the call has streams, because they
    /// can't be repeated.
    pub fn try_clone(&self) -> Option<Self> {
        if self.kind() != Kind::Unary {
            return None;
        }
        let target = match &self.target {
            Target::Server { service, class, options } => Target::Server {
                service: service.clone(),
                class: *class,
                options: Box::new(options.without_items()),
            },
            Target::Handler { service, context, .. } => {
                Target::Handler { service: service.clone(), context: context.clone(), streams: None }
            }
        };
        Some(Self {
            target,
            method: self.method,
            arguments: self.arguments.clone(),
            metadata: self.metadata.clone(),
            passed: self.passed.clone(),
            extensions: self.extensions.clone(),
            deadline: self.deadline,
        })
    }

    /// Returns the request to send. Fails for a request that has arrived here.
    pub(crate) fn into_outgoing(self) -> Result<OutgoingCall, Status> {
        let Self { target, method, arguments, metadata, deadline, passed, .. } = self;
        match target {
            Target::Server { service, class, mut options } => {
                passed.passes();
                options.metadata = metadata;
                Ok(OutgoingCall { service, method, arguments, class, options, deadline, passed })
            }
            Target::Handler { .. } => Err(astray("a request that has arrived is not sent on: make a call")),
        }
    }

    /// Returns the request that has arrived. Fails for a request that is to be sent.
    pub(super) fn into_arrived(self) -> Result<Arrived, Status> {
        let Self { target, method, arguments, metadata, extensions, deadline, passed } = self;
        match target {
            Target::Handler { service, context, streams } => {
                passed.passes();
                let sooner = deadline.filter(|_| deadline != context.deadline());
                let inner = context.behind(metadata, extensions, deadline);
                let request = service::IncomingCall { context: inner, payload: arguments, streams };
                Ok(Arrived { service, method, request, sooner, outer: context, passed })
            }
            Target::Server { .. } => Err(astray("a client's request was given to a server's handler")),
        }
    }
}

/// Returns the status for a request in the wrong place.
fn astray(message: &str) -> Status {
    Status::new(Code::Internal, message).with_executed(Executed::No).with_blame(Blame::Caller)
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("path", &self.path())
            .field("size", &self.size())
            .field("metadata", &self.metadata)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
