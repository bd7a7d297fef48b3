//! Loss and return of the upgraded link, and long messages that were to be read by it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::future::Future as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::config::Policy;
use farcall_core::settings::Settings;
use farcall_core::status::Result;
use farcall_core::stream::{Stream, Streaming};
use farcall_core::transport::{Attempt, BoxFuture, PreparedUpgrade, Reason, Unavailable, Upgrade};
use tokio::time::{Instant, sleep};

use support::fabric::{self, Fabric, ToFabric, with_fabric};
use support::reading::Shared;
use support::streaming::{self, FromFn};
use support::{ECHO, HANG, NOTE, Setup, WAIT, bytes};

/// Returns a fabric whose links can read the peer's memory.
fn readable() -> (Arc<Fabric>, Arc<Shared>) {
    let memory = Arc::new(Shared::default());
    (Arc::new(Fabric::readable(&memory)), memory)
}

async fn is_up(t: &Setup) -> bool {
    t.caller.connection().await.unwrap().transport().why_not_rdma.is_none()
}

/// Waits, in virtual time, until calls go by the upgraded link again.
async fn up_again(t: &Setup) {
    while !is_up(t).await {
        sleep(Duration::from_millis(10)).await;
    }
}

fn cut_last(fabric: &Fabric) {
    fabric.links.lock().unwrap().last().unwrap().cut();
}

