//! Traffic classes: each has its own connection, which neither waits for another's nor ends with it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall_core::class::TrafficClass::{self, Bulk, Normal, Urgent};
use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::Limits;
use farcall_core::connection::Connection;
use farcall_core::proto::wire::{FrameType, Hello};
use farcall_core::status::{Code, Executed, Result, Status};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::{BoxFuture, Link, memory};

use support::tap::Tap;
use support::{ECHO, HANG, Near, Setup, WAIT, bytes, call, default, host, info, plain, until};

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns how many requests were sent by each connection, in the order in which the connections were made.
fn requests(t: &Setup) -> Vec<usize> {
    t.near.taps.lock().unwrap().iter().map(|tap| tap.count(FrameType::REQUEST)).collect()
}

async fn connection(t: &Setup, class: TrafficClass) -> Arc<Connection> {
    t.caller.class(class).connection().await.unwrap()
}

#[tokio::test]
async fn a_class_has_a_connection_of_its_own_when_it_is_first_needed() {
    let t = default();
    let urgent = t.caller.class(Urgent);
    t.call(ECHO, "normal").await.unwrap();
    assert_eq!(requests(&t), [1]);
    call(&urgent, &t.info, ECHO, "by a view").await.unwrap();
    t.call(ECHO, "by an option").class(Urgent).await.unwrap();
    call(&urgent, &t.info, ECHO, "by an option").class(Normal).await.unwrap();
    assert_eq!(requests(&t), [2, 2]);
    t.call(ECHO, "by an option").class(Bulk).await.unwrap();
    assert_eq!(requests(&t), [2, 2, 1]);
}

#[tokio::test]
async fn both_ends_know_what_a_connection_is_for_and_the_link_is_told() {
    let t = default();
    for class in [Urgent, Normal, Bulk] {
        assert_eq!(connection(&t, class).await.class(), class);
        assert_eq!(*t.tap().marks.lock().unwrap(), [class]);
        until("the server knows of it", || t.host.connections().iter().any(|c| c.class() == class)).await;
    }
}

#[tokio::test]
async fn views_share_the_connections() {
    let t = default();
    let urgent = connection(&t, Urgent).await;
    let same = t.caller.class(Bulk).clone().class(Urgent).connection().await.unwrap();
    assert!(Arc::ptr_eq(&urgent, &same));
    let normal = t.caller.connection().await.unwrap();
    assert!(Arc::ptr_eq(&normal, &connection(&t, Normal).await) && !Arc::ptr_eq(&normal, &urgent));
    assert_eq!(requests(&t).len(), 2);
}

#[tokio::test]
async fn losing_one_connection_leaves_the_others() {
    let t = default();
    let normal = connection(&t, Normal).await;
    let waiting = t.spawn(WAIT, "still here");
    t.seen.started.notified().await;
    let lost = tokio::spawn(t.call(HANG, "").class(Urgent).into_future());
    t.seen.started.notified().await;
    t.tap().cut();
    assert_eq!(lost.await.unwrap().unwrap_err().code(), Code::Unavailable);
    t.seen.go.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap(), "still here");
    assert!(Arc::ptr_eq(&normal, &connection(&t, Normal).await));

    t.call(ECHO, "again").class(Urgent).await.unwrap();
    let again = connection(&t, Urgent).await;
    assert_eq!((again.class(), requests(&t)), (Urgent, vec![1, 1, 1]));
}

/// A connector that fails when it is told to.
struct Fickle(Near, Arc<AtomicBool>);

impl Connector for Fickle {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        if !self.1.load(Ordering::Relaxed) {
            return self.0.connect(0);
        }
        Box::pin(async { Err(Status::new(Code::Unavailable, "as the test wants it")) })
    }

    fn target(&self) -> String {
        self.0.target()
    }
}

#[tokio::test(start_paused = true)]
async fn a_class_that_can_not_connect_waits_alone_before_it_tries_again() {
    let t = default();
    let refuses = Arc::new(AtomicBool::new(true));
    let caller = RawChannel::new(Fickle(t.near.clone(), refuses.clone()), plain(Limits::default()));
    let urgent = caller.class(Urgent);
    let error = call(&urgent, &t.info, ECHO, "").await.unwrap_err();
    assert!(error.message().contains("as the test wants it"), "{error}");

    refuses.store(false, Ordering::Relaxed);
    assert_eq!(call(&caller, &t.info, ECHO, "normal").await.unwrap(), "normal");
    let error = call(&urgent, &t.info, ECHO, "").await.unwrap_err();
    assert!(error.message().contains("as the test wants it"), "too early: {error}");
    // The first pause is 50 ms, and at most a quarter longer at random.
    tokio::time::sleep(Duration::from_millis(63)).await;
    assert_eq!(call(&urgent, &t.info, ECHO, "urgent").await.unwrap(), "urgent");
}

