//! A running server for its operators: calls, connections, memory, devices.
//!
//! [`ServerBuilder::with_admin`](crate::ServerBuilder::with_admin) adds the service [`Admin`], which `farcall top` shows. It names the
//! peers of the server. [`ServerBuilder::with_capture`](crate::ServerBuilder::with_capture) lets `farcall record` copy what calls say,
//! too. Keep the service from those who must not know that, by [`authorize`](crate::middleware::authorize) for example.

mod capture;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use capture::Taps;
pub use capture::{Captured, Message, Outcome};
use farcall_core::admission::AdmissionStats;
use farcall_core::server::ServerCore;
use serde::{Deserialize, Serialize};

use crate::middleware::{Next, Request, Response};
use crate::{Context, PeerMemory, Result, Status, Stream};

/// Tells what a server does.
#[crate::service(package = "farcall.admin.v1", crate = "crate")]
pub trait Admin {
    /// Returns what the server does now, and has done so far.
    async fn snapshot(&self) -> Result<Snapshot>;
    /// Returns the unary calls from now on whose path begins with `only`, with their arguments and answers, and with their metadata if
    /// asked. Calls that lend memory are not among them. PERMISSION_DENIED: the server was not built with
    /// [`with_capture`](crate::ServerBuilder::with_capture).
    async fn capture(
        &self,
        cx: &Context,
        only: String,
        with_metadata: bool,
    ) -> Result<impl Stream<Item = Result<Captured>>>;
}

/// A server at a time. Counts only grow, so the difference of two snapshots is what happened between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The time since the server was bound, in microseconds.
    pub age_us: u64,
    /// The methods that were called, in order of name.
    pub methods: Vec<MethodCalls>,
    /// The connections.
    pub connections: Vec<ConnectionState>,
    /// How many calls the server takes at once, and how many it has refused. `None`: its [`Admission`](crate::Admission) takes all.
    pub admission: Option<AdmissionStats>,
    /// The limit of memory that clients make the server hold, in bytes.
    pub memory_limit: u64,
    /// The part of it that is used.
    pub memory_used: u64,
    /// The most that was ever used.
    pub memory_peak: u64,
    /// The memory that is held for each client address, the greediest first.
    pub memory: Vec<PeerMemory>,
    /// The RDMA devices that the process has used.
    pub devices: Vec<DeviceWork>,
}

/// The calls of a method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodCalls {
    /// The name, as in `shop.v1.Kv/put`.
    pub path: String,
    /// Calls whose handlers run now.
    pub running: u64,
    /// Calls that were answered. A stream of answers counts at its end.
    pub answered: u64,
    /// Calls that ended with a status or an error.
    pub failed: u64,
    /// The time from when the handler began to its answer, in microseconds: pairs of a limit, and the number of calls below it that are
    /// not below the limit before. Streams of answers, and calls that were given up, are not among them.
    pub handler_us: Vec<(u64, u64)>,
}

impl MethodCalls {
    /// Returns the time in microseconds that so many percent of the calls did not exceed, within a quarter of it. `None`: there were none.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        // A server says these numbers, and may say any.
        let all = self.handler_us.iter().fold(0_u64, |all, (_, count)| all.saturating_add(*count));
        let rank = (all as f64 * percent / 100.0).ceil() as u64;
        let mut below = 0_u64;
        self.handler_us.iter().find_map(|(limit, count)| {
            below = below.saturating_add(*count);
            (below >= rank && all > 0).then_some(*limit)
        })
    }
}

/// A connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConnectionState {
    /// The connection's number, which no other connection of the server's process has.
    pub number: u64,
    /// The peer's address, if it has one.
    pub peer: Option<String>,
    /// The name in the peer's certificate, or the user of its process as in `uid=1000`. `None`: neither is known.
    pub identity: Option<String>,
    /// The link that calls go by, with the device, or with the reason why it is not RDMA.
    pub transport: String,
    /// Whether that link is encrypted.
    pub is_encrypted: bool,
    /// The class of its calls.
    pub class: String,
    /// Bytes that were sent and received, by both links together.
    pub bytes: (u64, u64),
    /// Messages that wait to be sent.
    pub unsent: u64,
    /// How long messages have waited because there was no room at the peer, in the socket's buffer or in the device's queue, in microseconds.
    pub waited_us: u64,
    /// How many more messages the peer has room for. `None`: calls go by TCP, which does not count them.
    pub credits: Option<u32>,
    /// How long a PING took to the peer and back, in microseconds. `None`: it was not measured yet. A snapshot begins the measurement for
    /// the next.
    pub round_trip_us: Option<u64>,
}

