//! What a handler may know of the call it answers, and what calls it makes inherit.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

/// One call, seen from its handler: its deadline, its caller, its attempt number.
///
/// While a handler is polled its context is *current*: calls that it makes inherit the deadline. A task that the
/// handler spawns leaves the context; [`scope`](Self::scope) takes it along. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// # mod farcall { pub use farcall_core::context::Context; }
/// use farcall::Context;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let cx = Context::background().with_timeout(Duration::from_secs(5));
/// let task = tokio::spawn(cx.scope(async {
///     // A call made here has five seconds at most.
///     Context::current().and_then(|cx| cx.remaining())
/// }));
/// assert!(task.await.unwrap().unwrap() <= Duration::from_secs(5));
/// assert!(Context::current().is_none());
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    deadline: Option<Instant>,
    attempt: u8,
    peer: Option<SocketAddr>,
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

impl Context {
    /// A context with no deadline and no peer: what code outside any handler has.
    pub fn background() -> Self {
        Self::new(None, 1, None)
    }

    pub(crate) fn new(deadline: Option<Instant>, attempt: u8, peer: Option<SocketAddr>) -> Self {
        Self { deadline, attempt, peer }
    }

    /// This context with a deadline `timeout` from now, unless it has an earlier one.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let deadline = earlier(self.deadline, Instant::now().checked_add(timeout));
        Self::new(deadline, self.attempt, self.peer)
    }

    /// The context of the handler that is being polled on this thread, if any.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// The deadline of the context that is current, if any.
    pub(crate) fn current_deadline() -> Option<Instant> {
        CURRENT.with_borrow(|current| current.as_ref().and_then(Self::deadline))
    }

    /// When the caller stops waiting; the handler is dropped then.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How long the caller still waits; `None` if it waits for ever.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// 1 for the first attempt of a call, more if the caller repeated it.
    pub fn attempt(&self) -> u8 {
        self.attempt
    }

    /// The address the caller called from; `None` in process.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Runs a future with this context current, for work that a handler hands to another task:
    /// `tokio::spawn(cx.scope(async { .. }))`.
    pub fn scope<F: Future>(&self, future: F) -> Scope<F> {
        Scope { context: self.clone(), future: Box::pin(future) }
    }

    /// Runs `f` with this context current, and puts back the one before, also when `f` panics.
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let current = Current::begin();
        current.set(self);
        f()
    }
}

/// Contexts that are current one after the other. When it is dropped, the one before them is again.
pub(crate) struct Current(Option<Context>);

impl Current {
    pub(crate) fn begin() -> Self {
        Self(CURRENT.take())
    }

    /// This one is, in place of the last.
    #[inline]
    pub(crate) fn set(&self, context: &Context) {
        CURRENT.set(Some(context.clone()));
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // A thread that is being torn down has no current context to restore.
        let _ = CURRENT.try_with(|c| c.replace(self.0.take()));
    }
}

/// The earlier of two deadlines, or the shorter of two times, where none is later than any.
pub(crate) fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A future that runs with a context current: see [`Context::scope`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Scope<F> {
    context: Context,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<F::Output> {
        let Self { context, future } = &mut *self;
        context.enter(|| future.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scope_is_current_only_while_it_is_polled() {
        let cx = Context::background().with_timeout(Duration::from_secs(5));
        assert!(Context::current().is_none());
        let task = tokio::spawn(cx.scope(async {
            tokio::task::yield_now().await;
            Context::current().and_then(|c| c.deadline())
        }));
        assert!(Context::current().is_none());
        assert_eq!(task.await.unwrap(), cx.deadline());
    }

    #[test]
    fn the_context_before_is_back_after_a_panic() {
        let outer = Context::background().with_timeout(Duration::from_secs(9));
        outer.enter(|| {
            let caught = std::panic::catch_unwind(|| Context::background().enter(|| panic!("in a handler")));
            assert!(caught.is_err());
            assert_eq!(Context::current().unwrap().deadline(), outer.deadline());
        });
        assert!(Context::current().is_none());
    }

    #[test]
    fn a_timeout_never_extends_a_deadline() {
        let cx = Context::background().with_timeout(Duration::from_secs(1));
        assert_eq!(cx.with_timeout(Duration::from_secs(60)).deadline(), cx.deadline());
    }
}
