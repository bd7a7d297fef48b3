//! The context that is current while a handler, or a future in its scope, is polled.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use tokio::time::Instant;

use super::shared::{SetForAnswer, Shared};
use super::{About, ConnectionContext, Context};
use crate::access::Accesses;
use crate::compress::Compression;
use crate::metadata::Metadata;

thread_local! {
    static CURRENT: Cell<Option<About>> = const { Cell::new(None) };
    static CONNECTION: Cell<Option<Arc<ConnectionContext>>> = const { Cell::new(None) };
    /// The shared state of the current context. It is separate so that `CURRENT` stays `Copy`, and cheap where there is
    /// no state.
    static SHARED: Cell<Option<Arc<Shared>>> = const { Cell::new(None) };
}

impl Context {
    /// Returns the context of the handler that is being polled on this thread, if one is.
    pub fn current() -> Option<Self> {
        let call = CURRENT.get()?;
        Some(Self { call, connection: None, shared: None }.given())
    }

    /// Returns the accesses to memory of the client of the current call, and the call's number.
    pub(crate) fn current_accesses() -> (Weak<Accesses>, u64) {
        let accesses = current_connection().map_or_else(Weak::new, |connection| connection.accesses.clone());
        (accesses, CURRENT.get().map_or(0, |call| call.number))
    }

    /// Returns the deadline of the current context, if any.
    pub(crate) fn current_deadline() -> Option<Instant> {
        CURRENT.get().and_then(|call| call.deadline)
    }

    /// Whether the current context is that of a [`Scope`].
    #[inline]
    pub(crate) fn is_scoped() -> bool {
        CURRENT.get().is_some_and(|call| call.scoped)
    }

    /// Returns this context, sharing state with the current one, so that what the handler sets goes with its answer.
    pub(crate) fn given(mut self) -> Self {
        let shared = self
            .shared
            .or_else(|| SHARED.take())
            .unwrap_or_else(|| Shared::new(Metadata::new(), Compression::None));
        SHARED.set(Some(shared.clone()));
        self.shared = Some(shared);
        self.connection = self.connection.or_else(current_connection);
        self
    }

    /// Returns the current context, if it has state that its clones share.
    pub(crate) fn current_shared() -> Option<Self> {
        let shared = current_shared()?;
        Some(Self { call: CURRENT.get()?, connection: current_connection(), shared: Some(shared) })
    }

    /// Takes the initial reply metadata that the handler of the current context has set.
    pub(crate) fn take_initial() -> Option<Metadata> {
        let shared = SHARED.take()?;
        let initial = shared.answer().as_mut().map(|answer| std::mem::take(&mut answer.initial));
        SHARED.set(Some(shared));
        initial
    }

    /// Runs a future with this context current, for work that a handler moves to another task:
    /// `tokio::spawn(cx.scope(async { .. }))`. If this call [ends](Self::ended) before its handler is done, calls that
    /// are awaited in the scope end CANCELLED. Other futures that are awaited there go on.
    pub fn scope<F: Future>(&self, future: F) -> Scope<F> {
        let mut context = self.clone();
        context.call.scoped = true;
        Scope { context, future: Box::pin(future) }
    }

    /// Runs `f` with this context current, then restores the previous one, even when `f` panics.
    pub(crate) fn enter<R>(&mut self, f: impl FnOnce() -> R) -> R {
        let current = Current::begin(self.connection.clone());
        current.set(self);
        let result = f();
        *self = current.end();
        result
    }
}

/// Makes one context after the other current. Dropping it restores the context that was current before.
pub(crate) struct Current {
    call: Option<About>,
    connection: Option<Arc<ConnectionContext>>,
    shared: Option<Arc<Shared>>,
}

impl Current {
    /// Starts without a current context. Contexts that are [set](Self::set) belong to `connection`.
    pub(crate) fn begin(connection: Option<Arc<ConnectionContext>>) -> Self {
        Self { call: CURRENT.take(), connection: CONNECTION.replace(connection), shared: SHARED.take() }
    }

    /// Makes `context` current. The one before must have [ended](Self::end) or been [answered](Self::answered).
    #[inline]
    pub(crate) fn set(&self, context: &Context) {
        CURRENT.set(Some(context.call));
        if let Some(shared) = &context.shared {
            SHARED.set(Some(shared.clone()));
        }
    }

    /// Takes what the handler of the current context has set for its answer, if anything. Later settings have no
    /// effect.
    #[inline]
    pub(crate) fn answered(&self) -> Option<Box<SetForAnswer>> {
        SHARED.take()?.answered()
    }

    /// Ends the current context and returns it, with any shared state that it gained meanwhile.
    pub(crate) fn end(&self) -> Context {
        let background = Context::background().call;
        Context {
            call: CURRENT.take().unwrap_or(background),
            connection: current_connection(),
            shared: SHARED.take(),
        }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // A thread that is being torn down has no current context to restore.
        let _ = CURRENT.try_with(|current| current.set(self.call));
        let _ = CONNECTION.try_with(|connection| connection.set(self.connection.take()));
        let _ = SHARED.try_with(|shared| shared.set(self.shared.take()));
    }
}

pub(super) fn current_connection() -> Option<Arc<ConnectionContext>> {
    let connection = CONNECTION.take();
    CONNECTION.set(connection.clone());
    connection
}

/// Returns the state that the clones of the current context share, if there is any.
pub(super) fn current_shared() -> Option<Arc<Shared>> {
    let shared = SHARED.take()?;
    SHARED.set(Some(shared.clone()));
    Some(shared)
}

/// A future that runs with a context current. [`Context::scope`] returns it.
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
