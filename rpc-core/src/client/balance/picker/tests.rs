use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use tokio::runtime::Handle;

use super::super::Endpoint;
use super::super::member::Picked;
use super::*;
use crate::class::TrafficClass;
use crate::client::Connector;
use crate::config::{Limits, Liveness};
use crate::settings::Settings;
use crate::status::{Code, Status};
use crate::transport::{BoxFuture, Link, Reason, Unavailable};

struct Nowhere;

impl Connector for Nowhere {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        Box::pin(std::future::pending())
    }

    fn target(&self) -> String {
        "nowhere".into()
    }
}

/// Returns members with these weights, named by their index.
fn members(weights: &[u32]) -> Vec<Arc<Member>> {
    let why = Unavailable::new(Reason::Disabled, "");
    let settings = Arc::new(Settings::plain(Limits::default(), Liveness::default(), why));
    let endpoint =
        |(index, weight): (usize, &u32)| Endpoint::new(&index.to_string(), Arc::new(Nowhere)).weight(*weight);
    let endpoints = weights.iter().enumerate().map(endpoint);
    endpoints.map(|endpoint| Member::new(endpoint, &settings, &Handle::current(), &Weak::new())).collect()
}

/// Returns a picker of members that are all there are.
fn picker(policy: BalancePolicy, members: Vec<Arc<Member>>) -> Picker {
    Picker::new(policy, members.clone(), &members, None, 0)
}

fn has_room(_: &Member) -> bool {
    false
}

/// Returns how many of the calls each member gets.
fn shares(picker: &Picker, calls: u32, takes: impl Fn(&Member) -> bool + Copy) -> Vec<u32> {
    let mut shares = HashMap::new();
    for _ in 0..calls {
        *shares
            .entry(
                picker
                    .pick(None, Some(Instant::now()), None, has_room, |member| takes(member).then_some(()))
                    .unwrap()
                    .0
                    .name
                    .as_ref()
                    .to_owned(),
            )
            .or_insert(0) += 1;
    }
    (0..picker.ready.len()).map(|index| shares.remove(&index.to_string()).unwrap_or(0)).collect()
}

#[tokio::test]
async fn round_robin_goes_by_weight_and_passes_over_the_dead() {
    let even = picker(BalancePolicy::RoundRobin, members(&[1, 1, 1]));
    assert_eq!(shares(&even, 300, |_| true), [100, 100, 100]);
    assert_eq!(shares(&even, 300, |member| member.name.as_ref() != "1"), [100, 0, 200]);
    let weighted = picker(BalancePolicy::RoundRobin, members(&[3, 1, 2]));
    assert_eq!(shares(&weighted, 600, |_| true), [300, 100, 200]);
    // No run of one member is longer than it must be.
    let turns: Vec<_> = (0..18).map(|_| shares(&weighted, 1, |_| true)).collect();
    assert!(turns.windows(3).all(|run| run.iter().any(|turn| *turn != run[0])), "{turns:?}");
    let huge = picker(BalancePolicy::RoundRobin, members(&[u32::MAX, 1]));
    assert_eq!(shares(&huge, 101, |_| true), [100, 1]);
    assert!(even.pick(None, Some(Instant::now()), None, has_room, |_| None::<()>).is_none());
    assert!(Picker::default().pick(None, Some(Instant::now()), None, has_room, |_| Some(())).is_none());
}

#[tokio::test]
async fn the_server_that_failed_comes_last() {
    for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded, BalancePolicy::ByKey] {
        let members = members(&[1, 1]);
        let picker = picker(policy, members.clone());
        for key in 0..100 {
            let picked = picker
                .pick(Some(key), Some(Instant::now()), Some(&members[0]), has_room, |_| Some(()))
                .unwrap()
                .0;
            assert_eq!(picked.name.as_ref(), "1", "{policy:?}");
        }
        let only = picker
            .pick(Some(1), None, Some(&members[0]), has_room, |m| (m.name.as_ref() == "0").then_some(()))
            .unwrap()
            .0;
        assert_eq!(only.name.as_ref(), "0", "it is better than none");
    }
}

#[tokio::test]
async fn a_key_stays_where_it_is_when_others_come_and_go() {
    let all = members(&[1; 10]);
    let (ten, nine) = (
        Picker::new(BalancePolicy::ByKey, all.clone(), &all, None, 0),
        Picker::new(BalancePolicy::ByKey, all[..9].to_vec(), &all, None, 0),
    );
    let mut counts = [0; 10];
    let mut moved = 0;
    for key in 0..10_000 {
        let name = |picker: &Picker| -> usize {
            picker
                .pick(Some(key), None, None, has_room, |_| Some(()))
                .unwrap()
                .0
                .name
                .as_ref()
                .parse()
                .unwrap()
        };
        let (before, after) = (name(&ten), name(&nine));
        counts[before] += 1;
        assert!(before == after || before == 9, "key {key} moved from {before} to {after}");
        moved += usize::from(before != after);
        // A member that is not connected hands its keys on, and gets them back.
        let others = |member: &Member| (member.name.as_ref() != before.to_string()).then_some(());
        let (beside, ()) = ten.pick(Some(key), None, None, has_room, others).unwrap();
        assert_ne!(beside.name.as_ref(), before.to_string());
    }
    assert_eq!(moved, counts[9]);
    assert!(counts.iter().all(|count| (700..1300).contains(count)), "{counts:?}");
}

