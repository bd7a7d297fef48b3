//! Servers that get more calls than they can do: how many they do, how long those take, and which are refused.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::class::TrafficClass;
use farcall_core::client::RawChannel;
use farcall_core::config::{Admission, Limits, Priority, Retry};
use farcall_core::proto::wire::{Content, FrameType, RequestHead, ResponseHead, ResponseKind};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Blame, Code, Executed, RETRY_AFTER, Status};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::memory;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use support::{Near, Seen, call, plain};

/// How long the methods `quick` and `slow` take, in milliseconds.
const TIMES: [u64; 2] = [20, 100];
const QUICK: usize = 0;
const SLOW: usize = 1;

/// How many calls of the service are done at once.
const WORKERS: usize = 8;

/// Before the measurement, the server learns what it can do.
const LEARNING: Duration = Duration::from_secs(5);

/// How long it may take until it has learned that this has changed.
const RELEARNING: Duration = Duration::from_secs(15);

const MEASURED: Duration = Duration::from_secs(20);

/// How long callers wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// A service that does so many calls at once, and lets others wait.
struct Workers {
    info: Arc<ServiceInfo>,
    free: Arc<Semaphore>,
    /// By how much times differ, up and down, as a part of them.
    varied: f64,
    /// How many times longer everything takes.
    slower: Arc<AtomicU32>,
}

fn service_info() -> Arc<ServiceInfo> {
    let methods = ["quick", "slow"].map(|name| Method::unary(name, name)).to_vec();
    Arc::new(ServiceInfo { name: "test".into(), codec: "raw".into(), methods })
}

impl Service for Workers {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let (free, slower) = (self.free.clone(), self.slower.clone());
        let varied = self.varied * (2.0 * fastrand::f64() - 1.0);
        Box::pin(async move {
            let _worker = free.acquire_owned().await.unwrap();
            sleep(
                slower.load(Ordering::Relaxed) * Duration::from_millis(TIMES[method]).mul_f64(1.0 + varied),
            )
            .await;
            Reply::Ok(request.payload)
        })
    }
}

fn at_most(calls: u32) -> Admission {
    let mut admission = Admission::default();
    admission.max_calls = calls;
    admission
}

/// Settings that do not limit by anything else.
fn settings(admission: Admission) -> Settings {
    let mut limits = Limits::default();
    limits.concurrent_calls = 1 << 20;
    Settings { admission, ..plain(limits) }
}

impl Workers {
    fn new(workers: usize, varied: f64) -> Self {
        let (info, free) = (service_info(), Arc::new(Semaphore::new(workers)));
        Self { info, free, varied, slower: Arc::new(AtomicU32::new(1)) }
    }
}

fn server(workers: usize, varied: f64, admission: Admission) -> Near {
    serve(Workers::new(workers, varied), admission)
}

fn serve(service: Workers, admission: Admission) -> Near {
    fastrand::seed(7);
    let host = ServerCore::new(vec![Arc::new(service)], settings(admission)).unwrap();
    Near { hosts: Arc::new(Mutex::new(vec![host])), taps: Arc::default() }
}

/// A client that makes calls, whatever becomes of them.
struct Client {
    channel: RawChannel,
    method: usize,
    /// How many calls a second.
    rate: f64,
}

/// The calls that ended while it was measured.
#[derive(Debug, Default)]
struct Outcome {
    /// How long those took that were done.
    took: Vec<Duration>,
    refused: usize,
    late: usize,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.took.len() as f64 / MEASURED.as_secs_f64()
    }

    fn percentile(&self, percent: usize) -> Duration {
        let mut took = self.took.clone();
        took.sort();
        took[took.len() * percent / 100]
    }

    fn refused_part(&self) -> f64 {
        self.refused as f64 / (self.took.len() + self.refused) as f64
    }
}

impl Client {
    fn new(near: &Near, class: TrafficClass, method: usize, rate: f64) -> Self {
        let channel = RawChannel::new(near.clone(), settings(Admission::default())).class(class);
        Self { channel, method, rate }
    }

    /// Makes calls until the measurement is over.
    async fn run(self) -> Outcome {
        self.run_after(LEARNING).await
    }

