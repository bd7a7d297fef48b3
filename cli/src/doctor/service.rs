//! The service by which `farcall doctor HOST` learns what the host finds: what `farcall serve` serves.

use std::time::{Duration, Instant};

use farcall::rdma::RdmaConfig;
use farcall::rdma::probe::{self, Machine};
use farcall::{Result, Status};
use tokio::sync::Mutex;

/// Looks at the machine that the server runs on.
#[farcall::service(package = "farcall.doctor.v1")]
pub(crate) trait Doctor {
    /// Returns the report as the JSON of `farcall doctor --json`.
    async fn examine(&self) -> Result<String>;
}

/// For so long a report is told again: everybody who reaches the port may ask, and a look takes programs and seconds.
const FRESH: Duration = Duration::from_secs(5);

/// Looks at this machine, one look at a time.
#[derive(Debug)]
pub(crate) struct Looking {
    config: RdmaConfig,
    last: Mutex<Option<(Instant, String)>>,
}

impl Looking {
    /// Judges for a service with this configuration.
    pub(crate) fn new(config: RdmaConfig) -> Self {
        Self { config, last: Mutex::default() }
    }
}

impl Doctor for Looking {
    async fn examine(&self) -> Result<String> {
        let mut last = self.last.lock().await;
        if let Some((at, report)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(report.clone());
        }
        let config = self.config.clone();
        let look = move || {
            let mut report = probe::examine(&Machine::this(), &config);
            probe::trial(&mut report, &config);
            serde_json::to_string(&report)
        };
        let report =
            tokio::task::spawn_blocking(look).await.map_err(|error| Status::internal(error.to_string()))?;
        let report = report.map_err(|error| Status::internal(error.to_string()))?;
        *last = Some((Instant::now(), report.clone()));
        Ok(report)
    }
}
