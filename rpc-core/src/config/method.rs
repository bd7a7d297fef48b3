//! Settings that count for some methods, as configuration.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Calls, Retry};

/// Settings for some methods of a channel's servers. The channel's own count for those that an entry leaves out.
///
/// Entries are like those of gRPC's `methodConfig`. For a method that an entry names, an entry that names its service does not count at all.
/// A call's own settings replace both.
///
/// ```toml
/// [[methods]]
/// name = ["shop.v1.Orders"]
/// timeout_ms = 500
///
/// [[methods]]
/// name = ["shop.v1.Orders/list", "shop.v1.Orders/find"]
/// timeout_ms = 5000
/// retry = { max_attempts = 3, retryable_status_codes = ["UNAVAILABLE", "RESOURCE_EXHAUSTED"] }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct MethodPolicy {
    /// The methods, as `shop.v1.Orders/list`, and services, as `shop.v1.Orders`. No two entries have a name in common.
    pub name: Vec<String>,
    /// In place of [`Calls::timeout_ms`]. 0: no timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// In place of [`Calls::progress_timeout_ms`]. 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_timeout_ms: Option<u64>,
    /// In place of [`Calls::wait_for_ready`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_for_ready: Option<bool>,
    /// In place of [`Calls::wait_for_room`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_for_room: Option<bool>,
    /// In place of all of the channel's [`Retry`], except its budget: `max_tokens` and `token_ratio` can't be set here. A setting
    /// that this leaves out has the default of [`Retry`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

impl MethodPolicy {
    /// Returns settings for these methods and services, which change nothing yet.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { name: names.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Checks that the settings of all entries are in range, and that none contradicts another.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check_all(entries: &[Self]) -> Result<(), String> {
        let mut named = HashSet::new();
        for entry in entries {
            if entry.name.is_empty() {
                return Err("methods.name must name a method or a service at least".into());
            }
            for name in &entry.name {
                let (service, method) = parts(name);
                if service.is_empty()
                    || method.is_some_and(|method| method.is_empty() || method.contains('/'))
                {
                    return Err(format!(
                        "methods.name has {name:?}, which is neither SERVICE nor SERVICE/METHOD"
                    ));
                }
                if !named.insert(name) {
                    return Err(format!("methods.name has {name:?} twice; put its settings in one entry"));
                }
            }
            let why = |why: String| {
                format!("{} (for {})", why.replace("retry.", "methods.retry."), entry.name.join(", "))
            };
            entry.check_retry().map_err(why)?;
        }
        Ok(())
    }

    fn check_retry(&self) -> Result<(), String> {
        let Some(retry) = &self.retry else { return Ok(()) };
        retry.check()?;
        let channels = Retry::default();
        if (retry.max_tokens, retry.token_ratio) != (channels.max_tokens, channels.token_ratio) {
            return Err(
                "retry.max_tokens and retry.token_ratio are the whole channel's: set them in [retry]".into(),
            );
        }
        Ok(())
    }

    /// Returns what counts for these methods where the channel has these settings.
    pub(crate) fn applied(&self, calls: &Calls, retry: &Retry) -> (Calls, Retry) {
        let mut calls = calls.clone();
        calls.timeout_ms = self.timeout_ms.unwrap_or(calls.timeout_ms);
        calls.progress_timeout_ms = self.progress_timeout_ms.unwrap_or(calls.progress_timeout_ms);
        calls.wait_for_ready = self.wait_for_ready.unwrap_or(calls.wait_for_ready);
        calls.wait_for_room = self.wait_for_room.unwrap_or(calls.wait_for_room);
        (calls, self.retry.as_ref().unwrap_or(retry).clone())
    }
}

/// Returns the service of a name, and the method, if it names one.
pub(crate) fn parts(name: &str) -> (&str, Option<&str>) {
    name.split_once('/').map_or((name, None), |(service, method)| (service, Some(method)))
}