#[tokio::test]
async fn a_key_stays_where_it_is_when_the_heaviest_is_lost() {
    let all = members(&[2, 2, 3]);
    let (three, two) = (
        Picker::new(BalancePolicy::ByKey, all.clone(), &all, None, 0),
        Picker::new(BalancePolicy::ByKey, all[..2].to_vec(), &all, None, 0),
    );
    for key in 0..1000 {
        let name = |picker: &Picker| {
            picker.pick(Some(key), None, None, has_room, |_| Some(())).unwrap().0.name.as_ref().to_owned()
        };
        let before = name(&three);
        assert!(*before == *"2" || before == name(&two), "key {key} moved");
    }
}

/// Returns the member of each of many keys.
fn owners(picker: &Picker) -> Vec<String> {
    let owner =
        |key| picker.pick(Some(key), None, None, has_room, |_| Some(())).unwrap().0.name.as_ref().to_owned();
    (0..20_000).map(owner).collect()
}

#[tokio::test]
async fn the_ring_of_a_thousand_members_is_bounded_and_made_for_other_members_only() {
    let weight = |index: u32| 1 + index % 100;
    let all = members(&(0..1001).map(weight).collect::<Vec<_>>());
    let most = &all[..1000];
    let picker = |ready: &[_], all: &[_], before: &Option<_>| {
        Picker::new(BalancePolicy::ByKey, ready.to_vec(), all, before.clone(), 0)
    };
    let before = picker(most, most, &None);
    let ring = before.ring();
    // Each has at least a point, so there are up to as many more as there are members.
    let points = ring.as_ref().unwrap().len();
    assert!((60_000..66_600).contains(&points), "{points}");

    // One that is not ready leaves the ring as it is, and its own keys move alone.
    let without = picker(&most[1..], most, &ring);
    assert!(Arc::ptr_eq(&without.ring().unwrap(), ring.as_ref().unwrap()));
    let moved = owners(&before).into_iter().zip(owners(&without)).filter(|(old, new)| old != new);
    assert!(moved.into_iter().all(|(old, _)| old == "0"));

    // Another member makes another ring, where few keys move: its own, and a point of some members.
    let with = picker(&all, &all, &ring);
    let (old, new) = (owners(&before), owners(&with));
    let moved = old.iter().zip(&new).filter(|(old, new)| old != new).count();
    assert!(moved < 20_000 / 50, "{moved}");

    // Shares follow the weights.
    let share = |heavy: bool| {
        let is_so = |name: &&String| (weight(name.parse().unwrap()) > 50) == heavy;
        old.iter().filter(is_so).count() as f64
    };
    let ratio = share(true) / share(false);
    assert!((2.6..3.3).contains(&ratio), "{ratio}, for 3775 to 1275");
}

#[tokio::test]
async fn keys_and_loads_are_shared_by_weight() {
    // Several of each weight, because the shares of keys differ by a tenth.
    let weights = [1, 2, 4];
    let all: Vec<u32> = (0..15).map(|index| weights[index % 3]).collect();
    let kind = |name: &str| name.parse::<usize>().unwrap() % 3;
    let by_key = picker(BalancePolicy::ByKey, members(&all));
    let mut keys = [0_u32; 3];
    owners(&by_key).iter().for_each(|name| keys[kind(name)] += 1);
    let least_loaded = picker(BalancePolicy::LeastLoaded, members(&all));
    // With all calls in progress, each has as many as its weight says.
    let mut loads = [0_u32; 3];
    let mut calls = Vec::new();
    for _ in 0..7000 {
        let now = Some(Instant::now());
        let (member, ()) = least_loaded.pick(None, now, None, has_room, |_| Some(())).unwrap();
        loads[kind(member.name.as_ref())] += 1;
        calls.push(Picked::new(member.clone(), now, TrafficClass::Normal));
    }
    for shares in [keys, loads] {
        let all: u32 = shares.iter().sum();
        for (share, weight) in shares.iter().zip(weights) {
            let part = f64::from(*share) / f64::from(all) * 7.0 / f64::from(weight);
            assert!((0.8..1.2).contains(&part), "{shares:?}");
        }
    }
}

