//! Metrics for Prometheus: farcall's of calls, and those of raft.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use metrics::gauge;
use metrics_exporter_prometheus::PrometheusBuilder;
use openraft::{BasicNode, RaftMetrics};

use crate::types::NodeId;

/// Lets Prometheus get all metrics of this process, by HTTP. Must be called within a tokio runtime.
///
/// # Errors
///
/// If nothing can listen at the address.
pub fn export(address: SocketAddr) -> Result<()> {
    let exporter = PrometheusBuilder::new().with_http_listener(address).install();
    exporter.with_context(|| format!("metrics can't be had at {address}"))
}

/// Tells the state of raft.
pub(crate) fn tell(state: &RaftMetrics<NodeId, BasicNode>) {
    gauge!("raft_kv_term").set(state.current_term as f64);
    gauge!("raft_kv_leads").set(f64::from(state.state.is_leader()));
    gauge!("raft_kv_applied").set(state.last_applied.map_or(0, |last| last.index) as f64);
}
