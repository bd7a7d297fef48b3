//! A running handler with its context, and the handling of its panics.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use tokio::time::Instant;

use super::handler_limit::HandlerPermit;
use crate::context::Context;
use crate::memory::Gauge;
use crate::reply::{self, Reply, Sent};
use crate::service::HandlerFuture;
use crate::status::{Blame, Code, Executed, Status};

/// A handler that has become a task. Its context is current while it is polled. Its panics are caught here.
pub(super) struct HandlerTask {
    context: Context,
    /// `None` once it is done.
    future: Option<HandlerFuture>,
    /// Dropped after the future.
    _alive: Option<HandlerPermit>,
    /// The memory of the arguments.
    _gauge: Gauge,
}

impl HandlerTask {
    pub(super) fn new(
        context: Context,
        future: Option<HandlerFuture>,
        handler_limit: Option<HandlerPermit>,
        gauge: Gauge,
    ) -> Self {
        Self { context, future, _alive: handler_limit, _gauge: gauge }
    }

    /// Returns the handler's answer, or the deadline's if that passes first. A task that begins later than that does not poll the
    /// handler: an overloaded runtime does not work for callers that have gone.
    pub(super) async fn in_time(self) -> Reply {
        let Some(deadline) = self.context.deadline() else { return self.await };
        if deadline <= Instant::now() {
            return Reply::End(Sent::late());
        }
        tokio::time::timeout_at(deadline, self).await.unwrap_or_else(|_| Reply::End(Sent::late()))
    }
}

/// Returns the answer to a call whose deadline passed, unless the answer is a stream that has begun.
#[cold]
pub(super) fn late() -> Status {
    Status::new(Code::DeadlineExceeded, "the deadline passed while the handler ran")
        .with_executed(Executed::Maybe)
        .with_blame(Blame::Caller)
}

impl Future for HandlerTask {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Reply> {
        let Self { context, future, .. } = &mut *self;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            context.enter(|| {
                let polled = future.as_mut().map_or(Poll::Pending, |future| future.as_mut().poll(cx));
                if polled.is_ready() {
                    *future = None;
                }
                polled
            })
        }));
        match polled {
            Ok(polled) => polled.map(|mut reply| {
                reply.judge();
                reply.add(self.context.answered());
                reply
            }),
            Err(panic) => Poll::Ready(panicked(&*panic, self.future.take())),
        }
    }
}

/// Tells other tasks of the call that nobody waits for it.
impl Drop for HandlerTask {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.context.end_early();
        }
    }
}

/// Returns the answer that replaces that of a handler that panicked, and drops the rest of its future.
#[cold]
pub(super) fn panicked(panic: &(dyn Any + Send), left: Option<HandlerFuture>) -> Reply {
    // The drop may panic again; one report is enough.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(left)));
    reply::panicked(panic)
}
