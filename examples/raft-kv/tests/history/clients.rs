//! Clients that call and record.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farcall::Bytes;
use raft_kv::client::Client;
use raft_kv::service::{KvClient, KvError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Histories;
use super::checker::{Action, Call, Value};
use super::program::Program;
use crate::support::Cluster;

/// How many clients of the library there are, each with a session of its own. Each makes two calls at a time.
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
    /// The longest time until a call was answered.
    pub(crate) longest: Duration,
}

/// A call that failed for good, and why. Its result is not known.
pub(crate) struct Failed(pub(crate) String);

/// A client of the cluster.
#[derive(Clone)]
pub(crate) enum Caller {
    Library(Client),
    Program(Program),
}

/// All who call.
pub(crate) struct Clients {
    /// Those that follow the leader. Each makes one call at a time.
    callers: Vec<Caller>,
    /// A client of each node, which asks that one whether it leads or not.
    nodes: Vec<KvClient>,
}

/// Returns the clients of a cluster. `new` makes each client of the library.
pub(crate) fn of(cluster: &Cluster, new: impl Fn() -> Client) -> Clients {
    let callers = (0..CLIENTS).flat_map(|_| vec![Caller::Library(new()); TASKS]).collect();
    Clients { callers, nodes: cluster.ids().into_iter().map(|id| cluster.node(id)).collect() }
}

impl Clients {
    pub(crate) fn add(&mut self, caller: Caller) {
        self.callers.push(caller);
    }
}

impl Caller {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, Failed> {
        match self {
            Self::Library(client) => client.get(key).await.map_err(lost),
            Self::Program(program) => program.get(key).await,
        }
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<(), Failed> {
        match self {
            Self::Library(client) => client.put(key, bytes(value)).await.map_err(lost),
            Self::Program(program) => program.put(key, value).await,
        }
    }

    async fn delete(&self, key: &str) -> Result<bool, Failed> {
        match self {
            Self::Library(client) => client.delete(key).await.map_err(lost),
            Self::Program(program) => program.delete(key).await,
        }
    }

    async fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&str>,
        value: Option<&str>,
    ) -> Result<bool, Failed> {
        match self {
            Self::Library(client) => {
                let set = client.compare_and_set(key, expected.map(bytes), value.map(bytes));
                set.await.map_err(lost)
            }
            Self::Program(program) => program.compare_and_set(key, expected, value).await,
        }
    }
}

/// Has clients call for a while. Returns the history of each key, which no other round uses.
pub(crate) async fn round(clients: &Clients, round: u32, length: Duration, tally: &mut Tally) -> Histories {
    let end = Instant::now() + length;
    let run = |caller: &Caller| tokio::spawn(run(caller.clone(), round, end));
    let tasks: Vec<_> = clients.callers.iter().map(run).collect();
    let observe = |node: &KvClient| tokio::spawn(observe(node.clone(), round, end));
    let observers: Vec<_> = clients.nodes.iter().map(observe).collect();
    let mut calls = Vec::new();
    for task in tasks {
        calls.extend(task.await.unwrap());
    }
    for (_, call) in &calls {
        match call.end {
            Some(end) => {
                tally.answered += 1;
                tally.longest = tally.longest.max(Duration::from_nanos(end - call.begin));
            }
            None => tally.lost += 1,
        }
    }
    for observer in observers {
        calls.extend(observer.await.unwrap());
    }
    // A read without a result says nothing.
    calls.retain(|(_, call)| call.end.is_some() || !matches!(call.action, Action::Get(_)));
    let mut histories = Histories::new();
    for (key, call) in calls {
        histories.entry(key).or_default().push(call);
    }
    histories
}

/// Reads the key of each history once more, so that the history tells whether the writes before are there.
///
/// # Panics
///
/// If a key can't be read.
pub(crate) async fn read_again(client: &Client, histories: &mut Histories) {
    for (key, calls) in histories {
        let begin = now();
        let value = client.get(key).await.unwrap();
        let action = Action::Get(value.map(|value| read(&value)));
        calls.push(Call { action, begin, end: Some(now()) });
    }
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

async fn run(caller: Caller, round: u32, end: Instant) -> Vec<(String, Call)> {
    let mut calls = Vec::new();
    // The last value that this task has seen of each key, so that comparisons have a chance.
    let mut seen = [None; KEYS as usize];
    while Instant::now() < end {
        let index = fastrand::usize(..seen.len());
        let key = format!("round-{round}-{index}");
        let begin = now();
        let (action, failed) = act(&caller, &key, &mut seen[index]).await;
        let end = failed.is_none().then(now);
        if let Some(Failed(why)) = failed {
            println!("a call on {key} has failed: {action:?}: {why}");
        }
        calls.push((key, Call { action, begin, end }));
    }
    calls
}

/// Makes a call. Returns it, and why its result is not known, if so.
async fn act(caller: &Caller, key: &str, seen: &mut Option<Value>) -> (Action, Option<Failed>) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let new = NEXT.fetch_add(1, Ordering::Relaxed);
    let before = *seen;
    match fastrand::u8(..10) {
        0..4 => match caller.get(key).await {
            Ok(value) => {
                *seen = value.map(|value| read(&value));
                (Action::Get(*seen), None)
            }
            Err(why) => (Action::Get(None), Some(why)),
        },
        4..7 => match caller.put(key, &new.to_string()).await {
            Ok(()) => {
                *seen = Some(new);
                (Action::Put(new), None)
            }
            Err(why) => (Action::Put(new), Some(why)),
        },
        7 => match caller.delete(key).await {
            Ok(found) => {
                *seen = None;
                (Action::Delete { found: Some(found) }, None)
            }
            Err(why) => (Action::Delete { found: None }, Some(why)),
        },
        _ => {
            let value = (fastrand::u8(..4) > 0).then_some(new);
            let [expected, written] = [before, value].map(|value| value.map(|value| value.to_string()));
            let done = caller.compare_and_set(key, expected.as_deref(), written.as_deref()).await;
            let action = |equal| Action::CompareAndSet { expected: before, value, equal };
            match done {
                Ok(equal) => {
                    if equal {
                        *seen = value;
                    }
                    (action(Some(equal)), None)
                }
                Err(why) => (action(None), Some(why)),
            }
        }
    }
}

/// Notes that a result is not known. Errors that say something else have no place here.
fn lost(why: KvError) -> Failed {
    assert!(matches!(why, KvError::Rpc(_)), "{why}");
    Failed(why.to_string())
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn read(bytes: &Bytes) -> Value {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

/// Returns the nanoseconds since the first call of this.
fn now() -> u64 {
    static BEGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    u64::try_from(BEGIN.elapsed().as_nanos()).unwrap()
}
