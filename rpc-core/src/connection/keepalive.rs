//! The timers of a connection, which ping a silent peer and end calls at their deadlines.

use std::sync::Arc;

use super::Connection;
use crate::proto::wire::CloseCode;
use crate::status::{Blame, Executed};

/// Runs for as long as the connection lives. It sets no timer while nothing waits for the peer, so an idle connection costs nothing.
pub(super) async fn keep(connection: Arc<Connection>) {
    tokio::select! {
        _ = connection.closed() => {}
        () = connection.listen() => {}
        () = connection.keep_deadlines() => {}
    }
}

/// The value of `heard` at the last check, and how many checks since then found it unchanged.
type Silence = Option<(u64, u32)>;

impl Connection {
    /// Ends calls at their deadlines. A timer for each would cost more than many a call does. This single timer is
    /// reset only for a deadline before all others, and checks all calls when it fires.
    async fn keep_deadlines(&self) {
        loop {
            let next = self.calls.wake_late();
            let told = self.calls.first_deadline.notified();
            match next {
                None => told.await,
                // An error means that the time has come.
                Some(next) => drop(tokio::time::timeout_at(next, told).await),
            }
        }
    }

    /// Detects a silent peer.
    async fn listen(&self) {
        let mut silence = None;
        loop {
            if self.is_asking_nothing() {
                silence = None;
                // Woken by the next call, PING or access.
                tokio::select! {
                    () = self.calls.begun.notified() => {}
                    () = self.accesses.begun.notified() => {}
                }
            } else {
                tokio::time::sleep(self.settings().liveness.ping()).await;
                self.look(&mut silence);
            }
        }
    }

    /// Whether nothing waits for the peer.
    fn is_asking_nothing(&self) -> bool {
        let is_awaited = || self.receiving.lock().pings.is_awaited();
        self.calls.is_idle() && self.accesses.has_none_started() && !is_awaited()
    }

    fn look(&self, silence: &mut Silence) {
        let heard = self.heard();
        let looked = match *silence {
            Some((then, looked)) if then == heard => looked + 1,
            _ => 0,
        };
        *silence = Some((heard, looked));
        let liveness = &self.settings().liveness;
        let most = liveness.missed_pings.max(1);
        if looked > most {
            let detail = format!(
                "no sign of the peer for {:?} while it was waited for ({most} pings unanswered): its process is stopped or \
                 its host gone",
                liveness.ping() * looked
            );
            self.close_as(CloseCode::Silent, self.status(detail, Executed::Maybe, Blame::Peer));
        } else if looked > 0 {
            let again = self.receiving.lock().pings.again();
            self.send_ping(again);
        }
    }
}
