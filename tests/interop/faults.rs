//! Servers that go, die and panic before a stream, in the middle of it and after it: gRPC's `goaway` and `rst_*`. Items
//! that have come are kept, and a stream that is cut short never looks complete.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use farcall::{Blame, EndReason, Executed, Handle};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::process::{self, Process};
use super::*;

/// The event after a stream's items.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Then {
    End,
    Stay,
    Panic,
    /// The task does that the handler has spawned.
    TaskPanics,
}

#[farcall::service(package = "interop")]
trait Faulty {
    /// Returns the server's name.
    async fn name(&self) -> Result<String>;
    /// Returns the server's name when the test allows it.
    async fn hold(&self, cx: &Context) -> Result<String>;
    async fn panics(&self) -> Result<()>;
    /// Numbers up to this one.
    fn count(&self, to: u32, then: Then) -> impl Stream<Item = Result<u32>>;
    /// Has the test told how the numbers end, and gives their sum.
    async fn sum(&self, numbers: Streaming<u32>) -> Result<u32>;
    /// Returns each number that it takes.
    fn watch(&self, numbers: Streaming<u32>) -> impl Stream<Item = Result<u32>>;
}

struct Server {
    name: &'static str,
    events: UnboundedSender<String>,
    allowed: Semaphore,
    stay: Mutex<Vec<stream::Sender<u32>>>,
}

impl Faulty for Arc<Server> {
    async fn name(&self) -> Result<String> {
        Ok(self.name.to_owned())
    }

    async fn hold(&self, cx: &Context) -> Result<String> {
        let _ = self.events.send("held".to_owned());
        cx.draining().await;
        let _ = self.events.send("draining".to_owned());
        self.allowed.acquire().await.unwrap().forget();
        self.name().await
    }

    async fn panics(&self) -> Result<()> {
        panic!("as the test asks")
    }

    fn count(&self, to: u32, then: Then) -> impl Stream<Item = Result<u32>> {
        let (sender, numbers) = stream::channel(to as usize + 1);
        match then {
            Then::End => Streaming::new(stream::iter((0..to).map(Ok))),
            Then::Stay => {
                (0..to).for_each(|n| sender.try_send(n).unwrap());
                self.stay.lock().unwrap().push(sender);
                Streaming::new(numbers)
            }
            Then::Panic => Streaming::new(stream::iter((0..=to).map(move |n| {
                assert!(n < to, "as the test asks");
                Ok(n)
            }))),
            Then::TaskPanics => {
                tokio::spawn(async move {
                    for n in 0..=to {
                        assert!(n < to, "as the test asks");
                        sender.send(n).await.unwrap();
                    }
                });
                Streaming::new(numbers)
            }
        }
    }

    async fn sum(&self, mut numbers: Streaming<u32>) -> Result<u32> {
        // In a task, which is not dropped with the call.
        let events = self.events.clone();
        let reading = tokio::spawn(async move {
            let mut sum = 0;
            let end = loop {
                match numbers.message().await {
                    Ok(Some(number)) => sum += number,
                    Ok(None) => break "complete".to_owned(),
                    Err(status) => break status.code().name().to_owned(),
                }
            };
            let _ = events.send(end);
            sum
        });
        Ok(reading.await.unwrap())
    }

    fn watch(&self, mut numbers: Streaming<u32>) -> impl Stream<Item = Result<u32>> {
        let (sender, echoed) = stream::channel(1);
        let events = self.events.clone();
        tokio::spawn(async move {
            loop {
                match numbers.message().await {
                    Ok(Some(number)) => {
                        let _ = sender.send(number).await;
                    }
                    Ok(None) => return events.send("complete".to_owned()),
                    Err(status) => return events.send(status.code().name().to_owned()),
                }
            }
        });
        echoed
    }
}

/// Some servers, and a client of the first of them that is there.
struct Group {
    servers: VecDeque<(Arc<Server>, Handle)>,
    client: FaultyClient,
    events: UnboundedReceiver<String>,
}

