//! Changes of servers' states, told to a hook.

use std::collections::HashMap;
use std::sync::Arc;

use farcall_core::client::{EndpointState, Readiness};
use tokio::task::AbortHandle;

use super::Channel;

/// A change of a server's state, as a channel sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointChange {
    /// The server's name, as [`EndpointState::name`] has it.
    pub name: Arc<str>,
    /// The state before. `None`: the channel has begun to use the server.
    pub before: Option<Readiness>,
    /// The state now. `None`: the channel uses the server no more.
    pub now: Option<Readiness>,
}

impl Channel {
    /// Calls `hook` for each server of [`endpoints`](Self::endpoints) now, and at each change of a server's state, until the channel is gone
    /// or the returned handle ends it. Changes of a server that follow each other quickly may be told as one. Another time of the next attempt
    /// alone is no change.
    ///
    /// The hook runs in a task of the runtime, so it must not block. It must not hold the channel: both would stay. If it panics, it is not
    /// called again. `None`: there are no states to
    /// tell of, as for [`endpoints`](Self::endpoints).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    ///
    /// ```
    /// # fn watch(channel: &farcall::Channel) {
    /// channel.on_endpoint_change(|change| println!("{}: {:?}", change.name, change.now));
    /// # }
    /// ```
    pub fn on_endpoint_change(
        &self,
        mut hook: impl FnMut(EndpointChange) + Send + 'static,
    ) -> Option<AbortHandle> {
        let mut states = self.endpoints()?;
        let tell = async move {
            let mut known = Known::default();
            loop {
                let now = Arc::clone(&states.borrow_and_update());
                known.update(&now).into_iter().for_each(&mut hook);
                if states.changed().await.is_err() {
                    return;
                }
            }
        };
        Some(tokio::spawn(tell).abort_handle())
    }
}

/// The states that a hook was told last, by the servers' names.
#[derive(Default)]
struct Known(HashMap<Arc<str>, Readiness>);

impl Known {
    /// Takes over these states. Returns what has changed; the servers that are gone come last.
    fn update(&mut self, states: &[EndpointState]) -> Vec<EndpointChange> {
        let mut before = std::mem::take(&mut self.0);
        let mut changes = Vec::new();
        for EndpointState { name, readiness, .. } in states {
            let (name, was) = (Arc::clone(name), before.remove(name));
            self.0.insert(Arc::clone(&name), readiness.clone());
            if was.as_ref() != Some(readiness) {
                changes.push(EndpointChange { name, before: was, now: Some(readiness.clone()) });
            }
        }
        let gone =
            before.into_iter().map(|(name, was)| EndpointChange { name, before: Some(was), now: None });
        changes.extend(gone);
        changes
    }
}
