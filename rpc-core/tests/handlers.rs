//! The rights of handlers, and the fate of a session when they or their runtimes misbehave.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod support;

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use farcall_core::__private as private;
use farcall_core::client::{Connector, RawChannel, Stub};
use farcall_core::config::Limits;
use farcall_core::in_process::in_process;
use farcall_core::payload::Payload;
use farcall_core::proto::wire::{FrameType, Hello};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Reply, Service, ServiceInfo};
use farcall_core::status::{Blame, Code, Executed, Result, Status};
use farcall_core::testing::{Peer, hello};
use farcall_core::transport::{BoxFuture, Link, memory};
use tokio::runtime::{Builder, Handle, Runtime};

use support::{ECHO, HANG, call, default, host, info, plain, streaming};

/// A service with this function as every method.
struct By<F>(Arc<ServiceInfo>, F);

impl<F: Fn(usize, IncomingCall) -> HandlerFuture + Send + Sync + 'static> Service for By<F> {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        (self.1)(method, request)
    }
}

fn by(run: impl Fn(usize, IncomingCall) -> HandlerFuture + Send + Sync + 'static) -> impl Service {
    By(info("test"), run)
}

fn ok() -> Reply {
    Reply::Ok(Payload::from_body("ok".into()))
}

#[tokio::test]
async fn a_message_that_is_too_long_for_the_client_is_cut_and_says_so() {
    let service = by(|_, _| {
        let status = Status::new(Code::NotFound, "ä".repeat(2500));
        Box::pin(std::future::ready(Reply::Status(status)))
    });
    let host = ServerCore::new(vec![Arc::new(service)], plain(Limits::default())).unwrap();
    let (near, far) = memory::pair();
    host.serve(far);
    let small = Hello { max_frame: 1024, max_message: 1024, max_assembly: 1024, ..hello() };
    let mut peer = Peer::greeted(near, small).await;
    peer.bind(&info("test"));
    peer.request(1, ECHO, b"");
    let (_, payload) = peer.expect(FrameType::RESPONSE).await;
    let text = String::from_utf8_lossy(&payload);
    assert!(text.ends_with("ää… (cut: 5,000 bytes)"), "{text}");
}

#[tokio::test]
async fn a_handler_is_polled_on_the_spot_and_again_in_a_task_of_its_own() {
    let tasks = Arc::new(Mutex::new(Vec::new()));
    let seen = tasks.clone();
    let caller = in_process(by(move |_, _| {
        let seen = seen.clone();
        Box::pin(poll_fn(move |_| {
            let mut seen = seen.lock().unwrap();
            seen.push(tokio::task::id());
            if seen.len() < 2 { Poll::Pending } else { Poll::Ready(ok()) }
        }))
    }));
    // The second poll comes by itself, so no wake-up is lost although the first waker does nothing.
    assert_eq!(call(&caller, &info("test"), ECHO, "").await.unwrap(), "ok");
    let tasks = tasks.lock().unwrap();
    assert!(tasks.len() == 2 && tasks[0] != tasks[1], "{tasks:?}");
}

/// An error that no message can carry fails the handler's call, not the connection.
#[tokio::test]
async fn an_error_with_more_attachments_than_a_message_has_ends_its_stream_as_internal() {
    let run = |_, request: IncomingCall| -> HandlerFuture {
        Box::pin(async move {
            let attachments = vec![Bytes::new(); usize::from(u16::MAX) + 1];
            let error = Payload::new(Bytes::new(), attachments);
            let items = streaming::FromFn(|_: &mut TaskContext<'_>| Poll::Ready(Some(())));
            let streams = request.streams.unwrap();
            streams.answer(items, |(), _| Err(Reply::Err(error.clone()))).await
        })
    };
    let caller = in_process(By(streaming::info(), run));
    let arguments = Ok(Payload::default());
    let stub = Stub::new(caller, streaming::info());
    let call = private::call_for_stream(&stub, streaming::COUNT, arguments, None, streaming::streamed());
    let error = call.await.unwrap().message().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Internal, Executed::Yes), "{error}");
    assert!(error.message().contains("attachments"), "{error}");
}

