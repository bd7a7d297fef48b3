//! Whether and how calls are made again, as configuration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::status::Code;

/// Whether a channel makes calls again that have failed, and how.
///
/// A call is made again if its status has one of the codes and if it was not executed, or if its method is idempotent:
/// `#[rpc(idempotent)]`, or [`Call::idempotent`](crate::client::Call::idempotent). A call that lends memory to be written counts as not
/// idempotent: the first server's device may still write there when the second server has answered. The settings mean what gRPC's `retryPolicy` and
/// `hedgingPolicy` mean by names like theirs.
///
/// The budget (`max_tokens`, `token_ratio`) differs from gRPC's `retryThrottling`. There each failed attempt costs a token, and no call is
/// made again while half of the tokens or fewer are left. Here each *further* attempt takes a token, until none is left. So the further
/// attempts are bounded whatever fails: `max_tokens` at first, and `token_ratio` for each call that succeeds.
///
/// Beside this, and without it, a call that a server has certainly refused before its handler began, because it is going away, goes
/// elsewhere at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Retry {
    /// How often a call is made at most, the first time included: from 1 to 10. Default 1: calls are not made again.
    pub max_attempts: u32,
    /// The pause before the second attempt, in milliseconds. Each further pause is twice as long, and each is up to a quarter shorter or
    /// longer at random. A server may [say](crate::status::RETRY_AFTER) how long to wait instead. Default 50.
    pub initial_backoff_ms: u64,
    /// The longest pause, in milliseconds. Default 1000.
    pub max_backoff_ms: u64,
    /// The statuses after which a call is made again, by name. Default `["UNAVAILABLE"]`.
    #[serde(with = "names")]
    pub retryable_status_codes: Vec<Code>,
    /// How many further attempts the calls of a channel may make at once. Each costs a token of these, and a new channel has all of them: so
    /// many further attempts are made when everything fails from the start, before `token_ratio` bounds them. Default 100.
    pub max_tokens: u32,
    /// How much of a token each successful call earns. So of many calls this part is made again at most, and a server that fails is not
    /// asked several times as often. From 0 to 1. Default 0.1.
    pub token_ratio: f64,
    /// If not 0, a further attempt is made after so many milliseconds without an answer, beside the earlier ones, and the first
    /// answer counts (hedging). The others are cancelled. For unary calls of idempotent methods only. Default 0.
    pub hedging_delay_ms: u64,
}

impl Retry {
    /// Checks that the settings are in range and do not contradict each other.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=10).contains(&self.max_attempts) {
            return Err("retry.max_attempts must be from 1 to 10".into());
        }
        if self.initial_backoff_ms == 0 || self.max_backoff_ms < self.initial_backoff_ms {
            return Err(
                "retry.max_backoff_ms must be at least retry.initial_backoff_ms, and that at least 1".into(),
            );
        }
        if !(0.0..=1.0).contains(&self.token_ratio) {
            return Err("retry.token_ratio must be from 0 to 1".into());
        }
        Ok(())
    }

    /// The pause before the second attempt.
    pub(crate) fn initial_backoff(&self) -> Duration {
        Duration::from_millis(self.initial_backoff_ms)
    }

    /// The longest pause.
    pub(crate) fn max_backoff(&self) -> Duration {
        Duration::from_millis(self.max_backoff_ms)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            initial_backoff_ms: 50,
            max_backoff_ms: 1000,
            retryable_status_codes: vec![Code::Unavailable],
            max_tokens: 100,
            token_ratio: 0.1,
            hedging_delay_ms: 0,
        }
    }
}

/// Codes by their names.
mod names {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::status::Code;

    pub(super) fn serialize<S: Serializer>(codes: &[Code], to: S) -> Result<S::Ok, S::Error> {
        codes.iter().map(|code| code.name()).collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Code>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
    }
}
