//! Calls and streams of all kinds that are given up at random points.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use farcall::{Bytes, Code, Status};
use fastrand::Rng;
use tokio::task::JoinSet;

use super::{ENDLESS, FlowClient, Log, Plan, stream_whole, take, until};

/// So many callers at once, each with one call after the other.
const CALLERS: u64 = 64;

/// How long items are: most are short, and some of them do not fit into a frame or are read by the peer.
const LENGTHS: [u32; 8] = [0, 10, 10, 300, 300, 1000, 9000, 40_000];

/// Makes so many calls, and then sees that no handler is left. Returns how many of the calls were given up.
pub(crate) async fn storm(flow: &FlowClient, log: &Log, seed: u64, calls: u64, patience: Duration) -> u64 {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (flow, mut rng) = (flow.clone(), Rng::with_seed(seed.wrapping_add(caller)));
        callers.spawn(async move {
            let mut given_up = 0;
            for call in 0..calls / CALLERS {
                let one = tokio::time::timeout(patience, one_call(&flow, caller, &mut rng));
                let whole =
                    one.await.unwrap_or_else(|_| panic!("call {call} of {caller} hangs, seed {seed}"));
                given_up += u64::from(!whole);
            }
            given_up
        });
    }
    let mut given_up = 0;
    while let Some(caller) = callers.join_next().await {
        given_up += caller.unwrap();
    }
    until("all handlers are gone", patience, || log.running() == 0).await;
    given_up
}

/// A call, and whether its caller has waited for its end.
async fn one_call(flow: &FlowClient, id: u64, rng: &mut Rng) -> bool {
    let few = Plan { id, len: LENGTHS[rng.usize(..LENGTHS.len())], count: rng.u64(..20) };
    let endless = Plan { count: ENDLESS, ..few };
    type Call = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;
    let (flow, kind) = (flow.clone(), rng.u8(..7));
    let deadline = rng.u8(..8) == 0;
    let limit = if deadline { Duration::from_micros(rng.u64(..5000)) } else { Duration::from_secs(3600) };
    let call: Call = match kind {
        0 => Box::pin(async move {
            let content = Bytes::from(vec![7; few.len as usize]);
            let echoed = flow.echo(content.clone()).timeout(limit).await?;
            assert!(echoed == content);
            Ok(())
        }),
        1 => Box::pin(async move { stream_whole(&flow, few).await }),
        2 => Box::pin(async move {
            let mut watched = flow.watch(endless).timeout(limit).await?;
            take(endless, few.count, &mut watched).await
        }),
        3 => Box::pin(async move {
            let mut back = flow.back(endless, endless.items()).timeout(limit).await?;
            take(endless, few.count, &mut back).await
        }),
        4 => Box::pin(async move {
            let stream = flow.later(endless, endless.items()).timeout(limit).await?;
            drop(stream);
            Ok(())
        }),
        5 => Box::pin(async move { flow.taste(few, endless.items()).timeout(limit).await }),
        _ => Box::pin(async move { flow.load(endless, endless.items()).timeout(limit).await.map(drop) }),
    };
    // Those of the last three kinds that have no deadline end in no other way.
    let waits = (kind < 4 || deadline) && rng.u8(..3) == 0;
    let turns = [rng.u32(..3), rng.u32(..30), rng.u32(..300)][rng.usize(..3)];
    let gives_up = async {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        if waits {
            pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        ended = call => {
            if let Err(status) = ended {
                assert!(deadline && status.code() == Code::DeadlineExceeded, "a call of kind {kind}: {status}");
            }
            true
        }
        () = gives_up => false,
    }
}
