//! Numbers that peers have the owner's device change.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use farcall_core::client::RawChannel;
use farcall_core::config::Policy;
use farcall_core::region::{Region, RemoteMemory, Rights};
use farcall_core::status::{Code, Executed};
use farcall_core::transport::Cipher;
use farcall_rdma::RdmaConfig;
use farcall_rdma::testing::sim::SimHost;

use crate::near::{self, Near};
use crate::setup::{Elsewhere, Hosts, PATIENCE, Setup, block, runtime, words};

fn all() -> Rights {
    Rights::READ | Rights::WRITE | Rights::ATOMICS
}

impl Setup {
    /// A server whose device can be tampered with.
    fn with_owners_host() -> (Self, SimHost) {
        let hosts = Hosts::new();
        (Self::on(&hosts, Vec::new(), |host| Near { host, cipher: None }), hosts.server)
    }

    /// Exports regions whose numbers the device changes.
    async fn two_regions(&self) -> (Region, Region) {
        let regions = (Region::zeroed(64, all()), Region::zeroed(64, all()));
        for region in [&regions.0, &regions.1] {
            self.until_counted(&region.remote().on(self.channel.clone())).await;
        }
        regions
    }

    /// Another client, which has no RDMA.
    fn over_messages(&self, region: &Region) -> RemoteMemory {
        let settings = near::settings(&self.fabric, 3, Policy::Tcp, RdmaConfig::default());
        let near = Near { host: Arc::clone(&self.host), cipher: None };
        region.remote().on(RawChannel::new(near, settings))
    }
}

#[tokio::test]
async fn numbers_are_changed_while_the_owner_does_nothing() {
    let (owner, thread, stop) = runtime();
    let t = Setup::with(|host| Elsewhere { host, runtime: owner.clone() });
    let memory = words(4096);
    let region = Region::export(Arc::clone(&memory), all());
    let remote = region.remote().on(t.channel.clone());
    t.until_counted(&remote).await;
    let blocked = block(&owner);
    let before = t.atomics.load(Ordering::Relaxed);
    let alone = async {
        assert_eq!(remote.fetch_add(80, 5).await.unwrap(), 10);
        assert_eq!(remote.compare_and_swap(80, 15, 3).await.unwrap(), 15);
        assert_eq!(remote.compare_and_swap(80, 15, 4).await.unwrap(), 3);
        assert_eq!(remote.load(80).await.unwrap(), 3);
        assert_eq!(remote.fetch_add(4088, u64::MAX).await.unwrap(), 511);
        assert_eq!(remote.fetch_add(81, 1).await.unwrap_err().code(), Code::OutOfRange);
        assert_eq!(remote.fetch_add(4096, 1).await.unwrap_err().code(), Code::OutOfRange);
    };
    tokio::time::timeout(PATIENCE, alone).await.expect("the owner must act");
    assert_eq!(t.atomics.load(Ordering::Relaxed), before + 5);
    let expected = (0..512).map(|i| {
        if i == 10 {
            3
        } else if i == 511 {
            510
        } else {
            i
        }
    });
    assert!(memory.iter().map(|word| word.load(Ordering::Relaxed)).eq(expected));
    drop((blocked, stop));
    thread.join().unwrap();
}

/// The simulated device's operations are no more atomic with the processor's than those of real ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn peers_by_either_way_and_the_owner_count_together() {
    const ROUNDS: u64 = 500;
    let t = Setup::new(None);
    let region = Arc::new(Region::zeroed(64, all()));
    let by_rdma = region.remote().on(t.channel.clone());
    t.until_counted(&by_rdma).await;
    let by_messages = t.over_messages(&region);
    let mut counting = tokio::task::JoinSet::new();
    for remote in [by_rdma.clone(), by_rdma, by_messages.clone(), by_messages] {
        counting.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..ROUNDS {
                seen.push(remote.fetch_add(8, 1).await.unwrap());
            }
            seen
        });
    }
    counting.spawn({
        let region = Arc::clone(&region);
        async move {
            let mut seen = Vec::new();
            while seen.len() < ROUNDS as usize {
                let now = region.load(8).unwrap();
                if region.compare_and_swap(8, now, now + 1).await.unwrap() == now {
                    seen.push(now);
                }
            }
            seen
        }
    });
    let mut seen = tokio::time::timeout(PATIENCE, counting.join_all()).await.unwrap().concat();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..5 * ROUNDS), "two have seen one number");
    assert_eq!(region.load(8).unwrap(), 5 * ROUNDS);
}

