//! The way between this machine and another: whether RDMA reaches it, and with which packets.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use farcall::rdma::RdmaConfig;
use farcall::rdma::probe::{Report, Severity};
use farcall::{Channel, Code, Status};
use serde::Serialize;
use serde_json::Value;

use super::service::DoctorClient;
use super::{kinds, way};
use crate::perf::service::{PerfClient, filled};
use crate::target::{By, Target};

/// Something about the way between two machines, in the form of a finding.
#[derive(Debug, Serialize)]
pub(crate) struct Between {
    pub(crate) code: &'static str,
    pub(crate) severity: Severity,
    pub(crate) area: &'static str,
    pub(crate) seen: String,
    pub(crate) means: &'static str,
    pub(crate) fix: String,
}

/// The other machine, and the way to it.
#[derive(Debug, Serialize)]
pub(crate) struct Other {
    /// The other machine's report. `None`: it does not run `farcall serve`.
    pub(crate) there: Option<Value>,
    pub(crate) between: Vec<Between>,
    /// The transport that `auto` chooses, in words.
    pub(crate) auto: String,
}

/// How long each answer may take. A look at a machine takes seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The sizes of calls: within a packet, over some, and such that the receiver reads them from the sender's memory.
const SIZES: [usize; 3] = [64, 8 << 10, 256 << 10];

/// Calls of each size. A loss that comes and goes shows in one of them.
const CALLS: usize = 50;

/// Looks at a host that runs `farcall serve`, and at the way there. A host that is not reached is a fault, like others.
pub(super) async fn look(target: &Target, here: &Report, config: &RdmaConfig) -> Other {
    let mut other = Other { there: None, between: Vec::new(), auto: String::new() };
    let channel = match target.connect(By::Tcp).await {
        Ok(channel) => channel,
        Err(why) => {
            other.between.push(unreached(why.text()));
            return other;
        }
    };
    match DoctorClient::new(&channel).examine().timeout(PATIENCE).await {
        Ok(json) => other.there = serde_json::from_str(&json).ok(),
        Err(status) => other.between.push(no_service(&status)),
    }
    let lost = rdma(target).await;
    if let (Some(there), Ok(here)) = (&other.there, serde_json::to_value(here)) {
        other.between.extend(mtu(&here, there));
        other.between.extend(way::look(&channel, &here, there, config, lost.is_none()).await);
    }
    other.between.extend(lost);
    // The worst first. Of equally bad ones a cause stands before its effect.
    other.between.sort_by_key(|finding| Reverse(finding.severity));
    other.auto = match target.connect(By::Auto).await {
        Ok(channel) => {
            channel.transport().await.map_or_else(|status| status.to_string(), |chosen| chosen.to_string())
        }
        Err(why) => why.text().to_owned(),
    };
    other
}

fn unreached(why: &str) -> Between {
    kinds::UNREACHED.found(format!("the host is not reached by TCP: {why}"))
}

fn no_service(status: &Status) -> Between {
    kinds::NO_SERVICE.found(format!("the host does not tell what it finds: {status}"))
}

/// Finds that the two sides send packets of different sizes.
pub(super) fn mtu(here: &Value, there: &Value) -> Option<Between> {
    let is_chosen =
        |port: &&Value| list(port, "addresses").iter().any(|address| address["is_chosen"] == true);
    let of = |report| {
        let ports = list(report, "devices").iter().flat_map(|device| list(device, "ports"));
        ports.filter(is_chosen).find_map(|port| port["netdev_mtu"].as_u64())
    };
    let (ours, theirs) = (of(here)?, of(there)?);
    (ours != theirs).then(|| kinds::MTU_DIFFERS.found(format!("the MTU is {ours} here and {theirs} there")))
}

/// Returns a list in a report.
pub(super) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// Finds that RDMA does not reach the host, or does for short messages only.
async fn rdma(target: &Target) -> Option<Between> {
    let channel = match target.connect(By::Rdma).await {
        Ok(channel) => channel,
        Err(why) => {
            return Some(kinds::NO_RDMA.found(format!("RDMA does not reach the host: {}", why.text())));
        }
    };
    for size in SIZES {
        // An error: it is another server, which the warning says.
        let Ok(lost) = exchange(&channel, size).await else { return None };
        if let Some(why) = lost {
            return Some(kinds::LOST.found(format!("RDMA does not carry calls of {size} bytes: {why}")));
        }
    }
    None
}

/// Makes calls of a size both ways, which all must go by RDMA. Returns why not. An error: the server does not take such calls.
async fn exchange(channel: &Channel, size: usize) -> Result<Option<String>, Status> {
    let (client, payload, began) = (PerfClient::new(channel), filled(size), Instant::now());
    for _ in 0..CALLS {
        match client.echo(payload.clone()).timeout(PATIENCE).await {
            Ok(answer) if answer == payload => {}
            Ok(_) => return Ok(Some("other bytes came back than were sent".to_owned())),
            Err(status) => match status.code() {
                Code::Unimplemented | Code::PermissionDenied | Code::Unauthenticated => return Err(status),
                _ => return Ok(Some(status.to_string())),
            },
        }
    }
    let transport = channel.transport().await?;
    let is_rdma = transport.name == "rdma";
    Ok((!is_rdma).then(|| format!("after {:?} calls go by {transport}", began.elapsed())))
}
