//! The servers of a channel that balances: from names that are looked up, or from the application.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::client::{Connector, Endpoints, RawChannel, Readiness};
use farcall_core::status::{Code, Status};
use farcall_core::transport::{BoxFuture, Link};
#[cfg(feature = "tls")]
use farcall_tcp::tls::TlsClient;
use tokio::time::Instant;

use super::dial::Dialer;
use crate::Stream;

/// A server that a channel may call. See [`ChannelBuilder::discover`](crate::ChannelBuilder::discover).
#[derive(Clone, Debug)]
#[must_use = "an endpoint does nothing until a channel has it"]
pub struct Endpoint {
    address: String,
    weight: u32,
    locality: String,
    #[cfg(feature = "tls")]
    tls: Option<TlsClient>,
}

impl Endpoint {
    /// Returns the server at `HOST:PORT`, or at the Unix-domain socket `unix:PATH`.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            weight: 1,
            locality: String::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Sets how many calls the server gets, compared with others. Default 1. 0 counts as 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets where the server is, for [`Balance::locality`](crate::Balance::locality).
    pub fn locality(mut self, locality: impl Into<String>) -> Self {
        self.locality = locality.into();
        self
    }

    /// Encrypts connections to this server as `tls` says, and not as the channel's other connections. A Unix-domain socket is never
    /// encrypted. A server that [stays](crate::ChannelBuilder::discover) keeps the `tls` with which it first came.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: TlsClient) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Returns the core's endpoint for this server.
    pub(super) fn dialled_by(self, dialer: &Dialer) -> farcall_core::client::Endpoint {
        let dialer = dialer.clone();
        #[cfg(feature = "tls")]
        let dialer = self.tls.map_or_else(|| dialer.clone(), |tls| dialer.clone().with_tls(tls));
        let one = One { target: self.address.clone(), host: self.address.clone(), dialer };
        let endpoint = farcall_core::client::Endpoint::new(&self.address, Arc::new(one));
        endpoint.weight(self.weight).locality(&self.locality)
    }
}

/// One server.
struct One {
    /// The address, or the name to look up.
    target: String,
    /// The name that its certificate must have, with the port.
    host: String,
    dialer: Dialer,
}

impl Connector for One {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        self.dialer.dial(self.target.clone(), self.host.clone())
    }

    fn target(&self) -> String {
        self.target.clone()
    }
}

/// Has a channel follow the servers that a stream names, until one of both ends.
pub(super) async fn follow(
    updates: impl Stream<Item = Result<Vec<Endpoint>, Status>>,
    endpoints: Endpoints,
    dialer: Dialer,
) {
    let mut updates = pin!(updates);
    let ended = || Status::new(Code::Unavailable, "the stream of servers has ended without naming one");
    let mut why = ended();
    loop {
        let next = tokio::select! {
            next = std::future::poll_fn(|cx| updates.as_mut().poll_next(cx)) => next,
            () = endpoints.closed() => return,
        };
        match next {
            Some(Ok(all)) => {
                endpoints.set(all.into_iter().map(|endpoint| endpoint.dialled_by(&dialer)).collect());
                why = ended();
            }
            Some(Err(status)) => {
                endpoints.failed(status.clone());
                why = status;
            }
            None => {
                // Counts only where there are no servers.
                endpoints.failed(why);
                return;
            }
        }
    }
}

/// Names that are looked up again and again.
pub(super) struct Names {
    /// Each `HOST:PORT`.
    pub(super) hosts: Vec<String>,
    pub(super) every: Option<Duration>,
    pub(super) dialer: Dialer,
    pub(super) look_up: LookUp,
}

/// The way to look a `HOST:PORT` up.
pub(super) type LookUp = fn(String) -> BoxFuture<io::Result<Vec<SocketAddr>>>;

/// Looks a name up as the system does it.
pub(super) fn by_system(host: String) -> BoxFuture<io::Result<Vec<SocketAddr>>> {
    Box::pin(async move { Ok(tokio::net::lookup_host(host).await?.collect()) })
}

/// The least time between two look-ups, however many servers fail.
const PAUSE: Duration = Duration::from_secs(2);

