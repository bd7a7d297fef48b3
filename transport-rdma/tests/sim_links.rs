//! RDMA links between simulated machines.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod links;

use std::net::IpAddr;
use std::sync::Arc;

use farcall_core::transport::Cipher;
use farcall_rdma::testing::sim::Fabric;
use farcall_rdma::{RdmaConfig, RdmaUpgrade};
use links::{Side, scenarios};

/// Two machines. A frame without a receive fails the link: there must be none. With every other seed, what arrives does so
/// at the worst moment for those who sleep. Of four seeds, two seal what they send.
fn sides(seed: u64) -> [Side; 2] {
    let fabric = Fabric::new(seed);
    fabric.set_spite(seed % 2 == 1);
    [1, 2].map(|n| {
        let address = IpAddr::from([10, 0, 0, n]);
        let host = Arc::new(fabric.host(address));
        let mut config = RdmaConfig::default();
        config.strict_credits = true;
        let cipher = [None, None, Some(Cipher::Aes256Gcm), Some(Cipher::ChaCha20Poly1305)][seed as usize % 4];
        Side { upgrade: RdmaUpgrade::with_host(host, config), address, cipher }
    })
}

macro_rules! between_machines {
    ($($scenario:ident)*) => { $(
        #[tokio::test]
        async fn $scenario() {
            for seed in 0..4 {
                let [near, far] = sides(seed);
                scenarios::$scenario(near, far).await;
            }
        }
    )* };
}

between_machines! {
    conforms
    more_than_the_window_arrives_both_ways
    one_way_traffic_is_granted_by_credit_frames
    longest_frames_arrive
    reader_that_keeps_everything_stops_nobody
    closing_is_seen_as_an_orderly_end
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_come_and_go() {
    let [near, far] = sides(1);
    scenarios::links_come_and_go(near, far, 60).await;
}
