//! The room for the arguments of calls, where one of several servers is slow.

use std::time::Duration;

use farcall_core::config::BalancePolicy;
use farcall_core::status::{Code, Executed, Status};

use super::support::{ECHO, call, info};
use super::{Cluster, cluster, settings};

/// Makes so many calls with 8 KiB of arguments, one after the other. Returns how many are not answered, and the first failure.
async fn make(t: &Cluster, calls: u8) -> (usize, Option<Status>) {
    let (mut waiting, mut failure) = (0, None);
    for key in 0..calls {
        let made = call(&t.channel, &info("test"), ECHO, vec![7; 8 << 10]).key([key]).wait_for_room(false);
        let made = tokio::spawn(made.into_future());
        tokio::time::sleep(Duration::from_millis(1)).await;
        if !made.is_finished() {
            waiting += 1;
        } else if let Err(status) = made.await.unwrap() {
            failure = failure.or(Some(status));
        }
    }
    (waiting, failure)
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_does_not_use_up_the_room_of_the_others() {
    for policy in [BalancePolicy::RoundRobin, BalancePolicy::LeastLoaded, BalancePolicy::ByKey] {
        let mut settings = settings(policy);
        settings.limits.request_memory = 64 << 10;
        let t = cluster(settings, 3);
        t.ready(3).await;
        let silence = |node: usize| t.nodes[node].taps.lock().unwrap().iter().for_each(|tap| tap.silence());
        silence(0);
        let (waiting, failure) = make(&t, 100).await;
        assert!((1..=2).contains(&waiting) && failure.is_none(), "{policy:?}: {waiting}, {failure:?}");
        // Where all are slow, they have all of the room.
        silence(1);
        silence(2);
        let (more, failure) = make(&t, 20).await;
        assert_eq!(waiting + more, 8, "{policy:?}");
        let failure = failure.unwrap();
        assert_eq!(
            (failure.code(), failure.executed()),
            (Code::ResourceExhausted, Executed::No),
            "{failure}"
        );
    }
}
