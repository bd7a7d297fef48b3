//! How a server stops and what it says of its health, as configuration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a server stops, and when it is stuck. Clients ignore this.
///
/// A server that is told to stop goes through these phases. Its [`Handle`](crate::Handle) can end each of them at once.
///
/// | phase | new connections | new calls | calls in progress | health |
/// |---|---|---|---|---|
/// | delay: `drain_delay_ms` | are accepted | are served | go on | NOT_SERVING |
/// | grace: at most `drain_grace_ms` | are not accepted | go to other servers | go on, and may [learn of it](crate::Context::draining) | NOT_SERVING |
/// | end | | | fail, perhaps executed | |
///
/// Load balancers and the endpoints of Kubernetes hear of the change only after a while. The delay is for clients that they send
/// here until then. `terminationGracePeriodSeconds` of a pod must be longer than both together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServerConfig {
    /// How long a server that is told to stop still serves everybody, in milliseconds. Default 0; at most a day.
    pub drain_delay_ms: u64,
    /// How long it waits after that for calls in progress, in milliseconds. Default 30,000; at most a day.
    pub drain_grace_ms: u64,
    /// How long calls of a method may be in progress without any of them being answered, in milliseconds. Then the handlers count as
    /// stuck: a server that is built [`with_health`](crate::ServerBuilder::with_health) says that the service and the server as a whole
    /// do not serve, until a call of the method is answered or none is in progress. It notices within a quarter of this time more.
    /// Methods with streams are not watched, nor those that [take long](crate::health::Reporter::takes_long). Calls that were given
    /// up count as not answered, and calls that middleware refuses do not count at all.
    ///
    /// Default 0: this is not watched, because only the application knows how long its calls may take. It costs each call some hundred
    /// nanoseconds. At least 10, if not 0; at most a day.
    pub stuck_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self { drain_delay_ms: 0, drain_grace_ms: 30_000, stuck_ms: 0 }
    }
}

impl ServerConfig {
    /// Checks that the settings are in range.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if (1..10).contains(&self.stuck_ms) {
            return Err("server.stuck_ms must be 0 or at least 10".into());
        }
        for (name, value) in [
            ("drain_delay_ms", self.drain_delay_ms),
            ("drain_grace_ms", self.drain_grace_ms),
            ("stuck_ms", self.stuck_ms),
        ] {
            if value > 86_400_000 {
                return Err(format!("server.{name} must be at most 86400000, a day"));
            }
        }
        Ok(())
    }

    /// Returns how long a server that is told to stop still serves everybody.
    pub fn drain_delay(&self) -> Duration {
        Duration::from_millis(self.drain_delay_ms)
    }

    /// Returns how long a server waits after the delay for calls in progress.
    pub fn drain_grace(&self) -> Duration {
        Duration::from_millis(self.drain_grace_ms)
    }

    /// Returns how long calls of a method may be in progress, with none of them answered, before its handlers count as stuck. `None`:
    /// they are not watched.
    pub fn stuck(&self) -> Option<Duration> {
        (self.stuck_ms > 0).then(|| Duration::from_millis(self.stuck_ms))
    }
}
