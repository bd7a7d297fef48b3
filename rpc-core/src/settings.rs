//! Settings of connections: what an application has configured, and what its transports can do.

use std::sync::Arc;

use crate::config::{Calls, Limits, Liveness, Policy};
use crate::transport::{Unavailable, Upgrade};

/// Settings that all connections of a channel or server share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What this side accepts.
    pub limits: Limits,
    /// How long it waits.
    pub liveness: Liveness,
    /// How it makes calls, and answers them.
    pub calls: Calls,
    /// Which transport it wants.
    pub policy: Policy,
    /// What a session can be moved to, or why there is nothing.
    pub upgrade: Result<Arc<dyn Upgrade>, Unavailable>,
}

impl Settings {
    /// Settings for a transport that there is nothing better than.
    pub fn plain(limits: Limits, liveness: Liveness, why: Unavailable) -> Self {
        Self { limits, liveness, calls: Calls::default(), policy: Policy::Auto, upgrade: Err(why) }
    }
}
