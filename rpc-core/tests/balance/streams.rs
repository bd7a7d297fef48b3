//! Streams over several servers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::__private as private;
use farcall_core::client::{Endpoint, EndpointState, RawChannel, Readiness, Stub};
use farcall_core::config::{BalancePolicy, Limits};
use farcall_core::payload::Payload;
use farcall_core::server::ServerCore;
use farcall_core::status::{Code, Result};
use farcall_core::stream::{EndReason, Streaming};

use super::settings;
use super::support::streaming::{COUNT, FAIL, FOREVER, Seen, host, info, streamed};
use super::support::{Near, plain};

struct Cluster {
    stub: Stub,
    channel: RawChannel,
    hosts: Vec<Arc<ServerCore>>,
    seen: Vec<Arc<Seen>>,
}

async fn cluster(policy: BalancePolicy) -> Cluster {
    let (channel, endpoints) = RawChannel::balanced("db", settings(policy));
    let (hosts, seen): (Vec<_>, Vec<_>) = (0..2).map(|_| host(plain(Limits::default()))).unzip();
    let endpoint = |(index, host)| {
        let near = Near { hosts: Arc::new(Mutex::new(vec![host])), taps: Arc::default() };
        Endpoint::new(&format!("db{index}"), Arc::new(near))
    };
    endpoints.set(hosts.iter().cloned().enumerate().map(endpoint).collect());
    let cluster = Cluster { stub: Stub::new(channel.clone(), info()), channel, hosts, seen };
    cluster.ready(2).await;
    cluster
}

impl Cluster {
    async fn stream(&self, method: usize, arguments: &'static str) -> Streaming<Bytes> {
        let arguments = Ok(Payload::from_body(arguments.into()));
        private::call_for_stream(&self.stub, method, arguments, None, streamed()).await.unwrap()
    }

    async fn ready(&self, servers: usize) {
        let is_ready = |state: &&EndpointState| matches!(state.readiness, Readiness::Ready);
        let mut states = self.channel.endpoints().unwrap();
        states.wait_for(|states| states.iter().filter(is_ready).count() == servers).await.unwrap();
    }

    /// Asserts that no server is ejected.
    async fn all_are_ready(&self) {
        // States are told by a task.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let states = self.channel.endpoints().unwrap().borrow().clone();
        assert!(states.iter().all(|state| matches!(state.readiness, Readiness::Ready)), "{states:?}");
    }

    fn running(&self) -> [usize; 2] {
        [self.seen[0].running(), self.seen[1].running()]
    }
}

/// Reads a stream to its end, and returns the error that it has ended with.
async fn end(mut stream: Streaming<Bytes>) -> Result<()> {
    while stream.message().await?.is_some() {}
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn streams_are_load_until_they_end() {
    let t = cluster(BalancePolicy::LeastLoaded).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(t.stream(FOREVER, "").await);
    }
    assert_eq!(t.running(), [10, 10]);
    // All streams of one server end. As many others go there.
    let connection = streams[0].connection().unwrap();
    streams.retain(|stream| !Arc::ptr_eq(&stream.connection().unwrap(), &connection));
    assert_eq!(streams.len(), 10);
    for _ in 0..10 {
        let stream = t.stream(FOREVER, "").await;
        assert!(Arc::ptr_eq(&stream.connection().unwrap(), &connection));
        streams.push(stream);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_streams_fail_gets_none_for_a_while() {
    let t = cluster(BalancePolicy::RoundRobin).await;
    for _ in 0..8 {
        end(t.stream(FAIL, "3").await).await.unwrap_err();
    }
    // A stream that ends well, one at each, makes the failures in a row none.
    for _ in 0..2 {
        end(t.stream(COUNT, "3 10").await).await.unwrap();
    }
    for _ in 0..8 {
        end(t.stream(FAIL, "3").await).await.unwrap_err();
    }
    t.all_are_ready().await;
    end(t.stream(FAIL, "3").await).await.unwrap_err();
    t.ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_no_failure_of_each_of_its_streams() {
    let t = cluster(BalancePolicy::RoundRobin).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(t.stream(FOREVER, "").await);
    }
    for connection in t.hosts.iter().flat_map(|host| host.connections()) {
        connection.close("the test ends it");
    }
    for stream in streams {
        assert_eq!(end(stream).await.unwrap_err().code(), Code::Unavailable);
    }
    t.ready(2).await;
    t.all_are_ready().await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_is_dropped_closes_connections_whose_streams_are_not_read() {
    let t = cluster(BalancePolicy::LeastLoaded).await;
    let mut stream = t.stream(FOREVER, "").await;
    let connection = stream.connection().unwrap();
    let others = |host: &Arc<ServerCore>| host.connections().len();
    assert_eq!(t.hosts.iter().map(others).sum::<usize>(), 2);
    let Cluster { stub, channel, hosts, .. } = t;
    drop((stub, channel));
    // The connection of the other server goes at once, and this one's is not made again when it ends.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(hosts.iter().map(others).sum::<usize>(), 1);
    connection.close("the test ends it");
    while stream.message().await.is_ok() {}
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(hosts.iter().map(others).sum::<usize>(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_reader_drops_says_nothing_of_the_server() {
    let t = cluster(BalancePolicy::RoundRobin).await;
    let mut stream = t.stream(FOREVER, "").await;
    stream.message().await.unwrap();
    assert_eq!(stream.end_reason(), None::<EndReason>);
    for _ in 0..8 {
        end(t.stream(FAIL, "3").await).await.unwrap_err();
        drop(t.stream(FOREVER, "").await);
        drop(t.stream(FOREVER, "").await);
    }
    t.all_are_ready().await;
    for _ in 0..2 {
        end(t.stream(FAIL, "3").await).await.unwrap_err();
    }
    t.ready(1).await;
}
