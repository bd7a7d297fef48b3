//! The way of a channel that does not balance from a peer that stays silent to another.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;

use super::class_connection::ClassConnection;
use super::connector::Shared;
use crate::connection::Connection;

/// How long a suspected peer has for its sign of life, before the channel connects to others. Calls must have left a dead peer 50 ms after
/// the first failure.
const GRACE: Duration = Duration::from_millis(20);

impl Shared {
    /// Asks the peer of a connection for a sign of life. If there is none for a moment, new calls move to the first other peer that
    /// accepts a connection, if any does.
    pub(super) fn suspect(self: &Arc<Self>, connection: &Arc<Connection>) {
        let (Some(runtime), Some(sign)) = (&self.runtime, connection.suspect()) else { return };
        let of_class = Arc::clone(&self.classes[connection.class() as usize]);
        of_class.tell();
        let left = leave(Arc::downgrade(self), Arc::clone(&of_class), Arc::clone(connection));
        runtime.spawn(async move {
            let mut sign = pin!(sign);
            if tokio::time::timeout(GRACE, sign.as_mut()).await.is_err() {
                let is_left = tokio::select! {
                    () = sign.as_mut() => false,
                    () = left => true,
                };
                if is_left {
                    sign.await;
                }
            }
            of_class.tell();
        });
    }
}

/// Moves the calls of a class to another peer. Can be dropped at any time.
async fn leave(shared: Weak<Shared>, of_class: Arc<ClassConnection>, silent: Arc<Connection>) {
    if !of_class.current().is_some_and(|current| Arc::ptr_eq(&current, &silent)) {
        return;
    }
    let Some((found, peer)) = another(&shared, &of_class).await else { return };
    let Some(shared) = shared.upgrade() else { return };
    let Some(found) = found.keep() else { return };
    if shared.move_calls(&of_class, &silent, &found, peer) {
        shared.return_to_first(&of_class, &found, peer);
    }
}

/// Connects to all peers but the current one at once. Returns the first connection and the index of its peer.
async fn another(shared: &Weak<Shared>, of_class: &ClassConnection) -> Option<(Found, usize)> {
    let mut attempts = JoinSet::new();
    let (this, class) = (shared.upgrade()?, of_class.class);
    // A connection beside that of another class goes to its peer.
    let current = of_class.peer().or_else(|| this.classes.iter().find_map(|other| other.peer()));
    for peer in (0..this.connector.peers()).filter(|peer| Some(*peer) != current) {
        let (link, shared) = (this.connector.connect(peer), Weak::clone(shared));
        let attempt = async move {
            let connection = Shared::greet(&shared, class, link).await.ok()?;
            Some((Found(Some(connection)), peer))
        };
        attempts.spawn(attempt);
    }
    drop(this);
    while let Some(tried) = attempts.join_next().await {
        if let Ok(Some(found)) = tried {
            return Some(found);
        }
    }
    None
}

/// A connection that is closed unless it is kept.
struct Found(Option<Arc<Connection>>);

impl Found {
    fn keep(mut self) -> Option<Arc<Connection>> {
        self.0.take()
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.close_for_want_of_callers();
        }
    }
}