    async fn run_after(self, learning: Duration) -> Outcome {
        let (began, info) = (Instant::now(), service_info());
        let (mut due, mut calls) = (0.0, JoinSet::new());
        while began.elapsed() < learning + MEASURED {
            // Each millisecond brings another number of calls.
            due += self.rate / 1000.0 * 2.0 * fastrand::f64();
            while due >= 1.0 {
                due -= 1.0;
                let call = call(&self.channel, &info, self.method, Bytes::new()).timeout(PATIENCE);
                let begun = Instant::now();
                calls.spawn(async move { (call.await, begun, Instant::now()) });
            }
            sleep(Duration::from_millis(1)).await;
        }
        let mut outcome = Outcome::default();
        let measured = began + learning..began + learning + MEASURED;
        for (result, begun, ended) in calls.join_all().await {
            if !measured.contains(&ended) {
                continue;
            }
            match result.map_err(|status| status.code()) {
                Ok(_) => outcome.took.push(ended - begun),
                Err(Code::ResourceExhausted) => outcome.refused += 1,
                Err(Code::DeadlineExceeded) => outcome.late += 1,
                Err(code) => panic!("{code:?}"),
            }
        }
        outcome
    }
}

/// Returns how many calls of a method the workers can do in a second.
fn peak(method: usize, workers: usize) -> f64 {
    workers as f64 * 1000.0 / TIMES[method] as f64
}