impl Group {
    async fn new(names: &[&'static str]) -> Self {
        let (events_sender, events) = unbounded_channel();
        let (mut servers, mut hosts) = (VecDeque::new(), Vec::new());
        for name in names {
            let (handle, host, server) = start(name, events_sender.clone()).await;
            hosts.push(host);
            servers.push_back((server, handle));
        }
        let address = format!("{}://{}?liveness.connect_ms=60000", over::transport(), hosts.join(","));
        let client = FaultyClient::new(Channel::connect(&address).await.unwrap());
        Self { servers, client, events }
    }

    async fn told(&mut self, what: &str) {
        assert_eq!(self.events.recv().await.unwrap(), what);
    }

    /// Has the first server drain while it is in a call, which is given.
    async fn drain_first(
        &mut self,
    ) -> (tokio::task::JoinHandle<Result<String>>, tokio::task::JoinHandle<()>) {
        let call = tokio::spawn(self.client.hold().into_future());
        self.told("held").await;
        let first = self.servers[0].1.clone();
        let drained = tokio::spawn(async move { first.drain(Duration::from_secs(600)).await });
        self.told("draining").await;
        (call, drained)
    }
}

async fn start(name: &'static str, events: UnboundedSender<String>) -> (Handle, String, Arc<Server>) {
    let this = Server { name, events, allowed: Semaphore::new(0), stay: Mutex::default() };
    let this = Arc::new(this);
    let service = FaultyServer::new(this.clone());
    let server =
        farcall::Server::builder().config(over::config()).add(service).bind("127.0.0.1:0").await.unwrap();
    let (handle, host) = (server.handle(), server.local_addr().to_string());
    tokio::spawn(server.serve());
    (handle, host, this)
}

/// Reads the first numbers.
async fn take(numbers: &mut Streaming<u32>, count: u32) {
    for n in 0..count {
        assert_eq!(numbers.message().await.unwrap(), Some(n));
    }
}

#[tokio::test]
async fn goaway_sends_calls_to_the_next_server() {
    let mut group = Group::new(&["a", "b"]).await;
    assert_eq!(group.client.name().await.unwrap(), "a");
    let (in_flight, drained) = group.drain_first().await;
    assert_eq!(group.client.name().await.unwrap(), "b");
    group.servers[0].0.allowed.add_permits(1);
    assert_eq!(in_flight.await.unwrap().unwrap(), "a", "what had begun is finished");
    drained.await.unwrap();
    assert_eq!(group.client.name().await.unwrap(), "b");
}

#[tokio::test]
async fn goaway_of_the_only_server() {
    let mut group = Group::new(&["a"]).await;
    let (in_flight, drained) = group.drain_first().await;
    let status = group.client.name().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No), "{status}");
    assert_eq!(status.blame(), Blame::Environment, "{status}");
    group.servers[0].0.allowed.add_permits(1);
    assert_eq!(in_flight.await.unwrap().unwrap(), "a", "what had begun is finished");
    drained.await.unwrap();
}

#[tokio::test]
async fn rst_after_header() {
    let group = Group::new(&["a"]).await;
    let mut numbers = group.client.count(0, Then::Stay).await.unwrap();
    group.servers[0].1.close();
    let status = numbers.message().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe), "{status}");
    assert_eq!(numbers.end_reason(), Some(EndReason::ConnectionLost));
}

#[tokio::test]
async fn rst_during_data() {
    let group = Group::new(&["a"]).await;
    let mut numbers = group.client.count(3, Then::Stay).await.unwrap();
    take(&mut numbers, 3).await;
    group.servers[0].1.close();
    let status = numbers.message().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe), "{status}");
    assert_eq!(numbers.end_reason(), Some(EndReason::ConnectionLost));
    assert_eq!(numbers.message().await, Ok(None), "the error was the last item");
}