/// Waits, in virtual time, until the last link is no longer used.
async fn lose(fabric: &Fabric, t: &Setup) {
    cut_last(fabric);
    while is_up(t).await {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_moves_up_again_and_calls_use_the_new_link() {
    let fabric = Arc::new(Fabric::default());
    let t = with_fabric(&fabric, Policy::Auto);
    t.caller.connection().await.unwrap();
    lose(&fabric, &t).await;
    assert_eq!(t.call(ECHO, "by the stream").await.unwrap(), "by the stream");
    up_again(&t).await;
    let connection = t.caller.connection().await.unwrap();
    let before = connection.traffic();
    assert_eq!(t.call(ECHO, bytes(100_000, 1)).await.unwrap(), bytes(100_000, 1));
    let after = connection.traffic();
    assert!(after.upgraded.bytes_sent - before.upgraded.bytes_sent > 100_000, "{after:?}");
    assert_eq!(fabric.links.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_while_links_fail_and_begin_anew_after_one_that_lasted() {
    let fabric = Arc::new(Fabric::default());
    let t = with_fabric(&fabric, Policy::Auto);
    t.caller.connection().await.unwrap();
    let mut pauses = Vec::new();
    for _ in 0..12 {
        lose(&fabric, &t).await;
        let lost = Instant::now();
        up_again(&t).await;
        pauses.push(lost.elapsed().as_millis());
    }
    for (i, pause) in pauses.iter().enumerate() {
        let nominal = (100 << i).min(30_000);
        assert!((nominal * 7 / 10..=nominal * 13 / 10 + 20).contains(pause), "{pauses:?}");
    }
    sleep(Duration::from_secs(61)).await;
    lose(&fabric, &t).await;
    let lost = Instant::now();
    up_again(&t).await;
    assert!(lost.elapsed() < Duration::from_millis(200), "{:?}", lost.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_at_a_link_is_made_again_too() {
    let fabric = Arc::new(Fabric::default());
    for fault in [&fabric.refuse_offer, &fabric.refuse_answer, &fabric.lose_probe] {
        fault.store(true, Ordering::Relaxed);
        let t = with_fabric(&fabric, Policy::Auto);
        assert!(!is_up(&t).await);
        sleep(Duration::from_secs(5)).await;
        assert!(!is_up(&t).await);
        fault.store(false, Ordering::Relaxed);
        up_again(&t).await;
    }
}

/// The fabric on a side that lacks something.
#[derive(Debug)]
struct Lacking {
    inner: ToFabric,
    reason: Arc<Mutex<Option<Reason>>>,
}

impl Lacking {
    fn able(&self) -> Result<&ToFabric, Unavailable> {
        let reason = *self.reason.lock().unwrap();
        reason.map_or(Ok(&self.inner), |reason| Err(Unavailable::new(reason, "as the test wants it")))
    }
}

impl Upgrade for Lacking {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, Unavailable>> {
        self.able().map_or_else(|why| Box::pin(async { Err(why) }) as _, ToFabric::announce)
    }

    fn offer(&self, announced: Bytes, attempt: &Attempt) -> BoxFuture<Result<PreparedUpgrade, Unavailable>> {
        let offer = |able: &ToFabric| able.offer(announced, attempt);
        self.able().map_or_else(|why| Box::pin(async { Err(why) }) as _, offer)
    }

    fn answer(
        &self,
        epoch: u32,
        offer: Bytes,
        attempt: &Attempt,
    ) -> BoxFuture<Result<PreparedUpgrade, Unavailable>> {
        let answer = |able: &ToFabric| able.answer(epoch, offer, attempt);
        self.able().map_or_else(|why| Box::pin(async { Err(why) }) as _, answer)
    }
}

/// Returns a client and a server, each of which may lack something.
fn lacking(client: Option<Reason>, server: Option<Reason>) -> (Setup, impl Fn()) {
    let fabric = Arc::new(Fabric::default());
    let reasons = [client, server].map(|reason| Arc::new(Mutex::new(reason)));
    let [client, server] = reasons.each_ref().map(|reason| {
        let upgrade = Lacking { inner: ToFabric(fabric.clone()), reason: reason.clone() };
        Settings { upgrade: Ok(Arc::new(upgrade)), ..support::fabric::settings(&fabric, Policy::Auto) }
    });
    let have_it_pass = move || reasons.iter().for_each(|reason| *reason.lock().unwrap() = None);
    (support::setup(client, server), have_it_pass)
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_may_pass_when_a_session_begins_is_tried_again() {
    let down = Some(Reason::PortDown);
    for (client, server) in [(down, None), (None, down), (down, down)] {
        let (t, have_it_pass) = lacking(client, server);
        let why = t.caller.connection().await.unwrap().transport().why_not_rdma.unwrap();
        assert_eq!((why.reason, why.at_peer), (Reason::PortDown, client.is_none()));
        sleep(Duration::from_secs(5)).await;
        assert!(!is_up(&t).await);
        have_it_pass();
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, up_again(&t)).await.expect("another attempt is made");
        assert_eq!(t.call(ECHO, "by the link").await.unwrap(), "by the link");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_does_not_pass_is_not_tried_again() {
    let (down, none) = (Some(Reason::PortDown), Some(Reason::NoDevice));
    for (client, server) in [(none, None), (None, none), (down, none), (none, down)] {
        let (t, have_it_pass) = lacking(client, server);
        assert!(!is_up(&t).await);
        have_it_pass();
        sleep(Duration::from_secs(3600)).await;
        assert!(!is_up(&t).await, "{client:?} {server:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn why_it_was_lost_and_why_it_does_not_come_back_are_told_apart() {
    let fabric = Arc::new(Fabric::default());
    let t = with_fabric(&fabric, Policy::Auto);
    let connection = t.caller.connection().await.unwrap();
    lose(&fabric, &t).await;
    let transport = connection.transport();
    assert_eq!(transport.why_not_again, None);
    let lost = transport.why_not_rdma.unwrap();
    fabric.refuse_offer.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    let transport = connection.transport();
    assert_eq!(transport.why_not_rdma.as_ref(), Some(&lost));
    let again = transport.why_not_again.clone().unwrap();
    assert_eq!(again.reason, Reason::Memlock);
    let whole = format!("memory (not RDMA: {lost}; when it was tried again: {again})");
    assert_eq!(transport.to_string(), whole);
    fabric.refuse_offer.store(false, Ordering::Relaxed);
    up_again(&t).await;
    let transport = connection.transport();
    assert_eq!((transport.why_not_rdma, transport.why_not_again), (None, None));
}

#[tokio::test(start_paused = true)]
async fn no_further_attempt_is_made_where_none_is_wanted() {
    let fabric = Arc::new(Fabric::default());
    let mut settings = support::fabric::settings(&fabric, Policy::Auto);
    settings.liveness.retry_ms = 0;
    let t = support::setup(settings, support::fabric::settings(&fabric, Policy::Auto));
    t.caller.connection().await.unwrap();
    lose(&fabric, &t).await;
    sleep(Duration::from_secs(3600)).await;
    let why = t.caller.connection().await.unwrap().transport().why_not_rdma;
    assert_eq!(why.map(|why| why.reason), Some(Reason::QueuePair));
}

#[tokio::test]
async fn long_messages_are_read_and_not_sent() {
    let (fabric, memory) = readable();
    let t = with_fabric(&fabric, Policy::Auto);
    let connection = t.caller.connection().await.unwrap();
    for len in [200_000, 1 << 20, 5 << 20] {
        assert_eq!(t.call(ECHO, bytes(len, 3)).await.unwrap(), bytes(len, 3));
    }
    assert_eq!(memory.reads.load(Ordering::Relaxed), 6, "three each way");
    let traffic = connection.traffic();
    assert!(traffic.stream.bytes_sent + traffic.upgraded.bytes_sent < 4000, "{traffic:?}");
    // The last DONE follows the answer that it is for.
    while memory.exposed() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_message_without_memory_to_read_into_is_sent() {
    let (fabric, memory) = readable();
    memory.full.store(true, Ordering::Relaxed);
    let t = with_fabric(&fabric, Policy::Auto);
    for len in [200_000, 1 << 20] {
        assert_eq!(t.call(ECHO, bytes(len, 3)).await.unwrap(), bytes(len, 3));
    }
    let traffic = t.caller.connection().await.unwrap().traffic();
    assert!(traffic.upgraded.bytes_sent > 1_200_000, "{traffic:?}");
    assert_eq!((memory.exposed(), is_up(&t).await), (0, true));
}

#[tokio::test(start_paused = true)]
async fn a_message_being_read_when_the_link_is_lost_is_sent_and_runs_once() {
    let (fabric, memory) = readable();
    let t = with_fabric(&fabric, Policy::Auto);
    t.caller.connection().await.unwrap();
    memory.stall.store(true, Ordering::Relaxed);
    let call = t.call(ECHO, bytes(300_000, 1));
    let call = tokio::spawn(call);
    while memory.exposed() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
    assert_eq!(t.seen.runs(), 1);
    cut_last(&fabric);
    assert_eq!(call.await.unwrap().unwrap(), bytes(300_000, 1));
    assert_eq!(t.seen.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_being_read_when_the_link_was_lost_is_sent() {
    let (fabric, memory) = readable();
    let t = with_fabric(&fabric, Policy::Auto);
    let call = t.call(WAIT, bytes(300_000, 2));
    let call = tokio::spawn(call);
    t.seen.started.notified().await;
    memory.stall.store(true, Ordering::Relaxed);
    t.seen.go.notify_one();
    while memory.exposed() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    cut_last(&fabric);
    assert_eq!(call.await.unwrap().unwrap(), bytes(300_000, 2));
    assert_eq!(t.seen.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_while_its_request_is_read_is_not_executed() {
    let (fabric, memory) = readable();
    let t = with_fabric(&fabric, Policy::Auto);
    t.caller.connection().await.unwrap();
    memory.stall.store(true, Ordering::Relaxed);
    let call = t.call(NOTE, bytes(300_000, 1)).timeout(Duration::from_millis(50));
    assert!(call.await.is_err());
    assert_eq!(memory.exposed(), 1, "the server may be reading it");
    memory.stall.store(false, Ordering::Relaxed);
    // An arriving frame makes it read.
    assert_eq!(t.call(ECHO, "x").await.unwrap(), "x");
    while memory.exposed() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((t.seen.runs(), t.seen.notes.lock().unwrap().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_until_the_answers_are_read() {
    let (fabric, memory) = readable();
    let t = with_fabric(&fabric, Policy::Auto);
    let call = t.call(WAIT, bytes(300_000, 2));
    let call = tokio::spawn(call);
    t.seen.started.notified().await;
    memory.stall.store(true, Ordering::Relaxed);
    t.seen.go.notify_one();
    let drained = t.host.drain(Duration::from_secs(60));
    tokio::pin!(drained);
    while memory.exposed() == 0 {
        tokio::select! {
            () = &mut drained => panic!("an answer has not been read"),
            () = sleep(Duration::from_millis(1)) => {}
        }
    }
    let soon = tokio::time::timeout(Duration::from_secs(1), &mut drained).await;
    assert!(soon.is_err(), "an answer has not been read");
    cut_last(&fabric);
    assert_eq!(call.await.unwrap().unwrap(), bytes(300_000, 2));
    drained.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_dies_again_and_again_under_load_loses_and_repeats_nothing() {
    let (fabric, _) = readable();
    let mut settings = support::fabric::settings(&fabric, Policy::Auto);
    settings.liveness.retry_ms = 1;
    let t = Arc::new(support::setup(settings, support::fabric::settings(&fabric, Policy::Auto)));
    t.caller.connection().await.unwrap();
    let deaths = if std::env::var_os("FARCALL_LONG").is_some() { 100 } else { 20 };
    let callers: Vec<_> = (0..8)
        .map(|task| {
            let (t, fabric) = (t.clone(), fabric.clone());
            tokio::spawn(async move {
                let mut calls = 0;
                while fabric.links.lock().unwrap().len() <= deaths {
                    let content = bytes([10, 3000, 150_000, 700_000][calls % 4], task + calls);
                    assert_eq!(t.call(ECHO, content.clone()).await.unwrap(), content);
                    if task == 0 && is_up(&t).await {
                        cut_last(&fabric);
                    }
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for caller in callers {
        calls += caller.await.unwrap();
    }
    assert_eq!(t.seen.runs() as usize, calls, "each handler ran once");
}

#[tokio::test]
async fn the_last_place_for_a_call_takes_a_long_one_too() {
    let (fabric, memory) = readable();
    let mut few = support::fabric::settings(&fabric, Policy::Auto);
    few.limits.concurrent_calls = 2;
    let t = support::setup(support::fabric::settings(&fabric, Policy::Auto), few);
    let hanging = t.spawn(HANG, "");
    t.seen.started.notified().await;
    for i in 0..20 {
        assert_eq!(t.call(ECHO, bytes(300_000, i)).await.unwrap(), bytes(300_000, i));
    }
    assert_eq!(memory.reads.load(Ordering::Relaxed), 40);
    hanging.abort();
}

#[tokio::test]
async fn a_hung_reader_harms_nobody_else() {
    let (fabric, memory) = readable();
    let t = with_fabric(&fabric, Policy::Auto);
    t.caller.connection().await.unwrap();
    memory.stall.store(true, Ordering::Relaxed);
    let stuck = t.call(HANG, bytes(300_000, 1));
    let stuck = tokio::spawn(stuck);
    for i in 0..1000 {
        let content = bytes(i * 100, i);
        assert_eq!(t.call(ECHO, content.clone()).await.unwrap(), content);
    }
    stuck.abort();
}

/// Returns items, with pauses between some of them.
fn paced(count: usize, len: usize) -> impl Stream<Item = Result<Bytes>> + Send {
    let (mut next, mut pause) = (0, Box::pin(sleep(Duration::ZERO)));
    FromFn(move |cx: &mut TaskContext<'_>| {
        ready!(pause.as_mut().poll(cx));
        if next == count {
            return Poll::Ready(None);
        }
        next += 1;
        if next % 10 == 0 {
            pause.set(sleep(Duration::from_millis(1)));
        }
        Poll::Ready(Some(Ok(bytes(len, next - 1))))
    })
}

async fn read_slowly(mut stream: Streaming<Bytes>, count: usize, len: usize) {
    for i in 0..count {
        assert_eq!(stream.message().await.unwrap().unwrap(), bytes(len, i), "item {i}");
        if i % 10 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(stream.message().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn streams_of_all_kinds_go_on_when_links_die() {
    for fabric in [Arc::new(Fabric::default()), readable().0] {
        let settings = || {
            let mut settings = fabric::settings(&fabric, Policy::Auto);
            settings.liveness.retry_ms = 1;
            settings
        };
        let t = streaming::setup_with(settings(), settings());
        let streams = async {
            for (count, len) in [(300, 10), (300, 1000), (200, 9000), (50, 300_000)] {
                let watched = async {
                    let stream = t.watch(streaming::COUNT, format!("{count} {len}")).await.unwrap();
                    read_slowly(stream, count, len).await;
                };
                let loaded = async {
                    let answer = t.load(streaming::SUM, paced(count, len)).await.unwrap();
                    assert_eq!(answer, format!("{count} {}", count * len));
                };
                let talked = async {
                    read_slowly(t.chat(paced(count, len)).await.unwrap(), count, len).await;
                };
                tokio::join!(watched, loaded, talked);
            }
        };
        let deaths = async {
            loop {
                sleep(Duration::from_millis(3)).await;
                // The list is empty until the first link is made.
                fabric.links.lock().unwrap().last().inspect(|link| link.cut());
            }
        };
        tokio::select! {
            () = streams => {}
            () = deaths => {}
        }
        let links = fabric.links.lock().unwrap().len();
        assert!(links > 5, "{links} links only");
        t.idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_message_of_a_stream_is_made_while_the_peer_reads_the_last() {
    let (fabric, memory) = readable();
    let settings = || fabric::settings(&fabric, Policy::Auto);
    let t = streaming::setup_with(settings(), settings());
    let connection = t.stub.channel().connection().await.unwrap();
    while connection.transport().why_not_rdma.is_some() {
        sleep(Duration::from_millis(10)).await;
    }
    let taken = Arc::<AtomicUsize>::default();
    let (taking, reading) = (taken.clone(), memory.clone());
    // Each item is a message, and by now the window has room for several.
    let items = FromFn(move |_: &mut TaskContext<'_>| {
        let n = taking.fetch_add(1, Ordering::Relaxed);
        reading.stall.store(n >= 100, Ordering::Relaxed);
        Poll::Ready(Some(Ok(bytes(200_000, n))))
    });
    tokio::select! {
        answer = t.load(streaming::SUM, items) => unreachable!("{answer:?}"),
        () = sleep(Duration::from_secs(1)) => {}
    }
    assert_eq!(memory.exposed(), 1);
    assert_eq!(taken.load(Ordering::Relaxed) - memory.reads.load(Ordering::Relaxed), 2);
}