/// Makes three times as many calls as the server can do.
async fn three_times(workers: usize, varied: f64, admission: Admission) -> Outcome {
    let near = server(workers, varied, admission);
    let client = Client::new(&near, TrafficClass::Normal, QUICK, 3.0 * peak(QUICK, workers));
    client.run().await
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_server_does_what_it_can_and_in_time() {
    for workers in [2, WORKERS, 20] {
        let outcome = three_times(workers, 0.0, at_most(1000)).await;
        let (rate, p99) = (outcome.rate() / peak(QUICK, workers), outcome.percentile(99));
        assert!(rate >= 0.9, "{workers} workers: {rate} of the peak");
        assert!(p99 <= Duration::from_millis(3 * TIMES[QUICK]), "{workers} workers: {p99:?}");
        assert_eq!(outcome.late, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn times_that_differ_change_nothing() {
    let outcome = three_times(WORKERS, 0.8, at_most(1000)).await;
    let (rate, p99) = (outcome.rate() / peak(QUICK, WORKERS), outcome.percentile(99));
    assert!(rate >= 0.9, "{rate} of the peak");
    // Alone it would be 1.8 times the mean.
    assert!(p99 <= Duration::from_millis(TIMES[QUICK]).mul_f64(3.0 * 1.8), "{p99:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_learns_that_its_calls_take_longer_now() {
    let service = Workers::new(WORKERS, 0.2);
    let slower = service.slower.clone();
    let near = serve(service, at_most(1000));
    let client = || Client::new(&near, TrafficClass::Normal, QUICK, 3.0 * peak(QUICK, WORKERS));
    client().run().await;
    slower.store(4, Ordering::Relaxed);
    let rate = client().run_after(RELEARNING).await.rate() / (peak(QUICK, WORKERS) / 4.0);
    assert!(rate >= 0.9, "{rate} of the peak");
}

#[tokio::test(start_paused = true)]
async fn without_the_limit_most_calls_are_too_late() {
    let outcome = three_times(WORKERS, 0.0, at_most(0)).await;
    assert!(outcome.rate() < 0.5 * peak(QUICK, WORKERS), "{} calls a second", outcome.rate());
    assert!(outcome.refused == 0 && outcome.late > 0);
}

#[tokio::test(start_paused = true)]
async fn a_method_that_takes_long_is_no_sign_of_load() {
    let near = server(WORKERS, 0.0, at_most(1000));
    // Each makes half of the work that the server can do, and half more.
    let quick = Client::new(&near, TrafficClass::Normal, QUICK, 0.75 * peak(QUICK, WORKERS));
    let slow = Client::new(&near, TrafficClass::Normal, SLOW, 0.75 * peak(SLOW, WORKERS));
    let (quick, slow) = tokio::join!(quick.run(), slow.run());
    let work = quick.rate() / peak(QUICK, WORKERS) + slow.rate() / peak(SLOW, WORKERS);
    assert!(work >= 0.9, "{work} of the peak");
    assert!(slow.percentile(99) <= Duration::from_millis(3 * TIMES[SLOW]), "{:?}", slow.percentile(99));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_enough_workers_refuses_nothing() {
    let near = server(10_000, 0.2, at_most(1000));
    // 100 at once.
    let client = Client::new(&near, TrafficClass::Normal, SLOW, 1000.0);
    let outcome = client.run().await;
    assert_eq!((outcome.refused, outcome.late), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn urgent_calls_are_refused_last_and_bulk_first() {
    let near = server(WORKERS, 0.2, at_most(1000));
    let client = |class, part: f64| Client::new(&near, class, QUICK, part * peak(QUICK, WORKERS)).run();
    let (normal, urgent, bulk) = tokio::join!(
        client(TrafficClass::Normal, 2.0),
        client(TrafficClass::Urgent, 0.1),
        client(TrafficClass::Bulk, 1.0)
    );
    let refused = [&urgent, &normal, &bulk].map(Outcome::refused_part);
    assert!(refused[0] < 0.02 && refused[1] < 0.7 && refused[2] > 0.9, "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_with_more_than_its_share_is_refused_first() {
    let near = server(WORKERS, 0.2, at_most(1000));
    let client =
        |part: f64| Client::new(&near, TrafficClass::Normal, QUICK, part * peak(QUICK, WORKERS)).run();
    let (greedy, modest) = tokio::join!(client(3.0), client(0.2));
    let refused = [&modest, &greedy].map(Outcome::refused_part);
    assert!(refused[0] < 0.05 && refused[1] > 0.6, "{refused:?}");
    let rate = (greedy.rate() + modest.rate()) / peak(QUICK, WORKERS);
    assert!(rate >= 0.9, "{rate} of the peak");
    let stats = near.hosts.lock().unwrap()[0].admission().unwrap();
    assert!((4..100).contains(&stats.limit) && stats.running <= stats.limit + 1, "{stats:?}");
    assert!(stats.refused >= (greedy.refused + modest.refused) as u64, "{stats:?}");
}

/// Fills a server that takes one call, and returns the status of another one, which is made again by this policy.
async fn refused(method: usize, priority: Option<Priority>, retry: Retry) -> Option<Status> {
    let mut admission = at_most(1);
    admission.min_calls = 1;
    admission.methods.extend(priority.map(|priority| ("test/slow".into(), priority)));
    let near = server(WORKERS, 0.0, admission);
    let channel = RawChannel::new(near.clone(), Settings { retry, ..settings(Admission::default()) });
    let ask = |method| call(&channel, &service_info(), method, Bytes::new());
    ask(QUICK).await.unwrap();
    let (first, second) = tokio::join!(ask(QUICK).into_future(), ask(method).into_future());
    first.unwrap();
    second.err()
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_why_and_when_to_try_again() {
    let status = refused(SLOW, None, Retry::default()).await.unwrap();
    assert_eq!(
        (status.code(), status.executed(), status.blame()),
        (Code::ResourceExhausted, Executed::No, Blame::Environment)
    );
    assert!(status.message().contains("overloaded"), "{status}");
    let after: u64 = status.metadata().get(RETRY_AFTER).unwrap().parse().unwrap();
    assert!((TIMES[QUICK]..=2 * TIMES[QUICK]).contains(&after), "{after}");
    let always = refused(SLOW, Some(Priority::Always), Retry::default()).await;
    assert_eq!(always.map(|status| status.code()), None);
}

#[tokio::test(start_paused = true)]
async fn a_client_tries_again_when_the_server_has_said() {
    let mut retry = Retry::default();
    retry.max_attempts = 2;
    retry.initial_backoff_ms = 1;
    retry.max_backoff_ms = 1;
    retry.retryable_status_codes = vec![Code::ResourceExhausted];
    assert_eq!(refused(SLOW, None, retry).await.map(|status| status.code()), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_less_time_than_any_took_is_not_begun() {
    let near = server(WORKERS, 0.0, at_most(100));
    let channel = RawChannel::new(near.clone(), settings(Admission::default()));
    let ask = |method, ms| {
        call(&channel, &service_info(), method, Bytes::new()).timeout(Duration::from_millis(ms)).into_future()
    };
    let too_short = |status: &Status| status.message().contains("none of its method took less than 20");
    let late = ask(QUICK, 10).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(!too_short(&late), "nothing is known yet: {late}");
    for _ in 0..20 {
        ask(QUICK, 1000).await.unwrap();
    }
    let refused = ask(QUICK, 10).await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(too_short(&refused), "{refused}");
    let stats = near.hosts.lock().unwrap()[0].admission().unwrap();
    assert_eq!((stats.refused, stats.too_late), (0, 1), "{stats:?}");
    ask(QUICK, 30).await.unwrap();
    assert!(!too_short(&ask(SLOW, 10).await.unwrap_err()), "the times of another method say nothing");
    sleep(Duration::from_secs(30)).await;
    assert!(!too_short(&ask(QUICK, 10).await.unwrap_err()), "that was long ago");
}

#[test]
fn a_method_that_is_not_there_is_an_error() {
    let mut admission = at_most(10);
    admission.methods.insert("test/slwo".into(), Priority::Bulk);
    let error = ServerCore::new(vec![Arc::new(Workers::new(1, 0.0))], settings(admission)).unwrap_err();
    assert!(error.contains("admission.methods names `test/slwo`"), "{error}");
}

/// A service whose `quick` lets a second pass before it first waits.
struct Busy(Arc<ServiceInfo>, Arc<Seen>);

impl Service for Busy {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        let seen = self.1.clone();
        Box::pin(async move {
            seen.runs.fetch_add(1, Ordering::Relaxed);
            tokio::time::advance(Duration::from_secs(1)).await;
            Reply::Ok(request.payload)
        })
    }
}

fn request_within(timeout: Duration) -> BytesMut {
    let mut message = BytesMut::new();
    let timeout_us = timeout.as_micros() as u64;
    let head = RequestHead { service: 0, method: QUICK as u16, attempt: 1, timeout_us };
    head.encode(&Content::default(), &mut message).unwrap();
    message
}

#[tokio::test(start_paused = true)]
async fn calls_that_nobody_waits_for_any_more_are_not_begun() {
    for spawn in [false, true] {
        let seen: Arc<Seen> = Arc::default();
        let mut settings = settings(Admission::default());
        settings.calls.spawn_handlers = spawn;
        let host = ServerCore::new(vec![Arc::new(Busy(service_info(), seen.clone()))], settings).unwrap();
        let (near, far) = memory::pair();
        host.serve(far);
        let mut peer = Peer::greeted(near, hello()).await;
        peer.bind(&service_info());
        // They arrive together.
        peer.session_frame(FrameType::REQUEST, 1, 0, request_within(Duration::from_secs(60)));
        peer.session_frame(FrameType::REQUEST, 2, 0, request_within(Duration::from_millis(500)));
        let mut answers = [peer.expect(FrameType::RESPONSE).await, peer.expect(FrameType::RESPONSE).await];
        answers.sort_by_key(|(header, _)| header.call);
        let kinds = answers.map(|(_, answer)| ResponseHead::decode(answer).unwrap().0.kind);
        assert_eq!(kinds, [ResponseKind::Ok, ResponseKind::Status]);
        assert_eq!(seen.runs(), 1, "spawn: {spawn}");
    }
}

/// A service that takes text. Its `slow` lets 10 ms pass when it is first polled, and never ends.
struct Text(Arc<ServiceInfo>);

impl Service for Text {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let is_text = std::str::from_utf8(&support::text(&request.payload)).is_ok();
        Box::pin(async move {
            if !is_text {
                return Reply::Status(Status::new(Code::InvalidArgument, "it can't be decoded"));
            }
            if method == QUICK {
                sleep(Duration::from_millis(TIMES[QUICK])).await;
                return Reply::Ok(request.payload);
            }
            tokio::time::advance(Duration::from_millis(10)).await;
            std::future::pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_refused_before_its_arguments_are_decoded() {
    let mut admission = at_most(1);
    admission.min_calls = 1;
    let host = ServerCore::new(vec![Arc::new(Text(service_info()))], settings(admission)).unwrap();
    let near = Near { hosts: Arc::new(Mutex::new(vec![host])), taps: Arc::default() };
    let channel = RawChannel::new(near, settings(Admission::default()));
    let ask = |text: &'static [u8]| call(&channel, &service_info(), QUICK, text).into_future();
    ask(b"text").await.unwrap();
    let (first, second) = tokio::join!(ask(b"text"), ask(&[0xff]));
    first.unwrap();
    assert_eq!(second.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(ask(&[0xff]).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_waited_for_too_long_is_not_begun() {
    let mut settings = settings(at_most(100));
    settings.limits.concurrent_calls = 2;
    let host = ServerCore::new(vec![Arc::new(Text(service_info()))], settings).unwrap();
    let (near, far) = memory::pair();
    host.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(&service_info());
    for number in 1..=20 {
        peer.request(number, QUICK, b"");
        peer.expect(FrameType::RESPONSE).await;
    }
    peer.request(21, SLOW, b"");
    sleep(Duration::from_millis(100)).await;
    // The handler of 21 is there until the runtime drops it, and that of 22 is the other one that there may be. So 23 waits, and has
    // less time left then than any call took.
    peer.session_frame(FrameType::CANCEL, 21, 0, &[0][..]);
    peer.request(22, SLOW, b"");
    peer.session_frame(FrameType::REQUEST, 23, 0, request_within(Duration::from_millis(25)));
    let (header, answer) = peer.expect(FrameType::RESPONSE).await;
    let words = String::from_utf8_lossy(&answer);
    assert!(header.call == 23 && words.contains("none of its method took less than 20"), "{words}");
}
