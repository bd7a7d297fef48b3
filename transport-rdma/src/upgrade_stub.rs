//! Stands in for `upgrade.rs` on platforms without verbs.

use bytes::Bytes;
use farcall_core::class::TrafficClass;
use farcall_core::transport::{BoxFuture, Candidate, Description, Unavailable, Upgrade};

use crate::config::RdmaConfig;

type Offered = Result<(Box<dyn Candidate>, Bytes), Unavailable>;

/// RDMA, for the sessions of a channel or server. There is none on this platform.
#[derive(Debug, Clone)]
pub struct RdmaUpgrade(());

impl RdmaUpgrade {
    /// RDMA through this machine's devices, of which there are none.
    pub fn new(_config: RdmaConfig) -> Self {
        Self(())
    }
}

impl Upgrade for RdmaUpgrade {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, Unavailable>> {
        Box::pin(async { Err(unsupported()) })
    }

    fn offer(&self, _announced: Bytes, _stream: &Description, _class: TrafficClass) -> BoxFuture<Offered> {
        Box::pin(async { Err(unsupported()) })
    }

    fn answer(&self, _offer: Bytes, _stream: &Description, _class: TrafficClass) -> BoxFuture<Offered> {
        Box::pin(async { Err(unsupported()) })
    }
}

fn unsupported() -> Unavailable {
    crate::Unavailable::UnsupportedPlatform.into()
}