/// A number that one party sets is not undone by another that counts in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn numbers_that_are_set_stay_set() {
    const ROUNDS: u64 = 200;
    let t = Setup::new(None);
    let region = Arc::new(Region::zeroed(64, all()));
    let by_rdma = region.remote().on(t.channel.clone());
    t.until_counted(&by_rdma).await;
    let by_messages = t.over_messages(&region);
    let counting = tokio::spawn({
        let by_rdma = by_rdma.clone();
        async move {
            for _ in 0..10 * ROUNDS {
                by_rdma.fetch_add(0, 1).await.unwrap();
            }
        }
    });
    // The lower half counts, the upper half is set.
    for round in 1..ROUNDS {
        match round % 3 {
            0 => by_messages.store(0, round << 32).await.unwrap(),
            1 => by_rdma.store(0, round << 32).await.unwrap(),
            _ => region.store(0, round << 32).await.unwrap(),
        }
        let now = by_rdma.load(0).await.unwrap();
        assert_eq!(now >> 32, round, "it was undone");
    }
    tokio::time::timeout(PATIENCE, counting).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_operation_whose_link_fails_is_not_repeated() {
    let t = Setup::new(None);
    let region = Region::zeroed(64, all());
    let remote = region.remote().on(t.channel.clone());
    for round in 1..4 {
        t.until_counted(&remote).await;
        // The owner's device does it, and the answer does not come.
        t.fabric.set_acknowledgements(false);
        let adding = tokio::spawn({
            let remote = remote.clone();
            async move { remote.fetch_add(8, 1).await }
        });
        t.until(|_| region.load(8).unwrap() == round).await;
        let links = t.fabric.queue_pairs();
        // The link's are the oldest; the owner has two for itself.
        links.iter().take(2).for_each(|number| assert!(t.fabric.kill_qp(*number)));
        t.fabric.set_acknowledgements(true);
        let status = tokio::time::timeout(PATIENCE, adding).await.unwrap().unwrap().unwrap_err();
        assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe), "{status}");
        assert_eq!(remote.load(8).await.unwrap(), round, "it was repeated");
    }
}

#[tokio::test]
async fn the_processor_counts_when_the_device_has_failed() {
    let t = Setup::new(None);
    let memory = words(64);
    let region = Region::export(Arc::clone(&memory), all());
    let remote = region.remote().on(t.channel.clone());
    let mut count = 0;
    for _ in 0..3 {
        t.until_counted(&remote).await;
        assert_eq!(region.fetch_add(0, 1).await.unwrap(), count);
        count += 1;
        t.fabric.queue_pairs().into_iter().for_each(|number| assert!(t.fabric.kill_qp(number)));
        // The owner finds its own queue pairs dead before it asks, and takes the numbers back.
        let status = region.fetch_add(0, 1).await;
        count += u64::from(status.is_ok());
        assert_eq!(region.load(0).unwrap(), count);
        // The client finds its queue pair dead.
        assert_eq!(remote.read(..8).await.unwrap(), count.to_le_bytes()[..]);
        assert_eq!(remote.fetch_add(0, 1).await.unwrap(), count);
        count += 1;
    }
    tokio::time::timeout(PATIENCE, region.revoke()).await.expect("a device keeps the memory");
    Arc::into_inner(memory).expect("nobody else has the memory");
}

