//! RDMA as something that a session can be moved to.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_core::transport::{self, Attempt, BoxFuture, Candidate, Reason, Upgrade};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

#[cfg(feature = "testing")]
use crate::buffer::Registered;
use crate::config::RdmaConfig;
use crate::device::{Host, LocalPath, RemoteAddress, StreamEnds};
use crate::endpoint::{Addresses, DeviceRegistry, Endpoint, Offer, RdmaCandidate};
use crate::link::{announced, announcement};
use crate::probe::{Area, Finding, Machine, Severity, examine};
use crate::unavailable::Unavailable;

type Offered = Result<(Box<dyn Candidate>, Bytes), transport::Unavailable>;

/// RDMA, for the sessions of a channel or server.
///
/// Nothing is opened before the first session asks. Sessions of one runtime share a device's memory and its queues, also
/// those of other channels and servers with the same device; the configuration of the first of them counts for what is
/// shared.
#[derive(Debug, Clone)]
pub struct RdmaUpgrade(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    machine: Arc<DeviceRegistry>,
    config: RdmaConfig,
    /// Kept from the first session on, so that memory need not be registered anew for each.
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
    /// Reasons that were logged.
    logged: Mutex<HashSet<Reason>>,
    /// The faults and warnings of this machine that were found last, and when.
    found: Mutex<Option<(Instant, Vec<Finding>)>>,
    /// A permit for each thread that looks for addresses, and for their endpoint.
    threads: Arc<Semaphore>,
}

/// How many threads look for addresses at once. Each session needs that for a moment, and those that begin together must not have
/// a thread each.
const THREADS: usize = 4;

impl RdmaUpgrade {
    /// RDMA through this machine's devices.
    pub fn new(config: RdmaConfig) -> Self {
        Self::on(DeviceRegistry::this(), config)
    }

    /// RDMA through another machine's devices: a simulated one's.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_host(host: Arc<dyn Host>, config: RdmaConfig) -> Self {
        Self::on(DeviceRegistry::new(host), config)
    }

    /// Takes memory that is registered with a device of this one alone. `None`: there is none now, or no session has begun.
    #[cfg(feature = "testing")]
    pub fn take(&self, len: usize) -> Option<Registered> {
        let endpoints = self.0.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pools = endpoints.iter().map(|endpoint| &endpoint.shard().resources.rendezvous_pool);
        pools.find_map(|pool| pool.take_or_grow(transport::Direction::Request, len)).map(Registered)
    }

    fn on(machine: Arc<DeviceRegistry>, config: RdmaConfig) -> Self {
        let (endpoints, logged, found) = Default::default();
        let threads = Arc::new(Semaphore::new(THREADS));
        Self(Arc::new(Shared { machine, config, endpoints, logged, found, threads }))
    }

    /// Returns the endpoints that it keeps running.
    #[cfg(test)]
    pub(crate) fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.0.endpoints.lock().unwrap().clone()
    }

    #[cfg(test)]
    pub(crate) fn machine(&self) -> &Arc<DeviceRegistry> {
        &self.0.machine
    }

    /// Finds the addresses for sessions whose stream link has this local address, and the endpoint of the one that is picked.
    async fn endpoint<T: Send + 'static>(
        self,
        local: Option<IpAddr>,
        pick: impl FnOnce(&Addresses) -> (usize, T) + Send + 'static,
    ) -> Result<(Arc<Endpoint>, LocalPath, T), transport::Unavailable> {
        let (runtime, shared) = (Handle::current(), Arc::clone(&self.0));
        let asked = Instant::now();
        let thread = Arc::clone(&shared.threads).acquire_owned().await;
        let task = tokio::task::spawn_blocking(move || {
            let _thread = thread;
            let addresses = shared.machine.addresses(asked, &shared.config, local)?;
            let (index, picked) = pick(&addresses);
            let (endpoint, path) = shared.machine.endpoint(&addresses, index, &shared.config, &runtime)?;
            shared.keep(&endpoint);
            Ok::<_, Unavailable>((endpoint, path, picked))
        });
        let found =
            task.await.map_err(|error| transport::Unavailable::new(Reason::Other, error.to_string()))?;
        found.map_err(|reason| self.log(reason.into()))
    }

    /// Logs why there is no RDMA, once for each reason.
    fn log(&self, why: transport::Unavailable) -> transport::Unavailable {
        let mut logged = self.0.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.insert(why.reason) {
            tracing::warn!(%why, "RDMA is not available");
        }
        why
    }

    async fn make_announcement(self) -> Result<Bytes, transport::Unavailable> {
        let announce = |addresses: &Addresses| {
            let list: Vec<_> = addresses.list.iter().map(RemoteAddress::from).collect();
            (0, announcement(&list))
        };
        let (_, _, announcement) = self.endpoint(None, announce).await?;
        Ok(announcement)
    }

    async fn make_offer(self, announced: Vec<RemoteAddress>, attempt: Attempt) -> Offered {
        let ip = |address: Option<SocketAddr>| address.map(|address| address.ip());
        let stream = StreamEnds { local: ip(attempt.stream.local), peer: ip(attempt.stream.peer) };
        let paths = Arc::clone(self.0.machine.paths());
        let pick = move |addresses: &Addresses| {
            let chosen = paths.choose(&addresses.list, &announced, stream, addresses.home);
            // A server that tells none, or none of this side's kinds, chooses by itself.
            chosen.map_or((0, None), |(index, theirs)| {
                (index, Some(paths.trial(addresses.list[index].gid.gid, theirs)))
            })
        };
        let (endpoint, path, pair) = self.clone().endpoint(stream.local, pick).await?;
        let path = path.for_class(attempt.class, &self.0.config);
        let offered = RdmaCandidate::offer(endpoint, path, attempt, pair).await;
        let (candidate, data) = offered.map_err(|why| self.log(why))?;
        Ok((Box::new(candidate), data))
    }

    async fn make_answer(self, epoch: u32, offer: Bytes, attempt: Attempt) -> Offered {
        let offer = Offer::read(epoch, offer).map_err(|why| self.log(why))?;
        let wanted = offer.wanted();
        let pick = move |addresses: &Addresses| {
            // If it is gone meanwhile, this side chooses.
            let index = addresses.list.iter().position(|own| Some(own.gid.gid) == wanted);
            (index.unwrap_or(0), ())
        };
        let local = attempt.stream.local.map(|address| address.ip());
        let (endpoint, path, ()) = self.clone().endpoint(local, pick).await?;
        let path = path.for_class(attempt.class, &self.0.config);
        let answered = RdmaCandidate::answer(endpoint, path, attempt, offer).await;
        let (candidate, data) = answered.map_err(|why| self.log(why))?;
        Ok((Box::new(candidate), data))
    }
}

