//! That a server drains: what tells handlers that would go on for ever.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::Context;
use super::signal::Signal;

/// Whether a server drains. Its calls know it by number: a context is copied for each of them, and most never ask.
#[derive(Debug)]
pub(crate) struct Drain {
    number: u32,
    begun: Arc<Signal>,
}

/// Those of the servers that there are.
static DRAINS: RwLock<BTreeMap<u32, Arc<Signal>>> = RwLock::new(BTreeMap::new());

/// The number of no server.
pub(super) const NONE: u32 = 0;

impl Drain {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn begin(&self) {
        self.begun.give();
    }
}

impl Default for Drain {
    fn default() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(NONE);
        let (number, begun) = (LAST.fetch_add(1, Ordering::Relaxed) + 1, Arc::<Signal>::default());
        DRAINS.write().unwrap_or_else(PoisonError::into_inner).insert(number, begun.clone());
        Self { number, begun }
    }
}

/// A server that is gone takes no calls, either.
impl Drop for Drain {
    fn drop(&mut self) {
        self.begin();
        DRAINS.write().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

enum Draining {
    Never,
    Later(Arc<Signal>),
    Now,
}

impl Context {
    /// Resolves when the server begins to drain: it takes no more calls, and waits for those that run. A handler whose stream has
    /// no end of its own, or that waits for something to happen, should then end it, as it would have ended if nothing more were
    /// to come; else it is cut off when the time for draining is over.
    ///
    /// ```
    /// # use farcall_core::context::Context;
    /// # async fn next_change() -> u64 { 7 }
    /// # async fn send(_: u64) {}
    /// async fn watch(cx: &Context) {
    ///     let mut draining = std::pin::pin!(cx.draining());
    ///     loop {
    ///         tokio::select! {
    ///             change = next_change() => send(change).await,
    ///             () = &mut draining => break, // what was sent arrives, and then the stream's end
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// In a context that is of no call it never resolves; in process, when the service is gone.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        let state = self.drain_state();
        async move {
            match state {
                Draining::Never => pending().await,
                Draining::Later(begun) => begun.wait().await,
                Draining::Now => {}
            }
        }
    }

    /// Whether [`draining`](Self::draining) has come about: for what works without waiting.
    pub fn is_draining(&self) -> bool {
        match self.drain_state() {
            Draining::Never => false,
            Draining::Later(begun) => begun.is_given(),
            Draining::Now => true,
        }
    }

    fn drain_state(&self) -> Draining {
        let number = self.call.server;
        if number == NONE {
            return Draining::Never;
        }
        let drains = DRAINS.read().unwrap_or_else(PoisonError::into_inner);
        drains.get(&number).cloned().map_or(Draining::Now, Draining::Later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(drain: &Drain) -> Context {
        Context::new(None, 1, None, drain.number(), None)
    }

    #[tokio::test]
    async fn a_context_learns_that_its_server_drains_and_no_other() {
        let (drain, other) = (Drain::default(), Drain::default());
        let (cx, others) = (context(&drain), context(&other));
        let waits = tokio::spawn(cx.draining());
        tokio::task::yield_now().await;
        assert!(!waits.is_finished() && !cx.is_draining());
        drain.begin();
        waits.await.unwrap();
        cx.draining().await;
        assert!(cx.is_draining() && !others.is_draining() && !Context::background().is_draining());
    }

    #[tokio::test]
    async fn a_server_that_is_gone_takes_no_calls_either() {
        let drain = Drain::default();
        let cx = context(&drain);
        let waits = tokio::spawn(cx.draining());
        tokio::task::yield_now().await;
        drop(drain);
        waits.await.unwrap();
        cx.draining().await;
        assert!(cx.is_draining());
    }
}
