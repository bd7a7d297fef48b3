//! What connections tell the `metrics` facade. Its names are listed in the documentation of `farcall::metrics`.

use std::sync::Mutex;

use super::{Connection, Role, Traffic, lock};
use crate::sampler::{Sampled, Sampler};
use crate::transport::{Counters, Unavailable};

/// Counts, by its reason, that calls go by the stream link.
pub(super) fn count_fallback(why: &Unavailable) {
    metrics::counter!("farcall_fallbacks_total", "reason" => format!("{:?}", why.reason)).increment(1);
}

/// What has been told of a connection. Its links count what they move; this is only what has been passed on of that.
#[derive(Debug, Default)]
pub(super) struct Meter {
    told: Mutex<Traffic>,
    sampler: Sampler,
}

impl Meter {
    /// Its connection moves something.
    #[inline]
    pub(super) fn tell_soon(&self, connection: &Connection) {
        self.sampler.wake(&connection.runtime, || connection.me.clone());
    }

    /// Its connection has moved its last.
    pub(super) fn tell_now(&self, connection: &Connection) {
        connection.sample();
    }
}

impl Connection {
    fn tell(&self, transport: &'static str, before: Counters, now: Counters) {
        let side = match self.role {
            Role::Client => "client",
            Role::Server => "server",
        };
        let labels = [("side", side), ("transport", transport)];
        metrics::counter!("farcall_bytes_sent_total", &labels).increment(now.bytes_sent - before.bytes_sent);
        metrics::counter!("farcall_bytes_received_total", &labels)
            .increment(now.bytes_received - before.bytes_received);
    }
}

impl Sampled for Connection {
    fn sampler(&self) -> &Sampler {
        &self.meter.sampler
    }

    fn sample(&self) -> bool {
        let mut told = lock(&self.meter.told);
        let now = self.traffic();
        let before = std::mem::replace(&mut *told, now);
        drop(told);
        if now.stream != before.stream {
            self.tell(self.stream.description().transport, before.stream, now.stream);
        }
        if let (Ok(upgrade), true) = (&self.settings.upgrade, now.upgraded != before.upgraded) {
            self.tell(upgrade.name(), before.upgraded, now.upgraded);
        }
        now != before
    }
}
