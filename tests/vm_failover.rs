//! Queue pairs of an RDMA device that die under load. One test alone: it kills all that the process has.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

mod work;

use std::time::Duration;

use farcall::{Config, Policy};

use work::{Load, Log, PATIENCE, SIZES, WorkClient, connect};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_pair_that_dies_again_and_again_costs_no_call_and_repeats_none() {
    let deaths = if std::env::var_os("FARCALL_LONG").is_some() { 100 } else { 8 };
    let log = Log::default();
    let mut config = Config::default();
    config.transport = Policy::Rdma;
    config.rdma.strict_credits = true;
    config.liveness.connect_ms = 60_000;
    config.liveness.retry_ms = 50;
    let (address, server) = work::serve(&log, config.clone()).await;
    let channel = connect(&address, &config).await;
    let (near, far) = (channel.connection().await.unwrap(), server.connections()[0].clone());
    let load = Load::start(&WorkClient::new(channel), 0, 8, &SIZES);
    let is_up = || near.transport().name == "rdma" && far.transport().name == "rdma";
    let mut killed = 0;
    let killing = async {
        while killed < deaths {
            let before = load.answered();
            while !is_up() || load.answered() < before + 10 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let pairs = tokio::task::spawn_blocking(farcall_rdma::fault::fail_queue_pairs).await.unwrap();
            assert!(pairs >= 2, "both ends are of this process");
            killed += 1;
            while is_up() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE * 10, killing).await.expect("calls go on, and RDMA comes back");
    let outcomes = load.stop().await;
    outcomes.all_answered();
    outcomes.agree_with(&log.times());
    println!("{deaths} deaths, {} calls, the longest took {} ms", outcomes.calls.len(), outcomes.longest_ms);
}
