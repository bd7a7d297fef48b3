//! Names of servers, which are looked up again and again.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::backoff;
use farcall_core::client::{Endpoint, EndpointState, Endpoints, RawChannel, Readiness};
use farcall_core::config::Balance;
#[cfg(feature = "dns")]
use farcall_core::config::ResolveBy;
use farcall_core::status::{Code, Status};
use farcall_core::transport::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::dial::Dialer;
#[cfg(feature = "dns")]
use super::dns::Dns;
use super::endpoints::One;
#[cfg(feature = "dns")]
use crate::address::is_service;

/// A server that a name stands for. Those of a lower tier come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) tier: u16,
    pub(super) address: SocketAddr,
    pub(super) weight: u16,
}

impl Found {
    /// Returns a server that is like all others of its name.
    pub(super) fn at(address: SocketAddr) -> Self {
        Self { tier: 0, address, weight: 1 }
    }
}

/// The servers that a name stands for.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) servers: Vec<Found>,
    /// How long this is good for, if that is known.
    pub(super) good_for: Option<Duration>,
}

/// A way to look names up.
pub(super) trait LookUp: Send + Sync {
    /// Looks up a host of an address.
    fn look_up(&self, host: &str) -> BoxFuture<io::Result<Answer>>;
}

/// The system's way.
struct System;

impl LookUp for System {
    fn look_up(&self, host: &str) -> BoxFuture<io::Result<Answer>> {
        let host = host.to_owned();
        Box::pin(async move {
            let servers = tokio::net::lookup_host(host).await?.map(Found::at).collect();
            Ok(Answer { servers, good_for: None })
        })
    }
}

/// A host of an address, and the way to look it up.
pub(super) struct Name {
    host: String,
    look_up: Arc<dyn LookUp>,
}

impl Name {
    pub(super) fn new(host: &str, balance: &Balance) -> Self {
        Self { host: host.to_owned(), look_up: way(host, balance) }
    }
}

#[cfg(feature = "dns")]
fn way(host: &str, balance: &Balance) -> Arc<dyn LookUp> {
    let by_dns = is_service(host) || balance.resolve_by == ResolveBy::Dns;
    if by_dns { Arc::new(Dns::new(&balance.name_servers)) } else { Arc::new(System) }
}

#[cfg(not(feature = "dns"))]
fn way(_: &str, _: &Balance) -> Arc<dyn LookUp> {
    Arc::new(System)
}

/// Names that are looked up again and again.
pub(super) struct Names {
    pub(super) names: Vec<Name>,
    /// The longest time between two look-ups. `None`: names that were found are not looked up again.
    pub(super) every: Option<Duration>,
    pub(super) dialer: Dialer,
}

/// The servers that each host stood for when it was last found.
type Known = HashMap<String, Vec<Found>>;

/// The least time between two look-ups, however many servers fail and however soon an answer expires.
const PAUSE: Duration = Duration::from_secs(2);

/// The longest time between two look-ups while a name can't be looked up, except for chance.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The longest time that one look-up may take.
const LONGEST_LOOK_UP: Duration = Duration::from_secs(30);

/// After this time other names no longer wait for one whose look-up takes long.
const SOON: Duration = Duration::from_secs(1);

/// How many servers a name may stand for. Nobody vouches for an answer of DNS, and each server costs a connection.
pub(super) const MOST: usize = 1024;

impl Names {
    /// Has a channel follow what the names stand for, until the channel is gone. A name that can't be looked up keeps what it stood for.
    pub(super) async fn follow(self, channel: RawChannel, endpoints: Endpoints) {
        let Some(states) = channel.endpoints() else { return };
        // Only the channel's other clones keep it alive.
        drop(channel);
        tokio::select! {
            () = self.look_up_again_and_again(&endpoints, states) => {}
            () = endpoints.closed() => {}
        }
    }