/// Attempts are given up by hedging, and by a caller's own timeout.
#[tokio::test(start_paused = true)]
async fn a_server_whose_attempts_are_given_up_is_avoided() {
    let all = members(&[1, 1, 1]);
    let picker = picker(BalancePolicy::LeastLoaded, all.clone());
    let attempt = async |at: usize, millis| {
        let call = Picked::new(all[at].clone(), Some(Instant::now()), TrafficClass::Normal);
        tokio::time::advance(Duration::from_millis(millis)).await;
        call
    };
    for at in [1, 2] {
        attempt(at, 1).await.ended(None);
    }
    drop(attempt(0, 50).await);
    let share = shares(&picker, 3000, |_| true);
    assert!(share[0] < 10 && share[1] > 1000 && share[2] > 1000, "{share:?}");

    // One that fails at once does not seem fast.
    attempt(1, 50).await.ended(None);
    for _ in 0..50 {
        attempt(1, 1).await.ended(Some(&Status::new(Code::NotFound, "nothing")));
    }
    let share = shares(&picker, 3000, |_| true);
    assert!(share[1] < share[2] / 4, "{share:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_go_where_there_is_less_to_do() {
    let all = members(&[1, 1, 1]);
    let picker = picker(BalancePolicy::LeastLoaded, all.clone());
    // Calls in progress weigh as much as slow ones.
    let _busy: Vec<_> =
        (0..9).map(|_| Picked::new(all[0].clone(), Some(Instant::now()), TrafficClass::Normal)).collect();
    for member in &all {
        let call = Picked::new(member.clone(), Some(Instant::now()), TrafficClass::Normal);
        tokio::time::advance(Duration::from_millis(1)).await;
        call.ended(None);
    }
    let share = shares(&picker, 3000, |_| true);
    assert!(share[0] < 10 && share[1] > 1000 && share[2] > 1000, "{share:?}");

    // One slow call is enough, and it is forgotten while others are called.
    let slow = Picked::new(all[1].clone(), Some(Instant::now()), TrafficClass::Normal);
    tokio::time::advance(Duration::from_millis(100)).await;
    slow.ended(None);
    let share = shares(&picker, 3000, |_| true);
    assert!(share[1] < share[2] / 4, "{share:?}");
    for _ in 0..70 {
        let call = Picked::new(all[2].clone(), Some(Instant::now()), TrafficClass::Normal);
        tokio::time::advance(Duration::from_millis(1)).await;
        call.ended(None);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let share = shares(&picker, 3000, |_| true);
    assert!(share[1] > 1000, "{share:?}");
}

#[tokio::test(start_paused = true)]
async fn full_members_get_calls_in_turn_if_all_are_full_and_before_one_where_the_call_has_failed() {
    for count in [2, 3, 4] {
        let all = members(&vec![1; count]);
        for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded, BalancePolicy::ByKey] {
            let picker = picker(policy, all.clone());
            let pick = |avoid, key, is_full: &dyn Fn(&Member) -> bool| {
                picker.pick(Some(key), Some(Instant::now()), avoid, is_full, |_| Some(())).unwrap().0
            };
            let is_first = |member: &Member| std::ptr::eq(member, &*all[0]);
            let mut at_first = 0;
            for key in 0..100 {
                assert!(!is_first(pick(None, key, &is_first)), "{policy:?}: others have room");
                assert!(is_first(pick(None, key, &|member| !is_first(member))), "{policy:?}: it has room");
                assert!(
                    !is_first(pick(Some(&all[0]), key, &|_| true)),
                    "{policy:?}: the call has failed there"
                );
                assert!(!is_first(pick(Some(&all[0]), key, &|member| !is_first(member))), "{policy:?}");
                at_first += usize::from(is_first(pick(None, key, &|_| true)));
            }
            let share = 100 / count;
            assert!((share / 3..100 - share / 3).contains(&at_first), "{policy:?} of {count}: {at_first}");
        }
    }
}

#[tokio::test]
async fn turns_go_on_when_members_come_and_go() {
    let all = members(&[1, 1, 1]);
    let mut picker = Picker::beginning_with(7);
    let mut shares_of_all = [0; 3];
    for _ in 0..30 {
        picker = Picker::new(BalancePolicy::RoundRobin, all.clone(), &all, picker.ring(), picker.turns());
        shares(&picker, 1, |_| true).iter().zip(&mut shares_of_all).for_each(|(share, all)| *all += share);
    }
    assert_eq!(shares_of_all, [10; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_before_the_next_attempt_is_not_the_time_of_a_server() {
    let all = members(&[1, 1]);
    let picker = picker(BalancePolicy::LeastLoaded, all.clone());
    let mut failed = None;
    for member in &all {
        let mut call = Picked::new(member.clone(), Some(Instant::now()), TrafficClass::Normal);
        tokio::time::advance(Duration::from_millis(1)).await;
        if failed.is_none() {
            call.failed(&Status::new(Code::Unavailable, "not now"));
            failed = Some(call);
        } else {
            call.ended(None);
        }
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    drop(failed);
    for member in &all {
        let call = Picked::new(member.clone(), Some(Instant::now()), TrafficClass::Normal);
        tokio::time::advance(Duration::from_millis(1)).await;
        call.ended(None);
    }
    let share = shares(&picker, 1000, |_| true);
    assert!(share[0] > 300, "{share:?}");
}
