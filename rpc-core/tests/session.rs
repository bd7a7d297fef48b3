//! Sessions over the in-memory link: calls, and moves between links.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall_core::client::{Connector, RawChannel, Stub};
use farcall_core::config::{Limits, Policy};
use farcall_core::payload::Payload;
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Blame, Code, Executed, Result, Status};
use farcall_core::transport::{BoxFuture, Link, Reason, memory};

use support::fabric::{Fabric, ToFabric, with_fabric};
use support::{BIG, ECHO, Echo, HANG, PANIC, bytes, default, plain, setup};

#[tokio::test]
async fn calls_of_all_sizes_come_back_unchanged() {
    let t = default();
    for len in [0, 1, 100, 2048, 2049, 100_000, 131_072, 131_073, 1 << 20, 10 << 20] {
        assert_eq!(t.call(ECHO, bytes(len, len)).await.unwrap(), bytes(len, len));
    }
}

#[tokio::test]
async fn many_calls_in_flight_get_their_own_answers() {
    let t = default();
    let calls = (0..1000).map(|i| {
        let call = t.call(ECHO, bytes(i * 300 % 200_000, i));
        tokio::spawn(async move { (i, call.await.unwrap()) })
    });
    for call in calls.collect::<Vec<_>>() {
        let (i, answer) = call.await.unwrap();
        assert_eq!(answer, bytes(i * 300 % 200_000, i));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_call_and_the_handler() {
    let t = default();
    let error = t.call(HANG, "").timeout(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::Maybe));
    assert!(error.message().contains("test/hang"), "{error}");
    t.seen.dropped.notified().await;
}

#[tokio::test]
async fn dropping_a_call_drops_its_handler() {
    let t = default();
    let call = tokio::spawn(t.call(HANG, ""));
    t.seen.started.notified().await;
    call.abort();
    t.seen.dropped.notified().await;
    // The connection still works.
    assert_eq!(t.call(ECHO, "still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn a_panic_ends_its_call_only() {
    let t = default();
    let error = t.call(PANIC, "").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Internal, Executed::Maybe));
    assert_eq!(t.call(ECHO, "still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn a_message_over_the_limit_names_the_setting() {
    let mut small = Limits::default();
    small.max_message = 50_000;
    let t = setup(plain(Limits::default()), plain(small.clone()));
    let error = t.call(ECHO, bytes(60_000, 0)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::No));
    assert!(error.message().contains(" bytes, but the server's limits.max_message is 50000"), "{error}");
    assert_eq!(t.seen.runs(), 0);

    let t = setup(plain(small), plain(Limits::default()));
    let error = t.call(BIG, "100000").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::Yes));
    assert!(error.message().contains(" bytes, but the client's limits.max_message is 50000"), "{error}");
    assert_eq!(t.call(ECHO, "still here").await.unwrap(), "still here");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_a_place_and_say_so() {
    let mut few = Limits::default();
    few.concurrent_calls = 2;
    let t = setup(plain(Limits::default()), plain(few));
    let hanging: Vec<_> = (0..2)
        .map(|_| {
            let call = t.call(HANG, "");
            tokio::spawn(call)
        })
        .collect();
    t.seen.started.notified().await;
    let error = t.call(ECHO, "").timeout(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::No));
    assert!(error.message().contains("limits.concurrent_calls"), "{error}");
    let waiting = tokio::spawn(t.call(ECHO, "my turn"));
    hanging[0].abort();
    assert_eq!(waiting.await.unwrap().unwrap(), "my turn");
}

#[tokio::test]
async fn a_server_with_too_many_connections_says_so_and_executes_nothing() {
    let mut few = Limits::default();
    few.connections = 1;
    let t = setup(plain(Limits::default()), plain(few));
    assert_eq!(t.call(ECHO, "first").await.unwrap(), "first");
    let another = t.another();
    let call: Echo = Stub::new(another.clone(), t.info.clone()).call(ECHO, Ok(Payload::default()));
    let error = call.await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
    assert!(error.message().contains("limits.connections"), "{error}");
    assert_eq!(t.call(ECHO, "still here").await.unwrap(), "still here");
}

