//! The client: it finds the leader, follows it, and makes requests again that were not answered. The store applies each once.

mod session;
mod tries;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall::{BalancePolicy, Blame, Bytes, Channel, Code, Config, Endpoint, Stream, stream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::locked;
use crate::network::farcall_address;
use crate::service::{ClusterClient, KvClient, KvError, NodeStatus};
use crate::types::{NodeId, RequestId};
use session::Sessions;
use tries::{Pauses, Tries, is_passing};

/// Options of a [`Client`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration of the channels: transport, TLS and all.
    pub config: Config,
    /// How long a node has to answer, before another one is tried.
    pub attempt: Duration,
    /// How long a request is tried for, as a whole, with all its attempts.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { config: Config::default(), attempt: Duration::from_secs(1), patience: Duration::from_secs(10) }
    }
}

/// A client of a cluster. Clones share its connections and its session.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    options: Options,
    /// Any node that can be reached, for questions that all of them answer.
    any: ClusterClient,
    /// The addresses of the nodes, which `any` follows.
    nodes: watch::Sender<BTreeSet<String>>,
    /// The addresses that the user gave. They stay: a node that is not up to date may tell of members that are gone.
    seeds: BTreeSet<String>,
    leader: Mutex<Leader>,
    sessions: Sessions,
}

/// The leader, as far as the client knows.
#[derive(Default)]
struct Leader {
    node: Option<Arc<Node>>,
    /// Whether the node has refused a call, so that the leader is looked for. The node may turn out to lead on, and keeps its
    /// connection until then.
    refused: bool,
}

/// A node that is called by itself.
struct Node {
    address: String,
    kv: KvClient,
    cluster: ClusterClient,
}

impl Client {
    /// Returns a client of the cluster with a node at one of these addresses, each `HOST:PORT`. It learns of the others. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the configuration is wrong.
    pub fn new(addresses: impl IntoIterator<Item = String>, options: Options) -> anyhow::Result<Self> {
        let seeds: BTreeSet<_> = addresses.into_iter().collect();
        let nodes = watch::Sender::new(seeds.clone());
        let mut config = options.config.clone();
        // A node that is stopped does not answer; another one is asked meanwhile.
        config.retry.max_attempts = config.retry.max_attempts.max(3);
        config.retry.hedging_delay_ms = 100;
        let builder = Channel::builder().config(config).with_env().balance(BalancePolicy::RoundRobin);
        let any = ClusterClient::new(&builder.discover("raft-kv", endpoints(nodes.subscribe()))?);
        let (leader, sessions) = (Mutex::default(), Sessions::default());
        Ok(Self(Arc::new(Inner { options, any, nodes, seeds, leader, sessions })))
    }

    /// Returns the value of a key, as of a moment during this call.
    ///
    /// # Errors
    ///
    /// If no leader answers in time, or the key is wrong.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, KvError> {
        self.ask(self.0.options.attempt, |leader, limit| leader.kv.get(key).timeout(limit)).await
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    ///
    /// If no leader answers in time, or the arguments are wrong. It may still be done then, unless the error is
    /// [`KvError::Invalid`], or a status that was [not executed](farcall::Status::executed).
    pub async fn put(&self, key: &str, value: Bytes) -> Result<(), KvError> {
        self.write(|leader, request, limit| leader.kv.put(request, key, value.clone()).timeout(limit)).await
    }

    /// Removes a key. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put) does.
    pub async fn delete(&self, key: &str) -> Result<bool, KvError> {
        self.write(|leader, request, limit| leader.kv.delete(request, key).timeout(limit)).await
    }

