//! The handlers that run on this side for the peer's calls.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::calls::{ByCall, too_large};
use super::{Connection, Phase, lock};
use crate::context::Context;
use crate::payload::Payload;
use crate::proto::message::Message;
use crate::proto::wire::{
    Bind, BindMethod, Content, FrameType, MAX_BIND_BYTES, RequestHead, ResponseHead, Verdict, WireError,
    encode_status,
};
use crate::service::{HandlerFuture, Kind, Reply, Request, Service, ServiceInfo};
use crate::status::{Blame, Code, Executed, Status};

/// The services of a server, by name.
#[derive(Default)]
pub(crate) struct Registry {
    services: HashMap<String, Arc<dyn Service>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.keys()).finish()
    }
}

/// The services that a client has announced, by its index.
#[derive(Debug, Default)]
pub(super) struct Announced {
    services: Vec<Bound>,
    /// The BINDs of all of them, in bytes.
    bytes: usize,
}

impl Announced {
    /// Adds what a BIND announces. What is kept of one is no longer than it, but they could come for ever.
    pub(super) fn add(&mut self, registry: &Registry, payload: Bytes) -> Result<(), WireError> {
        self.bytes += payload.len();
        if self.bytes > MAX_BIND_BYTES {
            return Err(WireError::new("bind", "makes more than 1 MiB of them on one connection"));
        }
        let bind = Bind::decode(payload)?;
        if usize::from(bind.service) != self.services.len() {
            return Err(WireError::new("bind.service", "is not the next index"));
        }
        self.services.push(registry.bind(bind));
        Ok(())
    }
}

/// What a service index of the client stands for.
struct Bound {
    /// As in `shop.v1.Kv`.
    name: String,
    /// The codec the client uses.
    codec: String,
    service: Option<Arc<dyn Service>>,
    /// What each of the client's methods is here.
    methods: Vec<Match>,
}

#[derive(Clone, Copy, Debug)]
enum Match {
    Same(usize),
    /// Our method of that name, and the client's fingerprint.
    Changed(usize, u64),
    Unknown,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound")
            .field("name", &self.name)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Adds a service. `Err`: its name is taken.
    pub(crate) fn add(&mut self, service: Arc<dyn Service>) -> Result<(), String> {
        let name = service.info().name.to_string();
        if self.services.contains_key(&name) {
            return Err(format!("two services are named `{name}`"));
        }
        self.services.insert(name, service);
        Ok(())
    }

    fn bind(&self, bind: Bind) -> Bound {
        let Bind { name, codec, methods, .. } = bind;
        let service = self.services.get(&name).cloned();
        let methods = match &service {
            Some(service) => methods.iter().map(|m| find_method(service.info(), m)).collect(),
            None => Vec::new(),
        };
        Bound { name, codec, service, methods }
    }
}

fn find_method(info: &ServiceInfo, wanted: &BindMethod) -> Match {
    match info.methods.iter().position(|m| m.hash() == wanted.hash) {
        None => Match::Unknown,
        Some(i) => {
            let same =
                info.methods[i].understands(wanted.fingerprint) && info.methods[i].kind as u8 == wanted.kind;
            if same { Match::Same(i) } else { Match::Changed(i, wanted.fingerprint) }
        }
    }
}

impl Bound {
    /// The service, and our index for the client's method; or why it can't be called.
    fn find(&self, method: u16) -> Result<(&Arc<dyn Service>, usize), Status> {
        let name = &self.name;
        let Some(service) = &self.service else {
            let message = format!("this server has no service `{name}`; was it added to the server?");
            return Err(refusal(Code::Unimplemented, message));
        };
        let info = service.info();
        if info.codec != self.codec {
            let message = format!(
                "service `{name}`: the caller's codec is {}, the server's is {}; they must be the same",
                self.codec, info.codec
            );
            return Err(refusal(Code::FailedPrecondition, message));
        }
        match self.methods.get(usize::from(method)) {
            Some(Match::Same(index)) => Ok((service, *index)),
            Some(Match::Changed(index, theirs)) => {
                let ours = &info.methods[*index];
                let message = format!(
                    "method `{}` of service `{name}` has another signature here: the caller's fingerprint is \
                     {theirs:016x}, the server's {:016x}: `{}`; build both from the same definition, or see \
                     EVOLUTION.md",
                    ours.name, ours.fingerprint, ours.signature
                );
                Err(refusal(Code::FailedPrecondition, message))
            }
            Some(Match::Unknown) => {
                let message = format!("service `{name}` of this server has no such method; it may be older");
                Err(refusal(Code::Unimplemented, message))
            }
            None => Err(refusal(Code::Unimplemented, "the call's method was not announced")),
        }
    }
}

