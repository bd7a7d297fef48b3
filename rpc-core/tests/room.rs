//! Calls that wait for room, or fail, while too many are in progress.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Connector, RawChannel, Stub};
use farcall_core::config::Limits;
use farcall_core::proto::wire::{Hello, features};
use farcall_core::server::ServerCore;
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Executed, Result, Status};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::{BoxFuture, Link, memory};

use support::peer::{played, played_to};
use support::streaming::{self, FromFn, SUM};
use support::{ECHO, Setup, WAIT, call, host, info, plain, setup, until};

const KIB: usize = 1 << 10;

/// A client whose calls may have 64 KiB of arguments together.
fn client() -> Settings {
    let mut limits = Limits::default();
    limits.request_memory = 64 << 10;
    plain(limits)
}

fn few_calls(calls: u32) -> Settings {
    let mut limits = Limits::default();
    limits.concurrent_calls = calls;
    plain(limits)
}

fn bytes(len: usize) -> Vec<u8> {
    vec![7; len]
}

fn refused(status: &Status, setting: &str) {
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, Executed::No), "{status}");
    let text = status.to_string();
    assert!(text.contains("test/echo") && text.contains(setting), "{text}");
}

/// Returns whether a call comes to its handler while another one waits for `t.seen.go`.
async fn goes_beside(t: &Setup, first: usize, second: usize) -> bool {
    let runs = t.seen.runs();
    let waiting = t.spawn(WAIT, bytes(first));
    until("the first runs", || t.seen.runs() == runs + 1).await;
    let beside = t.call(ECHO, bytes(second)).timeout(Duration::from_secs(1)).await;
    t.seen.go.notify_one();
    waiting.await.unwrap().unwrap();
    match beside {
        Ok(_) => true,
        Err(late) => {
            assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::No), "{late}");
            assert!(late.to_string().contains("limits.request_memory"), "{late}");
            false
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_with_too_many_arguments_wait_for_room() {
    let t = setup(client(), plain(Limits::default()));
    assert!(goes_beside(&t, 30 * KIB, 30 * KIB).await);
    assert!(!goes_beside(&t, 40 * KIB, 30 * KIB).await);
    // Longer arguments than all of it go alone, and short ones are not counted.
    assert!(!goes_beside(&t, 1000 * KIB, 5 * KIB).await);
    assert!(goes_beside(&t, 1000 * KIB, 3 * KIB).await);
    assert!(goes_beside(&t, 10, 1000 * KIB).await);
}

#[tokio::test]
async fn a_call_that_waits_for_room_goes_when_another_ends() {
    let t = setup(client(), plain(Limits::default()));
    let first = t.spawn(WAIT, bytes(60 * KIB));
    until("the first runs", || t.seen.runs() == 1).await;
    let second = t.spawn(ECHO, bytes(60 * KIB));
    tokio::task::yield_now().await;
    // A call that was dropped while it waited takes nothing.
    drop(tokio::time::timeout(Duration::from_millis(1), t.call(ECHO, bytes(60 * KIB))).await);
    t.seen.go.notify_one();
    first.await.unwrap().unwrap();
    assert_eq!(second.await.unwrap().unwrap().len(), 60 * KIB);
    assert!(goes_beside(&t, 30 * KIB, 30 * KIB).await);
}

#[tokio::test]
async fn a_call_that_does_not_wait_fails_at_once() {
    let mut settings = client();
    for by_default in [false, true] {
        settings.calls.wait_for_room = !by_default;
        let t = setup(settings.clone(), few_calls(2));
        let calling = |method, len| {
            let call = t.call(method, bytes(len));
            if by_default { call } else { call.wait_for_room(false) }
        };
        let first = tokio::spawn(calling(WAIT, 60 * KIB).into_future());
        until("the first runs", || t.seen.runs() == 1).await;
        refused(&calling(ECHO, 60 * KIB).await.unwrap_err(), "the channel's limits.request_memory");
        let second = tokio::spawn(calling(WAIT, 1).into_future());
        until("the second runs", || t.seen.runs() == 2).await;
        refused(&calling(ECHO, 1).await.unwrap_err(), "the server's limits.concurrent_calls");
        assert_eq!(t.seen.runs(), 2);
        t.seen.go.notify_one();
        until("one is done", || first.is_finished() || second.is_finished()).await;
        t.seen.go.notify_one();
        first.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
        calling(ECHO, 60 * KIB).await.unwrap();
    }
}

/// Connects when the server is there.
struct Door(Arc<ServerCore>, Arc<AtomicBool>);

impl Connector for Door {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        if !self.1.load(Ordering::Relaxed) {
            let status = Status::new(Code::Unavailable, "not there").with_executed(Executed::No);
            return Box::pin(async { Err(status) });
        }
        let (near, far) = memory::pair();
        self.0.serve(far);
        Box::pin(async { Ok(near as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "a server that comes late".into()
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_does_not_use_up_the_clients_memory() {
    // Short arguments count as 4 KiB.
    for (len, fit) in [(16 * KIB, 4), (10, 16), (0, 16)] {
        arguments_wait_for_an_absent_server(len, fit).await;
    }
}

async fn arguments_wait_for_an_absent_server(len: usize, fit: u32) {
    let (server, seen) = host(plain(Limits::default()));
    let is_there = Arc::new(AtomicBool::new(false));
    let mut settings = client();
    settings.calls.wait_for_ready = true;
    let caller = RawChannel::new(Door(server, is_there.clone()), settings);
    let calls: Vec<_> = (0..1000)
        .map(|_| call(&caller, &info("test"), ECHO, bytes(len)).wait_for_room(false))
        .map(|call| tokio::spawn(call.into_future()))
        .collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let waiting = calls.iter().filter(|call| !call.is_finished()).count();
    assert_eq!(waiting, fit as usize);
    is_there.store(true, Ordering::Relaxed);
    let mut answered = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => answered += 1,
            Err(status) => refused(&status, "the channel's limits.request_memory"),
        }
    }
    assert_eq!((answered, seen.runs()), (fit, fit));
}

/// A replica that has stopped reading is sent 4,096 entries of a log, of 1.5 MB each.
#[tokio::test]
async fn a_peer_that_reads_nothing_costs_the_client_no_more_than_the_limit() {
    const CALLS: usize = 4096;
    const ENTRY: usize = 1_500_000;
    // 256 MiB by default, in which an entry takes whole units of 4 KiB.
    const FIT: usize = (256 << 20) / ENTRY.next_multiple_of(4096);
    for waits in [true, false] {
        let mut settings = plain(Limits::default());
        settings.calls.wait_for_room = waits;
        let (caller, mut links, _) = played_to(memory::pair, settings);
        let entry = Bytes::from(vec![7; ENTRY]);
        let calls: Vec<_> = (0..CALLS)
            .map(|_| tokio::spawn(call(&caller, &info("test"), ECHO, entry.clone()).into_future()))
            .collect();
        let replica = Peer::new(links.recv().await.unwrap());
        replica.hello(&hello());
        let done = || calls.iter().filter(|call| call.is_finished()).count();
        let expected = if waits { 0 } else { CALLS - FIT };
        let connection = caller.connection().await.unwrap();
        // The first is on its way, as far as the link takes it.
        until("calls are not queued", || connection.unsent() + 1 >= FIT && done() >= expected).await;
        for _ in 0..1000 {
            tokio::task::yield_now().await;
            assert!(connection.unsent() <= FIT && done() == expected, "{}, {}", connection.unsent(), done());
        }
        for call in calls {
            if call.is_finished() {
                refused(&call.await.unwrap().unwrap_err(), "the channel's limits.request_memory");
            } else {
                call.abort();
            }
        }
    }
}

/// Items of streams do not count in the limit, because a stream makes its next message when the last has left, however large the
/// window is that the peer has given it.
#[tokio::test]
async fn a_peer_that_reads_nothing_holds_one_message_of_each_stream() {
    const STREAMS: usize = 100;
    let (caller, mut links, _) = played();
    let t = streaming::Setup { stub: Stub::new(caller, streaming::info()), ..streaming::default() };
    let (taken, item) = (Arc::new(AtomicUsize::new(0)), Bytes::from(vec![7; 100_000]));
    let _calls: Vec<_> = (0..STREAMS)
        .map(|_| {
            let (taken, item) = (taken.clone(), item.clone());
            let endless = FromFn(move |_: &mut TaskContext<'_>| {
                taken.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(Some(Ok(item.clone())))
            });
            tokio::spawn(t.load(SUM, endless).into_future())
        })
        .collect();
    let peer = Peer::new(links.recv().await.unwrap());
    let (stream_items, stream_bytes) = (u32::MAX, u32::MAX);
    peer.hello(&Hello { features: features::STREAMS, stream_items, stream_bytes, ..hello() });
    // The link is full.
    until("no item is sent", || taken.load(Ordering::Relaxed) > 5).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    // Two items make a message, and the link has taken a few of them.
    let taken = taken.load(Ordering::Relaxed);
    assert!(taken <= 2 * STREAMS + 20, "{taken}");
}