/// The work of an RDMA device.
// Not `farcall_rdma::DeviceStats`, which servers without the feature `rdma` lack: their service would be another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceWork {
    /// The device's name in the kernel.
    pub device: String,
    /// How often drivers asked what has completed.
    pub polls: u64,
    /// How many of those found nothing and were followed by the next without a sleep.
    pub spins: u64,
    /// How often drivers slept.
    pub sleeps: u64,
    /// How often a connection waited until its peer had room.
    pub credit_waits: u64,
    /// How often this process has read or written a peer's memory by itself.
    pub direct_accesses: u64,
}

/// The admin service of a server, and the counts of its calls.
#[derive(Debug)]
pub(crate) struct Operator {
    bound: Instant,
    calls: RwLock<HashMap<String, Arc<Counts>>>,
    /// Set when the server is bound. It is the owner of this.
    server: OnceLock<Weak<ServerCore>>,
    taps: Arc<Taps>,
    may_capture: bool,
}

impl Operator {
    pub(crate) fn new(may_capture: bool) -> Arc<Self> {
        let (calls, server, taps) = (RwLock::default(), OnceLock::new(), Arc::default());
        Arc::new(Self { bound: Instant::now(), calls, server, taps, may_capture })
    }

    /// Notes the server, once.
    pub(crate) fn is_of(&self, server: &Arc<ServerCore>) {
        // Nobody else sets it.
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// Returns the service.
    pub(crate) fn service(self: &Arc<Self>) -> AdminServer<Arc<Self>> {
        AdminServer::new(Arc::clone(self))
    }

    /// Counts a call while it runs.
    pub(crate) async fn count(self: Arc<Self>, request: Request, next: Next) -> Result<Response, Status> {
        // Looking is no work of the server's.
        if request.service() == "farcall.admin.v1.Admin" {
            return next.run(request).await;
        }
        let running = Running::begin(self.of(&request.path()));
        let captured = self.taps.begin(&request, self.bound);
        let answered = next.run(request).await;
        if let Some(captured) = captured {
            captured.end(&answered);
        }
        match &answered {
            // Its time is that of its reader.
            Ok(response) if response.is_stream() => running.end_of_stream(),
            Ok(response) => running.end(!response.is_error()),
            Err(_) => running.end(false),
        }
        answered
    }

    fn of(&self, path: &str) -> Arc<Counts> {
        if let Some(counts) = self.calls.read().unwrap_or_else(PoisonError::into_inner).get(path) {
            return Arc::clone(counts);
        }
        let mut calls = self.calls.write().unwrap_or_else(PoisonError::into_inner);
        // Only methods that the server has come here, so there are no more entries than those.
        Arc::clone(calls.entry(path.to_owned()).or_default())
    }

    fn methods(&self) -> Vec<MethodCalls> {
        let calls = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        let mut methods: Vec<_> = calls.iter().map(|(path, counts)| counts.calls(path)).collect();
        methods.sort_by(|a, b| a.path.cmp(&b.path));
        methods
    }
}

impl Admin for Arc<Operator> {
    async fn snapshot(&self) -> Result<Snapshot> {
        let server = self.server.get().and_then(Weak::upgrade);
        let server = server.ok_or_else(|| Status::unavailable("the server is going away"))?;
        let memory = server.memory();
        Ok(Snapshot {
            age_us: self.bound.elapsed().as_micros() as u64,
            methods: self.methods(),
            connections: server.connections().iter().map(|connection| state(connection)).collect(),
            admission: server.admission(),
            memory_limit: memory.limit() as u64,
            memory_used: memory.used() as u64,
            memory_peak: memory.peak() as u64,
            memory: memory.peers(),
            devices: devices(),
        })
    }

