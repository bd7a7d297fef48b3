//! Calls that are made again, one after the other or beside each other, within a budget.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::class::TrafficClass;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::Limits;
use farcall_core::context::Context;
use farcall_core::payload::Payload;
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Executed, RETRY_AFTER, Result, Status};
use tokio::time::Instant;

use support::{Near, plain};

/// The end of a handler.
#[derive(Clone, Copy)]
enum End {
    Fails(Code),
    /// The handler refuses the call, and says for how long.
    Refuses(&'static str),
    Hangs,
}

const ONCE: usize = 0;
const IDEMPOTENT: usize = 1;

/// A service whose handlers end as they are told to, and else answer.
struct Told {
    info: Arc<ServiceInfo>,
    ends: Mutex<VecDeque<End>>,
    /// The end of all that were not told.
    by_default: Mutex<Option<End>>,
    runs: AtomicU32,
    hanging: Arc<AtomicU32>,
}

struct Hanging(Arc<AtomicU32>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Serving(Arc<Told>);

impl Service for Serving {
    fn info(&self) -> &ServiceInfo {
        &self.0.info
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        self.0.runs.fetch_add(1, Ordering::Relaxed);
        let end = self.0.ends.lock().unwrap().pop_front().or_else(|| *self.0.by_default.lock().unwrap());
        let hanging = self.0.hanging.clone();
        Box::pin(async move {
            match end {
                None => Reply::Ok(request.payload),
                Some(End::Fails(code)) => Reply::Status(Status::new(code, "as it was told")),
                Some(End::Refuses(after)) => {
                    Context::current()
                        .unwrap()
                        .reply_trailers(|trailers| trailers.insert(RETRY_AFTER, after))
                        .unwrap();
                    let status = Status::new(Code::ResourceExhausted, "too much");
                    Reply::Status(status.with_executed(Executed::No))
                }
                Some(End::Hangs) => {
                    hanging.fetch_add(1, Ordering::Relaxed);
                    let _hanging = Hanging(hanging);
                    pending().await
                }
            }
        })
    }
}

struct Setup {
    told: Arc<Told>,
    stub: Stub,
    server: Arc<ServerCore>,
}

fn setup(change: impl FnOnce(&mut Settings)) -> Setup {
    let mut methods = ["once", "idempotent"].map(|name| Method::unary(name, name)).to_vec();
    methods[IDEMPOTENT].idempotent = true;
    let info = Arc::new(ServiceInfo { name: "told".into(), codec: "raw".into(), methods });
    let told = Arc::new(Told {
        info: info.clone(),
        ends: Mutex::default(),
        by_default: Mutex::default(),
        runs: AtomicU32::new(0),
        hanging: Arc::default(),
    });
    let server = ServerCore::new(vec![Arc::new(Serving(told.clone()))], plain(Limits::default())).unwrap();
    let mut settings = plain(Limits::default());
    settings.retry.max_attempts = 3;
    change(&mut settings);
    let near = Near { hosts: Arc::new(Mutex::new(vec![server.clone()])), taps: Arc::default() };
    Setup { told, stub: Stub::new(RawChannel::new(near, settings), info), server }
}

impl Setup {
    fn tell(&self, ends: &[End]) {
        self.told.runs.store(0, Ordering::Relaxed);
        *self.told.ends.lock().unwrap() = ends.iter().copied().collect();
    }

    fn always(&self, end: End) {
        self.tell(&[]);
        *self.told.by_default.lock().unwrap() = Some(end);
    }

    fn call(&self, method: usize) -> Call<Result<Bytes>, Raw> {
        self.stub.call(method, Ok(Payload::from_body("x".into())))
    }

    fn runs(&self) -> u32 {
        self.told.runs.load(Ordering::Relaxed)
    }
}

const UNAVAILABLE: End = End::Fails(Code::Unavailable);

#[tokio::test(start_paused = true)]
async fn a_call_is_made_again_where_that_does_no_harm() {
    let t = setup(|_| ());
    t.tell(&[UNAVAILABLE, UNAVAILABLE]);
    let began = Instant::now();
    let (answer, parts) = t.call(IDEMPOTENT).with_parts().await;
    assert_eq!((&*answer.unwrap(), parts.attempts, t.runs()), (&b"x"[..], 3, 3));
    // 50 ms and 100 ms, a quarter more or less.
    assert!((112..=188).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());

    t.tell(&[UNAVAILABLE; 3]);
    let error = t.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!((error.code(), t.runs()), (Code::Unavailable, 3));

    // A method that may do harm, a call that says so, a code that is not among them.
    t.tell(&[UNAVAILABLE]);
    t.call(ONCE).await.unwrap_err();
    assert_eq!(t.runs(), 1);
    t.tell(&[UNAVAILABLE]);
    t.call(IDEMPOTENT).idempotent(false).await.unwrap_err();
    assert_eq!(t.runs(), 1);
    t.tell(&[End::Fails(Code::NotFound)]);
    t.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!(t.runs(), 1);
    // A call that does none.
    t.tell(&[UNAVAILABLE]);
    t.call(ONCE).idempotent(true).await.unwrap();
    assert_eq!(t.runs(), 2);

    let off = setup(|settings| settings.retry.max_attempts = 1);
    off.tell(&[UNAVAILABLE]);
    off.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!(off.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_server_says_when_to_come_again() {
    let exhausted = |settings: &mut Settings| {
        settings.retry.retryable_status_codes = vec![Code::ResourceExhausted];
    };
    let t = setup(exhausted);
    t.tell(&[End::Refuses("700")]);
    let began = Instant::now();
    t.call(ONCE).idempotent(true).await.unwrap();
    assert_eq!((began.elapsed().as_millis(), t.runs()), (700, 2));
    t.tell(&[End::Refuses("-1")]);
    t.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!(t.runs(), 1, "not at all");
    // Not after the deadline.
    t.tell(&[End::Refuses("700")]);
    let error = t.call(IDEMPOTENT).timeout(Duration::from_millis(600)).await.unwrap_err();
    assert_eq!((error.code(), t.runs()), (Code::ResourceExhausted, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failing_server_is_hardly_asked_more_often() {
    let t = setup(|settings| settings.retry.max_tokens = 20);
    t.always(UNAVAILABLE);
    for _ in 0..1000 {
        t.call(IDEMPOTENT).await.unwrap_err();
    }
    assert_eq!(t.runs(), 1020);
    // One of ten fails: those are made again, as long as the others earn it.
    *t.told.by_default.lock().unwrap() = None;
    for _ in 0..100 {
        t.call(IDEMPOTENT).await.unwrap();
    }
    let mut failed = 0;
    for _ in 0..100 {
        t.tell(&[UNAVAILABLE]);
        for _ in 0..10 {
            failed += u32::from(t.call(IDEMPOTENT).await.is_err());
        }
    }
    assert_eq!(failed, 0);
}

/// Makes many calls beside each other, and returns how many attempts they took, for each of them.
async fn storm(t: &Setup, calls: u32) -> f64 {
    let before = t.runs();
    let callers: Vec<_> = (0..calls)
        .map(|_| tokio::spawn(t.call(IDEMPOTENT).timeout(Duration::from_secs(60)).into_future()))
        .collect();
    for caller in callers {
        let _ = caller.await.unwrap();
    }
    f64::from(t.runs() - before) / f64::from(calls)
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_calls_that_fail_is_hardly_more_than_its_calls() {
    // All but the number of attempts is as by default.
    let t = setup(|settings| settings.retry.max_attempts = 10);
    t.always(UNAVAILABLE);
    // A new channel has a hundred tokens. So few calls may be made as often as they like, and many may not.
    assert!(storm(&t, 10).await > 9.0);
    let t = setup(|settings| settings.retry.max_attempts = 10);
    t.always(UNAVAILABLE);
    let first = storm(&t, 1000).await;
    assert!((1.0..=1.1).contains(&first), "{first}");
    assert!((storm(&t, 1000).await - 1.0).abs() < f64::EPSILON, "nothing is left");
    // Whatever a time that went well has earned: at most as much as at first.
    *t.told.by_default.lock().unwrap() = None;
    storm(&t, 10_000).await;
    t.always(UNAVAILABLE);
    let again = storm(&t, 1000).await;
    assert!((1.0..=1.1).contains(&again), "{again}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_is_asked_again_beside_the_first_time() {
    let t = setup(|settings| settings.retry.hedging_delay_ms = 30);
    t.tell(&[End::Hangs]);
    let began = Instant::now();
    let (answer, parts) = t.call(IDEMPOTENT).with_parts().await;
    assert_eq!((&*answer.unwrap(), parts.attempts, t.runs()), (&b"x"[..], 2, 2));
    assert_eq!(began.elapsed().as_millis(), 30);
    support::until("the other is cancelled", || t.told.hanging.load(Ordering::Relaxed) == 0).await;

    // A failure brings the next one forward.
    t.tell(&[UNAVAILABLE]);
    let began = Instant::now();
    t.call(IDEMPOTENT).await.unwrap();
    assert_eq!((began.elapsed().as_millis(), t.runs()), (0, 2));
    t.tell(&[End::Hangs, UNAVAILABLE, UNAVAILABLE]);
    let late = t.call(IDEMPOTENT).timeout(Duration::from_millis(500)).await.unwrap_err();
    assert_eq!((late.code(), late.executed(), t.runs()), (Code::DeadlineExceeded, Executed::Maybe, 3));
    t.tell(&[UNAVAILABLE; 3]);
    let error = t.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!((error.code(), t.runs()), (Code::Unavailable, 3));
    // A status that would not be another one the next time.
    t.tell(&[End::Hangs, End::Fails(Code::NotFound)]);
    assert_eq!(t.call(IDEMPOTENT).await.unwrap_err().code(), Code::NotFound);
    // The other attempt was executed, or will be.
    t.tell(&[End::Hangs, End::Refuses("-1")]);
    let refused = t.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (Code::ResourceExhausted, Executed::Maybe));

    t.tell(&[End::Hangs]);
    t.call(ONCE).timeout(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(t.runs(), 1, "it may do harm");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_pushes_back_is_not_asked_beside_the_first_time_either() {
    let t = setup(|settings| {
        settings.retry.hedging_delay_ms = 30;
        settings.retry.retryable_status_codes = vec![Code::ResourceExhausted];
    });
    let took = async |ends: &[End]| {
        t.tell(ends);
        let began = Instant::now();
        let answer = t.call(IDEMPOTENT).timeout(Duration::from_millis(600)).await;
        (answer.map_err(|status| status.code()).map(drop), began.elapsed().as_millis(), t.runs())
    };
    // As long after the refusal as the server says.
    assert_eq!(took(&[End::Refuses("200")]).await, (Ok(()), 200, 2));
    assert_eq!(took(&[End::Refuses("200"), End::Refuses("100")]).await, (Ok(()), 300, 3));
    // The attempt beside it goes on. Without the word the third would come at 60 ms.
    assert_eq!(took(&[End::Hangs, End::Refuses("200")]).await, (Ok(()), 230, 3));
    // Not at all, and not after the deadline.
    let refused = Err(Code::ResourceExhausted);
    assert_eq!(took(&[End::Refuses("-1")]).await, (refused, 0, 1));
    assert_eq!(took(&[End::Refuses("700")]).await, (refused, 0, 1));
    assert_eq!(took(&[End::Hangs, End::Refuses("-1")]).await, (Err(Code::DeadlineExceeded), 600, 2));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_attempts_are_used_up_while_it_waits_ends_with_its_failure() {
    let t = setup(|settings| {
        (settings.retry.hedging_delay_ms, settings.retry.max_tokens) = (30, 1);
        settings.retry.retryable_status_codes = vec![Code::ResourceExhausted];
    });
    t.tell(&[End::Refuses("200")]);
    let first = t.call(IDEMPOTENT).into_future();
    let second = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Takes the only token.
        t.tell(&[End::Refuses("50")]);
        t.call(IDEMPOTENT).await.unwrap();
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_channel_comes_to_allow_no_more_attempts_ends_with_its_failure() {
    let t = setup(|settings| {
        settings.retry.hedging_delay_ms = 30;
        settings.retry.retryable_status_codes = vec![Code::ResourceExhausted];
    });
    t.tell(&[End::Refuses("5000")]);
    let call = tokio::spawn(t.call(IDEMPOTENT).into_future());
    // It has been refused, and pauses.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(t.runs(), 1);
    let Settings { calls, retry, methods, balance, .. } = plain(Limits::default());
    t.stub.channel().reconfigure(&calls, &retry, &methods, &balance);
    let ended = tokio::time::timeout(Duration::from_secs(60), call).await.expect("it hangs");
    assert_eq!(ended.unwrap().unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn slow_servers_get_a_tenth_more_calls_at_most() {
    let t = setup(|settings| {
        (settings.retry.hedging_delay_ms, settings.retry.max_tokens) = (30, 10);
    });
    t.always(End::Hangs);
    for _ in 0..100 {
        t.call(IDEMPOTENT).timeout(Duration::from_secs(1)).await.unwrap_err();
    }
    assert_eq!(t.runs(), 110);
}

#[tokio::test(start_paused = true)]
async fn a_status_says_what_earlier_attempts_may_have_done() {
    let t = setup(|settings| settings.retry.initial_backoff_ms = 100);
    t.tell(&[UNAVAILABLE]);
    let call = tokio::spawn(t.call(IDEMPOTENT).timeout(Duration::from_millis(500)).into_future());
    support::until("it has run", || t.runs() == 1).await;
    // The server is gone before the next attempt, which is certainly not executed.
    t.server.close();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(
        (error.code(), error.executed(), t.runs()),
        (Code::Unavailable, Executed::Maybe, 1),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn another_policy_counts_for_the_calls_that_begin_then() {
    let t = setup(|_| ());
    let clone = t.stub.channel().class(TrafficClass::Urgent);
    let reconfigure = |change: fn(&mut Settings)| {
        let mut settings = plain(Limits::default());
        change(&mut settings);
        clone.reconfigure(&settings.calls, &settings.retry, &settings.methods, &settings.balance);
    };
    reconfigure(|settings| settings.retry.max_attempts = 1);
    t.tell(&[UNAVAILABLE]);
    t.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!(t.runs(), 1);

    reconfigure(|settings| {
        settings.retry.max_attempts = 2;
        settings.retry.retryable_status_codes = vec![Code::Aborted];
    });
    t.tell(&[UNAVAILABLE]);
    t.call(IDEMPOTENT).await.unwrap_err();
    t.tell(&[End::Fails(Code::Aborted)]);
    t.call(IDEMPOTENT).await.unwrap();
    assert_eq!(t.runs(), 2);

    // One token, and none is earned.
    reconfigure(|settings| {
        settings.retry.max_attempts = 2;
        (settings.retry.max_tokens, settings.retry.token_ratio) = (1, 0.0);
    });
    t.tell(&[UNAVAILABLE; 3]);
    t.call(IDEMPOTENT).await.unwrap_err();
    t.call(IDEMPOTENT).await.unwrap_err();
    assert_eq!(t.runs(), 3, "the second call is not made again");

    reconfigure(|settings| settings.calls.timeout_ms = 700);
    t.tell(&[End::Hangs]);
    let began = Instant::now();
    assert_eq!(t.call(ONCE).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(began.elapsed().as_millis(), 700);
}
