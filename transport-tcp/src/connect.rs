//! Making connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farcall_core::status::{Blame, Code, Executed, Status};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout, timeout_at};

use crate::stream::Stream;
use crate::tls::Session;
#[cfg(feature = "tls")]
use crate::tls::TlsClient;
use crate::{TcpConfig, TcpLink, unix};

/// Connects to `host:port`, trying each address that the name has, for at most `patience` in all: each gets an equal
/// share of what is left, so that one that does not answer is passed over. Connects to a Unix-domain socket if the target is
/// `unix:PATH`.
///
/// # Errors
///
/// UNAVAILABLE, not executed, naming every address that was tried and what it said.
pub async fn connect(target: &str, config: &TcpConfig, patience: Duration) -> Result<Arc<TcpLink>, Status> {
    dial(target, config, patience, &|| Ok(None)).await
}

/// Connects like [`connect`], and encrypts what goes by the link, unless that is a Unix-domain socket. The server's certificate must
/// be for `name`, unless the configuration has another name. The handshake happens when the link is in use.
///
/// # Errors
///
/// Those of `connect`. The name must be one that a certificate can have, or an address.
#[cfg(feature = "tls")]
pub async fn connect_tls(
    target: &str,
    name: &str,
    config: &TcpConfig,
    tls: &TlsClient,
    patience: Duration,
) -> Result<Arc<TcpLink>, Status> {
    let patience = if unix::path(target).is_none() { refreshed(tls, patience).await } else { patience };
    dial(target, config, patience, &|| tls.session(name).map(Some).map_err(|error| error.to_string())).await
}

async fn dial(
    target: &str,
    config: &TcpConfig,
    patience: Duration,
    session: &(dyn Fn() -> Result<Option<Session>, String> + Sync),
) -> Result<Arc<TcpLink>, Status> {
    let until = Instant::now() + patience;
    if let Some(path) = unix::path(target) {
        return connect_by(unix::connect(path), target, config, patience).await;
    }
    let addresses: Vec<SocketAddr> = match timeout_at(until, lookup_host(target)).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return Err(unavailable(target, &format!("the name: {error}"))),
        Err(_) => return Err(unavailable(target, "the name: nobody could be asked in time")),
    };
    let mut tried = Vec::new();
    for (i, address) in addresses.iter().enumerate() {
        let share = until.saturating_duration_since(Instant::now()) / (addresses.len() - i) as u32;
        let connecting = async { config.new_socket(*address)?.connect(*address).await };
        let why = match timeout(share, connecting).await {
            Ok(Ok(socket)) => {
                let link = session().map(|session| TcpLink::new(Stream::Tcp(socket), config, session));
                match link {
                    Ok(Ok(link)) => return Ok(link),
                    Ok(Err(error)) => error.to_string(),
                    Err(why) => why,
                }
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => silent(patience),
        };
        tried.push(if address.to_string() == target { why } else { format!("{address}: {why}") });
    }
    if tried.is_empty() {
        tried.push("the name has no address".into());
    }
    Err(unavailable(target, &tried.join("; ")))
}

/// Makes a link of the stream that `connecting` brings within `patience`: anything that tokio reads and writes. `target` is the
/// peer's name for messages. Must be called within a tokio runtime.
///
/// # Errors
///
/// UNAVAILABLE, not executed, with the target and what `connecting` said.
pub async fn connect_by<S>(
    connecting: impl Future<Output = io::Result<S>>,
    target: &str,
    config: &TcpConfig,
    patience: Duration,
) -> Result<Arc<TcpLink>, Status>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    set_up(connecting, target, config, patience, || Ok(None)).await
}

/// Makes a link like [`connect_by`], and encrypts what goes by it, as [`connect_tls`] does.
///
/// # Errors
///
/// Those of `connect_by`. The name must be one that a certificate can have, or an address.
#[cfg(feature = "tls")]
pub async fn connect_by_tls<S>(
    connecting: impl Future<Output = io::Result<S>>,
    target: &str,
    name: &str,
    config: &TcpConfig,
    tls: &TlsClient,
    patience: Duration,
) -> Result<Arc<TcpLink>, Status>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let patience = refreshed(tls, patience).await;
    let session = || tls.session(name).map(Some).map_err(io::Error::other);
    set_up(connecting, target, config, patience, session).await
}

async fn set_up<S>(
    connecting: impl Future<Output = io::Result<S>>,
    target: &str,
    config: &TcpConfig,
    patience: Duration,
    session: impl Fn() -> io::Result<Option<Session>>,
) -> Result<Arc<TcpLink>, Status>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let link = match timeout(patience, connecting).await {
        Ok(Ok(stream)) => session().and_then(|tls| TcpLink::new(Stream::of(stream), config, tls)),
        Ok(Err(error)) => Err(error),
        Err(_) => return Err(unavailable(target, &silent(patience))),
    };
    link.map_err(|error| unavailable(target, &error.to_string()))
}

/// Has files of TLS that have changed read. Returns the patience that is left.
#[cfg(feature = "tls")]
async fn refreshed(tls: &TlsClient, patience: Duration) -> Duration {
    let until = Instant::now() + patience;
    tls.refresh().await;
    until.saturating_duration_since(Instant::now())
}

fn silent(patience: Duration) -> String {
    format!("no answer within {patience:?} (liveness.connect_ms): host down, or a firewall")
}

fn unavailable(target: &str, why: &str) -> Status {
    Status::new(Code::Unavailable, format!("can't connect to {target}: {why}"))
        .with_executed(Executed::No)
        .with_blame(Blame::Environment)
}