#[tokio::test]
async fn all_connections_are_closed_with_the_last_view() {
    let t = default();
    for class in [Normal, Urgent, Bulk] {
        connection(&t, class).await;
    }
    until("the server has all", || t.host.connections().len() == 3).await;
    let (bulk, normal) = (t.caller.class(Bulk), connection(&t, Normal).await);
    drop(t.caller);
    assert_eq!(call(&bulk, &t.info, ECHO, "open").class(Urgent).await.unwrap(), "open");
    assert!(Arc::ptr_eq(&normal, &bulk.class(Normal).connection().await.unwrap()));
    drop(bulk);
    until("the server has none", || t.host.connections().is_empty()).await;
}

/// Connects first to a peer that does not read, then to a host.
struct FirstToTheDeaf(Near, Mutex<Option<Arc<dyn Link>>>);

impl Connector for FirstToTheDeaf {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        match self.1.lock().unwrap().take() {
            Some(deaf) => Box::pin(async { Ok(deaf) }),
            None => self.0.connect(0),
        }
    }

    fn target(&self) -> String {
        self.0.target()
    }
}

#[tokio::test]
async fn an_urgent_call_does_not_wait_behind_data_that_nobody_reads() {
    let t = default();
    let (near, far) = memory::pair();
    let deaf = Peer::new(far);
    deaf.hello(&hello());
    let connector = FirstToTheDeaf(t.near.clone(), Mutex::new(Some(near.clone())));
    let caller = RawChannel::new(connector, plain(Limits::default()));
    let large: Vec<_> =
        (0..8).map(|i| tokio::spawn(call(&caller, &t.info, ECHO, bytes(4 << 20, i)).into_future())).collect();
    // Enough to fill the link.
    until("the link is full", || near.counters().bytes_sent > 512 << 10).await;
    let behind = tokio::spawn(call(&caller, &t.info, ECHO, "behind").into_future());
    let urgent = call(&caller, &t.info, ECHO, "urgent").class(Urgent);
    let urgent = tokio::time::timeout(PATIENCE, urgent.into_future()).await.expect("it waits");
    assert_eq!(urgent.unwrap(), "urgent");
    assert!(!behind.is_finished() && large.iter().all(|large| !large.is_finished()));
}

#[tokio::test]
async fn hello_says_what_a_connection_is_for() {
    for (number, class) in [Normal, Urgent, Bulk].into_iter().enumerate() {
        let (near, far) = memory::pair();
        let near = FirstToTheDeaf(default().near, Mutex::new(Some(near)));
        let caller = RawChannel::new(near, plain(Limits::default())).class(class);
        let mut peer = Peer::new(far);
        peer.read();
        tokio::spawn(async move { caller.connection().await.map(drop) });
        let (_, said) = peer.expect(FrameType::HELLO).await;
        assert_eq!(usize::from(Hello::decode(said).unwrap().class), number);
    }
}

#[tokio::test]
async fn a_server_takes_a_class_that_it_does_not_know_for_normal() {
    for (number, class) in [(0, Normal), (1, Urgent), (2, Bulk), (3, Normal), (255, Normal)] {
        let (host, _) = host(plain(Limits::default()));
        let (near, far) = memory::pair();
        let far = Tap::new(far);
        host.serve(far.clone());
        let mut peer = Peer::new(near);
        peer.read();
        peer.hello(&Hello { class: number, ..hello() });
        until("there is a session", || !host.connections().is_empty()).await;
        assert_eq!(host.connections()[0].class(), class, "{number}");
        assert_eq!(*far.marks.lock().unwrap(), [class], "{number}");
        let (_, said) = peer.expect(FrameType::HELLO).await;
        assert_eq!(Hello::decode(said).unwrap().class, 0);
    }
}

/// A connector that never connects.
struct Never;

impl Connector for Never {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        Box::pin(std::future::pending())
    }

    fn target(&self) -> String {
        "nobody".into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_late_to_connect_says_by_what() {
    let caller = RawChannel::new(Never, plain(Limits::default()));
    for (class, words) in
        [(Normal, "not connected to nobody after"), (Bulk, "not connected to nobody (bulk) after")]
    {
        let late = call(&caller, &info("test"), ECHO, "").class(class).timeout(Duration::from_millis(5));
        let error = late.await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::No));
        assert!(error.message().contains(words), "{error}");
    }
}
