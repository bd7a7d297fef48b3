//! Lent memory and regions of one host, which the other one uses over the wire.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 calls.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod lent;
mod pair;

use std::time::Duration;

use farcall::{Config, Policy, Server};

use lent::{Lender, LentServer, Load, direct_accesses};
use pair::{PATIENCE, is_server, together_serving};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_another_host_is_used_by_the_device_and_each_byte_is_right() {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.liveness.connect_ms = 60_000;
    let server = Server::builder().add(LentServer::new(Lender::new()));
    together_serving(7520, config, server, async |channel| {
        let load = Load::start(channel).await;
        tokio::time::timeout(PATIENCE, load.until_direct()).await.expect("no access is by the device");
        let enough = if std::env::var_os("FARCALL_LONG").is_some() { 1000 } else { 20 };
        while load.copied() < enough {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (copies, additions, transfers) = load.stop().await;
        println!(
            "{copies} copies of lent memory, {additions} additions, {transfers} reads and writes of regions"
        );
        assert!(additions > 0 && transfers > 0, "{additions} additions, {transfers} reads and writes");
    })
    .await;
    // Host 1 uses what host 2 lends, and host 2 what host 1 exports.
    assert!(direct_accesses() > 0, "host {} has used nothing by itself", if is_server() { 1 } else { 2 });
}
