//! Calls that wait for a server that can't be reached.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::error::Error;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::{Calls, Limits};
use farcall_core::server::ServerCore;
use farcall_core::status::{Blame, Code, Executed, Result, Status};
use farcall_core::transport::{BoxFuture, Link, memory};
use tokio::time::Instant;

use support::{ECHO, Echo, call, host, info, plain, until};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Connects while there is a server.
struct Door {
    server: Arc<Mutex<Option<Arc<ServerCore>>>>,
    tries: Arc<AtomicU32>,
    /// The blame for a failure to connect.
    blame: Blame,
}

impl Connector for Door {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let n = self.tries.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(server) = self.server.lock().unwrap().clone() else {
            let status = Status::new(Code::Unavailable, format!("refused for the {n}th time"));
            let status = status.with_executed(Executed::No).with_blame(self.blame);
            return Box::pin(async move { Err(status) });
        };
        let (near, far) = memory::pair();
        server.serve(far);
        Box::pin(async move { Ok(near) })
    }

    fn target(&self) -> String {
        "db1:7400".into()
    }
}

struct Setup {
    caller: RawChannel,
    server: Arc<Mutex<Option<Arc<ServerCore>>>>,
    tries: Arc<AtomicU32>,
}

fn with(waits: bool, blame: Blame) -> Setup {
    with_pauses(waits, blame, 50, 10_000)
}

/// Returns a setup with these pauses between attempts in milliseconds, the first and the longest.
fn with_pauses(waits: bool, blame: Blame, first: u64, longest: u64) -> Setup {
    let (server, tries) = (Arc::default(), Arc::new(AtomicU32::new(0)));
    let door = Door { server: Arc::clone(&server), tries: tries.clone(), blame };
    let mut settings = plain(Limits::default());
    settings.calls.wait_for_ready = waits;
    (settings.liveness.reconnect_ms, settings.liveness.reconnect_max_ms) = (first, longest);
    Setup { caller: RawChannel::new(door, settings), server, tries }
}

impl Setup {
    /// Makes a new server reachable. Returns the former one.
    fn comes(&self) -> Option<Arc<ServerCore>> {
        let (host, _) = host(plain(Limits::default()));
        self.server.lock().unwrap().replace(host)
    }

    fn goes(&self) {
        self.server.lock().unwrap().take().unwrap().close();
    }

    fn call(&self) -> Echo {
        call(&self.caller, &info("test"), ECHO, "x")
    }
}