#[tokio::test]
async fn a_handler_that_is_always_ready_does_not_starve_its_connection() {
    const ITEMS: usize = 100_000;
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = taken.clone();
    let caller = in_process(by(move |method, _| {
        let counter = counter.clone();
        Box::pin(async move {
            if method == HANG {
                let (sender, mut items) = tokio::sync::mpsc::unbounded_channel();
                (0..ITEMS).for_each(|i| sender.send(i).unwrap());
                drop(sender);
                // All items are ready. Only tokio's cooperative budget makes the receiver wait.
                while items.recv().await.is_some() {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
            ok()
        })
    }));
    let busy = tokio::spawn(call(&caller, &info("test"), HANG, "").into_future());
    while taken.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(call(&caller, &info("test"), ECHO, "").await.unwrap(), "ok");
    assert!(taken.load(Ordering::Relaxed) < ITEMS, "the short call had to wait for the long one");
    busy.await.unwrap().unwrap();
    assert_eq!(taken.load(Ordering::Relaxed), ITEMS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_holds_up_its_own_connection_alone() {
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let started = Arc::new(tokio::sync::Notify::new());
    let begun = started.clone();
    let service: Arc<dyn Service> = Arc::new(by(move |method, _| {
        if method == HANG {
            begun.notify_one();
            released.lock().unwrap().recv().unwrap();
        } else {
            release.send(()).unwrap();
        }
        Box::pin(async { ok() })
    }));
    let host = ServerCore::new(vec![service], plain(Limits::default())).unwrap();
    let [one, other] = [(); 2].map(|()| caller_of(&host, Handle::current()));
    let blocked = tokio::spawn(call(&one, &info("test"), HANG, "").into_future());
    started.notified().await;
    assert_eq!(call(&other, &info("test"), ECHO, "").await.unwrap(), "ok");
    assert_eq!(blocked.await.unwrap().unwrap(), "ok");
}

struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

#[tokio::test]
async fn panics_anywhere_in_a_service_end_their_call_alone() {
    const IN_CALL: usize = 0;
    const IN_DROP: usize = 1;
    const LATER: usize = 2;
    const LATER_IN_DROP: usize = 3;
    let caller = in_process(by(|method, _| {
        assert_ne!(method, IN_CALL, "before there is a handler");
        Box::pin(async move {
            let _guard = matches!(method, IN_DROP | LATER_IN_DROP).then(|| PanicOnDrop);
            if matches!(method, LATER | LATER_IN_DROP) {
                tokio::task::yield_now().await;
            }
            assert_ne!(method, LATER, "in a task");
            ok()
        })
    }));
    for method in [IN_CALL, IN_DROP, LATER, LATER_IN_DROP] {
        let error = call(&caller, &info("test"), method, "").await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Internal, Executed::Maybe), "{method}: {error}");
        assert_eq!(call(&caller, &info("test"), 4, "").await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn a_status_that_a_handler_passes_on_does_not_repeat_its_own_call() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let caller = in_process(by(move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        // The status of a call to a third party.
        let status = Status::new(Code::Unavailable, "not there")
            .with_executed(Executed::No)
            .with_blame(Blame::Environment);
        Box::pin(async { Reply::Status(status) })
    }));
    let error = call(&caller, &info("test"), ECHO, "").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Yes), "{error}");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// Connects to a host that runs on another runtime.
struct Across(Arc<ServerCore>, Handle);

impl Connector for Across {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = memory::pair();
        let _there = self.1.enter();
        self.0.serve(far);
        Box::pin(async { Ok(near) })
    }

    fn target(&self) -> String {
        "another runtime".into()
    }
}

/// Returns a caller on the current runtime, of a host that runs on `there`.
fn caller_of(host: &Arc<ServerCore>, there: Handle) -> RawChannel {
    RawChannel::new(Across(host.clone(), there), plain(Limits::default()))
}

fn runtimes() -> Vec<fn() -> Runtime> {
    vec![|| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(), || {
        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    }]
}

#[test]
fn a_server_whose_runtime_is_shut_down_ends_its_calls() {
    for make in runtimes() {
        let (here, there) = (make(), make());
        let (host, seen) = host(plain(Limits::default()));
        let caller = {
            let _here = here.enter();
            caller_of(&host, there.handle().clone())
        };
        let hanging = here.spawn(call(&caller, &info("test"), HANG, "").into_future());
        here.block_on(seen.started.notified());
        drop(there);
        let error = here.block_on(hanging).unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
        here.block_on(seen.dropped.notified());
    }
}

#[test]
fn a_channel_whose_runtime_is_shut_down_ends_its_calls_and_makes_no_more() {
    for make in runtimes() {
        let (here, there) = (make(), make());
        let (host, seen) = host(plain(Limits::default()));
        let caller = {
            let _here = here.enter();
            caller_of(&host, there.handle().clone())
        };
        // The call is awaited on the server's runtime, which goes on.
        let hanging = there.spawn(call(&caller, &info("test"), HANG, "").into_future());
        there.block_on(seen.started.notified());
        drop(here);
        let error = there.block_on(hanging).unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
        there.block_on(seen.dropped.notified());
        for _ in 0..2 {
            let error = there.block_on(call(&caller, &info("test"), ECHO, "").into_future()).unwrap_err();
            assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
            assert!(error.message().contains("runtime"), "{error}");
        }
    }
}

#[test]
fn everything_may_be_dropped_with_its_runtime_in_mid_call() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let t = runtime.block_on(async {
        let t = default();
        for _ in 0..100 {
            t.spawn(HANG, "");
        }
        t.seen.started.notified().await;
        t
    });
    drop(runtime);
    drop(t);
}

