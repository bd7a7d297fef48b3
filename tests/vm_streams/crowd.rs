//! Many streams at once, some of which stand still.

use farcall::Bytes;
use tokio::task::JoinSet;

use super::flow::storm::storm;
use super::flow::{ENDLESS, Plan, stream_whole, take};
use super::{ALONE, BOTH, Ends, LENGTHS, PATIENCE, PLANS, config, endless};

fn is_long() -> bool {
    std::env::var_os("FARCALL_LONG").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_nobody_reads_stops_and_holds_up_nobody() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        let mut stalled = Vec::new();
        for len in LENGTHS.into_iter().cycle().take(12) {
            let plan = Plan { id: 0, len, count: ENDLESS };
            let (items, _) = endless(plan);
            stalled.push((
                plan,
                ends.flow.watch(plan).await.unwrap(),
                ends.flow.back(plan, items).await.unwrap(),
            ));
        }
        for (len, count) in PLANS.into_iter().take(9) {
            let content = Bytes::from(vec![7; len as usize]);
            assert!(ends.flow.echo(content.clone()).await.unwrap() == content);
            for id in 0..4 {
                stream_whole(&ends.flow, Plan { id, len, count: count.min(20) }).await.unwrap();
            }
        }
        // Items that had come, or could not come, are there for a reader after all.
        for (plan, watched, back) in &mut stalled {
            take(*plan, 5, watched).await.unwrap();
            take(*plan, 5, back).await.unwrap();
        }
        drop(stalled);
        ends.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_and_as_many_long_calls_share_a_connection() {
    let _alone = ALONE.lock().await;
    // Without RDMA a thousand are at once in each run of the tests.
    let many = if is_long() { 1000 } else { 100 };
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        let mut calls = JoinSet::new();
        for id in 0..many {
            let flow = ends.flow.clone();
            calls.spawn(async move {
                let (len, count) = [(10, 200), (1000, 30), (9000, 10), (100_000, 3)][id as usize / 4 % 4];
                let plan = Plan { id, len, count };
                let whole = tokio::time::timeout(PATIENCE, stream_whole(&flow, plan));
                whole.await.unwrap_or_else(|_| panic!("{plan:?} hangs")).unwrap();
            });
            let flow = ends.flow.clone();
            calls.spawn(async move {
                let content = Bytes::from(vec![id as u8; 20_000 + 50 * id as usize]);
                let echoed = tokio::time::timeout(PATIENCE, flow.echo(content.clone()));
                assert!(echoed.await.expect("a call hangs").unwrap() == content);
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
        println!("{policy:?}: up to {} handlers with streams at once", ends.log.most());
        ends.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_given_up_at_random_points_leave_nothing() {
    let _alone = ALONE.lock().await;
    let calls = if is_long() { 50_000 } else { 400 };
    for policy in BOTH {
        let mut config = config(policy);
        config.limits.concurrent_calls = 24;
        // So that what is lost is missed soon.
        config.rdma.memory = farcall_rdma::RdmaConfig::LEAST_MEMORY;
        config.rdma.bulk_memory = 16 << 20;
        let ends = Ends::new(config).await;
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let given_up = storm(&ends.flow, &ends.log, seed, calls, PATIENCE).await;
        println!("{policy:?}: {given_up} of {calls} given up; {} handlers at once, at most", ends.log.most());
        ends.nothing_is_left().await;
        let whole = Plan { id: 2, len: 100_000, count: 20 };
        stream_whole(&ends.flow, whole).await.unwrap();
        ends.nothing_is_left().await;
    }
}
