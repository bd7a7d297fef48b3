//! Tests of links whose device reports an event.

use super::*;

#[tokio::test]
async fn device_that_fails_ends_all_links_and_is_opened_again() {
    let (_fabric, [near, far]) = nodes(1);
    let ([mut a, _b], [mut c, _d]) = (near.link(&far).await, near.link(&far).await);
    let device = Arc::downgrade(&near.shard().device);
    near.shard().device.broadcast(DeviceEvent::DeviceFailed);
    for end in [a.end().await, c.end().await] {
        assert!(end.failed && end.detail.contains("the device"), "{end}");
    }
    let [e, mut f] = near.link(&far).await;
    let shard = near.upgrade.endpoints().last().unwrap().shard().clone();
    assert!(!std::ptr::eq(device.as_ptr(), Arc::as_ptr(&shard.device)), "not the one that has failed");
    e.send(10, 10);
    f.receive(10).await;
    drop((a, c));
    until("the device that has failed stays open", || device.strong_count() == 0).await;
}

#[tokio::test]
async fn port_that_stays_down_ends_its_links_in_use_or_not() {
    let (_fabric, [near, far]) = nodes(1);
    let ([mut a, _b], [mut idle, _d]) = (near.link(&far).await, near.link(&far).await);
    near.host.set_link(false);
    a.send(1, 10);
    for end in [a.end().await, idle.end().await] {
        assert!(end.failed, "{end}");
        for part in ["on sim0 port 1 gid 1 (10.0.0.1)", "at 10.0.0.2", "port 1 has been down for 1s"] {
            assert!(end.detail.contains(part), "{part}: {end}");
        }
    }
    assert_eq!(near.try_link(&far).await.map(drop).unwrap_err().reason, Reason::PortDown);
    near.host.set_link(true);
    assert!(near.try_link(&far).await.is_ok());
}

#[tokio::test]
async fn port_that_comes_back_at_once_keeps_its_links() {
    let (fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    let shard = near.shard();
    for _ in 0..5 {
        near.host.set_link(false);
        until("the event is lost", || !shard.device.ports_down().is_empty()).await;
        near.host.set_link(true);
        until("the event is lost", || shard.device.ports_down().is_empty()).await;
    }
    a.send(10, 10);
    b.receive(10).await;
    assert_eq!(fabric.queue_pairs().len(), 2);
}

#[tokio::test]
async fn link_whose_address_is_gone_ends_and_others_stay() {
    let (_fabric, [near, far]) = nodes(1);
    let [mut a, mut b] = near.link(&far).await;
    let changed = DeviceEvent::PortChanged { port: 1 };
    // Something else has changed.
    near.shard().device.broadcast(changed);
    far.shard().device.broadcast(changed);
    a.send(10, 10);
    b.receive(10).await;
    near.host.set_gid(false);
    near.shard().device.broadcast(changed);
    let end = a.end().await;
    assert!(end.failed && end.detail.contains("its address 10.0.0.1 (gid 1) is gone from port 1"), "{end}");
}

#[tokio::test]
async fn failed_queue_pair_says_which_it_was_and_what_to_do() {
    let (_fabric, [near, far]) = nodes(1);
    let [mut a, _b] = near.link(&far).await;
    let number = *near.shard().links().keys().next().unwrap();
    near.shard().device.broadcast(DeviceEvent::QpFailed { qp_num: number });
    let end = a.end().await;
    for part in [&format!("queue pair {number} on sim0"), "at 10.0.0.2", "has failed", "kernel's log"] {
        assert!(end.detail.contains(part), "{part}: {end}");
    }
}

#[tokio::test]
async fn lost_queue_ends_the_endpoint_and_the_next_link_has_another() {
    let (_fabric, [near, far]) = nodes(1);
    let [mut a, _b] = near.link(&far).await;
    let shard = near.shard();
    // Another endpoint's queue is of no concern.
    let ids = (0..100_000).filter(|&id| shard.queues.owns(id)).collect::<Vec<_>>();
    let stranger = (0..100_000).find(|id| !ids.contains(id)).unwrap();
    shard.device.broadcast(DeviceEvent::QueueFailed { queue_id: stranger });
    a.send(1, 10);
    shard.device.broadcast(DeviceEvent::QueueFailed { queue_id: ids[0] });
    assert!(a.end().await.failed);
    let [e, mut f] = near.link(&far).await;
    e.send(1, 10);
    f.receive(1).await;
    let again = near.upgrade.endpoints().last().unwrap().shard().clone();
    assert!(!Arc::ptr_eq(&again, &shard) && Arc::ptr_eq(&again.device, &shard.device));
}

#[tokio::test]
async fn events_that_mean_nothing_end_nothing() {
    let (_fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    for code in 0..40 {
        near.shard().device.broadcast(DeviceEvent::Other { code });
    }
    near.shard().device.broadcast(DeviceEvent::QpFailed { qp_num: 0xff_ffff });
    a.send(10, 10);
    b.receive(10).await;
}
