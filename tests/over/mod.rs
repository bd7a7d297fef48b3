//! The transport of suites that run over any.

use std::net::SocketAddr;

use farcall::Config;

/// TCP, or RDMA where it is said that there is a device. Either is required, so that no suite passes by the other.
pub(crate) fn transport() -> &'static str {
    if std::env::var_os("FARCALL_RDMA").is_some_and(|wanted| wanted == "required") { "rdma" } else { "tcp" }
}

/// An address to connect to.
pub(crate) fn address(of: SocketAddr) -> String {
    format!("{}://{of}?liveness.connect_ms=60000", transport())
}

/// A server's configuration.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}
