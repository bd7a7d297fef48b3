//! What those suites travel by that are the same over any transport.

/// The scheme of their addresses: TCP, or RDMA where it is said that there is a device. Either is required, so that no suite
/// passes by the other.
pub(crate) fn scheme() -> &'static str {
    if std::env::var_os("FARCALL_RDMA").is_some_and(|wanted| wanted == "required") { "rdma" } else { "tcp" }
}
