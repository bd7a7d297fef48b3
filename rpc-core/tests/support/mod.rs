//! Support for the tests of sessions: a service, callers and hosts in one process, links with faults, and a scripted
//! peer. Services are written by hand here. The macro's output is tested through the facade.

#![expect(dead_code, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

pub(crate) mod direct;
pub(crate) mod fabric;
pub(crate) mod peer;
pub(crate) mod reading;
pub(crate) mod streaming;
pub(crate) mod tap;

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use farcall_core::client::{Call, Connector, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::{Limits, Liveness};
use farcall_core::payload::{Encoder, Payload};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Result, Status};
use farcall_core::transport::{BoxFuture, Link, Reason, Unavailable, memory};
use tokio::sync::Notify;

use tap::Tap;

pub(crate) type Echo = Call<Result<Bytes>, Raw>;

pub(crate) const ECHO: usize = 0;
pub(crate) const HANG: usize = 1;
pub(crate) const PANIC: usize = 2;
pub(crate) const BIG: usize = 3;
pub(crate) const NOTE: usize = 4;
pub(crate) const WAIT: usize = 5;

const METHODS: [&str; 6] = ["echo", "hang", "panic", "big", "note", "wait"];

/// A service with these methods:
///
/// - echo(x) returns x.
/// - hang() never ends, and reports when it starts and when it is dropped.
/// - panic() panics.
/// - big(n) returns n times 7.
/// - note(x) records x, yields, and returns x.
/// - wait(x) returns x once `go` is notified.
pub(crate) struct Test {
    pub(crate) info: Arc<ServiceInfo>,
    pub(crate) seen: Arc<Seen>,
}

/// A record of what a service has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) started: Notify,
    pub(crate) dropped: Notify,
    pub(crate) go: Notify,
    pub(crate) runs: AtomicU32,
    hanging: AtomicU32,
    pub(crate) notes: Mutex<Vec<Bytes>>,
    /// The remaining times of callers, in milliseconds.
    pub(crate) remaining: Mutex<Vec<Option<u64>>>,
}

impl Seen {
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Returns how many handlers hang now.
    pub(crate) fn hanging(&self) -> u32 {
        self.hanging.load(Ordering::Relaxed)
    }
}

pub(crate) fn info(name: &'static str) -> Arc<ServiceInfo> {
    let methods = METHODS.map(|name| Method::unary(name, name)).to_vec();
    Arc::new(ServiceInfo { name: name.into(), codec: "raw".into(), methods })
}

impl Test {
    pub(crate) fn new() -> Self {
        Self { info: info("test"), seen: Arc::default() }
    }
}

/// A handler that hangs.
struct Hanging(Arc<Seen>);

impl Hanging {
    fn new(seen: Arc<Seen>) -> Self {
        seen.hanging.fetch_add(1, Ordering::Relaxed);
        seen.started.notify_one();
        Self(seen)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.hanging.fetch_sub(1, Ordering::Relaxed);
        self.0.dropped.notify_one();
    }
}

impl Service for Test {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let seen = self.seen.clone();
        seen.runs.fetch_add(1, Ordering::Relaxed);
        let remaining = request.context.remaining().map(|left| left.as_millis() as u64);
        seen.remaining.lock().unwrap().push(remaining);
        Box::pin(run(method, request.payload, seen))
    }
}

async fn run(method: usize, payload: Payload, seen: Arc<Seen>) -> Reply {
    match method {
        ECHO => Reply::Ok(payload),
        HANG => {
            let _hanging = Hanging::new(seen);
            pending().await
        }
        PANIC => panic!("as it was told to"),
        BIG => match number(&payload) {
            Some(len) => Reply::Ok(Payload::from_body(vec![7; len].into())),
            None => Reply::Status(Status::new(Code::InvalidArgument, "not a number")),
        },
        NOTE => {
            let id = text(&payload);
            seen.notes.lock().unwrap().push(id);
            tokio::task::yield_now().await;
            Reply::Ok(payload)
        }
        _ => {
            seen.started.notify_one();
            seen.go.notified().await;
            Reply::Ok(payload)
        }
    }
}

