//! The log of a server's handshakes that fail.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One failure in this time is logged, because anyone can cause them.
const PAUSE: Duration = Duration::from_secs(1);

/// The failures of a server's handshakes.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Logged>);

#[derive(Debug, Default)]
struct Logged {
    /// When one was logged last.
    at: Option<Instant>,
    /// How many were left out since.
    left_out: u64,
}

impl Refusals {
    /// Logs why a client was refused, unless that was done a moment ago.
    pub(super) fn log(&self, peer: Option<SocketAddr>, why: &str) {
        let now = Instant::now();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.at.is_some_and(|at| now - at < PAUSE) {
            logged.left_out += 1;
            return;
        }
        logged.at = Some(now);
        let left_out = std::mem::take(&mut logged.left_out);
        drop(logged);
        tracing::warn!(?peer, left_out, why, "a client was not served");
    }
}
