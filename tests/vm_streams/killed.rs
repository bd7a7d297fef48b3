//! Peers that are killed amid streams.

use std::future::pending;
use std::sync::Arc;

use farcall::{Code, Executed};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::flow::{ENDLESS, Log, Plan, cut_short, take, until};
use super::process::{Process, say, told};
use super::{ALONE, BOTH, LENGTHS, PATIENCE, config, connect, memory_is_back, name, serve};

/// Not a test by itself: a server in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_server() {
    if let Some(policy) = told() {
        let policy = policy.parse().unwrap();
        let (address, _server) = serve(&Log::default(), config(policy)).await;
        say(&address);
        pending::<()>().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_cuts_its_streams_short() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let mut server = Process::start("killed::part_server", name(policy));
        let (flow, near) = connect(&server.said(), config(policy)).await;
        let mut calls = JoinSet::new();
        let begun = Arc::new(Semaphore::new(0));
        for (id, len) in (0..).zip(LENGTHS) {
            let plan = Plan { id, len, count: ENDLESS };
            let streams = [flow.watch(plan).await.unwrap(), flow.back(plan, plan.items()).await.unwrap()];
            for mut stream in streams {
                let begun = begun.clone();
                calls.spawn(async move {
                    take(plan, 1, &mut stream).await.unwrap();
                    begun.add_permits(1);
                    cut_short(plan, 1, &mut stream).await
                });
            }
            let load = flow.load(plan, plan.items());
            calls.spawn(async move { load.await.unwrap_err() });
        }
        let _begun = begun.acquire_many(2 * LENGTHS.len() as u32).await.unwrap();
        server.kill().await;
        while let Some(error) = calls.join_next().await {
            let error = error.unwrap();
            assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
        }
        drop((flow, near));
        memory_is_back().await;
    }
}

/// Not a test by itself: a client in a process of its own, all of whose streams go on for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_client() {
    if let Some((policy, address)) = told().as_deref().and_then(|told| told.split_once(' ')) {
        let (flow, _near) = connect(address, config(policy.parse().unwrap())).await;
        let mut streams = Vec::new();
        for (id, len) in (0..).zip(LENGTHS) {
            let plan = |id| Plan { id, len, count: ENDLESS };
            let (load, later) = (plan(10 + id), plan(20 + id));
            tokio::spawn(flow.load(load, load.items()).into_future());
            tokio::spawn(flow.later(later, later.items()).into_future());
            for (id, mut stream) in [
                (30 + id, flow.watch(plan(30 + id)).await.unwrap()),
                (40 + id, flow.back(plan(40 + id), plan(40 + id).items()).await.unwrap()),
            ] {
                take(plan(id), 3, &mut stream).await.unwrap();
                streams.push(stream);
            }
        }
        say("under way");
        pending::<()>().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_killed_leaves_no_handler_and_no_stream_that_looks_whole() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let log = Log::default();
        let (address, server) = serve(&log, config(policy)).await;
        let mut client = Process::start("killed::part_client", &format!("{} {address}", name(policy)));
        assert_eq!(client.said(), "under way");
        let ids: Vec<u64> = (10..50).step_by(10).flat_map(|kind| (0..3).map(move |id| kind + id)).collect();
        until("all streams are at work", PATIENCE, || ids.iter().all(|&id| log.went(id).runs == 1)).await;
        client.kill().await;
        until("all handlers are gone", PATIENCE, || log.running() == 0).await;
        for id in ids {
            let went = log.went(id);
            assert!(went.cut && !went.whole, "stream {id}: {went:?}");
        }
        until("the connection is gone", PATIENCE, || server.connections().is_empty()).await;
        memory_is_back().await;
    }
}