pub(crate) fn text(payload: &Payload) -> Bytes {
    Bytes::copy_from_slice(farcall_core::payload::Decoder::new(payload.clone()).rest())
}

fn number(payload: &Payload) -> Option<usize> {
    std::str::from_utf8(&text(payload)).ok()?.parse().ok()
}

pub(crate) fn plain(limits: Limits) -> Settings {
    Settings::plain(limits, Liveness::default(), Unavailable::new(Reason::Disabled, "as the test wants it"))
}

/// Connects callers to hosts in this process. The test can interfere with the caller's ends of the links.
#[derive(Clone)]
pub(crate) struct Near {
    /// Connections go to the last host.
    pub(crate) hosts: Arc<Mutex<Vec<Arc<ServerCore>>>>,
    pub(crate) taps: Arc<Mutex<Vec<Arc<Tap>>>>,
}

impl Connector for Near {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = memory::pair();
        self.hosts.lock().unwrap().last().unwrap().serve(far);
        let tap = Tap::new(near);
        self.taps.lock().unwrap().push(tap.clone());
        Box::pin(async { Ok(tap as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "the host of this test".into()
    }
}

pub(crate) struct Setup {
    pub(crate) caller: RawChannel,
    pub(crate) host: Arc<ServerCore>,
    pub(crate) info: Arc<ServiceInfo>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) near: Near,
}

pub(crate) fn host(settings: Settings) -> (Arc<ServerCore>, Arc<Seen>) {
    let service = Test::new();
    let seen = service.seen.clone();
    (ServerCore::new(vec![Arc::new(service)], settings).unwrap(), seen)
}

pub(crate) fn setup(client: Settings, server: Settings) -> Setup {
    let (host, seen) = host(server);
    let near = Near { hosts: Arc::new(Mutex::new(vec![host.clone()])), taps: Arc::default() };
    Setup { caller: RawChannel::new(near.clone(), client), host, info: info("test"), seen, near }
}

pub(crate) fn default() -> Setup {
    setup(plain(Limits::default()), plain(Limits::default()))
}

impl Setup {
    pub(crate) fn call(&self, method: usize, argument: impl Into<Bytes>) -> Echo {
        call(&self.caller, &self.info, method, argument)
    }

    /// Makes a call in its own task.
    pub(crate) fn spawn(
        &self,
        method: usize,
        argument: impl Into<Bytes>,
    ) -> tokio::task::JoinHandle<Result<Bytes>> {
        tokio::spawn(self.call(method, argument).into_future())
    }

    /// Returns another caller of the same server.
    pub(crate) fn another(&self) -> RawChannel {
        RawChannel::new(self.near.clone(), plain(Limits::default()))
    }

    /// Returns this side of the last connection.
    pub(crate) fn tap(&self) -> Arc<Tap> {
        self.near.taps.lock().unwrap().last().unwrap().clone()
    }
}

pub(crate) fn call(
    caller: &RawChannel,
    info: &Arc<ServiceInfo>,
    method: usize,
    argument: impl Into<Bytes>,
) -> Echo {
    let mut arguments = Encoder::new();
    arguments.put_bytes(&argument.into());
    Stub::new(caller.clone(), info.clone()).call(method, Ok(arguments.finish()))
}

pub(crate) fn bytes(len: usize, seed: usize) -> Bytes {
    (0..len).map(|i| (i * 31 + seed) as u8).collect()
}

/// Yields until `condition` holds, for conditions of other tasks that can't be awaited. The time limit guards against
/// hangs; it uses real time even if time is paused.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed().as_secs() < 60, "this has not come about: {what}");
        tokio::task::yield_now().await;
    }
}