#[tokio::test]
async fn an_unknown_service_or_method_is_named() {
    let t = default();
    let elsewhere = ServiceInfo { name: "elsewhere".into(), ..(*t.info).clone() };
    let call: Echo = Stub::new(t.caller.clone(), Arc::new(elsewhere)).call(ECHO, Ok(Payload::default()));
    let error = call.await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unimplemented, Executed::No));
    assert!(error.message().contains("`elsewhere`"), "{error}");

    let mut newer = (*t.info).clone();
    newer.methods.insert(0, Method::unary("brand_new", "brand_new"));
    let newer = Arc::new(newer);
    let call: Echo = Stub::new(t.caller.clone(), newer.clone()).call(0, Ok(Payload::default()));
    let error = call.await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("brand_new"), "{error}");
    // The methods that both sides have still work, whatever their index.
    let call: Echo = Stub::new(t.caller.clone(), newer.clone()).call(1, Ok(Payload::from_body("x".into())));
    assert_eq!(call.await.unwrap(), "x");
}

/// A service that is never called.
struct Named(Arc<ServiceInfo>);

impl Service for Named {
    fn info(&self) -> &ServiceInfo {
        &self.0
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        Box::pin(async { Reply::Ok(request.payload) })
    }
}

/// No client could call such a service, so no server may serve it.
#[tokio::test]
async fn a_service_with_longer_names_than_the_wire_takes_is_an_error_on_both_sides() {
    let t = default();
    let plain_info = (*t.info).clone();
    let method = plain_info.methods[0].clone();
    let long = [
        (ServiceInfo { name: "n".repeat(65_536).into(), ..plain_info.clone() }, "name"),
        (ServiceInfo { codec: "c".repeat(256).into(), ..plain_info.clone() }, "codec"),
        (ServiceInfo { methods: vec![method; 65_536], ..plain_info }, "methods"),
    ];
    for (info, words) in long {
        let info = Arc::new(info);
        let call: Echo = Stub::new(t.caller.clone(), info.clone()).call(ECHO, Ok(Payload::default()));
        let error = call.await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::InvalidArgument, Executed::No), "{error}");
        assert!(error.message().contains(words), "{error}");
        let refused = ServerCore::new(vec![Arc::new(Named(info))], plain(Limits::default())).unwrap_err();
        assert!(refused.contains(words), "{refused}");
        assert_eq!(t.call(ECHO, "others go on").await.unwrap(), "others go on");
    }
}

#[tokio::test]
async fn a_changed_signature_fails_with_both_fingerprints() {
    let t = default();
    let mut changed = (*t.info).clone();
    changed.methods[ECHO] = Method::unary("echo", "echo, but different");
    let call: Echo =
        Stub::new(t.caller.clone(), Arc::new(changed.clone())).call(ECHO, Ok(Payload::default()));
    let error = call.await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::FailedPrecondition, Executed::No));
    for method in [&changed.methods[ECHO], &t.info.methods[ECHO]] {
        assert!(error.message().contains(&format!("{:016x}", method.fingerprint)), "{error}");
    }
    assert_eq!(t.seen.runs(), 0);
}

#[tokio::test]
async fn a_closed_server_says_of_each_call_that_it_may_have_run() {
    let t = default();
    let call = tokio::spawn(t.call(HANG, ""));
    t.seen.started.notified().await;
    t.host.close();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe));
    assert_eq!(error.blame(), Blame::Environment);
    t.seen.dropped.notified().await;
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_takes_no_more() {
    let t = default();
    let hanging = tokio::spawn(t.call(HANG, "").timeout(Duration::from_millis(300)));
    t.seen.started.notified().await;
    let host = t.host.clone();
    let drained = tokio::spawn(async move { host.drain(Duration::from_secs(60)).await });
    let error = hanging.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "it was let run to its end: {error}");
    drained.await.unwrap();
    assert!(t.host.connections().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_takes_too_long_closes() {
    let t = default();
    let hanging = tokio::spawn(t.call(HANG, ""));
    t.seen.started.notified().await;
    t.host.drain(Duration::from_secs(5)).await;
    let error = hanging.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe));
    t.seen.dropped.notified().await;
}

#[tokio::test]
async fn calls_move_to_the_better_link() {
    let t = with_fabric(&Arc::default(), Policy::Auto);
    let connection = t.caller.connection().await.unwrap();
    assert_eq!(connection.transport().why_not_rdma, None);
    for len in [0, 100, 300_000] {
        assert_eq!(t.call(ECHO, bytes(len, 3)).await.unwrap(), bytes(len, 3));
    }
    let traffic = connection.traffic();
    assert!(traffic.upgraded.bytes_sent > 300_000, "{traffic:?}");
    assert!(traffic.stream.bytes_sent < 1000, "{traffic:?}");
}

