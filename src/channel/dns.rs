//! Looking names up by DNS.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farcall_core::transport::BoxFuture;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{IntoName, Name, RData, Record};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::names::{Answer, Found, LookUp, MOST};

/// The way to look up one host of an address.
#[derive(Clone)]
pub(super) struct Dns {
    /// Empty: those of the system.
    name_servers: Arc<[SocketAddr]>,
    /// The addresses that the targets of a service had when they were last found.
    known: Arc<Mutex<HashMap<Name, Vec<IpAddr>>>>,
}

/// How long looking up a host may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many targets of a service are looked up at once.
const AT_ONCE: usize = 16;

impl LookUp for Dns {
    fn look_up(&self, host: &str) -> BoxFuture<io::Result<Answer>> {
        let (this, host) = (self.clone(), host.to_owned());
        Box::pin(async move {
            let deadline = Instant::now() + PATIENCE;
            if let Ok(address) = host.parse() {
                return Ok(Answer { servers: vec![Found::at(address)], good_for: None });
            }
            let name_servers = Arc::clone(&this.name_servers);
            // Made anew each time, because the system's files may have changed.
            let resolver = tokio::task::spawn_blocking(move || resolver(&name_servers)).await??;
            let query = Query { resolver, deadline };
            match host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?))) {
                Some((name, port)) => {
                    let (addresses, good_for) = query.addresses(name).await?;
                    let at = |address| Found::at(SocketAddr::new(address, port));
                    Ok(Answer { servers: addresses.into_iter().map(at).collect(), good_for })
                }
                None => this.service(&query, &host).await,
            }
        })
    }
}

impl Dns {
    pub(super) fn new(name_servers: &[SocketAddr]) -> Self {
        Self { name_servers: name_servers.into(), known: Arc::default() }
    }

    /// Looks a service up. A target that can't be looked up keeps what it stood for.
    async fn service(&self, query: &Query, service: &str) -> io::Result<Answer> {
        let (mut records, mut good_for) = query.service(service).await?;
        records.sort_by_key(|record| record.priority);
        let before = std::mem::take(&mut *self.known.lock().unwrap_or_else(PoisonError::into_inner));
        let (mut known, mut failure) = (HashMap::new(), None);
        let mut servers = Vec::new();
        for records in records.chunks(AT_ONCE) {
            for (target, found) in query.addresses_of_all(records).await {
                let addresses = match found {
                    Ok((addresses, shortest)) => {
                        good_for = good_for.into_iter().chain(shortest).min();
                        addresses
                    }
                    Err(error) => {
                        tracing::warn!(service, %target, %error, "a target can't be looked up; what it stood for still counts");
                        let why = || io::Error::other(format!("its target `{target}`: {error}"));
                        failure.get_or_insert_with(why);
                        before.get(&target).cloned().unwrap_or_default()
                    }
                };
                known.insert(target, addresses);
            }
            servers.extend(records.iter().flat_map(|record| servers_of(record, &known)));
            if servers.len() > MOST {
                // The rest would not be used: it has no lower priority.
                break;
            }
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        match failure {
            Some(error) if servers.is_empty() => Err(error),
            _ => Ok(Answer { servers, good_for }),
        }
    }
}

fn servers_of(record: &SRV, known: &HashMap<Name, Vec<IpAddr>>) -> Vec<Found> {
    let server = |address: &IpAddr| Found {
        tier: record.priority,
        address: SocketAddr::new(*address, record.port),
        weight: record.weight,
    };
    known.get(&record.target).map_or_else(Vec::new, |addresses| addresses.iter().map(server).collect())
}

fn resolver(name_servers: &[SocketAddr]) -> io::Result<TokioResolver> {
    let mut builder = if name_servers.is_empty() {
        TokioResolver::builder_tokio().map_err(|error| {
            io::Error::other(format!("the system's name servers can't be found out: {error}"))
        })?
    } else {
        let servers = name_servers.iter().map(|server| {
            let mut config = NameServerConfig::udp_and_tcp(server.ip());
            config.connections.iter_mut().for_each(|connection| connection.port = server.port());
            config
        });
        let config = ResolverConfig::from_name_servers(servers.collect());
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    // If both fail, the error is that of the first.
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    builder.build().map_err(io::Error::other)
}

/// The look-up of a host, with its questions to name servers.
#[derive(Clone)]
struct Query {
    resolver: TokioResolver,
    deadline: Instant,
}

/// Addresses, and how long they are good for.
type Addresses = (Vec<IpAddr>, Option<Duration>);

impl Query {
    async fn addresses(&self, name: impl IntoName) -> io::Result<Addresses> {
        let lookup = self.answer(self.resolver.lookup_ip(name), "address").await?;
        Ok((lookup.iter().collect(), shortest(lookup.as_lookup().answers())))
    }

    /// Looks the targets of records up at once, each target once.
    async fn addresses_of_all(&self, records: &[SRV]) -> Vec<(Name, io::Result<Addresses>)> {
        let mut targets: Vec<_> = records.iter().map(|record| &record.target).collect();
        targets.sort_unstable();
        targets.dedup();
        let mut all = JoinSet::new();
        for target in targets {
            let (this, target) = (self.clone(), target.clone());
            all.spawn(async move {
                let found = this.addresses(target.clone()).await;
                (target, found)
            });
        }
        all.join_all().await
    }

    /// Returns the records of a service, and how long they are good for.
    async fn service(&self, service: &str) -> io::Result<(Vec<SRV>, Option<Duration>)> {
        let lookup = self.answer(self.resolver.srv_lookup(service), "SRV record").await?;
        let record = |record: &Record| match &record.data {
            // The root as the target says that there is no such service.
            RData::SRV(srv) if !srv.target.is_root() => Some(srv.clone()),
            _ => None,
        };
        let records: Vec<_> = lookup.answers().iter().filter_map(record).collect();
        if records.is_empty() {
            return Err(io::Error::other("DNS says that the service is not available (its target is `.`)"));
        }
        Ok((records, shortest(lookup.answers())))
    }

    /// Waits for an answer, and says what is wrong with it.
    async fn answer<T>(
        &self,
        answer: impl Future<Output = Result<T, NetError>>,
        wanted: &str,
    ) -> io::Result<T> {
        let why = match tokio::time::timeout_at(self.deadline, answer).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if error.is_nx_domain() => "there is no such name (NXDOMAIN)".to_owned(),
            Ok(Err(error)) if error.is_no_records_found() => format!("the name has no {wanted}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        Err(io::Error::other(why))
    }
}

/// Returns how long all records are good for.
fn shortest(records: &[Record]) -> Option<Duration> {
    records.iter().map(|record| Duration::from_secs(record.ttl.into())).min()
}
