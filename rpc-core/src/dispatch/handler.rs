//! A handler at work: what it has with it, and what becomes of its panics.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use super::handler_limit::HandlerPermit;
use crate::context::Context;
use crate::reply::{self, Reply, Sent};
use crate::service::HandlerFuture;
use crate::status::{Blame, Code, Executed, Status};

/// A handler that has become a task, with its context: current while it is polled, and panics end here.
pub(super) struct HandlerTask {
    context: Context,
    /// `None`: it is done.
    future: Option<HandlerFuture>,
    /// Dropped after the future.
    _alive: Option<HandlerPermit>,
}

impl HandlerTask {
    pub(super) fn new(
        context: Context,
        future: Option<HandlerFuture>,
        handler_limit: Option<HandlerPermit>,
    ) -> Self {
        Self { context, future, _alive: handler_limit }
    }

    /// What it answers, or that its time is over.
    pub(super) async fn in_time(self) -> Reply {
        let Some(deadline) = self.context.deadline() else { return self.await };
        tokio::time::timeout_at(deadline, self).await.unwrap_or_else(|_| Reply::End(Sent::late()))
    }
}

/// The answer of a call whose deadline passed, unless that is a stream which has begun.
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
                ran(&mut reply);
                reply.add(self.context.answered());
                reply
            }),
            Err(panic) => Poll::Ready(panicked(&*panic, self.future.take())),
        }
    }
}

/// Who works for the call elsewhere learns that nobody waits for it.
impl Drop for HandlerTask {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.context.end_early();
        }
    }
}

/// A handler that passes on the status of a call that it made does not say that it has not run itself; the caller
/// would repeat it.
#[inline]
pub(super) fn ran(reply: &mut Reply) {
    if let Reply::Status(status) = reply
        && (status.code(), status.executed()) == (Code::Unavailable, Executed::No)
    {
        *status = status.clone().with_executed(Executed::Yes);
    }
}

/// Returns what is answered in place of a handler that panicked. `left`: what it has left.
#[cold]
pub(super) fn panicked(panic: &(dyn Any + Send), left: Option<HandlerFuture>) -> Reply {
    // It may panic again when it is dropped; one report is enough.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(left)));
    reply::panicked(panic)
}
