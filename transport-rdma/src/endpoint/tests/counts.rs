//! Tests of the counts of drivers.

use super::*;
use crate::DeviceStats;

impl Node {
    fn stats(&self) -> DeviceStats {
        let stats = self.upgrade.machine().stats();
        assert_eq!(stats.len(), 1, "a device has one entry: {stats:?}");
        stats[0].clone()
    }
}

fn waiting(n: u8, completion: Completion) -> Node {
    node(&Fabric::new(1), n, RdmaConfig { completion, ..RdmaConfig::default() })
}

#[tokio::test]
async fn a_driver_sleeps_or_spins_as_it_is_told_to() {
    for (completion, sleeps, spins) in [(Completion::Event, true, false), (Completion::Busy, false, true)] {
        let near = waiting(1, completion);
        assert!(near.upgrade.machine().stats().is_empty());
        near.upgrade.announce().await.unwrap();
        until("the driver stands still", || near.stats().polls > 0).await;
        until("it does not wait", || near.stats().sleeps + near.stats().spins > 0).await;
        let stats = near.stats();
        assert_eq!((stats.sleeps > 0, stats.spins > 0), (sleeps, spins), "{completion:?}: {stats:?}");
        assert!(stats.polls >= stats.spins && stats.polls >= stats.sleeps, "{stats:?}");
    }
}

#[tokio::test]
async fn work_stays_counted_when_the_endpoint_is_gone() {
    let near = waiting(1, Completion::Event);
    let machine = Arc::clone(near.upgrade.machine());
    near.upgrade.announce().await.unwrap();
    until("the driver stands still", || near.stats().sleeps > 0).await;
    let shard = Arc::downgrade(&near.shard());
    drop(near);
    until("the endpoint stays", || shard.strong_count() == 0).await;
    let before = machine.stats();
    assert!(before[0].polls > 0 && before[0].sleeps > 0, "{before:?}");
    assert_eq!(machine.stats(), before);
}

#[tokio::test]
async fn waiting_for_credits_is_counted() {
    let (_fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    for _ in 0..100 {
        a.send(1, LONE);
        b.receive(1).await;
    }
    assert_eq!(near.stats().credit_waits, 0);
    // The window is of four.
    a.send(100, LONE);
    b.receive(100).await;
    assert!(near.stats().credit_waits > 0);
    assert_eq!(far.stats().credit_waits, 0);
}
