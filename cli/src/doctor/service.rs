//! The service by which `farcall doctor HOST` learns what the host finds: what `farcall serve` serves.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall::rdma::RdmaConfig;
use farcall::rdma::probe::{self, Machine};
use farcall::{Context, Result, Status, Stream, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::datagram::Marked;
use super::mirror;
use crate::perf::service::blocking;

/// Looks at the machine that the server runs on.
#[farcall::service(package = "farcall.doctor.v1")]
pub(crate) trait Doctor {
    /// Returns the report as the JSON of `farcall doctor --json`.
    async fn examine(&self) -> Result<String>;

    /// Answers the caller's datagrams to an address of this machine for a while, at most until the caller drops the stream. The stream
    /// has one item, which says how to ask.
    async fn mirror(&self, cx: &Context, at: IpAddr) -> Result<impl Stream<Item = Result<Mirror>>>;
}

/// A socket that answers datagrams.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Mirror {
    /// Its port.
    pub(crate) port: u16,
    /// The secret that a datagram must carry to be answered.
    pub(crate) token: u64,
}

/// How long a report is told again. Everybody who reaches the port may ask, and a look runs programs for seconds.
const FRESH: Duration = Duration::from_secs(5);

/// How long a mirror answers.
const LIFETIME: Duration = Duration::from_secs(60);

/// The most mirrors at once.
const MIRRORS: usize = 4;

/// Looks at this machine, one look at a time.
#[derive(Debug)]
pub(crate) struct Looking {
    config: RdmaConfig,
    last: Arc<Mutex<Option<(Instant, String)>>>,
    mirrors: Arc<Semaphore>,
}

impl Looking {
    /// Judges for a service with this configuration.
    pub(crate) fn new(config: RdmaConfig) -> Self {
        Self { config, last: Arc::default(), mirrors: Arc::new(Semaphore::new(MIRRORS)) }
    }
}

impl Doctor for Looking {
    async fn examine(&self) -> Result<String> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((at, report)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(report.clone());
        }
        let config = self.config.clone();
        // The look goes on where the caller has gone, and keeps the lock until it ends.
        let look = move || {
            let mut report = probe::examine(&Machine::this(), &config);
            probe::trial(&mut report, &config);
            let report = serde_json::to_string(&report)?;
            *last = Some((Instant::now(), report.clone()));
            Ok::<_, serde_json::Error>(report)
        };
        blocking(look).await?.map_err(|error| Status::internal(error.to_string()))
    }

    async fn mirror(&self, cx: &Context, at: IpAddr) -> Result<impl Stream<Item = Result<Mirror>>> {
        let peer = cx.peer().ok_or_else(|| Status::failed_precondition("the caller has no address"))?;
        let busy = || Status::resource_exhausted("others look at their ways to this host: try again");
        let place = self.mirrors.clone().try_acquire_owned().map_err(|_| busy())?;
        let token = getrandom::u64().map_err(|error| Status::internal(error.to_string()))?;
        let socket = Marked::bind(at, peer).await.map_err(|error| not_bound(at, &error))?;
        let port = socket.port().map_err(|error| not_bound(at, &error))?;
        Ok(stream::generate(async move |mirrors| {
            let _place = place;
            mirrors.send(Mirror { port, token }).await;
            let answered = timeout(LIFETIME, mirror::answer(&socket, peer.ip().to_canonical(), token)).await;
            answered.unwrap_or(Ok(())).map_err(|error| Status::unavailable(error.to_string()))
        }))
    }
}

fn not_bound(at: IpAddr, error: &io::Error) -> Status {
    Status::failed_precondition(format!("no datagrams at {at}: {error}"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

    use std::future::Future;
    use std::net::SocketAddr;
    use std::pin::pin;
    use std::task::{Context as TaskContext, Waker};

    use farcall::{Channel, Code, Server, Streaming};

    use super::super::mirror::{Asker, Head};
    use super::*;

    const AT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    async fn open(client: &DoctorClient, at: IpAddr) -> Result<(Streaming<Mirror>, Mirror)> {
        let mut mirrors = client.mirror(at).await?;
        let mirror = mirrors.message().await?;
        Ok((mirrors, mirror.unwrap()))
    }

    #[tokio::test]
    async fn a_look_whose_caller_has_gone_goes_on_and_holds_off_the_next() {
        let looking = Looking::new(RdmaConfig::default());
        // The first poll begins the look. Dropping it is what a cancelled call does.
        let _ = pin!(looking.examine()).poll(&mut TaskContext::from_waker(Waker::noop()));
        assert!(looking.last.lock().await.is_some());
    }

    #[tokio::test]
    async fn mirrors_are_few_and_end_with_their_callers() {
        let doctor = DoctorServer::new(Looking::new(RdmaConfig::default()));
        let server = Server::builder().add(doctor).bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr();
        tokio::spawn(server.serve());
        let channel = Channel::connect(&format!("tcp://{address}")).await.unwrap();
        let client = DoctorClient::new(&channel);
        // An address for documentation, which no machine has.
        let elsewhere = open(&client, [192, 0, 2, 1].into()).await.unwrap_err();
        assert_eq!(elsewhere.code(), Code::FailedPrecondition, "{elsewhere}");

        let mut mirrors = Vec::new();
        for _ in 0..MIRRORS {
            mirrors.push(open(&client, AT).await.unwrap());
        }
        let refused = open(&client, AT).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        for (_, Mirror { port, token }) in &mirrors {
            let mut asker = Asker::new(AT, SocketAddr::new(AT, *port), *token).await.unwrap();
            assert!(asker.ask(Head::LENGTH, 0, false).await.is_some());
        }
        mirrors.clear();
        // The server learns a little later that the callers have gone.
        timeout(Duration::from_secs(60), async { while open(&client, AT).await.is_err() {} }).await.unwrap();
    }
}