    async fn capture(
        &self,
        cx: &Context,
        only: String,
        with_metadata: bool,
    ) -> Result<impl Stream<Item = Result<Captured>>> {
        if !self.may_capture {
            return Err(Status::permission_denied(
                "the server was not built with `ServerBuilder::with_capture`",
            ));
        }
        let (mut listening, cx) = (self.taps.listen(only, with_metadata)?, cx.clone());
        Ok(crate::stream::generate(async move |calls| {
            loop {
                tokio::select! {
                    captured = listening.next() => match captured {
                        Some(captured) => calls.send(captured).await,
                        None => return Ok(()),
                    },
                    () = cx.draining() => return Ok(()),
                }
            }
        }))
    }
}

fn state(connection: &crate::Connection) -> ConnectionState {
    let traffic = connection.traffic();
    let sum = |count: fn(&crate::Counters) -> u64| count(&traffic.stream) + count(&traffic.upgraded);
    ConnectionState {
        number: connection.number(),
        peer: connection.peer().map(|peer| peer.to_string()),
        identity: connection.identity().map(|identity| identity.name().to_owned()),
        transport: connection.transport().to_string(),
        is_encrypted: connection.is_encrypted(),
        class: connection.class().to_string(),
        bytes: (sum(|counters| counters.bytes_sent), sum(|counters| counters.bytes_received)),
        unsent: connection.unsent() as u64,
        waited_us: traffic.waited.as_micros() as u64,
        credits: connection.credits(),
        round_trip_us: connection.round_trip().map(|took| took.as_micros() as u64),
    }
}

#[cfg(feature = "rdma")]
fn devices() -> Vec<DeviceWork> {
    let work = |of: farcall_rdma::DeviceStats| DeviceWork {
        device: of.device,
        polls: of.polls,
        spins: of.spins,
        sleeps: of.sleeps,
        credit_waits: of.credit_waits,
        direct_accesses: of.direct_accesses,
    };
    farcall_rdma::stats().into_iter().map(work).collect()
}

#[cfg(not(feature = "rdma"))]
fn devices() -> Vec<DeviceWork> {
    Vec::new()
}

/// Parts of each power of two in the counts of times.
const PARTS: usize = 4;

/// Counts of times up to hours.
const BUCKETS: usize = PARTS * 34;

/// The counts of a method.
#[derive(Debug)]
struct Counts {
    running: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    times: [AtomicU64; BUCKETS],
}

impl Default for Counts {
    fn default() -> Self {
        let (running, answered, failed) = Default::default();
        Self { running, answered, failed, times: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Counts {
    fn calls(&self, path: &str) -> MethodCalls {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let times = self.times.iter().enumerate().map(|(index, times)| (limit(index), count(times)));
        MethodCalls {
            path: path.to_owned(),
            running: count(&self.running),
            answered: count(&self.answered),
            failed: count(&self.failed),
            handler_us: times.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// Returns the bucket of a time.
fn bucket(time: Duration) -> usize {
    let micros = time.as_micros().max(1) as u64;
    let power = micros.ilog2() as usize;
    let part = ((micros as u128 * PARTS as u128) >> power) as usize - PARTS;
    (power * PARTS + part).min(BUCKETS - 1)
}

/// Returns the time in microseconds that those in a bucket are below.
fn limit(bucket: usize) -> u64 {
    let (power, part) = (bucket / PARTS, bucket % PARTS);
    ((1_u64 << power) * (PARTS + part + 1) as u64).div_ceil(PARTS as u64)
}

/// A call that runs. It counts as failed if it is dropped.
struct Running {
    counts: Arc<Counts>,
    began: Instant,
    end: End,
}

/// The end of a call.
#[derive(Clone, Copy, PartialEq)]
enum End {
    GivenUp,
    Answered,
    Failed,
    OfStream,
}

impl Running {
    fn begin(counts: Arc<Counts>) -> Self {
        counts.running.fetch_add(1, Ordering::Relaxed);
        Self { counts, began: Instant::now(), end: End::GivenUp }
    }

    fn end(mut self, is_answered: bool) {
        self.end = if is_answered { End::Answered } else { End::Failed };
    }

    fn end_of_stream(mut self) {
        self.end = End::OfStream;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.counts.running.fetch_sub(1, Ordering::Relaxed);
        let ended = match self.end {
            End::Answered | End::OfStream => &self.counts.answered,
            End::GivenUp | End::Failed => &self.counts.failed,
        };
        ended.fetch_add(1, Ordering::Relaxed);
        if matches!(self.end, End::Answered | End::Failed) {
            self.counts.times[bucket(self.began.elapsed())].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_below_its_limit_and_not_below_the_one_before() {
        for micros in
            (0..40).map(|power| 1_u64 << power).flat_map(|power| [power - 1, power, power + power / 3])
        {
            let time = Duration::from_micros(micros);
            let index = bucket(time);
            if index < BUCKETS - 1 {
                assert!(micros.max(1) < limit(index).max(2), "{micros}: {index}");
                assert!(index == 0 || micros >= limit(index - 1).saturating_sub(1), "{micros}: {index}");
            }
        }
    }

    #[test]
    fn percentiles_come_from_the_counts() {
        let calls = MethodCalls { handler_us: vec![(2, 50), (10, 49), (1000, 1)], ..MethodCalls::default() };
        assert_eq!(
            [50.0, 99.0, 100.0].map(|percent| calls.percentile(percent)),
            [Some(2), Some(10), Some(1000)]
        );
        assert_eq!(MethodCalls::default().percentile(50.0), None);
        let endless =
            MethodCalls { handler_us: vec![(2, u64::MAX), (10, u64::MAX)], ..MethodCalls::default() };
        assert_eq!(endless.percentile(99.0), Some(2));
    }
}
