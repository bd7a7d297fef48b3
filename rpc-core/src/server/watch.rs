//! Connections of peers that have gone quiet: in the middle of a message, or with nothing to do.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::ServerCore;
use crate::connection::{Activity, Connection};

/// The longest pause between two looks at all connections.
const TICK: Duration = Duration::from_secs(5);

/// The number of connections that are looked at, and perhaps closed, before other tasks have a turn. A crowd that stalls together holds
/// nobody up.
const AT_ONCE: usize = 64;

/// The bytes of unfinished messages that must arrive in `limits.stall_ms`, unless all of these messages end.
const PROGRESS: u64 = 4 << 10;

/// The last change that was seen of a connection.
struct Seen {
    /// Keeps another connection from getting this one's address, by which it is found again.
    _connection: Weak<Connection>,
    /// See [`Connection::activity`].
    received: u64,
    activity: Activity,
    since: Instant,
}

impl ServerCore {
    /// Closes connections whose peers stop in the middle of a message for longer than `limits.stall_ms`, or all but stop, and
    /// drains those that are idle for longer than `limits.idle_ms`. Never ends.
    pub async fn watch(&self) {
        let (stall, idle) = (self.settings.limits.stall(), self.settings.limits.idle());
        let Some(shortest) = [stall, idle].into_iter().flatten().min() else {
            return std::future::pending().await;
        };
        let tick = (shortest / 4).clamp(Duration::from_millis(1), TICK);
        let mut seen = HashMap::new();
        loop {
            // A timer that runs costs each wait of the runtime a little, so there is none while nothing can stall.
            if idle.is_none() && seen.values().all(|seen: &Seen| !seen.activity.is_amid_message()) {
                seen.clear();
                self.registry.amid_message().notified().await;
            }
            tokio::time::sleep(tick).await;
            let mut now_seen = HashMap::new();
            for (number, connection) in self.connections().into_iter().enumerate() {
                if number % AT_ONCE == AT_ONCE - 1 {
                    tokio::task::yield_now().await;
                }
                let key = Arc::as_ptr(&connection).addr();
                let quiet = Seen::again(&connection, seen.remove(&key));
                let since = quiet.since.elapsed();
                match quiet.activity {
                    Activity::AmidMessage => {
                        stall
                            .filter(|stall| since >= *stall)
                            .inspect(|stall| connection.close_stalled(*stall));
                    }
                    Activity::Idle if idle.is_some_and(|idle| since >= idle) && connection.is_open() => {
                        let reason = format!("nothing was called for {since:.0?} (limits.idle_ms)");
                        connection.begin_draining(&reason);
                    }
                    _ => {}
                }
                now_seen.insert(key, quiet);
            }
            seen = now_seen;
        }
    }
}

impl Seen {
    /// Looks at a connection again.
    fn again(connection: &Arc<Connection>, before: Option<Self>) -> Self {
        let (received, activity) = connection.activity();
        match before {
            Some(before) if before.activity == activity && !before.progressed(received) => before,
            _ => {
                let _connection = Arc::downgrade(connection);
                Self { _connection, received, activity, since: Instant::now() }
            }
        }
    }

    /// Whether enough has arrived since then.
    fn progressed(&self, received: u64) -> bool {
        let enough = if self.activity == Activity::AmidMessage { PROGRESS } else { 1 };
        received.abs_diff(self.received) >= enough
    }
}