/// A status for a call that was not given to a handler.
fn refusal(code: Code, message: impl Into<String>) -> Status {
    Status::new(code, message).with_executed(Executed::No).with_blame(Blame::Caller)
}

/// The handlers that did not finish at their first poll.
#[derive(Debug, Default)]
pub(super) struct Running {
    tasks: Mutex<ByCall<AbortHandle>>,
    done: Notify,
}

impl Running {
    pub(super) fn contains(&self, call: u64) -> bool {
        lock(&self.tasks).contains_key(&call)
    }

    /// Resolves when no handler runs.
    pub(super) async fn idle(&self) {
        loop {
            let done = self.done.notified();
            if lock(&self.tasks).is_empty() {
                return;
            }
            done.await;
        }
    }

    fn remove(&self, call: u64) -> Option<AbortHandle> {
        let mut tasks = lock(&self.tasks);
        let task = tasks.remove(&call);
        if tasks.is_empty() {
            self.done.notify_waiters();
        }
        task
    }

    /// Drops every handler: the connection is gone.
    pub(super) fn drop_all(&self) {
        for (_, task) in std::mem::take(&mut *lock(&self.tasks)) {
            task.abort();
        }
        self.done.notify_waiters();
    }
}

/// A request that has been understood, or the reason why it is refused.
pub(super) struct Job {
    call: u64,
    work: Result<Handler, Status>,
}

/// A handler with its context: current while it is polled, and panics end here.
struct Handler {
    future: HandlerFuture,
    context: Context,
}

impl Future for Handler {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Reply> {
        let Self { future, context } = &mut *self;
        match catch_unwind(AssertUnwindSafe(|| context.enter(|| future.as_mut().poll(cx)))) {
            Ok(poll) => poll,
            Err(panic) => Poll::Ready(Reply::Status(panicked(&*panic))),
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("(no text)"), "a handler panicked");
    Status::new(Code::Internal, "the handler panicked; the server's log says where")
        .with_executed(Executed::Yes)
        .with_blame(Blame::Application)
}

/// How many answers may be on their way when the calls they belong to are cancelled and others begun.
const MAX_CROSSING: usize = 1024;

impl Connection {
    /// Understands a REQUEST. `Err`: it is not one.
    pub(super) fn job(&self, announced: &Announced, call: u64, message: Bytes) -> Result<Job, WireError> {
        // An honest client has no more calls than it was told, a few cancelled ones apart. One that sends requests and
        // reads no answers must not fill our memory with these.
        let unanswered = lock(&self.running.tasks).len() + self.backlog.load(Ordering::Relaxed);
        if unanswered > 2 * self.settings.limits.concurrent_calls as usize + MAX_CROSSING {
            return Err(WireError::new("request", "is one more than HELLO's max_calls allows"));
        }
        let (head, content) = RequestHead::decode(message)?;
        Ok(Job { call, work: self.admit(announced, &head, content) })
    }

