//! Queue pairs of an RDMA device that die under load. One test at a time: it kills all that the process has.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
#![expect(clippy::print_stdout, reason = "the figures are for TESTING.md")]

mod authority;
mod flow;
mod lent;
mod work;

use std::time::Duration;

use farcall::tls::{self, TlsConfig};
use farcall::{Config, Policy, Server};
use tokio::sync::Mutex;

use authority::{Authority, as_it_is};
use flow::{FlowClient, FlowServer};
use lent::{Lender, LentServer, direct_accesses};
use work::{Load, Log, PATIENCE, SIZES, WorkClient, WorkServer, connect};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_pair_that_dies_again_and_again_costs_no_call_and_no_item_and_repeats_none() {
    let _guard = ONE_AT_A_TIME.lock().await;
    outlive_queue_pairs(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_one_of_a_sealed_link() {
    let _guard = ONE_AT_A_TIME.lock().await;
    let authority = Authority::new("ca");
    outlive_queue_pairs(Some(authority.issue("peer", as_it_is))).await;
}

async fn outlive_queue_pairs(tls: Option<TlsConfig>) {
    let deaths = if std::env::var_os("FARCALL_LONG").is_some() { 100 } else { 8 };
    let log = Log::default();
    let mut config = Config::default();
    let is_sealed = tls.is_some();
    config.tls = tls;
    config.transport = Some(Policy::Rdma);
    config.rdma.strict_credits = true;
    config.liveness.connect_ms = 60_000;
    config.liveness.retry_ms = 50;
    let flows = flow::Log::default();
    let server = Server::builder().add(WorkServer::new(log.clone())).add(FlowServer::new(flows.clone()));
    let server = server.add(LentServer::new(Lender::new()));
    let server = server.config(config.clone()).bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (format!("farcall://{}", server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    let channel = connect(&address, &config).await;
    let (near, far) = (channel.connection().await.unwrap(), handle.connections()[0].clone());
    let load = Load::start(&WorkClient::new(&channel), 0, 8, &SIZES);
    let streams = flow::Load::start(&FlowClient::new(&channel), 8);
    let accesses = lent::Load::start(&channel).await;
    let is_up = || near.transport().name == "rdma" && far.transport().name == "rdma";
    assert!(near.is_encrypted() == is_sealed && far.is_encrypted() == is_sealed);
    let mut killed = 0;
    let killing = async {
        while killed < deaths {
            let before = (load.answered(), streams.ended(), accesses.copied());
            let others = || streams.ended() < before.1 + 2 || accesses.copied() < before.2 + 2;
            while !is_up() || load.answered() < before.0 + 10 || others() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // A sealed link grants nothing.
            if !is_sealed {
                accesses.until_direct().await;
            }
            let pairs =
                tokio::task::spawn_blocking(farcall_rdma::testing::fault::fail_queue_pairs).await.unwrap();
            assert!(pairs >= 2, "both ends are of this process");
            killed += 1;
            while is_up() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE * 10, killing).await.expect("calls and streams go on, and RDMA comes back");
    let (copies, additions, transfers) = accesses.stop().await;
    let streams = streams.stop(PATIENCE).await;
    for &plan in &streams {
        assert!(flows.was_whole(plan), "{plan:?}: {:?}", flows.went(plan.id));
    }
    let outcomes = load.stop().await;
    outcomes.all_answered();
    outcomes.agree_with(&log.times());
    let calls = outcomes.calls.len();
    println!(
        "{deaths} deaths, {calls} calls, the longest took {} ms, {} streams, {copies} copies of lent memory, {additions} additions, \
         {transfers} reads and writes of regions, {} accesses to memory by RDMA itself",
        outcomes.longest_ms,
        streams.len(),
        direct_accesses()
    );
}