/// The time for which the findings about this machine are remembered. Channels that have no connection try again every few seconds, and
/// a look takes some seconds at worst.
const REMEMBERED: Duration = Duration::from_secs(30);

impl Shared {
    /// Returns the reason with the findings about this machine that [belong](with_findings) to it. Blocks.
    fn diagnosed(&self, why: transport::Unavailable) -> transport::Unavailable {
        // Callers that wait for the lock share what is found.
        let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(found, _)| found.elapsed() > REMEMBERED) {
            let mut findings = examine(&Machine::this(), &self.config).findings;
            findings.retain(|finding| finding.severity >= Severity::Warning);
            *known = Some((Instant::now(), findings));
        }
        with_findings(why, known.iter().flat_map(|(_, findings)| findings))
    }

    fn keep(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|other| other.is_usable());
        if !endpoints.iter().any(|other| Arc::ptr_eq(other, endpoint)) {
            endpoints.push(Arc::clone(endpoint));
        }
    }
}

/// Returns the reason with the faults that it does not name itself. If packets were lost it has warnings about their way, too: a firewall
/// that may drop them, an MTU that does not fit.
fn with_findings<'a>(
    why: transport::Unavailable,
    findings: impl IntoIterator<Item = &'a Finding>,
) -> transport::Unavailable {
    let is_loss = matches!(why.reason, Reason::ProbeLost | Reason::TimedOut);
    let belongs = |finding: &&Finding| match finding.severity {
        Severity::Fault => finding.code != why.reason.name(),
        Severity::Warning => is_loss && matches!(finding.area, Area::Network | Area::Addresses),
        _ => false,
    };
    let others: Vec<_> = findings.into_iter().filter(belongs).collect();
    let add = |detail, finding| format!("{detail}; found on this machine: {finding}");
    let detail = others.into_iter().fold(why.detail, add);
    transport::Unavailable { detail, ..why }
}

impl Upgrade for RdmaUpgrade {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, transport::Unavailable>> {
        Box::pin(self.clone().make_announcement())
    }

    fn offer(&self, data: Bytes, attempt: &Attempt) -> BoxFuture<Offered> {
        Box::pin(self.clone().make_offer(announced(data), attempt.clone()))
    }

    fn answer(&self, epoch: u32, offer: Bytes, attempt: &Attempt) -> BoxFuture<Offered> {
        Box::pin(self.clone().make_answer(epoch, offer, attempt.clone()))
    }

    fn diagnose(&self, why: transport::Unavailable) -> BoxFuture<transport::Unavailable> {
        // Another machine's files can't be read: a simulated one's.
        if !Arc::ptr_eq(&self.0.machine, &DeviceRegistry::this()) {
            return Box::pin(async { why });
        }
        let (shared, known) = (Arc::clone(&self.0), why.clone());
        let task = tokio::task::spawn_blocking(move || shared.diagnosed(why));
        Box::pin(async { task.await.unwrap_or(known) })
    }
}

#[cfg(test)]
mod tests;
