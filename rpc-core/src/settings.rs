//! Settings of connections: what an application has configured, and what its transports can do.

use std::sync::Arc;

use crate::config::{Admission, Balance, Calls, Limits, Liveness, MethodPolicy, Policy, Retry};
use crate::transport::{Unavailable, Upgrade};

/// Settings that all connections of a channel or server share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits on what this side accepts.
    pub limits: Limits,
    /// How long this side waits for its peer.
    pub liveness: Liveness,
    /// How calls are made and answered.
    pub calls: Calls,
    /// How calls are shared among servers.
    pub balance: Balance,
    /// Whether and how calls are made again.
    pub retry: Retry,
    /// Settings of some methods, which count in place of `calls` and `retry`.
    pub methods: Vec<MethodPolicy>,
    /// How many calls a server takes at once.
    pub admission: Admission,
    /// The transport to use.
    pub policy: Policy,
    /// The transport that a session can be upgraded to, or why there is none.
    pub upgrade: Result<Arc<dyn Upgrade>, Unavailable>,
    /// Whether a session on an encrypted link may be upgraded, although the upgraded link is not encrypted. Both sides must
    /// allow it.
    pub plaintext_upgrade: bool,
}

impl Settings {
    /// Returns settings for a transport without an upgrade; `why` is the reason that is reported.
    pub fn plain(limits: Limits, liveness: Liveness, why: Unavailable) -> Self {
        let (calls, balance, retry) = (Calls::default(), Balance::default(), Retry::default());
        let (admission, policy, upgrade) = (Admission::default(), Policy::Auto, Err(why));
        let (methods, plaintext_upgrade) = (Vec::new(), false);
        Self {
            limits,
            liveness,
            calls,
            balance,
            retry,
            methods,
            admission,
            policy,
            upgrade,
            plaintext_upgrade,
        }
    }
}
