//! Connections that have become old, whose clients connect again.

use std::future::pending;
use std::sync::Arc;

use tokio::time::sleep;

use super::ServerCore;
use crate::backoff::varied;
use crate::connection::Connection;
use crate::status::Status;

/// The part by which the ages of connections differ, so that clients that came together do not come back together.
const VARIED: f64 = 0.1;

impl ServerCore {
    /// Waits until a connection is too old, and drains it. Returns its status when it has ended.
    pub(super) async fn retire_when_old(&self, connection: &Arc<Connection>) -> Status {
        let limits = &self.settings.limits;
        let Some(age) = limits.max_connection_age() else { return pending().await };
        sleep(varied(age, VARIED)).await;
        let reason = format!(
            "the connection is older than {age:?} (limits.max_connection_age_ms, limits.max_connection_age_grace_ms)"
        );
        connection.drain_within(&reason, limits.max_connection_age_grace()).await
    }
}