/// Messages that had come whole stay, whatever becomes of their connection before they are read.
#[tokio::test]
async fn rst_after_data() {
    let group = Group::new(&["a"]).await;
    let mut numbers = group.client.count(3, Then::End).await.unwrap();
    group.servers[0].1.drain(Duration::from_secs(600)).await;
    take(&mut numbers, 3).await;
    assert_eq!(numbers.message().await, Ok(None));
    assert_eq!(numbers.end_reason(), Some(EndReason::Completed));
}

/// A server in a process of its own; not a test by itself.
#[tokio::test]
async fn part_server() {
    if process::told().is_some() {
        let (_handle, host, _server) = start("a", unbounded_channel().0).await;
        process::say(&host);
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn rst_by_a_killed_process() {
    let (_, part) = concat!(module_path!(), "::part_server").split_once("::").unwrap();
    let mut server = Process::start(part, "");
    let address = over::address(server.said().parse().unwrap());
    let client = FaultyClient::new(Channel::connect(&address).await.unwrap());
    let mut numbers = client.count(3, Then::Stay).await.unwrap();
    take(&mut numbers, 3).await;
    server.kill().await;
    let status = numbers.message().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Maybe), "{status}");
    assert_eq!(status.blame(), Blame::Peer, "{status}");
}

#[tokio::test]
async fn a_handler_panics() {
    let group = Group::new(&["a"]).await;
    let status = group.client.panics().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Internal, Executed::Maybe), "{status}");
    assert_eq!(status.blame(), Blame::Application, "{status}");
    assert_eq!(group.client.name().await.unwrap(), "a", "the connection stays");
}

#[tokio::test]
async fn a_stream_panics() {
    let group = Group::new(&["a"]).await;
    for items in [0, 3] {
        let mut numbers = group.client.count(items, Then::Panic).await.unwrap();
        take(&mut numbers, items).await;
        let status = numbers.message().await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert_eq!(numbers.end_reason(), Some(EndReason::Status));
    }
}

#[tokio::test]
async fn the_task_of_a_stream_panics() {
    let group = Group::new(&["a"]).await;
    for items in [0, 3] {
        let mut numbers = group.client.count(items, Then::TaskPanics).await.unwrap();
        take(&mut numbers, items).await;
        let status = numbers.message().await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
}

/// The server's view of `rst_*`: a stream of arguments that its client has given up fails, and one that was sent wholly ends.
#[tokio::test]
async fn a_client_gives_its_stream_up() {
    let mut group = Group::new(&["a"]).await;
    for (dropped, told) in [(true, "CANCELLED"), (false, "complete")] {
        let (say, numbers) = stream::channel(1);
        let mut echoed = group.client.watch(numbers).await.unwrap();
        say.send(7).await.unwrap();
        assert_eq!(echoed.message().await, Ok(Some(7)));
        if dropped {
            drop(echoed);
            group.told(told).await;
        } else {
            drop(say);
            group.told(told).await;
            assert_eq!(echoed.message().await, Ok(None));
        }
    }
}

/// A client's own stream that panics, before there is an answer or after, fails the call on both sides: neither waits for more.
#[tokio::test]
async fn the_stream_of_a_client_panics() {
    let mut group = Group::new(&["a"]).await;
    let (say, numbers) = stream::channel(1);
    let panics = async move {
        say.send(7).await.unwrap();
        panic!("as the test asks")
    };
    tokio::spawn(panics);
    let status = group.client.sum(numbers).await.unwrap_err();
    assert_eq!((status.code(), status.blame()), (Code::Internal, Blame::Caller), "{status}");
    group.told("CANCELLED").await;

    let (say, numbers) = stream::channel(1);
    let mut echoed = group.client.watch(numbers).await.unwrap();
    say.send(7).await.unwrap();
    assert_eq!(echoed.message().await, Ok(Some(7)));
    let panics = async move {
        let _say = say;
        panic!("as the test asks")
    };
    tokio::spawn(panics);
    let status = echoed.message().await.unwrap_err();
    assert_eq!((status.code(), status.blame()), (Code::Internal, Blame::Caller), "{status}");
    assert_eq!(echoed.end_reason(), Some(EndReason::Cancelled));
    group.told("CANCELLED").await;
}
