//! Servers that go silent without closing their connections.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use farcall_core::client::{RawChannel, Readiness};
use farcall_core::config::BalancePolicy;
use farcall_core::status::Code;

use super::support::{ECHO, HANG, call, info, until};
use super::{Cluster, FirstOf, SHORT, cluster, settings};

/// Makes calls with several keys until one ends at its deadline.
async fn until_one_is_late(t: &Cluster) {
    for key in 0..100_u8 {
        let made = call(&t.channel, &info("test"), ECHO, "x").key([key]).timeout(SHORT).await;
        if let Err(late) = made {
            assert_eq!(late.code(), Code::DeadlineExceeded);
            return;
        }
    }
    panic!("no call has gone to the silent server");
}

/// Makes many calls with several keys, each of which is answered.
async fn all_are_answered(t: &Cluster) {
    for key in 0..100_u8 {
        call(&t.channel, &info("test"), ECHO, "x").key([key]).timeout(SHORT).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_goes_to_a_silent_server_after_the_first_that_it_does_not_answer() {
    for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded, BalancePolicy::ByKey] {
        for connections in [1, 2] {
            let mut settings = settings(policy);
            settings.balance.connections = connections;
            let t = cluster(settings, 3);
            t.ready(3).await;
            until("all are connected", || {
                t.nodes.iter().all(|node| node.core().connections().len() == connections as usize)
            })
            .await;
            all_are_answered(&t).await;
            t.nodes[1].taps.lock().unwrap().iter().for_each(|tap| tap.silence());
            // Nothing that connects to it is answered either.
            t.nodes[1].refuses.store(true, Ordering::Relaxed);
            until_one_is_late(&t).await;
            let states = t.channel.endpoints().unwrap().borrow().clone();
            assert!(matches!(states[1].readiness, Readiness::Suspected), "{policy:?}: {states:?}");
            // For as long as it takes until its connections are given up, and beyond.
            for _ in 0..60 {
                all_are_answered(&t).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let states = t.channel.endpoints().unwrap().borrow().clone();
            assert!(matches!(states[1].readiness, Readiness::Failing(_)), "{policy:?}: {states:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_suspected_until_it_answers_and_is_used_if_all_are_silent() {
    let mut settings = settings(BalancePolicy::RoundRobin);
    settings.balance.eject_after = 0;
    let t = cluster(settings, 2);
    t.ready(2).await;
    // A slow handler does not make its server silent: that answers the PING.
    for _ in 0..6 {
        call(&t.channel, &info("test"), HANG, "").timeout(SHORT).await.unwrap_err();
        let answered = tokio::time::timeout(Duration::from_millis(1), t.ready(2)).await;
        assert!(answered.is_ok(), "{:?}", t.channel.endpoints());
    }
    // As if their processes were stopped: what is sent arrives when they go on.
    let stop = |is_stopped| {
        for node in &t.nodes {
            node.taps.lock().unwrap()[0].take(if is_stopped { 0 } else { usize::MAX });
        }
    };
    stop(true);
    for _ in 0..4 {
        call(&t.channel, &info("test"), ECHO, "x").timeout(SHORT).await.unwrap_err();
    }
    t.ready(0).await;
    stop(false);
    // Both are called while neither is known to be well, and after that.
    let share = t.share(10).await;
    assert!(share.iter().all(|share| *share > 3), "{share:?}");
    t.ready(2).await;
    assert!(t.nodes.iter().all(|node| node.taps.lock().unwrap().len() == 1), "they keep their connections");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_its_deadline_tells_of_a_silent_server_too() {
    let t = cluster(settings(BalancePolicy::RoundRobin), 2);
    t.ready(2).await;
    for (after, ready) in [(SHORT / 2, 2), (SHORT, 1)] {
        t.nodes.iter().for_each(|node| node.taps.lock().unwrap()[0].take(0));
        let mut dropped = Box::pin(call(&t.channel, &info("test"), ECHO, "x").timeout(SHORT).into_future());
        let polled = dropped.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        tokio::time::advance(after).await;
        drop(dropped);
        let states = t.channel.endpoints().unwrap().borrow().clone();
        let is_ready =
            |state: &&farcall_core::client::EndpointState| matches!(state.readiness, Readiness::Ready);
        assert_eq!(states.iter().filter(is_ready).count(), ready, "{states:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_first_leaves_a_silent_server_for_another_and_comes_back() {
    let Cluster { nodes, .. } = cluster(settings(BalancePolicy::RoundRobin), 3);
    let channel = RawChannel::new(FirstOf(nodes.clone()), settings(BalancePolicy::First));
    let echo = || call(&channel, &info("test"), ECHO, "x").timeout(SHORT);
    let runs = || nodes.iter().map(|node| node.runs()).collect::<Vec<_>>();
    echo().await.unwrap();
    // A slow handler is no reason to leave.
    call(&channel, &info("test"), HANG, "").timeout(SHORT).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(1)).await;
    echo().await.unwrap();
    assert_eq!(runs(), [3, 0, 0]);

    nodes[0].taps.lock().unwrap().iter().for_each(|tap| tap.silence());
    nodes[0].refuses.store(true, Ordering::Relaxed);
    nodes[1].refuses.store(true, Ordering::Relaxed);
    echo().await.unwrap_err();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..60 {
        echo().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(runs(), [3, 0, 60]);
    nodes[0].refuses.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(5)).await;
    echo().await.unwrap();
    assert_eq!(runs(), [4, 0, 60]);
}
