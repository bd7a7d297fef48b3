//! Clients that call and record.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farcall::Bytes;
use raft_kv::client::Client;
use raft_kv::service::{KvClient, KvError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::checker::{Action, Call, Value};
use super::support::Cluster;

/// How many clients there are, each with a session of its own. Each makes two calls at a time.
const CLIENTS: usize = 4;
const TASKS: usize = 2;
/// How many keys they use in a round.
const KEYS: u64 = 5;

/// How often each node is asked by itself.
const OBSERVED: Duration = Duration::from_millis(20);

/// The numbers of calls by outcome.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answered: usize,
    /// Calls whose result is not known.
    pub(crate) lost: usize,
}

/// All who call.
pub(crate) struct Clients {
    clients: Vec<Client>,
    /// A client of each node, which asks that one whether it leads or not.
    nodes: Vec<KvClient>,
}

pub(crate) fn of(cluster: &Cluster) -> Clients {
    Clients {
        clients: (0..CLIENTS).map(|_| cluster.client()).collect(),
        nodes: cluster.ids().into_iter().map(|id| cluster.node(id)).collect(),
    }
}

/// Has clients call for a while. Returns the history of each key, which no other round uses.
pub(crate) async fn round(
    clients: &Clients,
    round: u32,
    length: Duration,
    tally: &mut Tally,
) -> BTreeMap<String, Vec<Call>> {
    let end = Instant::now() + length;
    let tasks = clients.clients.iter().flat_map(|client| vec![client.clone(); TASKS]);
    let tasks: Vec<_> = tasks.map(|client| tokio::spawn(run(client, round, end))).collect();
    let observe = |node: &KvClient| tokio::spawn(observe(node.clone(), round, end));
    let observers: Vec<_> = clients.nodes.iter().map(observe).collect();
    let mut calls = Vec::new();
    for task in tasks {
        calls.extend(task.await.unwrap());
    }
    tally.answered += calls.iter().filter(|(_, call)| call.end.is_some()).count();
    tally.lost += calls.iter().filter(|(_, call)| call.end.is_none()).count();
    for observer in observers {
        calls.extend(observer.await.unwrap());
    }
    // A read without a result says nothing.
    calls.retain(|(_, call)| call.end.is_some() || !matches!(call.action, Action::Get(_)));
    let mut histories: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for (key, call) in calls {
        histories.entry(key).or_default().push(call);
    }
    histories
}

/// Asks one node again and again, and does not wait for an answer before it asks again. So a leader that was paused finds
/// questions that were put when another one led: it must not answer them from what it has.
async fn observe(node: KvClient, round: u32, end: Instant) -> Vec<(String, Call)> {
    let mut gets = JoinSet::new();
    while Instant::now() < end {
        let key = format!("round-{round}-{}", fastrand::u64(..KEYS));
        let begin = now();
        let get = node.get(key.as_str()).timeout(Duration::from_secs(4));
        gets.spawn(async move {
            // Errors are those of a node that does not lead, or does not run.
            let value = get.await.ok()?.map(|value| read(&value));
            Some((key, Call { action: Action::Get(value), begin, end: Some(now()) }))
        });
        sleep(OBSERVED).await;
    }
    gets.join_all().await.into_iter().flatten().collect()
}

async fn run(client: Client, round: u32, end: Instant) -> Vec<(String, Call)> {
    let mut calls = Vec::new();
    // The last value that this task has seen of each key, so that comparisons have a chance.
    let mut seen = [None; KEYS as usize];
    while Instant::now() < end {
        let index = fastrand::usize(..seen.len());
        let key = format!("round-{round}-{index}");
        let begin = now();
        let (action, known) = act(&client, &key, &mut seen[index]).await;
        calls.push((key, Call { action, begin, end: known.then(now) }));
    }
    calls
}

/// Makes a call. Returns it, and whether its result is known.
async fn act(client: &Client, key: &str, seen: &mut Option<Value>) -> (Action, bool) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let new = NEXT.fetch_add(1, Ordering::Relaxed);
    match fastrand::u8(..10) {
        0..4 => match client.get(key).await {
            Ok(value) => {
                *seen = value.map(|value| read(&value));
                (Action::Get(*seen), true)
            }
            Err(why) => (Action::Get(None), lost(&why)),
        },
        4..7 => match client.put(key, written(new)).await {
            Ok(()) => {
                *seen = Some(new);
                (Action::Put(new), true)
            }
            Err(why) => (Action::Put(new), lost(&why)),
        },
        7 => match client.delete(key).await {
            Ok(found) => {
                *seen = None;
                (Action::Delete { found: Some(found) }, true)
            }
            Err(why) => (Action::Delete { found: None }, lost(&why)),
        },
        _ => {
            let (expected, value) = (*seen, (fastrand::u8(..4) > 0).then_some(new));
            let done = client.compare_and_set(key, expected.map(written), value.map(written)).await;
            let action = |equal| Action::CompareAndSet { expected, value, equal };
            match done {
                Ok(equal) => {
                    if equal {
                        *seen = value;
                    }
                    (action(Some(equal)), true)
                }
                Err(why) => (action(None), lost(&why)),
            }
        }
    }
}

/// Notes that a result is not known. Errors that say something else have no place here.
fn lost(why: &KvError) -> bool {
    assert!(matches!(why, KvError::Rpc(_)), "{why}");
    false
}

fn written(value: Value) -> Bytes {
    value.to_string().into()
}

fn read(bytes: &Bytes) -> Value {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

/// Returns the nanoseconds since the first call of this.
fn now() -> u64 {
    static BEGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    u64::try_from(BEGIN.elapsed().as_nanos()).unwrap()
}
