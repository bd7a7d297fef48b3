//! The instructions of an operation on a region, by a simulated device: run it under a tool that counts them.
//!
//! ```text
//! cargo bench -p farcall-rdma --features testing --bench regions --no-run
//! valgrind --tool=callgrind target/release/deps/regions-* peek 10000
//! ```
//!
//! An operation takes the difference between two runs, divided by the difference of their counts. The simulated device does its part
//! on the caller's thread, in `farcall_rdma::sim`.

#![expect(clippy::unwrap_used, reason = "it runs by hand")]

#[path = "../tests/near/mod.rs"]
mod near;

use farcall_core::client::RawChannel;
use farcall_core::config::Policy;
use farcall_core::region::{Region, RemoteMemory, Rights};
use farcall_core::server::ServerCore;
use farcall_rdma::RdmaConfig;
use farcall_rdma::testing::sim::Fabric;

use near::Near;

/// The length of a read, in bytes.
const LEN: usize = 64;

async fn operate(memory: &RemoteMemory, operation: &str, count: u64) {
    for _ in 0..count {
        match operation {
            "peek" => assert_eq!(memory.read(..LEN).await.unwrap().len(), LEN),
            "add" => drop(memory.fetch_add(0, 1).await.unwrap()),
            other => panic!("peek or add, not {other}"),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    // Without arguments it shows that it works.
    let operation = words.next().unwrap_or_else(|| "peek".to_owned());
    let count = words.next().map_or(1, |count| count.parse().unwrap());
    let fabric = Fabric::new(1);
    let [near, far] = [1, 2].map(|n| near::settings(&fabric, n, Policy::Rdma, RdmaConfig::default()));
    let host = ServerCore::new(Vec::new(), far).unwrap();
    let channel = RawChannel::new(Near { host, cipher: None }, near);
    let region = Region::zeroed(4096, Rights::READ | Rights::ATOMICS);
    let memory = region.remote().on(channel);
    // The first ones go by messages, until there is a grant.
    operate(&memory, &operation, 1).await;
    while fabric.windows().1 == 0 {
        tokio::task::yield_now().await;
    }
    operate(&memory, &operation, 100).await;
    operate(&memory, &operation, count).await;
}
