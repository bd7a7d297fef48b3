//! A channel that balances its calls over several servers, which come and go.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod health;
mod room;
mod silent;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod turns;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::class::TrafficClass;
use farcall_core::client::{Connector, Endpoint, Endpoints, RawChannel, Readiness};
use farcall_core::config::{BalancePolicy, Limits};
use farcall_core::server::ServerCore;
use farcall_core::settings::Settings;
use farcall_core::status::{Blame, Code, Executed, Result, Status};
use farcall_core::transport::{BoxFuture, Link, memory};
use tokio::time::Instant;

use support::tap::Tap;
use support::{ECHO, HANG, PANIC, Seen, WAIT, call, host, info, plain, until};

/// The timeout of calls to servers that may be silent.
const SHORT: Duration = Duration::from_millis(20);

/// A server that may be away.
#[derive(Default)]
struct Node {
    name: String,
    host: Mutex<Option<Arc<ServerCore>>>,
    seen: Mutex<Vec<Arc<Seen>>>,
    taps: Mutex<Vec<Arc<Tap>>>,
    /// Whether it takes no more connections.
    refuses: AtomicBool,
}

impl Node {
    fn start(&self) {
        let (host, seen) = host(plain(Limits::default()));
        *self.host.lock().unwrap() = Some(host);
        self.seen.lock().unwrap().push(seen);
    }

    /// Kills it: its connections end, and it refuses others.
    fn kill(&self) {
        self.host.lock().unwrap().take().unwrap().close();
    }

    fn core(&self) -> Arc<ServerCore> {
        self.host.lock().unwrap().clone().unwrap()
    }

    fn seen(&self) -> Arc<Seen> {
        self.seen.lock().unwrap().last().unwrap().clone()
    }

    /// Returns how many calls it has begun to handle, before its restarts as well.
    fn runs(&self) -> u32 {
        self.seen.lock().unwrap().iter().map(|seen| seen.runs()).sum()
    }
}

struct To(Arc<Node>);

