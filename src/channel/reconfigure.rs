//! Another configuration for a channel that lives.

use std::sync::{Arc, Mutex, PoisonError};

use farcall_core::config::BalancePolicy;

use super::{Channel, ChannelBuilder};
use crate::{Address, Config, ConfigError, ConfigErrorKind};

/// The origin of a channel, by which another configuration is read as the first one was.
#[derive(Debug)]
pub(super) struct Origin {
    builder: ChannelBuilder,
    /// `None`: the servers are not from an address.
    address: Option<Address>,
    /// The configuration that counts now, with what builder, address and environment say.
    now: Mutex<Config>,
}

impl Origin {
    pub(super) fn new(builder: ChannelBuilder, address: Option<Address>, now: Config) -> Arc<Self> {
        Arc::new(Self { builder, address, now: Mutex::new(now) })
    }
}

impl Channel {
    /// Applies another configuration to calls that begin from now on: those of this channel, of its clones, and of their clients.
    /// Connections and calls in progress stay. The builder's methods and settings in the address count more, as they did before.
    ///
    /// These settings may change:
    ///
    /// | section | settings |
    /// |---|---|
    /// | `calls` | `timeout_ms`, `progress_timeout_ms`, `wait_for_ready`, `wait_for_room` |
    /// | `retry`, `methods` | all |
    /// | `balance` | `policy`, but not between `first` and the others; `locality`, `eject_after`, `eject_percent`, `eject_ms`, `max_ejected_percent`; `subset`, which counts when the servers are looked up or named again |
    ///
    /// The sections `admission` and `server` do not count for channels. Certificates are read again [by themselves](crate::tls).
    ///
    /// ```no_run
    /// # #[cfg(all(unix, feature = "toml"))]
    /// # async fn reload(channel: farcall::Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// use tokio::signal::unix::{SignalKind, signal};
    ///
    /// let mut hang_up = signal(SignalKind::hangup())?;
    /// while hang_up.recv().await.is_some() {
    ///     let text = std::fs::read_to_string("/etc/orders/farcall.toml")?;
    ///     if let Err(error) = farcall::Config::from_toml(&text).and_then(|config| channel.reconfigure(config)) {
    ///         eprintln!("the old configuration goes on: {error}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the configuration is wrong, or changes what can't change; the message names the section. Nothing has changed then.
    pub fn reconfigure(&self, config: Config) -> Result<(), ConfigError> {
        let Some(origin) = &self.origin else {
            let config = config.resolve(None, false)?;
            self.raw.reconfigure(&config.calls, &config.retry, &config.methods, &config.balance);
            return Ok(());
        };
        let new = origin.builder.clone().config(config).configuration(origin.address.as_ref())?;
        let mut now = origin.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(section) = fixed(&now, &new) {
            let why = format!(
                "configuration: {section} differs from what the channel was made with, and can't change while it lives; make \
                 another channel, or change the setting back"
            );
            return Err(ConfigError::new(ConfigErrorKind::Setting, why));
        }
        self.raw.reconfigure(&new.calls, &new.retry, &new.methods, &new.balance);
        *now = new;
        Ok(())
    }
}

/// Returns the first section in which settings differ that can't change.
fn fixed(now: &Config, new: &Config) -> Option<&'static str> {
    let (old, mut calls) = (&now.calls, new.calls.clone());
    (calls.timeout_ms, calls.progress_timeout_ms) = (old.timeout_ms, old.progress_timeout_ms);
    (calls.wait_for_ready, calls.wait_for_room) = (old.wait_for_ready, old.wait_for_room);
    let (old, mut balance) = (&now.balance, new.balance.clone());
    if (old.policy == BalancePolicy::First) == (balance.policy == BalancePolicy::First) {
        balance.policy = old.policy;
    }
    balance.locality.clone_from(&old.locality);
    balance.subset = old.subset;
    (balance.eject_after, balance.eject_ms) = (old.eject_after, old.eject_ms);
    balance.eject_percent = old.eject_percent;
    balance.max_ejected_percent = old.max_ejected_percent;
    let sections = [
        ("transport", now.transport == new.transport),
        ("limits", now.limits == new.limits),
        ("liveness", now.liveness == new.liveness),
        ("calls", now.calls == calls),
        ("balance", now.balance == balance),
        ("tcp", now.tcp == new.tcp),
        #[cfg(feature = "rdma")]
        ("rdma", now.rdma == new.rdma),
        #[cfg(feature = "tls")]
        ("tls", now.tls == new.tls),
    ];
    sections.into_iter().find(|(_, same)| !same).map(|(section, _)| section)
}
