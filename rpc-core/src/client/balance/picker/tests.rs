use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use tokio::runtime::Handle;

use super::super::Endpoint;
use super::super::member::Picked;
use super::*;
use crate::client::Connector;
use crate::config::{Limits, Liveness};
use crate::settings::Settings;
use crate::status::Status;
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
    Picker::new(policy, members.clone(), &members)
}

/// Returns how many of the calls each member gets.
fn shares(picker: &Picker, calls: u32, takes: impl Fn(&Member) -> bool + Copy) -> Vec<u32> {
    let mut shares = HashMap::new();
    for _ in 0..calls {
        *shares
            .entry(
                picker
                    .pick(None, Some(Instant::now()), None, |member| takes(member).then_some(()))
                    .unwrap()
                    .0
                    .name()
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
    assert_eq!(shares(&even, 300, |member| member.name() != "1"), [100, 0, 200]);
    let weighted = picker(BalancePolicy::RoundRobin, members(&[3, 1, 2]));
    assert_eq!(shares(&weighted, 600, |_| true), [300, 100, 200]);
    // No run of one member is longer than it must be.
    let Order::Weighted(turns) = &weighted.order else { panic!("{weighted:?}") };
    assert_eq!(turns.len(), 6);
    assert!(turns.windows(3).all(|run| run.iter().any(|turn| *turn != run[0])), "{turns:?}");
    let huge = picker(BalancePolicy::RoundRobin, members(&[u32::MAX, 1]));
    assert_eq!(shares(&huge, 101, |_| true), [100, 1]);
    assert!(even.pick(None, Some(Instant::now()), None, |_| None::<()>).is_none());
    assert!(Picker::default().pick(None, Some(Instant::now()), None, |_| Some(())).is_none());
}

#[tokio::test]
async fn the_server_that_failed_comes_last() {
    for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded, BalancePolicy::ByKey] {
        let members = members(&[1, 1]);
        let picker = picker(policy, members.clone());
        for key in 0..100 {
            let picked =
                picker.pick(Some(key), Some(Instant::now()), Some(&members[0]), |_| Some(())).unwrap().0;
            assert_eq!(picked.name(), "1", "{policy:?}");
        }
        let only =
            picker.pick(Some(1), None, Some(&members[0]), |m| (m.name() == "0").then_some(())).unwrap().0;
        assert_eq!(only.name(), "0", "it is better than none");
    }
}

#[tokio::test]
async fn a_key_stays_where_it_is_when_others_come_and_go() {
    let all = members(&[1; 10]);
    let (ten, nine) = (
        Picker::new(BalancePolicy::ByKey, all.clone(), &all),
        Picker::new(BalancePolicy::ByKey, all[..9].to_vec(), &all),
    );
    let mut counts = [0; 10];
    let mut moved = 0;
    for key in 0..10_000 {
        let name = |picker: &Picker| -> usize {
            picker.pick(Some(key), None, None, |_| Some(())).unwrap().0.name().parse().unwrap()
        };
        let (before, after) = (name(&ten), name(&nine));
        counts[before] += 1;
        assert!(before == after || before == 9, "key {key} moved from {before} to {after}");
        moved += usize::from(before != after);
        // A member that is not connected hands its keys on, and gets them back.
        let others = |member: &Member| (member.name() != before.to_string()).then_some(());
        let (beside, ()) = ten.pick(Some(key), None, None, others).unwrap();
        assert_ne!(beside.name(), before.to_string());
    }
    assert_eq!(moved, counts[9]);
    assert!(counts.iter().all(|count| (700..1300).contains(count)), "{counts:?}");
}

#[tokio::test]
async fn a_key_stays_where_it_is_when_the_heaviest_is_lost() {
    let all = members(&[2, 2, 3]);
    let (three, two) = (
        Picker::new(BalancePolicy::ByKey, all.clone(), &all),
        Picker::new(BalancePolicy::ByKey, all[..2].to_vec(), &all),
    );
    for key in 0..1000 {
        let name =
            |picker: &Picker| picker.pick(Some(key), None, None, |_| Some(())).unwrap().0.name().to_owned();
        let before = name(&three);
        assert!(*before == *"2" || before == name(&two), "key {key} moved");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_go_where_there_is_less_to_do() {
    let all = members(&[1, 1, 1]);
    let picker = picker(BalancePolicy::LeastLoaded, all.clone());
    // Calls in progress weigh as much as slow ones.
    let _busy: Vec<_> = (0..9).map(|_| Picked::new(all[0].clone(), Some(Instant::now()))).collect();
    for member in &all {
        let call = Picked::new(member.clone(), Some(Instant::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        call.ended(None);
    }
    let share = shares(&picker, 3000, |_| true);
    assert!(share[0] < 10 && share[1] > 1000 && share[2] > 1000, "{share:?}");

    // One slow call is enough, and it is forgotten while others are called.
    let slow = Picked::new(all[1].clone(), Some(Instant::now()));
    tokio::time::advance(Duration::from_millis(100)).await;
    slow.ended(None);
    let share = shares(&picker, 3000, |_| true);
    assert!(share[1] < share[2] / 4, "{share:?}");
    for _ in 0..70 {
        let call = Picked::new(all[2].clone(), Some(Instant::now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        call.ended(None);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let share = shares(&picker, 3000, |_| true);
    assert!(share[1] > 1000, "{share:?}");
}
