//! Callers that wait: whatever they do meanwhile, nobody starves. Every test hangs, and so fails, where somebody does.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod near;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::Policy;
use farcall_core::payload::Encoder;
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::status::Result;
use farcall_rdma::testing::sim::Fabric;
use farcall_rdma::{Completion, RdmaConfig};
use tokio::sync::Notify;

use near::Near;

/// Against hanging only.
const LIMIT: Duration = Duration::from_secs(60);

/// echo(x) -> x, at once; wait() -> (), when it is let go.
struct Server {
    info: Arc<ServiceInfo>,
    gate: Arc<Notify>,
}

impl Service for Server {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let gate = self.gate.clone();
        Box::pin(async move {
            if method == 1 {
                gate.notified().await;
            }
            Reply::Ok(request.payload)
        })
    }
}

#[derive(Clone)]
struct Client {
    caller: RawChannel,
    info: Arc<ServiceInfo>,
    gate: Arc<Notify>,
}

impl Client {
    fn new(completion: Completion) -> Self {
        let fabric = Fabric::new(1);
        let [near, far] = [1, 2].map(|n| {
            let mut config = RdmaConfig::default();
            (config.strict_credits, config.completion) = (true, completion);
            near::settings(&fabric, n, Policy::Auto, config)
        });
        let methods = ["echo", "wait"].map(|name| Method::unary(name, name)).to_vec();
        let info = Arc::new(ServiceInfo { name: "server".into(), codec: "raw".into(), methods });
        let gate = Arc::default();
        let server = Server { info: Arc::clone(&info), gate: Arc::clone(&gate) };
        let host = ServerCore::new(vec![Arc::new(server)], far).unwrap();
        let caller = RawChannel::new(Near { host, cipher: None }, near);
        Self { caller, info, gate }
    }

    fn call(&self, method: usize, argument: &Bytes) -> Call<Result<Bytes>, Raw> {
        let mut arguments = Encoder::new();
        arguments.put_bytes(argument);
        Stub::new(self.caller.clone(), self.info.clone()).call(method, Ok(arguments.finish()))
    }

    async fn echo(&self, number: u64) {
        let argument = Bytes::copy_from_slice(&number.to_le_bytes());
        assert_eq!(self.call(0, &argument).await.unwrap(), argument);
    }

    /// Makes calls without a pause, so that looking for answers pays.
    fn keep_busy(&self) -> Arc<AtomicBool> {
        let (client, over) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&over);
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                client.echo(1).await;
            }
        });
        over
    }
}

/// The test on a runtime with one thread and on one with several.
fn on_both_runtimes<F: Future<Output = ()> + Send + 'static>(test: impl Fn(Completion) -> F) {
    let limited = |test| async { tokio::time::timeout(LIMIT, tokio::spawn(test)).await.expect("hangs") };
    for completion in [Completion::Adaptive, Completion::Event, Completion::Busy] {
        let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        one.block_on(limited(test(completion))).unwrap();
        let several =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        several.block_on(limited(test(completion))).unwrap();
    }
}

#[test]
fn select_of_a_call_and_a_timer_sees_its_timer() {
    on_both_runtimes(|completion| async move {
        let client = Client::new(completion);
        client.echo(0).await;
        for keep_busy in [false, true] {
            let over = keep_busy.then(|| client.keep_busy());
            let mut call = Box::pin(client.call(1, &Bytes::from_static(b"x")).into_future());
            let mut ticks = 0;
            loop {
                tokio::select! {
                    answer = &mut call => break assert_eq!(answer.unwrap(), "x"),
                    () = tokio::time::sleep(Duration::from_millis(1)) => ticks += 1,
                }
                // The answer waits for the timer, not the other way round.
                if ticks == 20 {
                    client.gate.notify_one();
                }
            }
            assert!(ticks >= 20);
            over.inspect(|over| over.store(true, Ordering::Relaxed));
        }
    });
}

#[test]
fn waiting_callers_and_a_task_that_computes_get_their_turns() {
    const CALLERS: u32 = 64;
    on_both_runtimes(|completion| async move {
        let client = Client::new(completion);
        client.echo(0).await;
        let rounds = Arc::new(AtomicU32::new(0));
        let computing = tokio::spawn({
            let rounds = Arc::clone(&rounds);
            async move {
                loop {
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_micros(200) {
                        std::hint::spin_loop();
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }
        });
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (client, rounds) = (client.clone(), Arc::clone(&rounds));
                tokio::spawn(async move {
                    for call in 0..20 {
                        client.echo(u64::from(caller * 20 + call)).await;
                    }
                    // Whoever is done early goes on as long as the other task has not had its share.
                    while rounds.load(Ordering::Relaxed) < 50 {
                        client.echo(0).await;
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        computing.abort();
    });
}

#[test]
fn call_that_was_polled_once_and_is_kept_stops_nobody() {
    on_both_runtimes(|completion| async move {
        let client = Client::new(completion);
        for i in 0..200 {
            client.echo(i).await;
        }
        let mut kept = Vec::new();
        for _ in 0..10 {
            let mut call = Box::pin(client.call(1, &Bytes::new()).into_future());
            std::future::poll_fn(|cx| {
                assert!(call.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            kept.push(call);
            for i in 0..50 {
                client.echo(i).await;
            }
        }
        drop(kept);
        client.echo(0).await;
    });
}
