//! The turns of servers, over several channels.

use farcall_core::client::{EndpointState, RawChannel, Readiness};
use farcall_core::config::BalancePolicy;

use super::support::{ECHO, call, info};
use super::{cluster, settings};

#[tokio::test(start_paused = true)]
async fn the_first_calls_of_many_channels_go_to_different_servers() {
    for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded] {
        let t = cluster(settings(policy), 4);
        for _ in 0..100 {
            let (channel, endpoints) = RawChannel::balanced("db", settings(policy));
            endpoints.set((0..4).map(|index| t.endpoint(index)).collect());
            let mut states = channel.endpoints().unwrap();
            let is_ready = |state: &EndpointState| state.readiness == Readiness::Ready;
            states.wait_for(|states| states.iter().all(is_ready)).await.unwrap();
            call(&channel, &info("test"), ECHO, "x").await.unwrap();
        }
        let shares: Vec<_> = t.nodes.iter().map(|node| node.runs()).collect();
        assert!(shares.iter().all(|share| *share > 0), "{policy:?}: {shares:?}");
    }
}