    async fn look_up_again_and_again(
        &self,
        endpoints: &Endpoints,
        mut states: watch::Receiver<Arc<[EndpointState]>>,
    ) {
        let mut known = Known::new();
        let (mut failures, mut in_vain) = (0, 0);
        loop {
            let before = known.clone();
            let looked_up = self.look_up_all(&mut known, endpoints).await;
            let all = self.endpoints(&known);
            if all.is_empty() {
                let nothing =
                    || Status::new(Code::Unavailable, "the names of the servers stand for no address");
                endpoints.failed(looked_up.as_ref().err().cloned().unwrap_or_else(nothing));
            }
            endpoints.set(all);
            in_vain = if known == before { in_vain } else { 0 };
            if let Ok(good_for) = looked_up {
                failures = 0;
                let one_fails = self.until_due(good_for, in_vain, &mut states).await;
                in_vain = if one_fails { in_vain + 1 } else { 0 };
            } else {
                let longest = self.every.map_or(LONGEST_PAUSE, |every| every.clamp(PAUSE, LONGEST_PAUSE));
                tokio::time::sleep(backoff::pause(failures, PAUSE, longest)).await;
                failures += 1;
            }
        }
    }

    /// Waits until names should be looked up again. Returns whether that is because a server can't be reached: otherwise what was found may
    /// not be true any more. `in_vain`: how many look-ups in a row for that reason have found nothing new.
    async fn until_due(
        &self,
        good_for: Option<Duration>,
        in_vain: u32,
        states: &mut watch::Receiver<Arc<[EndpointState]>>,
    ) -> bool {
        let now = Instant::now();
        let Some(every) = self.every else { return std::future::pending().await };
        let due = now + good_for.map_or(every, |good_for| good_for.min(every)).max(PAUSE);
        let pause = backoff::pause(in_vain, PAUSE, every.clamp(PAUSE, LONGEST_PAUSE)).max(PAUSE);
        tokio::time::sleep_until(due.min(now + pause)).await;
        let is_failing = |state: &EndpointState| matches!(state.readiness, Readiness::Failing(_));
        let any_fails = states.wait_for(|states| states.is_empty() || states.iter().any(is_failing));
        // An error means that the time has come.
        tokio::time::timeout_at(due, any_fails).await.is_ok()
    }

    /// Looks all names up, beside each other. If some take long, `endpoints` gets those of the others meanwhile. Returns the shortest time
    /// that an answer is good for, or the first failure.
    async fn look_up_all(
        &self,
        known: &mut Known,
        endpoints: &Endpoints,
    ) -> Result<Option<Duration>, Status> {
        let (mut shortest, mut failure) = (None, None);
        let mut look_ups = JoinSet::new();
        for (index, Name { host, look_up }) in self.names.iter().enumerate() {
            let look_up = tokio::time::timeout(LONGEST_LOOK_UP, look_up.look_up(host));
            look_ups.spawn(async move { (index, look_up.await.unwrap_or_else(|late| Err(late.into()))) });
        }
        let mut is_soon = true;
        let mut soon = pin!(tokio::time::sleep(SOON));
        loop {
            let looked_up = tokio::select! {
                looked_up = look_ups.join_next() => looked_up,
                () = &mut soon, if is_soon => {
                    is_soon = false;
                    endpoints.set(self.endpoints(known));
                    continue;
                }
            };
            let Some(looked_up) = looked_up else { break };
            let Ok((index, answer)) = looked_up else {
                let why = "the look-up of a server's name panicked";
                failure.get_or_insert_with(|| Status::new(Code::Unavailable, why));
                continue;
            };
            let host = &self.names[index].host;
            match answer {
                Ok(Answer { servers, good_for }) => {
                    shortest = shortest.into_iter().chain(good_for).min();
                    known.insert(host.clone(), bounded(host, servers));
                    if !is_soon {
                        endpoints.set(self.endpoints(known));
                    }
                }
                Err(error) => {
                    tracing::warn!(host, %error, "a name can't be looked up; what it stood for still counts");
                    let why = Status::new(Code::Unavailable, format!("`{host}` can't be looked up: {error}"));
                    failure.get_or_insert(why);
                }
            }
        }
        failure.map_or(Ok(shortest), Err)
    }

    fn endpoints(&self, known: &Known) -> Vec<Endpoint> {
        self.names.iter().flat_map(|name| self.endpoints_of(&name.host, known)).collect()
    }

