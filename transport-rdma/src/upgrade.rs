//! RDMA as something that a session can be moved to.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use farcall_core::transport::{self, Attempt, BoxFuture, Candidate, Reason, Upgrade};
use tokio::runtime::Handle;

use crate::config::RdmaConfig;
use crate::device::{Host, LocalPath};
use crate::endpoint::{DeviceRegistry, Endpoint, Offer, RdmaCandidate};
use crate::link::announcement;

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
}

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

    fn on(machine: Arc<DeviceRegistry>, config: RdmaConfig) -> Self {
        let (endpoints, logged) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Shared { machine, config, endpoints, logged }))
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

    /// The endpoint for sessions whose stream link has this local address.
    async fn endpoint(
        self,
        local: Option<IpAddr>,
    ) -> Result<(Arc<Endpoint>, LocalPath), transport::Unavailable> {
        let (runtime, shared) = (Handle::current(), Arc::clone(&self.0));
        let task = tokio::task::spawn_blocking(move || {
            let found = shared.machine.endpoint(&shared.config, local, &runtime);
            if let Ok((endpoint, _)) = &found {
                shared.keep(endpoint);
            }
            found
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

    /// The endpoint for such a session, and the path of its packets if it is of this class.
    async fn path(&self, attempt: &Attempt) -> Result<(Arc<Endpoint>, LocalPath), transport::Unavailable> {
        let local = attempt.stream.local.map(|address| address.ip());
        let (endpoint, path) = self.clone().endpoint(local).await?;
        Ok((endpoint, path.for_class(attempt.class, &self.0.config)))
    }

    async fn make_offer(self, attempt: Attempt) -> Offered {
        let (endpoint, path) = self.path(&attempt).await?;
        let (candidate, data) =
            RdmaCandidate::offer(endpoint, path, attempt).await.map_err(|why| self.log(why))?;
        Ok((Box::new(candidate), data))
    }

    async fn make_answer(self, epoch: u32, offer: Bytes, attempt: Attempt) -> Offered {
        let (endpoint, path) = self.path(&attempt).await?;
        let offer = Offer { epoch, data: offer };
        let (candidate, data) =
            RdmaCandidate::answer(endpoint, path, attempt, offer).await.map_err(|why| self.log(why))?;
        Ok((Box::new(candidate), data))
    }
}

impl Shared {
    fn keep(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|other| other.is_usable());
        if !endpoints.iter().any(|other| Arc::ptr_eq(other, endpoint)) {
            endpoints.push(Arc::clone(endpoint));
        }
    }
}

impl Upgrade for RdmaUpgrade {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, transport::Unavailable>> {
        let endpoint = self.clone().endpoint(None);
        Box::pin(async { endpoint.await.map(|_| announcement()) })
    }

    fn offer(&self, _announced: Bytes, attempt: &Attempt) -> BoxFuture<Offered> {
        Box::pin(self.clone().make_offer(attempt.clone()))
    }

    fn answer(&self, epoch: u32, offer: Bytes, attempt: &Attempt) -> BoxFuture<Offered> {
        Box::pin(self.clone().make_answer(epoch, offer, attempt.clone()))
    }
}
