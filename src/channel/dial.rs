//! Making a link to one server.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::client::WatchHealth;
use farcall_core::status::Status;
use farcall_core::transport::{BoxFuture, Link};
#[cfg(feature = "tls")]
use farcall_tcp::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::TcpConfig;

/// The way to make a link to an address.
#[derive(Clone)]
pub(super) struct Dialer {
    /// The application's way. `None`: TCP, or a Unix-domain socket.
    pub(super) own: Option<OwnDial>,
    /// The way to ask servers whether they serve.
    pub(super) health: Option<Arc<dyn WatchHealth>>,
    pub(super) tcp: TcpConfig,
    pub(super) patience: Duration,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsClient>,
}

impl Dialer {
    /// Returns a dialer that encrypts nothing.
    #[cfg(test)]
    pub(super) fn plain(config: &crate::Config) -> Self {
        Self {
            own: None,
            health: None,
            tcp: config.tcp.clone(),
            patience: config.liveness.connect(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Returns this dialer, which then encrypts as `tls` says.
    #[cfg(feature = "tls")]
    pub(super) fn with_tls(mut self, tls: TlsClient) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects to a target that `host` has led to. A certificate must be for that host.
    pub(super) fn dial(&self, target: String, host: String) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let this = self.clone();
        if let Some(own) = &self.own {
            return (own.0)(this, target, host);
        }
        Box::pin(async move {
            #[cfg(feature = "tls")]
            if let Some(tls) = &this.tls {
                let link = farcall_tcp::connect_tls(&target, name(&host), &this.tcp, tls, this.patience);
                return Ok(link.await? as _);
            }
            #[cfg(not(feature = "tls"))]
            drop(host);
            Ok(farcall_tcp::connect(&target, &this.tcp, this.patience).await? as _)
        })
    }

    /// Makes a link of what the application dials.
    async fn dial_by<S>(
        self,
        dialled: impl Future<Output = io::Result<S>>,
        target: String,
        host: String,
    ) -> Result<Arc<dyn Link>, Status>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let name = name(&host);
            let link = farcall_tcp::connect_by_tls(dialled, &target, name, &self.tcp, tls, self.patience);
            return Ok(link.await? as _);
        }
        #[cfg(not(feature = "tls"))]
        drop(host);
        Ok(farcall_tcp::connect_by(dialled, &target, &self.tcp, self.patience).await? as _)
    }
}

/// Returns the name that a certificate must have: that in `HOST:PORT`, or the domain of a service. RFC 9525 calls it the source domain. The
/// names in SRV records do not count, because anybody may have made them up.
#[cfg(feature = "tls")]
fn name(host: &str) -> &str {
    crate::address::domain(host.rsplit_once(':').map_or(host, |(name, _)| name))
}

/// The application's way to make connections: a dialer, a target, and the host that has led to it.
#[derive(Clone)]
pub(super) struct OwnDial(Arc<DynDial>);

type DynDial = dyn Fn(Dialer, String, String) -> BoxFuture<Result<Arc<dyn Link>, Status>> + Send + Sync;

impl fmt::Debug for OwnDial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnDial")
    }
}

impl OwnDial {
    pub(super) fn new<D, F, S>(dial: D) -> Self
    where
        D: Fn(String) -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        Self(Arc::new(move |dialer, target, host| {
            let dialled = dial(target.clone());
            Box::pin(dialer.dial_by(dialled, target, host))
        }))
    }
}
