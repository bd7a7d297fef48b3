//! The outcomes of calls while connections die, compared with the journal that the server has kept.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::config::Policy;
use farcall_core::status::{Executed, Result};
use farcall_core::transport::Link;

use support::fabric::{Fabric, with_fabric};
use support::{NOTE, Setup, default, until};

const CALLS: usize = 10_000;
const CALLERS: usize = 16;

/// The average number of calls between two deaths of a connection.
const LIFE: usize = 60;

/// Returns a call's argument: its number, in a length that depends on it. Every seventh argument goes in fragments.
fn argument(id: usize) -> Bytes {
    let len = if id.is_multiple_of(7) { 150_000 } else { 16 + id % 500 };
    let mut argument = vec![0; len];
    argument[..8].copy_from_slice(&(id as u64).to_le_bytes());
    argument.into()
}

fn id(argument: &Bytes) -> usize {
    u64::from_le_bytes(argument[..8].try_into().unwrap()) as usize
}

/// Makes calls, each with its own number, and returns their outcomes. A call that was certainly not executed is made
/// again.
async fn make_calls(t: Arc<Setup>, begun: Arc<AtomicUsize>) -> Vec<(usize, Result<Bytes>)> {
    let mut outcomes = Vec::new();
    let mut id = begun.fetch_add(1, Ordering::Relaxed);
    while id < CALLS {
        let outcome = t.call(NOTE, argument(id)).timeout(Duration::from_secs(60)).await;
        let again = outcome.as_ref().is_err_and(|status| status.executed() == Executed::No);
        outcomes.push((id, outcome));
        if again {
            // The pause before the next attempt to connect.
            tokio::time::sleep(Duration::from_millis(2)).await;
        } else {
            id = begun.fetch_add(1, Ordering::Relaxed);
        }
    }
    outcomes
}

/// Kills connections in several ways until `done`.
async fn kill(t: Arc<Setup>, begun: Arc<AtomicUsize>, done: Arc<AtomicBool>) {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut next = LIFE;
    while !done.load(Ordering::Relaxed) {
        if begun.load(Ordering::Relaxed) < next {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        next = begun.load(Ordering::Relaxed) + rng.usize(1..2 * LIFE);
        let tap = t.tap();
        match rng.u32(..4) {
            // Frames on their way still arrive, in one direction at least.
            0 => tap.cut(),
            1 => tap.close(),
            // Requests are lost and answers are not, or the other way round.
            2 => tap.deaf.store(true, Ordering::Relaxed),
            _ => tap.mute.store(true, Ordering::Relaxed),
        }
        if rng.bool() {
            tokio::task::yield_now().await;
        }
        tap.cut();
    }
}

async fn every_outcome_agrees_with_the_journal(t: Setup) {
    let t = Arc::new(t);
    let (begun, done) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    t.caller.connection().await.unwrap();
    let callers: Vec<_> = (0..CALLERS).map(|_| tokio::spawn(make_calls(t.clone(), begun.clone()))).collect();
    let killer = tokio::spawn(kill(t.clone(), begun, done.clone()));
    let mut outcomes = Vec::new();
    for caller in callers {
        outcomes.extend(caller.await.unwrap());
    }
    done.store(true, Ordering::Relaxed);
    killer.await.unwrap();
    t.tap().cut();
    until("no session is left", || t.host.connections().is_empty()).await;

    let mut journal = HashMap::new();
    for note in t.seen.notes.lock().unwrap().iter() {
        *journal.entry(id(note)).or_insert(0) += 1;
    }
    let mut last = HashMap::new();
    // The last outcome of each call. All earlier ones were "certainly not executed".
    for (id, outcome) in &outcomes {
        last.insert(*id, outcome);
    }
    assert_eq!(last.len(), CALLS, "each call has an outcome");
    let (mut answered, mut unknown) = (0, 0);
    for (id, outcome) in last {
        let executions = journal.get(&id).copied().unwrap_or(0);
        match outcome {
            Ok(answer) => {
                assert_eq!(*answer, argument(id));
                assert_eq!(executions, 1, "call {id}");
                answered += 1;
            }
            Err(status) => {
                assert_eq!(status.executed(), Executed::Maybe, "call {id}: {status}");
                assert!(executions <= 1, "call {id} was executed {executions} times");
                unknown += 1;
            }
        }
    }
    assert!(answered > CALLS / 2 && unknown > 20, "{answered}, {unknown}: too easy to show anything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_one_link() {
    every_outcome_agrees_with_the_journal(default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_upgraded_link() {
    let fabric = Arc::new(Fabric::default());
    let t = with_fabric(&fabric, Policy::Auto);
    let stop = Arc::new(AtomicBool::new(false));
    // Upgraded links die even more often, and on their own.
    let killer = tokio::spawn({
        let (fabric, stop) = (fabric.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                let link = fabric.links.lock().unwrap().pop();
                if let Some(link) = link {
                    link.cut();
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
    });
    every_outcome_agrees_with_the_journal(t).await;
    stop.store(true, Ordering::Relaxed);
    killer.await.unwrap();
}