impl Names {
    /// Has a channel follow what the names stand for, until the channel is gone. A name that can't be looked up keeps what it stood for.
    pub(super) async fn follow(self, channel: RawChannel, endpoints: Endpoints) {
        let Some(mut states) = channel.endpoints() else { return };
        // Only the channel's other clones keep it alive.
        drop(channel);
        let mut known: HashMap<String, Vec<SocketAddr>> = HashMap::new();
        loop {
            let looked_up = Instant::now();
            let failure = self.look_up_all(&mut known).await;
            let all: Vec<_> = self.hosts.iter().flat_map(|host| self.endpoints_of(host, &known)).collect();
            if all.is_empty() {
                let nothing =
                    || Status::new(Code::Unavailable, "the names of the servers stand for no address");
                endpoints.failed(failure.unwrap_or_else(nothing));
            }
            endpoints.set(all);
            // A name that was never found is looked up in any case.
            let every = if known.len() < self.hosts.len() { Some(PAUSE) } else { self.every };
            let is_failing = |readiness: &Readiness| matches!(readiness, Readiness::Failing(_));
            let again = async {
                tokio::time::sleep_until(looked_up + PAUSE).await;
                let any_fails = states.wait_for(|states| {
                    states.is_empty() || states.iter().any(|state| is_failing(&state.readiness))
                });
                match every {
                    // An error means that the time has come, or that the channel is gone.
                    Some(every) => {
                        drop(tokio::time::timeout_at(looked_up + every.max(PAUSE), any_fails).await);
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = again => {}
                () = endpoints.closed() => return,
            }
        }
    }

    /// Looks all names up. Returns the first failure.
    async fn look_up_all(&self, known: &mut HashMap<String, Vec<SocketAddr>>) -> Option<Status> {
        let mut failure = None;
        for host in &self.hosts {
            match (self.look_up)(host.clone()).await {
                Ok(mut found) => {
                    found.sort_unstable();
                    found.dedup();
                    known.insert(host.clone(), found);
                }
                Err(error) => {
                    tracing::warn!(host, %error, "a name can't be looked up; what it stood for still counts");
                    let why = Status::new(Code::Unavailable, format!("`{host}` can't be looked up: {error}"));
                    failure.get_or_insert(why);
                }
            }
        }
        failure
    }

    fn endpoints_of(
        &self,
        host: &str,
        known: &HashMap<String, Vec<SocketAddr>>,
    ) -> Vec<farcall_core::client::Endpoint> {
        let endpoint = |address: &SocketAddr| {
            let one = One { target: address.to_string(), host: host.to_owned(), dialer: self.dialer.clone() };
            farcall_core::client::Endpoint::new(&address.to_string(), Arc::new(one))
        };
        known.get(host).map_or_else(Vec::new, |found| found.iter().map(endpoint).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use farcall_core::config::BalancePolicy;

    use super::*;
    use crate::Config;

    /// The addresses that the name stands for now. An error: the name can't be looked up.
    static NAME: Mutex<Result<Vec<u8>, &str>> = Mutex::new(Err("no such name"));

    fn stands_for(answer: Result<Vec<u8>, &'static str>) {
        *NAME.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    fn look_up(_: String) -> BoxFuture<io::Result<Vec<SocketAddr>>> {
        let answer = NAME.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Addresses for documentation, with a port that nobody has.
        let all = |last: Vec<u8>| last.into_iter().map(|n| SocketAddr::from(([192, 0, 2, n], 1))).collect();
        Box::pin(async move { answer.map(all).map_err(io::Error::other) })
    }

    async fn until(channel: &RawChannel, hosts: &[&str]) {
        let mut states = channel.endpoints().expect("it balances");
        let are = |states: &Arc<[farcall_core::client::EndpointState]>| {
            states.iter().map(|state| &*state.name).eq(hosts.iter().copied())
        };
        states.wait_for(are).await.expect("the channel is there");
    }

    #[tokio::test(start_paused = true)]
    async fn a_channel_follows_what_a_name_stands_for() {
        let mut config = Config::default();
        config.balance.policy = BalancePolicy::RoundRobin;
        let (channel, endpoints) = RawChannel::balanced("db", config.settings());
        let dialer = Dialer::plain(&config);
        let every = Some(Duration::from_secs(30));
        let names = Names { hosts: vec!["db:1".into()], every, dialer, look_up };
        let following = tokio::spawn(names.follow(channel.clone(), endpoints));
        let why = channel.connection().await.expect_err("there is no server");
        assert_eq!(why.message(), "`db:1` can't be looked up: no such name");

        stands_for(Ok(vec![2, 1, 2]));
        until(&channel, &["192.0.2.1:1", "192.0.2.2:1"]).await;
        // None of them can be reached, which is reason enough to look again at once.
        let began = Instant::now();
        stands_for(Ok(vec![2, 3]));
        until(&channel, &["192.0.2.2:1", "192.0.2.3:1"]).await;
        assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
        // The addresses of the last look-up count while the name can't be looked up.
        stands_for(Err("the server for names is away"));
        tokio::time::sleep(Duration::from_secs(100)).await;
        until(&channel, &["192.0.2.2:1", "192.0.2.3:1"]).await;
        stands_for(Ok(vec![4]));
        until(&channel, &["192.0.2.4:1"]).await;

        drop(channel);
        following.await.expect("it ends with the channel");
    }
}
