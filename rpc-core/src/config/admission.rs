//! How many calls a server takes at once, as configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How many calls a server takes at once. It refuses further ones before it decodes their arguments: RESOURCE_EXHAUSTED, not
/// executed, with [when to try again](crate::status::RETRY_AFTER). So an overloaded server works at the rate that it can, for callers
/// that still wait. Clients ignore this.
///
/// The limit adapts between `min_calls` and `max_calls`. It sinks when calls take longer together than calls of the same methods take
/// alone. Otherwise it rises while it is reached. A server that has to refuse calls for long takes only a few
/// for a moment, every ten seconds or less often, to learn how long its methods take alone.
///
/// When calls have to be refused:
///
/// - Calls of low priority are refused first: bulk from 60 % of the limit on, normal from 80 %, urgent at the limit. The priority is that
///   of the method in `methods`, or else the [class](crate::class::TrafficClass) of the connection.
/// - A connection that has more than its share of the calls in progress is refused from 10 % of the limit less on. The share is the same
///   for all connections that have calls in progress.
///
/// The server also refuses a call that has less time left than any of its method took in the last 10 to 20 seconds:
/// DEADLINE_EXCEEDED, not executed.
///
/// Only unary calls count. Services of farcall itself, such as health, are always served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Admission {
    /// The highest limit. Default 0: calls are not limited by this, which costs them nothing. Otherwise at least `min_calls`.
    pub max_calls: u32,
    /// The lowest limit. Default 4; at least 1.
    pub min_calls: u32,
    /// The priorities of methods, by path as in `shop.v1.Kv/scan`. Default: none.
    pub methods: BTreeMap<String, Priority>,
}

/// The priority of calls at an overloaded server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Priority {
    /// Calls are never refused for overload, and do not count: those that wait for an event, or that operators make.
    Always,
    /// Calls are refused last.
    Urgent,
    /// Calls are refused before urgent ones.
    Normal,
    /// Calls are refused first.
    Bulk,
}

impl Default for Admission {
    fn default() -> Self {
        Self { max_calls: 0, min_calls: 4, methods: BTreeMap::new() }
    }
}

impl Admission {
    /// Checks that the settings are in range and do not contradict each other.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.min_calls == 0 {
            return Err("admission.min_calls must be at least 1".into());
        }
        if self.max_calls != 0 && self.max_calls < self.min_calls {
            return Err("admission.max_calls must be 0 or at least admission.min_calls".into());
        }
        Ok(())
    }
}
