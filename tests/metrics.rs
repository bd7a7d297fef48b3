//! Counts of calls, as a recorder gets them.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use farcall::middleware::ServiceExt;
use farcall::{Channel, Code, Result, Server, Status, Stream, in_process, metrics as counting, stream};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::sync::Notify;

/// What was counted, by name and labels.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<BTreeMap<String, f64>>>);

struct Cell(Counts, String);

impl Cell {
    fn add(&self, value: f64) {
        *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += value;
    }
}

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {
        unreachable!("it counts")
    }
}

impl GaugeFn for Cell {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        unreachable!("it counts")
    }
}

/// How many there were.
impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        assert!((0.0..60.0).contains(&value));
        self.add(1.0);
    }
}

impl Counts {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let mut labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort();
        Arc::new(Cell(self.clone(), format!("{} {}", key.name(), labels.join(" "))))
    }

    fn get(&self, name: &str) -> f64 {
        let counts = self.0.lock().unwrap();
        *counts.get(name).unwrap_or_else(|| panic!("{name}: {counts:#?}"))
    }

    fn has(&self, name: &str) -> bool {
        self.0.lock().unwrap().contains_key(name)
    }
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}

#[farcall::service(package = "test")]
trait Node {
    async fn ok(&self) -> Result<()>;
    async fn refuse(&self) -> Result<()>;
    async fn wait(&self) -> Result<()>;
    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>>;
}

#[derive(Default)]
struct Hop {
    waits: Arc<Notify>,
}

impl Node for Hop {
    async fn ok(&self) -> Result<()> {
        Ok(())
    }

    async fn refuse(&self) -> Result<()> {
        Err(Status::new(Code::NotFound, "no such thing"))
    }

    async fn wait(&self) -> Result<()> {
        self.waits.notify_one();
        std::future::pending().await
    }

    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>> {
        stream::iter((0..to).map(Ok))
    }
}

#[tokio::test]
async fn calls_are_counted_by_method_code_and_transport() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let server = Server::builder().add(NodeServer::new(Hop::default())).intercept(counting::server);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    let node = NodeClient::new(channel.intercept(counting::client));
    for _ in 0..3 {
        node.ok().await.unwrap();
    }
    node.refuse().await.unwrap_err();

    let get = |name: &str| counts.get(name);
    let ok = "method=ok service=test.Node";
    assert_eq!(get(&format!("farcall_client_calls_total code=OK {ok} transport=tcp")), 3.0);
    assert_eq!(get(&format!("farcall_client_call_seconds {ok} transport=tcp")), 3.0);
    assert_eq!(get(&format!("farcall_server_calls_total code=OK {ok}")), 3.0);
    assert_eq!(get(&format!("farcall_server_call_seconds {ok}")), 3.0);
    let refused = "code=NOT_FOUND method=refuse service=test.Node";
    assert_eq!(get(&format!("farcall_client_calls_total {refused} transport=none")), 1.0);
    assert_eq!(get(&format!("farcall_server_calls_total {refused}")), 1.0);
    for side in ["client", "server"] {
        assert_eq!(get(&format!("farcall_{side}_calls_in_flight {ok}")), 0.0);
    }
    assert!(get("farcall_fallbacks_total reason=Disabled") >= 1.0);
}

#[tokio::test]
async fn nothing_is_in_flight_after_drops() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let hop = Hop::default();
    let waits = hop.waits.clone();
    let caller = in_process(NodeServer::new(hop).intercept(counting::server)).intercept(counting::client);
    let node = NodeClient::new(caller);
    let call = tokio::spawn(node.wait().into_future());
    waits.notified().await;
    let of = "method=wait service=test.Node";
    for side in ["client", "server"] {
        assert_eq!(counts.get(&format!("farcall_{side}_calls_in_flight {of}")), 1.0);
    }
    call.abort();
    while !counts.has(&format!("farcall_server_calls_total code=CANCELLED {of}")) {
        tokio::task::yield_now().await;
    }
    assert_eq!(counts.get(&format!("farcall_client_calls_total code=CANCELLED {of} transport=none")), 1.0);
    for side in ["client", "server"] {
        assert_eq!(counts.get(&format!("farcall_{side}_calls_in_flight {of}")), 0.0);
    }
}

#[tokio::test]
async fn a_stream_is_in_flight_until_it_has_ended() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let caller = in_process(NodeServer::new(Hop::default())).intercept(counting::client);
    let node = NodeClient::new(caller);
    let mut numbers = node.count(2).await.unwrap();
    let of = "method=count service=test.Node";
    assert_eq!(counts.get(&format!("farcall_client_calls_in_flight {of}")), 1.0);
    while numbers.message().await.unwrap().is_some() {}
    assert_eq!(counts.get(&format!("farcall_client_calls_in_flight {of}")), 0.0);
    assert_eq!(counts.get(&format!("farcall_client_calls_total code=OK {of} transport=memory")), 1.0);

    drop(node.count(u32::MAX).await.unwrap());
    assert_eq!(counts.get(&format!("farcall_client_calls_total code=CANCELLED {of} transport=memory")), 1.0);
}

/// Each name that the documentation lists is one that is counted, and the other way round.
#[test]
fn the_documentation_lists_what_is_counted() {
    let source = include_str!("../src/metrics.rs");
    let (table, code) = source.split_once("use std::").unwrap();
    let core = include_str!("../rpc-core/src/connection/mod.rs");
    let mut listed: Vec<_> = table.lines().filter_map(|line| line.split('`').nth(1)).collect();
    listed.retain(|name| name.starts_with("farcall_"));
    let named =
        |text: &'static str| text.split('"').filter(|name| name.starts_with("farcall_")).collect::<Vec<_>>();
    let mut counted = [named(code), named(core)].concat();
    listed.sort_unstable();
    counted.sort_unstable();
    assert_eq!(listed, counted);
}
