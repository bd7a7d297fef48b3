//! The signal that a call has ended early, for other tasks that work for it.

use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use tokio::time::Instant;

use super::current::current_shared;
use super::{Context, Shared};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::BoxFuture;

/// The call that another one is made for, by a task that may outlive it.
pub(crate) struct Parent {
    shared: Arc<Shared>,
    /// Made when there is something to wait for.
    ended: Option<BoxFuture<()>>,
}

impl Parent {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, ended: None }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared.ended.is_given()
    }

    /// Ready when the call has ended early.
    pub(crate) fn poll_ended(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.has_ended() {
            return Poll::Ready(());
        }
        let Self { shared, ended } = self;
        let wait = |shared: Arc<Shared>| Box::pin(async move { shared.ended.wait().await });
        ended.get_or_insert_with(|| wait(shared.clone())).as_mut().poll(cx)
    }
}

impl fmt::Debug for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parent").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}

/// A guard of a running handler. Dropping it before [`done`](Self::done) ends the call early.
pub(crate) struct Unfinished(Option<Context>);

impl Unfinished {
    pub(crate) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.iter().for_each(Context::end_early);
    }
}

impl Context {
    /// Resolves when nobody waits for the answer any more: the caller has given up or is gone, or the deadline has
    /// passed. The handler itself is dropped then. Use this in tasks that it has spawned, or where other code must be
    /// told:
    ///
    /// ```
    /// # use farcall_core::context::Context;
    /// async fn convert(cx: &Context) {
    ///     let ended = cx.ended();
    ///     tokio::task::spawn(async move {
    ///         tokio::select! {
    ///             () = work() => {}
    ///             () = ended => { /* in vain: puts away what is half done */ }
    ///         }
    ///     });
    /// }
    /// # async fn work() {}
    /// ```
    ///
    /// If the handler is done first, or in a context of no call, it resolves only at the deadline.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let Self { call, shared, .. } = self.clone();
        async move {
            let given_up = async {
                match shared {
                    Some(shared) => shared.ended.wait().await,
                    None => pending().await,
                }
            };
            match call.deadline {
                // Whichever of the two comes first.
                Some(deadline) => drop(tokio::time::timeout_at(deadline, given_up).await),
                None => given_up.await,
            }
        }
    }

    /// Whether [`ended`](Self::ended) has resolved, for code that does not wait.
    pub fn is_ended(&self) -> bool {
        self.call.deadline.is_some_and(|deadline| deadline <= Instant::now())
            || self.shared.as_ref().is_some_and(|shared| shared.ended.is_given())
    }

    /// Returns a guard that signals an early end, unless it is told that the handler is [done](Unfinished::done).
    pub(crate) fn unfinished(&self) -> Unfinished {
        Unfinished(Some(self.clone()))
    }

    /// Signals that the call has ended and its handler was not done.
    pub(crate) fn end_early(&self) {
        if let Some(shared) = &self.shared {
            shared.ended.give();
        }
    }

    /// Returns the call that the current context belongs to.
    pub(crate) fn current_parent() -> Option<Parent> {
        let shared = current_shared()?;
        Some(Parent::new(shared))
    }

    /// Returns the call that this context belongs to.
    pub(crate) fn parent(&self) -> Option<Parent> {
        self.shared.clone().map(Parent::new)
    }
}

/// Returns the status of a call whose parent, the call that it was made for, has ended.
pub(crate) fn parent_ended() -> Status {
    Status::new(Code::Cancelled, "parent call has ended")
        .with_executed(Executed::Maybe)
        .with_blame(Blame::Caller)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_context_ends_at_its_deadline_or_with_its_call() {
        let cx = Context::background().with_timeout(Duration::from_secs(5));
        let began = Instant::now();
        assert!(!cx.is_ended());
        cx.ended().await;
        assert!(began.elapsed().as_secs() == 5 && cx.is_ended());

        let cx = Context::background().given();
        let (waits, clone) = (tokio::spawn(cx.ended()), cx.with_timeout(Duration::from_secs(9)));
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(!waits.is_finished() && !clone.is_ended());
        clone.end_early();
        waits.await.unwrap();
        cx.ended().await;
        assert!(cx.is_ended() && clone.is_ended());
        assert_eq!(began.elapsed().as_secs(), 13);
    }
}