#[tokio::test]
async fn an_attempt_that_fails_leaves_a_working_connection_and_its_reason() {
    type Fault = fn(&Fabric) -> &AtomicBool;
    let faults: [(Fault, Reason); 3] = [
        (|f| &f.refuse_offer, Reason::Memlock),
        (|f| &f.refuse_answer, Reason::NoCredit),
        // Either side may notice first.
        (|f| &f.lose_probe, Reason::ProbeLost),
    ];
    for (fault, reason) in faults {
        let fabric = Arc::new(Fabric::default());
        fault(&fabric).store(true, Ordering::Relaxed);
        let t = with_fabric(&fabric, Policy::Auto);
        assert_eq!(t.call(ECHO, bytes(200_000, 1)).await.unwrap(), bytes(200_000, 1));
        let transport = t.caller.connection().await.unwrap().transport();
        let why = transport.why_not_rdma.clone().unwrap();
        assert_eq!(why.reason, reason);
        assert!(transport.to_string().contains("as the test wants it"), "{transport}");

        let t = with_fabric(&fabric, Policy::Rdma);
        let error = t.call(ECHO, "").await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
        assert!(error.message().contains("required") && error.message().contains("as the test"), "{error}");
    }
}

#[tokio::test]
async fn an_upgrade_with_more_to_say_than_a_hello_has_room_for_is_not_used() {
    let fabric = Arc::new(Fabric::announcing(vec![7; 65_536]));
    let t = with_fabric(&fabric, Policy::Auto);
    assert_eq!(t.call(ECHO, "x").await.unwrap(), "x");
    let why = t.caller.connection().await.unwrap().transport().why_not_rdma.unwrap();
    assert_eq!(why.reason, Reason::Other);
    assert!(why.to_string().contains("65536 bytes"), "{why}");
}

#[tokio::test]
async fn a_peer_that_can_not_is_a_reason_too() {
    let fabric = Arc::new(Fabric::default());
    let able = Settings { upgrade: Ok(Arc::new(ToFabric(fabric))), ..plain(Limits::default()) };
    let t = setup(able, plain(Limits::default()));
    let why = t.caller.connection().await.unwrap().transport().why_not_rdma.unwrap();
    assert_eq!((why.reason, why.at_peer), (Reason::PeerWithout, true));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_given_up() {
    /// A link whose other end is never served.
    struct Silent(Mutex<Vec<Arc<dyn Link>>>);
    impl Connector for Silent {
        fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
            let (near, far) = memory::pair();
            self.0.lock().unwrap().push(far);
            Box::pin(async { Ok(near) })
        }
        fn target(&self) -> String {
            "nobody".into()
        }
    }
    let caller = RawChannel::new(Silent(Mutex::default()), plain(Limits::default()));
    let error = caller.connection().await.unwrap_err();
    assert_eq!((error.code(), error.blame()), (Code::Unavailable, Blame::Peer));
    assert!(error.message().contains("liveness.connect_ms"), "{error}");
}

/// Accepts connections and closes them, like an overloaded proxy.
struct Closing(Arc<AtomicU32>);

impl Connector for Closing {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let (near, far) = memory::pair();
        far.close();
        Box::pin(async { Ok(near) })
    }

    fn target(&self) -> String {
        "a proxy".into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_at_once_is_not_tried_without_pause() {
    let attempts = Arc::new(AtomicU32::new(0));
    let caller = RawChannel::new(Closing(attempts.clone()), plain(Limits::default()));
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        let error = caller.connection().await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Pauses of 50 ms, then twice as long each time up to 2 s, a quarter more or less.
    let attempts = attempts.load(Ordering::Relaxed);
    assert!((15..=30).contains(&attempts), "{attempts} attempts in 30 s");
}

#[tokio::test]
async fn a_failed_argument_sends_nothing() {
    let t = default();
    let refused = Status::new(Code::Internal, "can't be encoded");
    let call: Echo = Stub::new(t.caller.clone(), t.info.clone()).call(ECHO, Err(refused.clone()));
    assert_eq!(call.await.unwrap_err(), refused);
    assert_eq!(t.seen.runs(), 0);
}