/// A connector that panics is a failed attempt, and the channel goes on.
#[tokio::test]
async fn a_connector_that_panics_fails_its_calls_only() {
    struct Once(AtomicUsize, support::Near);
    impl Connector for Once {
        fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
            assert_ne!(self.0.fetch_add(1, Ordering::Relaxed), 0, "as the test wants it");
            self.1.connect(0)
        }
        fn target(&self) -> String {
            self.1.target()
        }
    }
    let t = default();
    let caller = RawChannel::new(Once(AtomicUsize::new(0), t.near.clone()), plain(Limits::default()));
    let error = call(&caller, &info("test"), ECHO, "").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
    // As after any failed attempt, there is a pause before the next.
    call(&caller, &info("test"), ECHO, "").await.unwrap_err();
    caller.reconnect().await.unwrap();
    assert_eq!(call(&caller, &info("test"), ECHO, "x").await.unwrap(), "x");
}

/// A cancelled handler exists until its task is dropped. The call that gets its place must not run beside it.
#[tokio::test]
async fn handlers_that_were_cancelled_count_until_they_are_dropped() {
    struct Alive(Arc<AtomicUsize>);

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    let (alive, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (started, counts) = (Arc::new(tokio::sync::Notify::new()), (alive.clone(), most.clone()));
    let told = started.clone();
    let service = by(move |method, _| {
        let ((alive, most), started) = (counts.clone(), told.clone());
        Box::pin(async move {
            most.fetch_max(alive.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let _alive = Alive(alive);
            if method == HANG {
                started.notify_one();
                std::future::pending::<()>().await;
            }
            ok()
        })
    });
    let mut limits = Limits::default();
    limits.concurrent_calls = 1;
    let host = ServerCore::new(vec![Arc::new(service)], plain(limits)).unwrap();
    let (near, far) = memory::pair();
    host.serve(far);
    let mut peer = Peer::greeted(near, hello()).await;
    peer.bind(&info("test"));
    for hangs in [1, 3, 5] {
        peer.request(hangs, HANG, b"");
        started.notified().await;
        // At once, so that no task runs between them.
        peer.session_frame(FrameType::CANCEL, hangs, 0, vec![0]);
        peer.request(hangs + 1, ECHO, b"");
        peer.expect(FrameType::RESPONSE).await;
    }
    assert_eq!((most.load(Ordering::Relaxed), alive.load(Ordering::Relaxed)), (1, 0));
}
