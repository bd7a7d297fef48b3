//! Settings that have no effect.

use farcall_core::config::Balance;

use crate::Address;

/// Warns of settings of `[balance]` that have no effect, because the channel uses one server at a time.
pub(super) fn warn_of_unused(address: &Address, balance: &Balance) {
    let default = Balance::default();
    let settings = [
        ("connections", balance.connections != default.connections),
        ("subset", balance.subset != default.subset),
        ("locality", balance.locality != default.locality),
        ("eject_after", balance.eject_after != default.eject_after),
        ("eject_percent", balance.eject_percent != default.eject_percent),
        ("eject_ms", balance.eject_ms != default.eject_ms),
        ("max_ejected_percent", balance.max_ejected_percent != default.max_ejected_percent),
        ("health_service", balance.health_service != default.health_service),
    ];
    let unused: Vec<_> = settings.into_iter().filter_map(|(name, is_set)| is_set.then_some(name)).collect();
    if !unused.is_empty() {
        let unused = unused.join(", ");
        tracing::warn!(%address, unused, "settings of [balance] have no effect, because balance.policy is `first`");
    }
}
