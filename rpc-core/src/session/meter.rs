//! Reports of sessions to the `metrics` facade. The documentation of `farcall::metrics` lists the names.

#[cfg(feature = "metrics")]
pub(crate) use self::counting::{Meter, count_fallback};
#[cfg(not(feature = "metrics"))]
pub(crate) use self::silent::{Meter, count_fallback};

#[cfg(feature = "metrics")]
mod counting {
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use crate::sampler::{Sampled, Sampler};
    use crate::session::Role;
    use crate::session::sender::{Sender, Traffic};
    use crate::transport::{Counters, Unavailable};

    /// Counts a session whose calls go by the stream link, by the reason for that.
    pub(crate) fn count_fallback(why: &Unavailable) {
        metrics::counter!("farcall_fallbacks_total", "reason" => format!("{:?}", why.reason)).increment(1);
    }

    /// The state of a session's reports. Links count what they move; this is how much of that was reported.
    #[derive(Debug)]
    pub(crate) struct Meter {
        told: Mutex<Traffic>,
        sampler: Sampler,
        upgraded_transport: Option<&'static str>,
    }

    impl Meter {
        /// Returns the meter of a session that can be upgraded to the transport of this name.
        pub(crate) fn new(upgraded_transport: Option<&'static str>) -> Self {
            Self { told: Mutex::default(), sampler: Sampler::default(), upgraded_transport }
        }

        /// Schedules a report, because the session moves something.
        #[inline]
        pub(crate) fn tell_soon(&self, sender: &Sender) {
            self.sampler.wake(&sender.runtime, || sender.me.clone());
        }

        /// Reports now, because the session has ended.
        pub(crate) fn tell_now(&self, sender: &Sender) {
            sender.sample();
        }
    }

    fn side(role: Role) -> &'static str {
        match role {
            Role::Client => "client",
            Role::Server => "server",
        }
    }

    fn tell_wait(role: Role, waited: Duration) {
        let micros = waited.as_micros() as u64;
        metrics::counter!("farcall_send_wait_microseconds_total", "side" => side(role)).increment(micros);
    }

    fn tell(role: Role, transport: &'static str, before: Counters, now: Counters) {
        let labels = [("side", side(role)), ("transport", transport)];
        metrics::counter!("farcall_bytes_sent_total", &labels).increment(now.bytes_sent - before.bytes_sent);
        metrics::counter!("farcall_bytes_received_total", &labels)
            .increment(now.bytes_received - before.bytes_received);
    }

    impl Sampled for Sender {
        fn sampler(&self) -> &Sampler {
            &self.meter.sampler
        }

        fn sample(&self) -> bool {
            let mut told = self.meter.told.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.traffic();
            let before = std::mem::replace(&mut *told, now);
            drop(told);
            if now.waited != before.waited {
                tell_wait(self.terms().role, now.waited - before.waited);
            }
            if now.stream != before.stream {
                tell(self.terms().role, self.stream().description().transport, before.stream, now.stream);
            }
            if let (Some(name), true) = (self.meter.upgraded_transport, now.upgraded != before.upgraded) {
                tell(self.terms().role, name, before.upgraded, now.upgraded);
            }
            now != before
        }
    }
}

/// A meter that does nothing, for builds without the feature `metrics`.
#[cfg(not(feature = "metrics"))]
mod silent {
    use crate::session::sender::Sender;
    use crate::transport::Unavailable;

    pub(crate) fn count_fallback(_: &Unavailable) {}

    #[derive(Debug)]
    pub(crate) struct Meter;

    impl Meter {
        pub(crate) fn new(_: Option<&'static str>) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn tell_soon(&self, _: &Sender) {}

        pub(crate) fn tell_now(&self, _: &Sender) {}
    }
}
