//! The codes that farcall reports, with cause, blame and remedy.

pub use farcall_core::explain::Explanation;

/// Returns all codes of this build: statuses of calls, reasons against RDMA, ends of connections and of streams, and errors of
/// configurations; with the feature `tcp` errors of binding servers; with `tls` alerts of peers; and with `rdma` findings about
/// machines, statuses of completions, errors of verbs, and events and counters of devices.
pub fn explanations() -> Vec<Explanation> {
    let mut all = farcall_core::explain::explanations();
    all.extend(crate::config::explanations());
    #[cfg(feature = "tcp")]
    all.extend(crate::server::explanations());
    #[cfg(feature = "tls")]
    all.extend(farcall_tcp::tls::explanations());
    #[cfg(feature = "rdma")]
    all.extend(farcall_rdma::explanations());
    all
}