impl Connector for To {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let host = self.0.host.lock().unwrap().clone().filter(|_| !self.0.refuses.load(Ordering::Relaxed));
        let Some(host) = host else {
            let status = Status::new(Code::Unavailable, format!("{} is away", self.0.name));
            return Box::pin(async move { Err(status.with_blame(Blame::Environment)) });
        };
        let (near, far) = memory::pair();
        host.serve(far);
        let tap = Tap::new(near);
        self.0.taps.lock().unwrap().push(tap.clone());
        Box::pin(async { Ok(tap as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        self.0.name.clone()
    }
}

/// Several servers of which the first that can be reached counts.
struct FirstOf(Vec<Arc<Node>>);

impl Connector for FirstOf {
    fn connect(&self, peer: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        To(self.0[peer].clone()).connect(0)
    }

    fn peers(&self) -> usize {
        self.0.len()
    }

    fn target(&self) -> String {
        "the first of several".into()
    }
}

struct Cluster {
    nodes: Vec<Arc<Node>>,
    endpoints: Endpoints,
    channel: RawChannel,
}

fn settings(policy: BalancePolicy) -> Settings {
    let mut settings = plain(Limits::default());
    settings.balance.policy = policy;
    settings
}

fn cluster(settings: Settings, servers: usize) -> Cluster {
    let node = |index| {
        let node = Node { name: format!("db{index}"), ..Node::default() };
        node.start();
        Arc::new(node)
    };
    let (channel, endpoints) = RawChannel::balanced("db", settings);
    let cluster = Cluster { nodes: (0..servers).map(node).collect(), endpoints, channel };
    cluster.endpoints.set((0..servers).map(|index| cluster.endpoint(index)).collect());
    cluster
}

impl Cluster {
    fn endpoint(&self, index: usize) -> Endpoint {
        let node = &self.nodes[index];
        Endpoint::new(&node.name, Arc::new(To(node.clone())))
    }

    async fn echo(&self) -> Result<Bytes> {
        call(&self.channel, &info("test"), ECHO, "x").await
    }

    /// Makes calls one after the other, and returns how many each server has got.
    async fn share(&self, calls: usize) -> Vec<u32> {
        let before: Vec<_> = self.nodes.iter().map(|node| node.runs()).collect();
        for _ in 0..calls {
            self.echo().await.unwrap();
        }
        self.nodes.iter().zip(before).map(|(node, before)| node.runs() - before).collect()
    }

    /// Waits until so many servers are ready.
    async fn ready(&self, servers: usize) {
        let mut states = self.channel.endpoints().unwrap();
        let is_ready = |state: &&_| {
            matches!(state, &&farcall_core::client::EndpointState { readiness: Readiness::Ready, .. })
        };
        states.wait_for(|states| states.iter().filter(is_ready).count() == servers).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_goes_to_a_server_that_is_dead_and_some_do_when_it_is_back() {
    let t = cluster(settings(BalancePolicy::RoundRobin), 3);
    t.ready(3).await;
    assert_eq!(t.share(30).await, [10, 10, 10]);
    t.nodes[1].kill();
    t.ready(2).await;
    let states = t.channel.endpoints().unwrap().borrow().clone();
    let Readiness::Failing(why) = &states[1].readiness else { panic!("{states:?}") };
    assert_eq!((&*states[1].name, why.message()), ("db1", "db1 is away"));
    assert!(states[1].next_attempt.is_some() && states[0].next_attempt.is_none(), "{states:?}");
    assert_eq!(t.share(30).await, [15, 0, 15]);

    t.nodes[1].start();
    t.ready(3).await;
    assert_eq!(t.share(30).await, [10, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_rolling_restarts_fail_no_call() {
    for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded, BalancePolicy::ByKey] {
        let t = Arc::new(cluster(settings(policy), 2));
        t.ready(2).await;
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let callers: Vec<_> = (0..8_u32)
            .map(|caller| {
                let (t, stop) = (t.clone(), stop.clone());
                tokio::spawn(async move {
                    let mut calls = 0_u32;
                    while !stop.load(Ordering::Relaxed) {
                        let call =
                            call(&t.channel, &info("test"), ECHO, "x").key((caller + calls).to_le_bytes());
                        call.await.unwrap();
                        calls += 1;
                        if calls.is_multiple_of(3) {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                    calls
                })
            })
            .collect();
        for restart in 0..100 {
            let node = &t.nodes[restart % 2];
            let old = node.host.lock().unwrap().take().unwrap();
            old.drain(Duration::from_secs(5)).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            node.start();
            t.ready(2).await;
        }
        stop.store(true, Ordering::Relaxed);
        for caller in callers {
            assert!(caller.await.unwrap() > 100);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_holds_up_few_calls() {
    let t = cluster(settings(BalancePolicy::LeastLoaded), 3);
    t.ready(3).await;
    t.share(30).await;
    t.nodes[0].taps.lock().unwrap()[0].silence();
    let calls: Vec<_> =
        (0..300).map(|_| tokio::spawn(call(&t.channel, &info("test"), ECHO, "x").into_future())).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let late = calls.iter().filter(|call| !call.is_finished()).count();
    // All were made at once, so their own number is what made the others cheaper. One more is hardly made now.
    assert!(late <= 110, "{late}");
    let before = t.nodes[1].runs() + t.nodes[2].runs();
    t.share(30).await;
    assert_eq!(t.nodes[1].runs() + t.nodes[2].runs() - before, 30);
    // The connection is found to be silent, and so the server is not ready.
    t.ready(2).await;
}

#[tokio::test(start_paused = true)]
async fn servers_come_and_go_as_they_are_set() {
    let t = cluster(settings(BalancePolicy::RoundRobin), 3);
    t.ready(3).await;
    let taps = || t.nodes.iter().map(|node| node.taps.lock().unwrap().len()).collect::<Vec<_>>();
    let waiting: Vec<_> =
        (0..3).map(|_| tokio::spawn(call(&t.channel, &info("test"), WAIT, "y").into_future())).collect();
    until("each has one", || t.nodes.iter().all(|node| node.runs() == 1)).await;

    assert!(t.endpoints.set(vec![t.endpoint(0), t.endpoint(2)]));
    assert_eq!(t.share(10).await, [5, 0, 5]);
    assert_eq!(taps(), [1, 1, 1], "those that stay keep their connections");
    // A call in progress ends where it is, and the connection with it.
    t.nodes.iter().for_each(|node| node.seen().go.notify_one());
    for call in waiting {
        assert_eq!(call.await.unwrap().unwrap(), "y");
    }
    until("it is left", || t.nodes[1].core().connections().is_empty()).await;

    t.endpoints.set(vec![t.endpoint(1), t.endpoint(0).weight(3)]);
    t.ready(2).await;
    assert_eq!(t.share(40).await, [30, 10, 0]);
    t.endpoints.set(vec![t.endpoint(1).weight(4), t.endpoint(0)]);
    assert_eq!(t.share(40).await, [8, 32, 0]);
    assert_eq!(taps(), [1, 2, 1], "another weight is no reason to connect again");

    t.endpoints.set(Vec::new());
    let late = call(&t.channel, &info("test"), ECHO, "x").timeout(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::No));
    t.endpoints.failed(Status::new(Code::Unavailable, "no such name"));
    assert_eq!(t.echo().await.unwrap_err().message(), "test/echo: no such name");
    t.endpoints.set(vec![t.endpoint(2)]);
    assert_eq!(t.share(4).await, [0, 0, 4]);
}

#[tokio::test(start_paused = true)]
async fn calls_fail_at_once_while_no_server_can_be_reached_unless_they_wait() {
    let t = cluster(settings(BalancePolicy::RoundRobin), 2);
    t.ready(2).await;
    t.nodes.iter().for_each(|node| node.kill());
    t.ready(0).await;
    until("both have failed", || {
        t.channel
            .endpoints()
            .unwrap()
            .borrow()
            .iter()
            .all(|state| matches!(state.readiness, Readiness::Failing(_)))
    })
    .await;
    let error = t.echo().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    assert_eq!(error.message(), "test/echo: none of 2 servers can be reached: db0 is away; db1 is away");

    let waiting = tokio::spawn(call(&t.channel, &info("test"), ECHO, "x").wait_for_ready(true).into_future());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!waiting.is_finished());
    t.nodes[1].start();
    let began = Instant::now();
    t.channel.reconnect().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn calls_of_other_classes_and_several_connections_are_balanced_too() {
    let mut settings = settings(BalancePolicy::RoundRobin);
    settings.balance.connections = 2;
    let t = cluster(settings, 2);
    t.ready(2).await;
    until("both connect twice", || t.nodes.iter().all(|node| node.core().connections().len() == 2)).await;
    assert_eq!(t.share(20).await, [10, 10]);
    let urgent = t.channel.class(TrafficClass::Urgent);
    for _ in 0..20 {
        call(&urgent, &info("test"), ECHO, "x").await.unwrap();
    }
    assert_eq!(t.nodes.iter().map(|node| node.runs()).collect::<Vec<_>>(), [20, 20]);
    assert!(t.nodes.iter().all(|node| node.core().connections().len() > 2));
}

#[tokio::test(start_paused = true)]
async fn a_class_that_one_server_refuses_goes_to_another() {
    let t = cluster(settings(BalancePolicy::ByKey), 3);
    t.ready(3).await;
    // From now on they take no other connections.
    t.nodes[0].refuses.store(true, Ordering::Relaxed);
    t.nodes[2].refuses.store(true, Ordering::Relaxed);
    let urgent = t.channel.class(TrafficClass::Urgent);
    for key in 0..10_u8 {
        call(&urgent, &info("test"), ECHO, "x").key([key]).await.unwrap();
    }
    assert_eq!(t.nodes.iter().map(|node| node.runs()).collect::<Vec<_>>(), [0, 10, 0]);

    t.nodes[1].refuses.store(true, Ordering::Relaxed);
    let bulk = t.channel.class(TrafficClass::Bulk);
    let error = call(&bulk, &info("test"), ECHO, "x").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    // A call that waits asks again after a pause each time, and not all the time.
    let waiting = tokio::spawn(call(&bulk, &info("test"), ECHO, "x").wait_for_ready(true).into_future());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!waiting.is_finished());
    t.nodes[1].refuses.store(false, Ordering::Relaxed);
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn near_servers_are_preferred_and_a_subset_is_kept_to() {
    let mut near = settings(BalancePolicy::RoundRobin);
    near.balance.locality = "a".into();
    let t = cluster(near, 3);
    t.endpoints.set((0..3).map(|index| t.endpoint(index).locality(["a", "b", "a"][index])).collect());
    t.ready(3).await;
    assert_eq!(t.share(10).await, [5, 0, 5]);
    t.nodes[0].kill();
    t.nodes[2].kill();
    t.ready(1).await;
    assert_eq!(t.share(10).await, [0, 10, 0]);

    let mut some = settings(BalancePolicy::RoundRobin);
    some.balance.subset = 3;
    let chosen = |_| {
        let t = cluster(some.clone(), 10);
        let states = t.channel.endpoints().unwrap().borrow().clone();
        states.iter().map(|state| state.name.clone()).collect::<Vec<_>>()
    };
    let choices: Vec<_> = (0..20).map(chosen).collect();
    assert!(choices.iter().all(|choice| choice.len() == 3));
    assert!(choices.iter().any(|choice| *choice != choices[0]), "each channel has its own: {choices:?}");
}

#[tokio::test(start_paused = true)]
async fn a_higher_tier_gets_calls_while_no_server_of_a_lower_one_is_connected() {
    let mut settings = settings(BalancePolicy::RoundRobin);
    settings.balance.subset = 2;
    let t = cluster(settings, 4);
    let tiers = |tiers: [u32; 4], weights: [u32; 4]| {
        let endpoint = |index: usize| t.endpoint(index).tier(tiers[index]).weight(weights[index]);
        t.endpoints.set((0..4).map(endpoint).collect());
    };
    // Weights count within a tier.
    tiers([1, 0, 1, 0], [60_000, 1, 30_000, 3]);
    t.ready(4).await;
    assert_eq!(t.share(12).await, [0, 3, 0, 9]);
    t.nodes[1].kill();
    t.ready(3).await;
    assert_eq!(t.share(12).await, [0, 0, 0, 12]);
    t.nodes[3].kill();
    t.ready(2).await;
    assert_eq!(t.share(12).await, [8, 0, 4, 0]);
    // A server that stays may change its tier.
    tiers([0, 1, 1, 1], [1; 4]);
    assert_eq!(t.share(12).await, [12, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_channel_closes_its_connections() {
    let t = cluster(settings(BalancePolicy::RoundRobin), 2);
    t.ready(2).await;
    let hanging = tokio::spawn(call(&t.channel, &info("test"), HANG, "").into_future());
    until("it hangs", || t.nodes.iter().any(|node| node.seen().hanging() == 1)).await;
    let Cluster { nodes, endpoints, channel } = t;
    drop(channel);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(nodes.iter().map(|node| node.core().connections().len()).sum::<usize>(), 2, "a call needs it");
    hanging.abort();
    until("all are closed", || nodes.iter().all(|node| node.core().connections().is_empty())).await;
    assert!(!endpoints.set(Vec::new()));
}

#[test]
fn outside_of_a_runtime_calls_fail_and_say_so() {
    let (channel, endpoints) = RawChannel::balanced("db", settings(BalancePolicy::RoundRobin));
    endpoints.set(Vec::new());
    let call = std::pin::pin!(call(&channel, &info("test"), ECHO, "x").into_future());
    let polled = call.poll(&mut TaskContext::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert!(error.message().contains("outside of a tokio runtime"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_its_calls_gets_none_for_a_while() {
    let t = cluster(settings(BalancePolicy::RoundRobin), 3);
    t.ready(3).await;
    let failing = |calls| {
        let (channel, info) = (t.channel.clone(), info("test"));
        async move {
            for _ in 0..calls {
                // It panics at all servers, so these are INTERNAL.
                call(&channel, &info, PANIC, "").await.unwrap_err();
            }
        }
    };
    // Four in a row each are too few, and a success between them makes them none.
    failing(12).await;
    assert_eq!(t.share(30).await, [10, 10, 10]);
    failing(13).await;
    t.ready(2).await;
    let states = t.channel.endpoints().unwrap().borrow().clone();
    let ejected: Vec<_> =
        states.iter().filter(|state| matches!(state.readiness, Readiness::Ejected)).collect();
    assert_eq!(ejected.len(), 1, "{states:?}");
    let share = t.share(30).await;
    assert_eq!((share.iter().min(), share.iter().max()), (Some(&0), Some(&15)), "{share:?}");
    // Not more than half of them, however many fail.
    failing(100).await;
    t.ready(2).await;
    // None of the others is about to be ejected.
    assert_eq!(t.share(2).await.iter().sum::<u32>(), 2);
    // It is tried again after ten seconds, a quarter more or less, and with its first failure is out for longer.
    tokio::time::sleep(Duration::from_secs(13)).await;
    t.ready(3).await;
    failing(3).await;
    t.ready(2).await;
    tokio::time::sleep(Duration::from_secs(13)).await;
    t.ready(2).await;
    tokio::time::sleep(Duration::from_secs(13)).await;
    t.ready(3).await;
    assert_eq!(t.share(30).await, [10, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_half_of_its_calls_gets_none_for_a_while() {
    for (percent, every, is_ejected) in [(50, 2, true), (50, 3, false), (33, 3, true), (0, 2, false)] {
        let mut settings = settings(BalancePolicy::RoundRobin);
        settings.balance.eject_percent = percent;
        let t = cluster(settings, 3);
        t.ready(3).await;
        // The next one is the first's.
        while t.share(1).await[2] == 0 {}
        let calls_of_the_first = async |calls: u32| {
            for n in 0..calls {
                let method = if n.is_multiple_of(every) { PANIC } else { ECHO };
                assert_eq!(call(&t.channel, &info("test"), method, "x").await.is_err(), method == PANIC);
                assert_eq!(t.share(2).await, [0, 1, 1]);
            }
        };
        // Nineteen are too few, and those of ten seconds ago do not count.
        calls_of_the_first(19).await;
        tokio::time::sleep(Duration::from_secs(11)).await;
        calls_of_the_first(19).await;
        t.ready(3).await;
        call(&t.channel, &info("test"), ECHO, "x").await.unwrap();
        t.share(2).await;
        call(&t.channel, &info("test"), PANIC, "x").await.unwrap_err();
        t.ready(if is_ejected { 2 } else { 3 }).await;
        if is_ejected {
            assert_eq!(t.share(30).await, [0, 15, 15]);
            tokio::time::sleep(Duration::from_secs(13)).await;
        }
        assert_eq!(t.share(60).await, [20, 20, 20], "it fails none any more");
    }
}

#[tokio::test(start_paused = true)]
async fn another_policy_counts_for_servers_that_are_connected() {
    let mut settings = settings(BalancePolicy::ByKey);
    let t = cluster(settings.clone(), 4);
    t.ready(4).await;
    let here = |index: usize| t.endpoint(index).locality(if index < 2 { "here" } else { "there" });
    t.endpoints.set((0..4).map(here).collect());
    let mut reconfigure = |change: fn(&mut Settings)| {
        change(&mut settings);
        t.channel.reconfigure(&settings.calls, &settings.retry, &settings.methods, &settings.balance);
    };
    reconfigure(|settings| settings.balance.policy = BalancePolicy::RoundRobin);
    assert_eq!(t.share(12).await, [3, 3, 3, 3]);
    reconfigure(|settings| settings.balance.locality = "there".into());
    assert_eq!(t.share(12).await, [0, 0, 6, 6]);
    reconfigure(|settings| settings.balance.eject_after = 1);
    call(&t.channel, &info("test"), PANIC, "").await.unwrap_err();
    t.ready(3).await;
}

#[tokio::test(start_paused = true)]
async fn attempts_beside_each_other_go_to_different_servers() {
    let mut settings = settings(BalancePolicy::RoundRobin);
    (settings.retry.max_attempts, settings.retry.hedging_delay_ms) = (3, 30);
    let t = cluster(settings, 3);
    t.ready(3).await;
    let began = Instant::now();
    let hangs = call(&t.channel, &info("test"), HANG, "").idempotent(true);
    let hangs = tokio::spawn(hangs.into_future());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(t.nodes.iter().map(|node| node.seen().hanging()).collect::<Vec<_>>(), [1, 1, 1]);
    hangs.abort();

    // So a silent server does not hold up a call.
    t.nodes[1].taps.lock().unwrap()[0].silence();
    for _ in 0..3 {
        call(&t.channel, &info("test"), ECHO, "x").idempotent(true).await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_subset_changes_by_one_server_when_one_comes_or_goes() {
    let mut settings = settings(BalancePolicy::RoundRobin);
    settings.balance.subset = 3;
    for _ in 0..20 {
        let t = cluster(settings.clone(), 10);
        let set = |servers: &[usize]| -> std::collections::BTreeSet<usize> {
            t.endpoints.set(servers.iter().map(|index| t.endpoint(*index)).collect());
            let states = t.channel.endpoints().unwrap().borrow().clone();
            states.iter().map(|state| state.name.trim_start_matches("db").parse().unwrap()).collect()
        };
        let all: Vec<_> = (0..10).collect();
        let chosen = set(&all);
        for gone in 0..10 {
            let others: Vec<_> = all.iter().copied().filter(|index| *index != gone).collect();
            let changed = set(&others);
            let stayed = chosen.intersection(&changed).count();
            assert_eq!(stayed, 3 - usize::from(chosen.contains(&gone)), "{gone}: {chosen:?}, {changed:?}");
            assert_eq!(set(&all), chosen, "it is back");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_does_not_balance_tells_the_state_of_its_connection() {
    let Cluster { nodes, .. } = cluster(settings(BalancePolicy::RoundRobin), 1);
    let channel = RawChannel::new(FirstOf(nodes.clone()), settings(BalancePolicy::First));
    let echo = || call(&channel, &info("test"), ECHO, "x").timeout(SHORT);
    let mut states = channel.endpoints().unwrap();
    assert_eq!(&*states.borrow()[0].name, "the first of several");
    assert!(matches!(states.borrow()[0].readiness, Readiness::Idle), "no call has needed it");
    echo().await.unwrap();
    states.wait_for(|states| matches!(states[0].readiness, Readiness::Ready)).await.unwrap();
    nodes[0].kill();
    states.wait_for(|states| matches!(states[0].readiness, Readiness::Idle)).await.unwrap();
    echo().await.unwrap_err();
    let failing =
        states.wait_for(|states| matches!(states[0].readiness, Readiness::Failing(_))).await.unwrap();
    let next = failing[0].next_attempt.unwrap();
    drop(failing);
    assert!(next > Instant::now());
    nodes[0].start();
    tokio::time::sleep_until(next).await;
    echo().await.unwrap();
    let ready =
        states.wait_for(|states| matches!(states[0].readiness, Readiness::Ready)).await.unwrap().clone();
    assert_eq!(ready[0].next_attempt, None);

    let tap = nodes[0].taps.lock().unwrap().last().unwrap().clone();
    tap.take(0);
    echo().await.unwrap_err();
    states.wait_for(|states| matches!(states[0].readiness, Readiness::Suspected)).await.unwrap();
    tap.take(usize::MAX);
    states.wait_for(|states| matches!(states[0].readiness, Readiness::Ready)).await.unwrap();
    drop(channel);
    while states.changed().await.is_ok() {}
}
