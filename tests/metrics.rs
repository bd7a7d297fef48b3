//! Counts of calls, as a recorder gets them.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod log;
mod recorder;

use std::sync::Arc;
use std::time::Duration;

use farcall::middleware::ServiceExt;
use farcall::{
    Bytes, Channel, Code, Config, Result, Server, Status, Stream, Traffic, in_process, metrics as counting,
    stream,
};
use tokio::sync::Notify;

use log::Log;
use recorder::Counts;

#[farcall::service(package = "test")]
trait Node {
    async fn ok(&self) -> Result<()>;
    async fn refuse(&self) -> Result<()>;
    async fn wait(&self) -> Result<()>;
    async fn echo(&self, content: Bytes) -> Result<Bytes>;
    async fn keep(&self, content: Bytes) -> Result<()>;
    async fn make(&self, len: u32) -> Result<Bytes>;
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

    async fn echo(&self, content: Bytes) -> Result<Bytes> {
        Ok(content)
    }

    async fn keep(&self, _content: Bytes) -> Result<()> {
        std::future::pending().await
    }

    async fn make(&self, len: u32) -> Result<Bytes> {
        Ok(vec![7; len as usize].into())
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

fn bytes(counts: &Counts, side: &str) -> [f64; 2] {
    ["sent", "received"].map(|way| {
        let name = format!("farcall_bytes_{way}_total side={side} transport=tcp");
        if counts.has(&name) { counts.get(&name) } else { 0.0 }
    })
}

fn told(traffic: Traffic) -> [f64; 2] {
    [traffic.stream.bytes_sent as f64, traffic.stream.bytes_received as f64]
}

async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("hangs");
}

#[tokio::test]
async fn bytes_are_told_while_a_connection_lives_and_none_is_lost_at_its_end() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let server = Server::builder().add(NodeServer::new(Hop::default())).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    let node = NodeClient::new(&channel);
    let (near, far) = (channel.connection().await.unwrap(), handle.connections().remove(0));
    for round in 1..=2 {
        node.echo(Bytes::from(vec![7; 100_000])).await.unwrap();
        until(|| bytes(&counts, "client") == told(near.traffic())).await;
        until(|| bytes(&counts, "server") == told(far.traffic())).await;
        assert!(bytes(&counts, "client").iter().all(|told| *told > f64::from(round) * 1e5));
    }

    node.echo(Bytes::from(vec![7; 50_000])).await.unwrap();
    handle.drain(Duration::from_secs(60)).await;
    assert_eq!(bytes(&counts, "server"), told(far.traffic()));
    drop((channel, node, near));
    let [sent, received] = bytes(&counts, "server");
    until(|| bytes(&counts, "client") == [received, sent]).await;
    assert!(sent > 25e4);
}

/// Each name that the documentation lists is one that is counted, and the other way round.
#[test]
fn the_documentation_lists_what_is_counted() {
    let source = include_str!("../src/metrics.rs");
    let (table, code) = source.split_once("use std::").unwrap();
    let connections = include_str!("../rpc-core/src/session/meter.rs");
    let memory = include_str!("../rpc-core/src/memory/meter.rs");
    let channels = include_str!("../rpc-core/src/client/meter.rs");
    let refusals = include_str!("../rpc-core/src/admission/meter.rs");
    let drivers = include_str!("../transport-rdma/src/endpoint/meter.rs");
    let mut listed: Vec<_> = table.lines().filter_map(|line| line.split('`').nth(1)).collect();
    listed.retain(|name| name.starts_with("farcall_"));
    let named =
        |text: &'static str| text.split('"').filter(|name| name.starts_with("farcall_")).collect::<Vec<_>>();
    let mut counted = [code, connections, memory, channels, refusals, drivers].map(named).concat();
    listed.sort_unstable();
    counted.sort_unstable();
    assert_eq!(listed, counted);
}

#[tokio::test(start_paused = true)]
async fn a_server_tells_its_memory() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let waits = Arc::new(Notify::new());
    let mut config = Config::default();
    config.limits.memory = 64 << 20;
    let server = Server::builder().add(NodeServer::new(Hop { waits: waits.clone() })).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    let serving = tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    let held = || counts.get("farcall_memory_used_bytes ");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!((32_768.0..200_000.0).contains(&held()), "{}", held());
    drop(channel);
    serving.abort();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(held(), 0.0);
}

/// Metrics say for what a server holds memory. The log says for whom.
#[tokio::test]
async fn a_server_tells_for_what_and_for_whom_it_holds_memory() {
    const MIB: usize = 1 << 20;
    let (counts, log) = (Counts::default(), Log::default());
    let _recorder = metrics::set_default_local_recorder(&counts);
    let _listening = log.listen();
    let mut config = Config::default();
    config.limits.memory = 16 << 20;
    let server = Server::builder().add(NodeServer::new(Hop::default())).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let held = |of: &str| counts.get(&format!("farcall_memory_held_bytes use={of}"));
    let line = |part: &str| {
        let lines = log.lines();
        let mut lines = lines.into_iter().filter(|line| line.contains(part));
        let (line, more) = (lines.next().unwrap(), lines.count());
        assert!(line.starts_with("WARN ") && line.contains("peer=Some(127.0.0.1"), "{line}");
        assert_eq!(more, 0, "{part}");
        line
    };

    // More than five eighths of what there is, by one connection.
    let channel = Channel::connect(&address).await.unwrap();
    let node = NodeClient::new(&channel);
    let calls: Vec<_> = (0..12).map(|_| tokio::spawn(node.keep(vec![7; MIB]).into_future())).collect();
    until(|| counts.has("farcall_memory_held_bytes use=arguments") && held("arguments") > 8e6).await;
    until(|| {
        counts.has("farcall_memory_held_back_total ") && counts.get("farcall_memory_held_back_total ") == 1.0
    })
    .await;
    assert_eq!((held("items"), held("unsent")), (0.0, 0.0));
    let said = line("this connection holds more than its share");
    assert!(["held=1", "used=1", "limit=16777216"].iter().all(|field| said.contains(field)), "{said}");
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    until(|| held("arguments") == 0.0).await;

    // More than seven eighths.
    let lost = node.make(24 * MIB as u32).await.unwrap_err();
    assert!(lost.message().contains("limits.memory is 16777216 bytes"), "{lost}");
    until(|| counts.get("farcall_memory_closed_total ") == 1.0).await;
    let said = line("closing a connection to make room");
    assert!(said.contains("this connection holds most"), "{said}");
}

#[tokio::test]
async fn calls_that_are_refused_count_by_the_reason() {
    let counts = Counts::default();
    let _recorder = metrics::set_default_local_recorder(&counts);
    let mut config = Config::default();
    (config.admission.min_calls, config.admission.max_calls) = (1, 1);
    let server = Server::builder().add(NodeServer::new(Hop::default())).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let handle = server.handle();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    let node = NodeClient::new(&channel);
    let kept = tokio::spawn(node.keep(vec![7]).into_future());
    let stats = || handle.stats().admission.unwrap();
    until(|| stats().running == 1).await;
    let refused = node.keep(vec![7]).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    until(|| counts.has("farcall_server_refusals_total why=overload")).await;
    assert_eq!(counts.get("farcall_server_refusals_total why=overload"), 1.0);
    assert_eq!((stats().limit, stats().refused, stats().too_late), (1, 1, 0));
    kept.abort();
}