    /// Sets or removes the value of a key if it is `expected`. `None` stands for a key that is absent. Returns whether it was.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put) does.
    pub async fn compare_and_set(
        &self,
        key: &str,
        expected: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Result<bool, KvError> {
        self.write(|leader, request, limit| {
            leader.kv.compare_and_set(request, key, expected.clone(), value.clone()).timeout(limit)
        })
        .await
    }

    /// Makes a cluster of these nodes, with their addresses. Once in the life of a cluster.
    ///
    /// # Errors
    ///
    /// If the first of the nodes can't be reached, or belongs to a cluster already.
    pub async fn init(&self, members: BTreeMap<NodeId, String>) -> Result<(), KvError> {
        let Some(first) = members.values().next() else {
            return Err(KvError::Invalid("a cluster has a node at least".into()));
        };
        let first = self.node_at(first)?;
        let call = first.cluster.init(members);
        call.wait_for_ready(true).timeout(self.0.options.patience).await
    }

    /// Adds a node that gets all entries and does not vote. Returns when it has caught up.
    ///
    /// # Errors
    ///
    /// If no leader answers in time, or another change is under way for that long.
    pub async fn add_learner(&self, id: NodeId, address: &str) -> Result<(), KvError> {
        // It may need a snapshot, whose progress the leader watches.
        let patience = self.0.options.patience;
        self.ask(patience, |leader, limit| leader.cluster.add_learner(id, address).timeout(limit)).await
    }

    /// Gives a learner a vote.
    ///
    /// # Errors
    ///
    /// As [`add_learner`](Self::add_learner) does.
    pub async fn add_voter(&self, id: NodeId) -> Result<(), KvError> {
        let patience = self.0.options.patience;
        self.ask(patience, |leader, limit| leader.cluster.add_voter(id).timeout(limit)).await
    }

    /// Removes a node from the cluster. Returns whether it was a member when the answered attempt was made.
    ///
    /// # Errors
    ///
    /// As [`add_learner`](Self::add_learner) does.
    pub async fn remove(&self, id: NodeId) -> Result<bool, KvError> {
        let patience = self.0.options.patience;
        self.ask(patience, |leader, limit| leader.cluster.remove(id).timeout(limit)).await
    }

    /// Returns what one of the nodes knows of the cluster.
    ///
    /// # Errors
    ///
    /// If no node answers in time.
    pub async fn status(&self) -> farcall::Result<NodeStatus> {
        let status = self.0.any.status().timeout(self.0.options.attempt).await?;
        let members = status.voters.iter().chain(&status.learners);
        let mut addresses = self.0.seeds.clone();
        addresses.extend(members.map(|member| member.address.clone()));
        self.0.nodes.send_if_modified(|known| {
            let changed = *known != addresses;
            *known = addresses;
            changed
        });
        Ok(status)
    }

    /// Returns what the node at an address knows.
    ///
    /// # Errors
    ///
    /// If it does not answer in time.
    pub async fn status_of(&self, address: &str) -> Result<NodeStatus, KvError> {
        let node = self.node_at(address)?;
        Ok(node.cluster.status().timeout(self.0.options.attempt).await?)
    }

    /// Makes a change. All attempts have one request, which the store applies once.
    async fn write<T, F>(&self, call: impl Fn(&Node, RequestId, Duration) -> F) -> Result<T, KvError>
    where
        F: Future<Output = Result<T, KvError>>,
    {
        let (attempt, tries) = (self.0.options.attempt, &Tries::default());
        let work = async {
            loop {
                tries.open();
                let open = |session| {
                    self.follow(tries, attempt, move |leader, limit| leader.kv.open(session).timeout(limit))
                };
                let request = self.0.sessions.request(open).await?;
                tries.begin();
                let made = self.follow(tries, attempt, |leader, limit| call(leader, request.id(), limit));
                match made.await {
                    Err(KvError::NoSession) => {
                        self.0.sessions.ended(request.id().session);
                        // An earlier attempt may have been applied when the session was open.
                        if tries.may_be_executed() {
                            return Err(KvError::NoSession);
                        }
                    }
                    made => return made,
                }
            }
        };
        self.patiently(tries, work).await
    }

    /// Calls the leader, with `attempt` for each attempt.
    async fn ask<T, F>(&self, attempt: Duration, call: impl Fn(&Node, Duration) -> F) -> Result<T, KvError>
    where
        F: Future<Output = Result<T, KvError>>,
    {
        let tries = &Tries::default();
        self.patiently(tries, self.follow(tries, attempt, call)).await
    }

    /// Ends a request when patience ends. Its error counts for all its attempts.
    async fn patiently<T>(
        &self,
        tries: &Tries,
        work: impl Future<Output = Result<T, KvError>>,
    ) -> Result<T, KvError> {
        let patience = self.0.options.patience;
        match timeout(patience, work).await {
            Ok(done) => done.map_err(|error| tries.judge(error)),
            Err(_) => Err(tries.late(patience)),
        }
    }

    /// Calls the leader until it answers. Each attempt may take `attempt`.
    async fn follow<T, F>(
        &self,
        tries: &Tries,
        attempt: Duration,
        call: impl Fn(&Node, Duration) -> F,
    ) -> Result<T, KvError>
    where
        F: Future<Output = Result<T, KvError>>,
    {
        let (mut pauses, mut follows) = (Pauses::default(), false);
        loop {
            let error = match self.known_leader().await {
                Ok(leader) => match tries.attempt(call(&leader, attempt)).await {
                    Err(error) if is_passing(&error) => {
                        let is_named = self.leave(&leader, &error);
                        // Once without a pause: two nodes may name each other.
                        follows = is_named && !follows;
                        error
                    }
                    done => return done,
                },
                Err(error) => {
                    follows = false;
                    error
                }
            };
            let pause = (!follows).then(|| pauses.after(&error));
            tries.failed(error);
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Returns the leader that is known, or asks for it.
    async fn known_leader(&self) -> Result<Arc<Node>, KvError> {
        if let Leader { node: Some(node), refused: false } = &*locked(&self.0.leader) {
            return Ok(node.clone());
        }
        let Some(member) = self.status().await?.leader else {
            return Err(KvError::NotLeader { leader: None });
        };
        let mut leader = locked(&self.0.leader);
        let node = match &leader.node {
            Some(node) if node.address == member.address => node.clone(),
            _ => self.node_at(&member.address)?,
        };
        *leader = Leader { node: Some(node.clone()), refused: false };
        Ok(node)
    }

    /// Leaves a leader that failed, and forgets it if its connection may be dead. Returns whether the failure named another one,
    /// which is the leader from now on.
    fn leave(&self, failed: &Arc<Node>, error: &KvError) -> bool {
        let named = match error {
            KvError::NotLeader { leader: Some(member) } if member.address != failed.address => {
                self.node_at(&member.address).ok()
            }
            _ => None,
        };
        let mut leader = locked(&self.0.leader);
        // Another call may have found a new one meanwhile.
        if leader.node.as_ref().is_some_and(|node| Arc::ptr_eq(node, failed)) {
            let kept = || has_answered(error).then(|| failed.clone());
            *leader = Leader { refused: named.is_none(), node: named.clone().or_else(kept) };
        }
        named.is_some()
    }

    fn node_at(&self, address: &str) -> Result<Arc<Node>, KvError> {
        let mut config = self.0.options.config.clone();
        // `Tries` has to know of each attempt, so the channel makes none by itself.
        config.retry.max_attempts = 1;
        let channel = Channel::builder().config(config).with_env().connect_lazy(&farcall_address(address));
        let channel = channel.map_err(|why| KvError::Invalid(why.to_string()))?;
        let (kv, cluster) = (KvClient::new(&channel), ClusterClient::new(&channel));
        Ok(Arc::new(Node { address: address.to_owned(), kv, cluster }))
    }
}

/// Returns whether an error came from the node itself, so that its connection is alive.
fn has_answered(error: &KvError) -> bool {
    match error {
        KvError::Rpc(status) => {
            status.blame() == Blame::Application || status.code() == Code::ResourceExhausted
        }
        _ => true,
    }
}

/// Returns the servers of a channel as they change.
fn endpoints(
    mut nodes: watch::Receiver<BTreeSet<String>>,
) -> impl Stream<Item = farcall::Result<Vec<Endpoint>>> {
    stream::generate(async move |endpoints| {
        loop {
            let all = nodes.borrow_and_update().iter().map(Endpoint::new).collect();
            endpoints.send(all).await;
            if nodes.changed().await.is_err() {
                return Ok(());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use farcall::Status;

    use super::*;

    #[tokio::test]
    async fn a_leader_that_fails_keeps_its_connection_if_it_has_answered() {
        let client = Client::new(["127.0.0.1:1".into()], Options::default()).expect("a client");
        let lost = Status::unavailable("the connection is lost").with_blame(Blame::Peer);
        let failures = [
            (KvError::NotLeader { leader: None }, true),
            (Status::unavailable("another change is under way").into(), true),
            (lost.into(), false),
        ];
        for (error, keeps) in failures {
            let node = client.node_at("127.0.0.1:1").expect("a node");
            *locked(&client.0.leader) = Leader { node: Some(node.clone()), refused: false };
            assert!(!client.leave(&node, &error));
            let Leader { node: kept, refused } = &*locked(&client.0.leader);
            assert!(refused, "the leader is looked for");
            assert_eq!(kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &node)), keeps, "{error}");
        }
    }
}
