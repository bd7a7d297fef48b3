//! Turns of the driver: a link that brings much work does not have the driver to itself.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod near;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::Policy;
use farcall_core::payload::{Decoder, Encoder};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::status::Result;
use farcall_rdma::testing::sim::Fabric;
use farcall_rdma::{Completion, RdmaConfig};

use near::Near;

const ECHO: usize = 0;
const SLOW: usize = 1;

/// echo(x) -> x; slow(n) -> n, after it has taken its thread for 100 us.
struct Server {
    info: Arc<ServiceInfo>,
    slow: Arc<Slow>,
}

/// The calls of `slow`, of which each has its number as argument.
#[derive(Default)]
struct Slow {
    /// How many handlers have run.
    count: AtomicUsize,
    /// How many ran out of the order in which their calls were made.
    disordered: AtomicUsize,
}

impl Slow {
    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn run(&self, argument: &[u8]) {
        std::thread::sleep(Duration::from_micros(100));
        let place = self.count.fetch_add(1, Ordering::Relaxed);
        let is_next = argument[..8] == place.to_le_bytes();
        self.disordered.fetch_add((!is_next).into(), Ordering::Relaxed);
    }
}

impl Service for Server {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let slow = Arc::clone(&self.slow);
        Box::pin(async move {
            if method == SLOW {
                slow.run(Decoder::new(request.payload.clone()).rest());
            }
            Reply::Ok(request.payload)
        })
    }
}

struct Client {
    caller: RawChannel,
    info: Arc<ServiceInfo>,
}

impl Client {
    fn call(&self, method: usize, argument: &[u8]) -> Call<Result<Bytes>, Raw> {
        let mut arguments = Encoder::new();
        arguments.put_bytes(&Bytes::copy_from_slice(argument));
        Stub::new(self.caller.clone(), self.info.clone()).call(method, Ok(arguments.finish()))
    }
}

/// Two clients, each on a machine of its own, of a server whose endpoint both share.
fn setup(completion: Completion) -> ([Client; 2], Arc<Slow>) {
    let fabric = Fabric::new(1);
    let settings = |n| {
        let mut config = RdmaConfig::default();
        (config.strict_credits, config.completion) = (true, completion);
        near::settings(&fabric, n, Policy::Auto, config)
    };
    let methods = ["echo", "slow"].map(|name| Method::unary(name, name)).to_vec();
    let info = Arc::new(ServiceInfo { name: "server".into(), codec: "raw".into(), methods });
    let slow = Arc::default();
    let server = Server { info: Arc::clone(&info), slow: Arc::clone(&slow) };
    let host = ServerCore::new(vec![Arc::new(server)], settings(1)).unwrap();
    let clients = [2, 3].map(|n| {
        let near = Near { host: Arc::clone(&host), cipher: None };
        Client { caller: RawChannel::new(near, settings(n)), info: Arc::clone(&info) }
    });
    (clients, slow)
}

/// Handlers run where the driver delivers their requests. A link that brings many has no more turns than another.
#[tokio::test]
async fn requests_that_take_long_do_not_have_one_long_turn() {
    const REQUESTS: usize = 4000;
    for completion in [Completion::Adaptive, Completion::Event, Completion::Busy] {
        let ([greedy, honest], slow) = setup(completion);
        // Calls that go all at once use up the window, which grows.
        for _ in 0..8 {
            let calls = (0..512).map(|_| tokio::spawn(greedy.call(ECHO, &[0; 1000]).into_future()));
            for call in calls.collect::<Vec<_>>() {
                call.await.unwrap().unwrap();
            }
        }
        honest.call(ECHO, b"").await.unwrap();
        let calls = (0..REQUESTS).map(|i| tokio::spawn(greedy.call(SLOW, &i.to_le_bytes()).into_future()));
        let calls: Vec<_> = calls.collect();
        let mut most = 0;
        while slow.count() < REQUESTS / 2 {
            let before = slow.count();
            assert_eq!(honest.call(ECHO, b"x").await.unwrap(), "x");
            most = most.max(slow.count() - before);
        }
        // A call takes two turns or so, of which the first one is the longest: 64 requests.
        assert!(most < 400, "{most} of {REQUESTS} requests were handled during one honest call");
        for (i, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap().unwrap()[..8], i.to_le_bytes());
        }
        assert_eq!((slow.count(), slow.disordered.load(Ordering::Relaxed)), (REQUESTS, 0));
    }
}
