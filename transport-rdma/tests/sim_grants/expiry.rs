//! Regions that expire while peers use them by themselves.

use std::sync::Arc;
use std::time::Duration;

use farcall_core::client::RawChannel;
use farcall_core::config::Policy;
use farcall_core::region::{Region, RemoteMemory, Rights};
use farcall_core::status::Code;
use farcall_rdma::RdmaConfig;

use crate::near::{self, Near};
use crate::setup::{Elsewhere, PATIENCE, Setup, bytes, runtime, words};

/// The life of a region: much longer than a test takes, so that only a clock that runs ahead ends it.
const LIFE: Duration = Duration::from_secs(3600);

fn all() -> Rights {
    Rights::READ | Rights::WRITE | Rights::ATOMICS
}

/// Lets the clock of this runtime run ahead, past the end of the region.
async fn outlive() {
    tokio::time::pause();
    tokio::time::sleep(2 * LIFE).await;
    tokio::time::resume();
}

/// Waits until a peer finds a region gone.
async fn until_gone(remote: &RemoteMemory) {
    let gone = async {
        loop {
            match remote.read(..8).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(status) => return status,
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, gone).await.expect("it is read for ever");
    assert_eq!(status.code(), Code::NotFound, "{status}");
}

#[tokio::test]
async fn no_access_of_any_kind_is_done_after_the_expiry() {
    let t = Setup::new(None);
    let memory = words(64);
    let region = Region::export_for(LIFE, Arc::clone(&memory), all());
    let remote = region.remote().on(t.channel.clone());
    t.until_direct(&remote).await;
    t.until_counted(&remote).await;
    remote.write(8, vec![7; 8]).await.unwrap();
    remote.fetch_add(0, 5).await.unwrap();
    let before = bytes(&memory);
    outlive().await;
    until_gone(&remote).await;
    let refused = [
        remote.read(..).await.map(drop),
        remote.write(0, vec![1; 64]).await,
        remote.fetch_add(0, 1).await.map(drop),
        remote.compare_and_swap(0, 5, 1).await.map(drop),
        remote.load(0).await.map(drop),
        remote.store(0, 1).await,
    ];
    for status in refused {
        let status = status.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{status}");
    }
    assert!(bytes(&memory) == before, "it was changed after its expiry");
    // The owner keeps it, with its numbers.
    assert_eq!(region.fetch_add(0, 1).await.unwrap(), 5);
    region.revoke().await;
    t.until(|t| t.bound() == 0).await;
}

/// Each connection of a server may be on a runtime of its own.
#[tokio::test]
async fn a_region_expires_although_the_runtime_that_granted_it_first_is_gone() {
    let (first, thread, stop) = runtime();
    let t = Setup::with(|host| Elsewhere { host, runtime: first });
    let settings = near::settings(&t.fabric, 3, Policy::Auto, RdmaConfig::default());
    let channel = RawChannel::new(Near { host: Arc::clone(&t.host), cipher: None }, settings);
    let region = Region::export_for(LIFE, words(64), Rights::READ);
    t.until_direct(&region.remote().on(t.channel.clone())).await;
    let remote = region.remote().on(channel);
    t.until_direct(&remote).await;
    t.until(|t| t.bound() == 2).await;
    drop(stop);
    thread.join().unwrap();
    outlive().await;
    until_gone(&remote).await;
    t.until(|t| t.bound() == 0).await;
}