#[tokio::test]
async fn a_region_that_is_revoked_has_its_memory_back() {
    let t = Setup::new(None);
    let memory = words(64);
    let region = Region::export(Arc::clone(&memory), all());
    let remote = region.remote().on(t.channel.clone());
    t.until_counted(&remote).await;
    assert_eq!(t.bound(), 2, "one for the peer, one for the owner");
    tokio::time::timeout(PATIENCE, region.revoke()).await.expect("a device keeps the memory");
    Arc::into_inner(memory).expect("nobody else has the memory");
    assert_eq!(remote.fetch_add(0, 1).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(region.fetch_add(0, 1).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(t.bound(), 0);
    // The queue pairs for the owner itself are gone with the last region.
    t.until(|t| t.fabric.queue_pairs().len() == 2).await;
}

/// A program may poll a future once, and then do something else for long.
#[tokio::test]
async fn an_operation_that_nobody_polls_holds_nobody_up() {
    let t = Setup::new(None);
    let (region, other) = t.two_regions().await;
    // The device does it, and its answer comes after the only poll.
    t.fabric.set_acknowledgements(false);
    let mut adding = std::pin::pin!(region.fetch_add(0, 1));
    let first = std::future::poll_fn(|cx| Poll::Ready(adding.as_mut().poll(cx))).await;
    assert!(first.is_pending());
    t.fabric.set_acknowledgements(true);
    let rest = async {
        assert_eq!(other.fetch_add(8, 1).await.unwrap(), 0);
        assert_eq!(region.fetch_add(0, 1).await.unwrap(), 1);
        assert_eq!(t.over_messages(&region).fetch_add(0, 1).await.unwrap(), 2);
        other.revoke().await;
    };
    tokio::time::timeout(PATIENCE, rest).await.expect("it holds others up");
    assert_eq!(adding.await.unwrap(), 0);
}

#[tokio::test]
async fn a_region_is_revoked_beside_an_operation_that_nobody_polls() {
    let t = Setup::new(None);
    let (region, other) = t.two_regions().await;
    // One that the device does, one that waits for its turn, and one that has not begun.
    t.fabric.set_acknowledgements(false);
    let mut done = std::pin::pin!(region.fetch_add(0, 1));
    let mut waiting = std::pin::pin!(region.fetch_add(0, 1));
    let new = std::pin::pin!(region.fetch_add(0, 1));
    for polled in [&mut done, &mut waiting] {
        assert!(std::future::poll_fn(|cx| Poll::Ready(polled.as_mut().poll(cx))).await.is_pending());
    }
    // The device is at it when the region is revoked.
    let mut revoke = std::pin::pin!(region.revoke());
    assert!(std::future::poll_fn(|cx| Poll::Ready(revoke.as_mut().poll(cx))).await.is_pending());
    t.fabric.set_acknowledgements(true);
    tokio::time::timeout(PATIENCE, revoke).await.expect("they hold it up");
    assert_eq!(done.await.unwrap(), 0);
    for refused in [waiting, new] {
        assert_eq!(refused.await.unwrap_err().executed(), Executed::No);
    }
    // The keys of a window that is gone have not cost the queue pair.
    assert_eq!(other.fetch_add(8, 1).await.unwrap(), 0);
    assert_eq!((t.bound(), t.fabric.queue_pairs().len()), (2, 4));
}

#[tokio::test]
async fn where_a_device_changes_no_numbers_the_owner_does() {
    let sealed = Setup::new(Some(Cipher::Aes256Gcm));
    let (plain, owners_host) = Setup::with_owners_host();
    owners_host.without_atomics();
    for t in [&sealed, &plain] {
        let region = Region::zeroed(64, all());
        let remote = region.remote().on(t.channel.clone());
        for count in 0..50 {
            assert_eq!(remote.fetch_add(8, 1).await.unwrap(), count);
            assert_eq!(remote.load(8).await.unwrap(), count + 1);
        }
        assert_eq!(t.atomics.load(Ordering::Relaxed), 0);
    }
    // Nor does the device where the application changes the words, too.
    let t = Setup::new(None);
    let memory = words(64);
    let region = Region::export(Arc::clone(&memory), all()).by_processor();
    let remote = region.remote().on(t.channel.clone());
    t.until_direct(&remote).await;
    for count in 0..50 {
        assert_eq!(memory[0].fetch_add(1, Ordering::Relaxed), 2 * count);
        assert_eq!(remote.fetch_add(0, 1).await.unwrap(), 2 * count + 1);
        assert_eq!(remote.load(0).await.unwrap(), 2 * count + 2);
    }
    assert_eq!((t.atomics.load(Ordering::Relaxed), t.bound()), (0, 1));
    // The rights are those of the region, whoever does it.
    let t = Setup::new(None);
    let region = Region::zeroed(64, Rights::READ | Rights::ATOMICS);
    let remote = region.remote().on(t.channel.clone());
    t.until_counted(&remote).await;
    assert_eq!(remote.write(0, vec![1; 8]).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(remote.store(0, 1).await.unwrap_err().code(), Code::PermissionDenied);
}
