//! A channel over servers of which some are dead, silent, slow or flapping, under load.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Call, Connector, Endpoint, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::{BalancePolicy, Limits};
use farcall_core::payload::Payload;
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::status::{Blame, Code, Result, Status};
use farcall_core::transport::{BoxFuture, Link, memory};
use tokio::time::Instant;

use support::plain;
use support::tap::Tap;

/// A service that takes its time.
struct Taking {
    info: Arc<ServiceInfo>,
    time: Duration,
    runs: Arc<AtomicU32>,
}

impl Service for Taking {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let time = self.time;
        Box::pin(async move {
            tokio::time::sleep(time).await;
            Reply::Ok(request.payload)
        })
    }
}

fn info() -> Arc<ServiceInfo> {
    let mut method = Method::unary("take", "take");
    method.idempotent = true;
    Arc::new(ServiceInfo { name: "taking".into(), codec: "raw".into(), methods: vec![method] })
}

struct Node {
    time: Duration,
    runs: Arc<AtomicU32>,
    host: Mutex<Option<Arc<ServerCore>>>,
    taps: Mutex<Vec<Arc<Tap>>>,
    tries: AtomicU32,
}

impl Node {
    fn new(time: Duration) -> Arc<Self> {
        let (runs, host, taps, tries) = Default::default();
        Arc::new(Self { time, runs, host, taps, tries })
    }

    fn start(&self) {
        let service = Taking { info: info(), time: self.time, runs: self.runs.clone() };
        let host = ServerCore::new(vec![Arc::new(service)], plain(Limits::default())).unwrap();
        *self.host.lock().unwrap() = Some(host);
    }

    fn kill(&self) {
        self.host.lock().unwrap().take().unwrap().close();
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }
}

struct To(Arc<Node>);

impl Connector for To {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        self.0.tries.fetch_add(1, Ordering::Relaxed);
        let Some(host) = self.0.host.lock().unwrap().clone() else {
            let status = Status::new(Code::Unavailable, "refused").with_blame(Blame::Environment);
            return Box::pin(async move { Err(status) });
        };
        let (near, far) = memory::pair();
        host.serve(far);
        let tap = Tap::new(near);
        self.0.taps.lock().unwrap().push(tap.clone());
        Box::pin(async { Ok(tap as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "a node".into()
    }
}

const FAST: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn calls_succeed_and_stay_fast_whatever_some_servers_do() {
    let [good, second, dead, silent, flapping] = [(); 5].map(|()| Node::new(FAST));
    let slow = Node::new(100 * FAST);
    for node in [&good, &second, &silent, &flapping, &slow] {
        node.start();
    }
    let mut settings = plain(Limits::default());
    settings.balance.policy = BalancePolicy::LeastLoaded;
    (settings.retry.max_attempts, settings.retry.max_tokens) = (4, 1000);
    settings.retry.retryable_status_codes = vec![Code::Unavailable, Code::DeadlineExceeded];
    let (channel, endpoints) = RawChannel::balanced("nodes", settings);
    let nodes = [&good, &second, &dead, &silent, &flapping, &slow];
    let endpoint = |(index, node): (usize, &&Arc<Node>)| {
        Endpoint::new(&index.to_string(), Arc::new(To((*node).clone())))
    };
    endpoints.set(nodes.iter().enumerate().map(endpoint).collect());
    channel.connection().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    silent.taps.lock().unwrap()[0].silence();

    let flaps = tokio::spawn({
        let flapping = flapping.clone();
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                flapping.kill();
                tokio::time::sleep(Duration::from_millis(300)).await;
                flapping.start();
            }
        }
    });
    let stub = Stub::new(channel, info());
    let began = Instant::now();
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let stub = stub.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while began.elapsed() < Duration::from_secs(60) {
                    let call: Call<Result<Bytes>, Raw> = stub.call(0, Ok(Payload::from_body("x".into())));
                    let begun = Instant::now();
                    call.await.unwrap();
                    times.push(begun.elapsed());
                    tokio::time::sleep(Duration::from_millis(9)).await;
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.unwrap());
    }
    flaps.abort();
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100 - 1];
    assert!(times.len() > 50_000, "{}", times.len());
    assert!(at(98) <= 2 * FAST, "{:?}", at(98));
    // A call that had gone to the silent one waits until that is found to be silent.
    assert!(times.last().unwrap() <= &Duration::from_secs(12), "{:?}", times.last());
    let late = times.iter().filter(|time| **time > Duration::from_millis(300)).count();
    assert!(late <= 40, "{late} calls waited for the silent server");
    // The slow one is tried once in a while, so that it is found when it is faster.
    assert!((1..times.len() as u32 / 50).contains(&slow.runs()), "{} of {}", slow.runs(), times.len());
    assert!(good.runs() > 10_000 && second.runs() > 10_000 && flapping.runs() > 1000);
    assert_eq!(dead.runs(), 0);
    // It is tried again at the longest pause, two seconds.
    assert!(dead.tries.load(Ordering::Relaxed) < 100);
}
