//! Calls that wait for a server that can't be reached.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall_core::client::{Caller, Connector};
use farcall_core::config::{Calls, Limits};
use farcall_core::connection::Settings;
use farcall_core::server::Host;
use farcall_core::status::{Blame, Code, Executed, Result, Status};
use farcall_core::transport::{BoxFuture, Link, memory};
use tokio::time::Instant;

use support::{ECHO, Echo, call, host, info, plain};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Connects while there is a server.
struct Door {
    server: Arc<Mutex<Option<Arc<Host>>>>,
    tries: Arc<AtomicU32>,
    /// Whose fault it is else.
    blame: Blame,
}

impl Connector for Door {
    fn connect(&self) -> BoxFuture<Result<Arc<dyn Link>>> {
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
    caller: Caller,
    server: Arc<Mutex<Option<Arc<Host>>>>,
    tries: Arc<AtomicU32>,
}

fn with(waits: bool, blame: Blame) -> Setup {
    let (server, tries) = (Arc::default(), Arc::new(AtomicU32::new(0)));
    let door = Door { server: Arc::clone(&server), tries: tries.clone(), blame };
    let mut calls = Calls::default();
    calls.wait_for_ready = waits;
    let caller = Caller::new(door, Settings { calls, ..plain(Limits::default()) });
    Setup { caller, server, tries }
}

impl Setup {
    /// A server comes; gives the one that was there.
    fn comes(&self) -> Option<Arc<Host>> {
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
    let error = t.call().deadline(secs(5)).await.unwrap_err();
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
                tokio::spawn(call.deadline(secs(60)).into_future())
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
    let error = t.call().deadline(secs(5)).await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), 5);
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(error.message().contains("not connected to db1:7400 after 5.0s"), "{error}");
    // After 50 ms, 100 ms and so on: 6.35 s would be the eighth.
    assert!(error.source().unwrap().to_string().contains("refused for the 7th time"), "{error:#}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_does_not_try_again_and_again() {
    let t = with(true, Blame::Environment);
    let calls = (0..10).map(|_| t.call().deadline(secs(600)));
    for call in calls.map(|call| tokio::spawn(call.into_future())).collect::<Vec<_>>() {
        call.await.unwrap().unwrap_err();
    }
    // 10 s is the longest pause.
    let tries = t.tries.load(Ordering::Relaxed);
    assert!((60..=75).contains(&tries), "{tries}");
}

#[tokio::test(start_paused = true)]
async fn a_call_can_refuse_to_wait() {
    let t = with(true, Blame::Environment);
    let error = t.call().wait_for_ready(false).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_waiting_does_not_mend_is_not_waited_for() {
    let t = with(true, Blame::Caller);
    let error = t.call().deadline(secs(5)).await.unwrap_err();
    assert_eq!((error.code(), t.tries.load(Ordering::Relaxed)), (Code::Unavailable, 1), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_server_that_has_gone_to_come_back() {
    let t = with(true, Blame::Environment);
    t.comes();
    t.call().await.unwrap();
    t.goes();
    let waiting = tokio::spawn(t.call().deadline(secs(60)).into_future());
    tokio::time::sleep(secs(1)).await;
    assert!(!waiting.is_finished());
    t.comes();
    assert_eq!(waiting.await.unwrap().unwrap(), "x");
}
