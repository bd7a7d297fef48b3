//! Servers whose handlers call the calling process back, and wait for it: all calls of a process share a driver, and that
//! runs the handlers.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod near;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::Policy;
use farcall_core::payload::{Decoder, Encoder};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::status::Result;
use farcall_rdma::RdmaConfig;
use farcall_rdma::testing::sim::Fabric;

use near::Near;

/// Against hanging only.
const LIMIT: Duration = Duration::from_secs(60);

/// bounce(hops, x) -> x, which has gone back and forth so many times.
struct Bounce {
    info: Arc<ServiceInfo>,
    /// A client of the other process.
    other: Arc<OnceLock<RawChannel>>,
}

fn info() -> Arc<ServiceInfo> {
    let methods = vec![Method::unary("bounce", "bounce")];
    Arc::new(ServiceInfo { name: "bounce".into(), codec: "raw".into(), methods })
}

fn bounce(
    caller: &RawChannel,
    info: &Arc<ServiceInfo>,
    hops: u8,
    content: Bytes,
) -> Call<Result<Bytes>, Raw> {
    let mut arguments = Encoder::new();
    arguments.put_slice(&[hops]);
    arguments.put_slice(&content);
    Stub::new(caller.clone(), info.clone()).call(0, Ok(arguments.finish()))
}

impl Service for Bounce {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        let (info, other) = (Arc::clone(&self.info), Arc::clone(&self.other));
        Box::pin(async move {
            let mut arguments = Bytes::copy_from_slice(Decoder::new(request.payload).rest());
            let [hops] = *arguments.split_to(1) else { unreachable!("a byte is a byte") };
            let content = match hops {
                0 => arguments,
                _ => bounce(other.get().unwrap(), &info, hops - 1, arguments).await.unwrap(),
            };
            let mut reply = Encoder::new();
            reply.put_slice(&content);
            Reply::Ok(reply.finish())
        })
    }
}

/// Two processes that serve, each with a client of the other. Their windows are as small as windows get, and a frame
/// without a receive fails its link.
fn processes(seed: u64) -> [(Arc<ServerCore>, RawChannel); 2] {
    let fabric = Fabric::new(seed);
    fabric.set_spite(seed % 2 == 1);
    let [near, far] = [1, 2].map(|n| {
        let mut config = RdmaConfig::default();
        config.strict_credits = true;
        config.window = 1;
        let settings = near::settings(&fabric, n, Policy::Rdma, config);
        let other = Arc::<OnceLock<RawChannel>>::default();
        let service = Bounce { info: info(), other: Arc::clone(&other) };
        (ServerCore::new(vec![Arc::new(service)], settings.clone()).unwrap(), settings, other)
    });
    let (to_far, to_near) = (
        RawChannel::new(Near { host: Arc::clone(&far.0), cipher: None }, near.1),
        RawChannel::new(Near { host: Arc::clone(&near.0), cipher: None }, far.1),
    );
    assert!(near.2.set(to_far.clone()).is_ok() && far.2.set(to_near.clone()).is_ok());
    [(near.0, to_far), (far.0, to_near)]
}

async fn all_come_back(seed: u64) {
    let processes = processes(seed);
    let (info, mut calls) = (info(), Vec::new());
    for number in 0..200_usize {
        for (_, caller) in &processes {
            // Most in a frame of their own, some in many, or read.
            let content: Bytes = vec![number as u8; [0, 10, 1000, 8000, 30_000][number % 5]].into();
            let call = bounce(caller, &info, number as u8 % 4, content.clone());
            calls.push(tokio::spawn(async move { assert_eq!(call.await.unwrap(), content) }));
        }
    }
    for call in calls {
        tokio::time::timeout(LIMIT, call).await.expect("a call waits for ever").unwrap();
    }
    for (host, _) in &processes {
        assert_eq!(host.connections()[0].transport().name, "rdma");
    }
}

#[tokio::test]
async fn handlers_that_call_the_caller_back_starve_nobody() {
    for seed in 0..4 {
        all_come_back(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_call_the_caller_back_starve_nobody_on_two_threads() {
    for seed in 0..4 {
        all_come_back(seed).await;
    }
}