#[tokio::test(start_paused = true)]
async fn to_fail_at_once_is_the_default() {
    assert!(!Calls::default().wait_for_ready);
    let t = with(false, Blame::Environment);
    let began = Instant::now();
    let error = t.call().timeout(secs(5)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
    assert_eq!((began.elapsed(), t.tries.load(Ordering::Relaxed)), (Duration::ZERO, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_goes_when_the_server_comes() {
    for by_default in [true, false] {
        let t = with(by_default, Blame::Environment);
        let began = Instant::now();
        let waiting: Vec<_> = (0..100)
            .map(|_| {
                let call = if by_default { t.call() } else { t.call().wait_for_ready(true) };
                tokio::spawn(call.timeout(secs(60)).into_future())
            })
            .collect();
        tokio::time::sleep(secs(4)).await;
        assert!(waiting.iter().all(|call| !call.is_finished()));
        t.comes();
        for call in waiting {
            assert_eq!(call.await.unwrap().unwrap(), "x");
        }
        assert!(began.elapsed() < secs(8), "pauses double: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_ends_at_its_deadline_and_says_why() {
    let t = with(true, Blame::Environment);
    let began = Instant::now();
    let error = t.call().timeout(secs(5)).await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 5);
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(error.message().contains("not connected to db1:7400 after 5.0s"), "{error}");
    // Attempts follow after 50 ms, 100 ms and so on. The eighth would be after 6.4 s, a quarter more or less.
    let said = error.source().unwrap().to_string();
    assert!(["6th", "7th", "8th"].iter().any(|nth| said.contains(nth)), "{error:#}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_does_not_try_again_and_again() {
    let t = with(true, Blame::Environment);
    let calls = (0..10).map(|_| t.call().timeout(secs(600)));
    for call in calls.map(|call| tokio::spawn(call.into_future())).collect::<Vec<_>>() {
        call.await.unwrap().unwrap_err();
    }
    // The longest pause is 10 s, a quarter more or less.
    let tries = t.tries.load(Ordering::Relaxed);
    assert!((55..=90).contains(&tries), "{tries}");
}

#[tokio::test(start_paused = true)]
async fn a_call_can_refuse_to_wait() {
    let t = with(true, Blame::Environment);
    let error = t.call().wait_for_ready(false).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_waiting_does_not_mend_is_not_waited_for() {
    let t = with(true, Blame::Caller);
    let error = t.call().timeout(secs(5)).await.unwrap_err();
    assert_eq!((error.code(), t.tries.load(Ordering::Relaxed)), (Code::Unavailable, 1), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_server_that_has_gone_to_come_back() {
    let t = with(true, Blame::Environment);
    t.comes();
    t.call().await.unwrap();
    t.goes();
    let waiting = tokio::spawn(t.call().timeout(secs(60)).into_future());
    tokio::time::sleep(secs(1)).await;
    assert!(!waiting.is_finished());
    t.comes();
    assert_eq!(waiting.await.unwrap().unwrap(), "x");
}

/// Returns a setup whose server is back, but during a pause of one minute after a failed attempt.
async fn back_too_early() -> Setup {
    let t = with_pauses(false, Blame::Environment, 60_000, 60_000);
    t.call().await.unwrap_err();
    tokio::time::sleep(secs(1)).await;
    t.comes();
    let error = t.call().await.unwrap_err();
    assert!(error.message().contains("refused for the 1th time"), "no attempt was made: {error}");
    t
}

#[tokio::test(start_paused = true)]
async fn reconnecting_ends_the_pause_for_all() {
    let t = back_too_early().await;
    let began = Instant::now();
    t.caller.reconnect().await.unwrap();
    assert_eq!(t.call().await.unwrap(), "x");
    assert_eq!((began.elapsed(), t.tries.load(Ordering::Relaxed)), (Duration::ZERO, 2));
    t.goes();
    while t.caller.connection().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..3 {
        let before = t.tries.load(Ordering::Relaxed);
        t.caller.reconnect().await.unwrap_err();
        assert_eq!(t.tries.load(Ordering::Relaxed), before + 1, "each makes an attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_ends_the_pause() {
    let t = back_too_early().await;
    let began = Instant::now();
    assert_eq!(t.call().wait_for_ready(true).await.unwrap(), "x");
    assert_eq!((began.elapsed(), t.tries.load(Ordering::Relaxed)), (Duration::ZERO, 2));
}

#[tokio::test(start_paused = true)]
async fn the_first_pause_and_the_longest_can_be_set() {
    let t = with_pauses(false, Blame::Environment, 1000, 3000);
    let began = Instant::now();
    while began.elapsed() < secs(60) {
        t.call().await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The pauses are 1 s, 2 s, and then 3 s each, a quarter more or less.
    let tries = t.tries.load(Ordering::Relaxed);
    assert!((17..=27).contains(&tries), "{tries}");
}

/// Several peers, some of which can be reached.
struct Doors([Arc<Mutex<Option<Arc<ServerCore>>>>; 2]);

impl Connector for Doors {
    fn connect(&self, peer: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let Some(server) = self.0[peer].lock().unwrap().clone() else {
            let status = Status::new(Code::Unavailable, format!("number {peer} is away"));
            return Box::pin(async move { Err(status.with_blame(Blame::Environment)) });
        };
        let (near, far) = memory::pair();
        server.serve(far);
        Box::pin(async move { Ok(near) })
    }

    fn peers(&self) -> usize {
        self.0.len()
    }

    fn target(&self) -> String {
        "db1:7400,db2:7400".into()
    }
}

#[tokio::test(start_paused = true)]
async fn calls_return_to_the_first_peer_when_it_is_back() {
    let [(first, _), (second, _)] = [(); 2].map(|()| host(plain(Limits::default())));
    let doors: [Arc<Mutex<Option<Arc<ServerCore>>>>; 2] =
        [Arc::default(), Arc::new(Mutex::new(Some(second.clone())))];
    let caller = RawChannel::new(Doors(doors.clone()), plain(Limits::default()));
    let echo = || call(&caller, &info("test"), ECHO, "x");
    assert_eq!(echo().await.unwrap(), "x");
    assert_eq!((first.connections().len(), second.connections().len()), (0, 1));

    *doors[0].lock().unwrap() = Some(first.clone());
    while first.connections().is_empty() {
        tokio::time::sleep(secs(1)).await;
    }
    assert_eq!(echo().await.unwrap(), "x");
    until("the second is left", || second.connections().is_empty()).await;

    // And away from it once more when it is gone.
    doors[0].lock().unwrap().take();
    first.close();
    until("the first is gone", || first.connections().is_empty()).await;
    assert_eq!(echo().await.unwrap(), "x");
    assert_eq!(second.connections().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_names_all_peers() {
    let caller = RawChannel::new(Doors([Arc::default(), Arc::default()]), plain(Limits::default()));
    let error = caller.connection().await.unwrap_err();
    assert_eq!((error.message(), error.executed()), ("number 0 is away; number 1 is away", Executed::No));
}

#[test]
fn outside_of_a_runtime_calls_fail_and_say_so() {
    let caller = RawChannel::new(Doors([Arc::default(), Arc::default()]), plain(Limits::default()));
    let call = std::pin::pin!(call(&caller, &info("test"), ECHO, "x").wait_for_ready(true).into_future());
    let polled = call.poll(&mut TaskContext::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert_eq!((error.executed(), error.blame()), (Executed::No, Blame::Caller));
    assert!(error.message().contains("outside of a tokio runtime"), "{error}");
}