    fn endpoints_of(&self, host: &str, known: &Known) -> Vec<Endpoint> {
        let endpoint = |Found { tier, address, weight }: &Found| {
            let (target, dialer) = (address.to_string(), self.dialer.clone());
            let one = One { target, host: host.to_owned(), dialer };
            one.endpoint().weight((*weight).into()).tier((*tier).into())
        };
        known.get(host).map_or_else(Vec::new, |found| found.iter().map(endpoint).collect())
    }
}

/// Returns the servers in order, each once, and not too many of them.
fn bounded(host: &str, mut servers: Vec<Found>) -> Vec<Found> {
    servers.sort_unstable();
    servers.dedup();
    if servers.len() > MOST {
        tracing::warn!(
            host,
            found = servers.len(),
            "a name stands for more servers than {MOST}; others are not used"
        );
        servers.truncate(MOST);
    }
    servers
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    use farcall_core::config::BalancePolicy;
    use tokio::task::JoinHandle;

    use super::super::dial::OwnDial;
    use super::*;
    use crate::health::Reporter;
    use crate::{Config, Listener, Server, stream};

    /// A name: the last numbers of the addresses that it stands for, and for how many seconds. Counts look-ups.
    #[derive(Default)]
    struct Zone(Mutex<Option<(Vec<u8>, u64)>>, AtomicUsize);

    impl Zone {
        fn stands_for(&self, answer: Option<(&[u8], u64)>) {
            let answer = answer.map(|(addresses, seconds)| (addresses.to_vec(), seconds));
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answer;
        }

        fn look_ups(&self) -> usize {
            self.1.load(Ordering::Relaxed)
        }
    }

    impl LookUp for Arc<Zone> {
        fn look_up(&self, _: &str) -> BoxFuture<io::Result<Answer>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Box::pin(async move {
                let (numbers, seconds) = answer.ok_or_else(|| io::Error::other("no such name"))?;
                // Addresses for documentation, with a port that nobody has.
                let address = |number| Found::at(SocketAddr::from(([192, 0, 2, number], 1)));
                let good_for = Some(Duration::from_secs(seconds));
                Ok(Answer { servers: numbers.into_iter().map(address).collect(), good_for })
            })
        }
    }

    /// A channel that follows `db:1` in a zone, to servers that can't be reached. Names are looked up every 30 s.
    fn channel() -> (Arc<Zone>, RawChannel, JoinHandle<()>) {
        channel_by(Dialer::plain(&Config::default()))
    }

    fn channel_by(dialer: Dialer) -> (Arc<Zone>, RawChannel, JoinHandle<()>) {
        let mut config = Config::default();
        config.balance.policy = BalancePolicy::RoundRobin;
        let (channel, endpoints) = RawChannel::balanced("db", config.settings());
        let zone = Arc::new(Zone::default());
        let names = vec![Name { host: "db:1".into(), look_up: Arc::new(Arc::clone(&zone)) }];
        let names = Names { names, every: Some(Duration::from_secs(30)), dialer };
        let following = tokio::spawn(names.follow(channel.clone(), endpoints));
        (zone, channel, following)
    }

    async fn until(channel: &RawChannel, hosts: &[&str]) {
        let mut states = channel.endpoints().expect("it balances");
        let are =
            |states: &Arc<[EndpointState]>| states.iter().map(|state| &*state.name).eq(hosts.iter().copied());
        states.wait_for(are).await.expect("the channel is there");
    }

    #[tokio::test(start_paused = true)]
    async fn a_channel_follows_what_a_name_stands_for() {
        let (zone, channel, following) = channel();
        let why = channel.connection().await.expect_err("there is no server");
        assert_eq!(why.message(), "`db:1` can't be looked up: no such name");

        zone.stands_for(Some((&[2, 1, 2], 60)));
        until(&channel, &["192.0.2.1:1", "192.0.2.2:1"]).await;
        // None of them can be reached, which is reason enough to look again at once.
        let began = Instant::now();
        zone.stands_for(Some((&[2, 3], 60)));
        until(&channel, &["192.0.2.2:1", "192.0.2.3:1"]).await;
        assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
        // The addresses of the last look-up count while the name can't be looked up.
        zone.stands_for(None);
        tokio::time::sleep(Duration::from_secs(100)).await;
        until(&channel, &["192.0.2.2:1", "192.0.2.3:1"]).await;
        zone.stands_for(Some((&[4], 60)));
        until(&channel, &["192.0.2.4:1"]).await;

        drop(channel);
        following.await.expect("it ends with the channel");
    }

    /// Returns a dialer that reaches one server by every address.
    async fn reaching_a_server() -> Dialer {
        let (dialled, mut accepted) = tokio::sync::mpsc::unbounded_channel();
        let accepted = stream::generate(async move |ends| {
            while let Some(end) = accepted.recv().await {
                ends.send(end).await;
            }
            Ok::<_, io::Error>(())
        });
        let server = Server::builder().with_health(&Reporter::new()).listen(Listener::incoming(accepted));
        tokio::spawn(server.build().await.expect("a server").serve());
        let own = OwnDial::new(move |_| {
            let (near, far) = tokio::io::duplex(64 << 10);
            let told = dialled.send(far).map_err(io::Error::other);
            async move { told.map(|()| near) }
        });
        Dialer { own: Some(own), ..Dialer::plain(&Config::default()) }
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_looked_up_again_while_all_servers_are_well() {
        let (zone, channel, _following) = channel_by(reaching_a_server().await);
        zone.stands_for(Some((&[1, 2], 3600)));
        let mut states = channel.endpoints().expect("it balances");
        let are_ready = |states: &Arc<[EndpointState]>| {
            states.len() == 2 && states.iter().all(|state| matches!(state.readiness, Readiness::Ready))
        };
        states.wait_for(are_ready).await.expect("the channel is there");
        let before = zone.look_ups();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(zone.look_ups() - before, 3, "each 30 s");
        zone.stands_for(Some((&[2, 3], 3600)));
        until(&channel, &["192.0.2.2:1", "192.0.2.3:1"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_can_not_be_looked_up_are_asked_for_less_and_less_often() {
        let (zone, _channel, _following) = channel();
        let hour = Duration::from_secs(3600);
        tokio::time::sleep(hour).await;
        // Every 30 s, or a quarter earlier, and some times more in the beginning.
        assert!((96..=165).contains(&zone.look_ups()), "{}", zone.look_ups());
    }

    #[tokio::test(start_paused = true)]
    async fn names_of_servers_that_can_not_be_reached_are_asked_for_less_and_less_often() {
        let (zone, _channel, _following) = channel();
        zone.stands_for(Some((&[1], 60)));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!((96..=165).contains(&zone.look_ups()), "{}", zone.look_ups());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_whose_look_up_takes_long_does_not_hold_up_another() {
        struct Silent;
        impl LookUp for Silent {
            fn look_up(&self, _: &str) -> BoxFuture<io::Result<Answer>> {
                Box::pin(std::future::pending())
            }
        }
        let (channel, endpoints) = RawChannel::balanced("db", Config::default().settings());
        let zone = Arc::new(Zone::default());
        zone.stands_for(Some((&[1], 60)));
        let changing = Arc::clone(&zone);
        let silent = Name { host: "silent:1".into(), look_up: Arc::new(Silent) };
        let names = vec![silent, Name { host: "db:1".into(), look_up: Arc::new(zone) }];
        let dialer = Dialer::plain(&Config::default());
        let names = Names { names, every: Some(Duration::from_secs(30)), dialer };
        let _following = tokio::spawn(names.follow(channel.clone(), endpoints));
        until(&channel, &["192.0.2.1:1"]).await;
        changing.stands_for(Some((&[2], 60)));
        until(&channel, &["192.0.2.2:1"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn more_servers_than_a_channel_could_use_are_left_out() {
        let server =
            |n: u32| Found { tier: 1, weight: 1, address: ([10, 0, (n >> 8) as u8, n as u8], 1).into() };
        let mut servers: Vec<_> = (0..5000).map(server).collect();
        let first = Found { tier: 0, ..server(5000) };
        servers.push(first.clone());
        let bounded = bounded("db", servers);
        assert_eq!((bounded.len(), &bounded[0]), (MOST, &first));
    }
}