    fn admit(&self, announced: &Announced, head: &RequestHead, content: Content) -> Result<Handler, Status> {
        let Some(bound) = announced.services.get(usize::from(head.service)) else {
            return Err(refusal(Code::Unimplemented, "the call's service was not announced"));
        };
        let (service, method) = bound.find(head.method)?;
        if service.info().methods[method].kind != Kind::Unary {
            return Err(refusal(Code::Unimplemented, "streams are not supported by this version"));
        }
        if content.metadata.len() > self.settings.limits.max_metadata as usize {
            let message = format!(
                "the metadata takes {} bytes; the server's limits.max_metadata is {}",
                content.metadata.len(),
                self.settings.limits.max_metadata
            );
            return Err(refusal(Code::ResourceExhausted, message));
        }
        if !matches!(*self.phase.borrow(), Phase::Open) {
            let message = "the server is draining and takes no new calls";
            return Err(refusal(Code::Unavailable, message).with_blame(Blame::Environment));
        }
        let limit = self.settings.limits.concurrent_calls;
        if lock(&self.running.tasks).len() >= limit as usize {
            let message = format!(
                "{limit} calls are in progress on this connection: the server's limits.concurrent_calls"
            );
            return Err(refusal(Code::ResourceExhausted, message).with_blame(Blame::Peer));
        }
        let deadline = match head.remaining_us {
            0 => None,
            us => Instant::now().checked_add(Duration::from_micros(us)),
        };
        let context = Context::new(deadline, head.attempt, self.peer());
        let request = Request { context: context.clone(), payload: content.payload };
        Ok(Handler { future: service.call(method, request), context })
    }

    /// Runs a handler: here and now until it first waits, then in a task of its own. The answer of one that is done
    /// at once leaves with those of the other requests that arrived with it.
    pub(super) fn serve(&self, job: Job) {
        let Job { call, work } = job;
        let mut handler = match work {
            Ok(handler) => handler,
            Err(status) => return self.enqueue_reply(call, Reply::Status(status)),
        };
        // The task that it may become polls it again, with a waker that wakes something.
        let polled = Pin::new(&mut handler).poll(&mut TaskContext::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(reply) => self.enqueue_reply(call, reply),
            Poll::Pending => self.spawn(call, handler),
        }
    }

    fn spawn(&self, call: u64, handler: Handler) {
        let Some(connection) = self.me() else { return };
        // Held until the task is entered: it can't be done before.
        let mut tasks = lock(&self.running.tasks);
        let task = self.runtime.spawn(async move {
            let reply = match handler.context.deadline() {
                None => handler.await,
                Some(deadline) => match tokio::time::timeout_at(deadline, handler).await {
                    Ok(reply) => reply,
                    Err(_) => Reply::Status(
                        Status::new(Code::DeadlineExceeded, "the deadline passed while the handler ran")
                            .with_executed(Executed::Maybe)
                            .with_blame(Blame::Caller),
                    ),
                },
            };
            // Queued before it is struck off the list, so that a drain that finds the list empty finds it queued.
            connection.enqueue_reply(call, reply);
            connection.running.remove(call);
            connection.flush();
        });
        if matches!(*self.phase.borrow(), Phase::Closed(_)) {
            task.abort();
        } else {
            tasks.insert(call, task.abort_handle());
        }
    }

    /// The peer no longer waits for a call: its handler is dropped, and what is left of its answer.
    pub(super) fn cancel_running(&self, call: u64) {
        match self.running.remove(call) {
            Some(task) => task.abort(),
            None => self.abandon_response(call),
        }
    }

    fn enqueue_reply(&self, call: u64, reply: Reply) {
        let (verdict, payload) = match reply {
            Reply::Ok(payload) => (Verdict::Ok, payload),
            Reply::Err(payload) => (Verdict::Err, payload),
            Reply::Status(status) => (Verdict::Status, Payload::from_body(encode_status(&status))),
        };
        let max = self.peer_hello.get().map_or(0, |hello| hello.max_message);
        let overhead = 1024 + 4 * payload.attachments.len() as u64;
        let (verdict, payload) = if payload.len() as u64 + overhead > max {
            let status = too_large("the result", payload.len() as u64, max, "the client's")
                .with_executed(Executed::Yes)
                .with_blame(Blame::Peer);
            (Verdict::Status, Payload::from_body(encode_status(&status)))
        } else {
            (verdict, payload)
        };
        let content = Content { metadata: Bytes::new(), payload };
        let mut head = BytesMut::with_capacity(16);
        if let Err(why) = (ResponseHead { verdict }).encode(&content, &mut head) {
            let status =
                Status::new(Code::Internal, format!("the result: {why}")).with_blame(Blame::Application);
            return self.enqueue_reply(call, Reply::Status(status));
        }
        let Content { payload, .. } = content;
        self.enqueue(Message { kind: FrameType::RESPONSE, call, head: head.freeze(), payload });
    }
}
