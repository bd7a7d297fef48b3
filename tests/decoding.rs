//! Long arguments are decoded away from the thread that reads their connection.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::pin::{Pin, pin};
use std::sync::{Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farcall::{Channel, Code, Config, Executed, Handle, Server, Streaming, stream};
use serde::{Deserialize, Deserializer, Serialize};

/// The state of the decoder of [`Slow`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gate {
    Open,
    Shut,
    /// A decoder waits for it to open.
    WaitedFor,
}

static GATE: Mutex<Gate> = Mutex::new(Gate::Open);
static OPENED: Condvar = Condvar::new();

fn set(gate: Gate) {
    *GATE.lock().unwrap() = gate;
    OPENED.notify_all();
}

/// Bytes that take as long to decode as a test likes.
#[derive(Debug, Serialize)]
struct Slow(Vec<u8>);

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(from)?;
        let mut gate = GATE.lock().unwrap();
        if *gate == Gate::Shut {
            *gate = Gate::WaitedFor;
            let limit = Duration::from_secs(60);
            let (opened, waited) =
                OPENED.wait_timeout_while(gate, limit, |gate| *gate != Gate::Open).unwrap();
            gate = opened;
            assert!(!waited.timed_out(), "nothing else ran while a message was decoded");
        }
        drop(gate);
        Ok(Self(bytes))
    }
}

#[farcall::service]
trait Store {
    async fn put(&self, value: Slow) -> farcall::Result<usize>;
    async fn count(&self, rows: Vec<Vec<u8>>) -> farcall::Result<usize>;
    async fn ping(&self) -> farcall::Result<()>;
    /// Holds the rows until the call is cancelled.
    async fn hold(&self, rows: Vec<Vec<u8>>) -> farcall::Result<()>;
    /// Holds the last item until the call is cancelled.
    async fn hold_items(&self, items: Streaming<Vec<Vec<u8>>>) -> farcall::Result<()>;
}

struct Length;

impl Store for Length {
    async fn put(&self, value: Slow) -> farcall::Result<usize> {
        Ok(value.0.len())
    }

    async fn count(&self, rows: Vec<Vec<u8>>) -> farcall::Result<usize> {
        Ok(rows.len())
    }

    async fn ping(&self) -> farcall::Result<()> {
        Ok(())
    }

    async fn hold(&self, rows: Vec<Vec<u8>>) -> farcall::Result<()> {
        std::future::pending::<()>().await;
        drop(rows);
        Ok(())
    }

    async fn hold_items(&self, mut items: Streaming<Vec<Vec<u8>>>) -> farcall::Result<()> {
        let mut last = None;
        while let Some(item) = items.message().await? {
            last = Some(item);
        }
        drop(last);
        Ok(())
    }
}

async fn client(server: StoreServer<Length>) -> StoreClient {
    let server = Server::builder().add(server).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    StoreClient::new(Channel::connect(&address).await.unwrap())
}

#[tokio::test]
async fn other_calls_go_on_while_a_long_argument_is_decoded() {
    let store = client(StoreServer::new(Length)).await;
    set(Gate::Shut);
    let put = {
        let store = store.clone();
        tokio::spawn(async move { store.put(Slow(vec![7; 300 << 10])).await })
    };
    // On the connection that the long argument came by, and on the only thread of the runtime.
    while *GATE.lock().unwrap() != Gate::WaitedFor {
        store.ping().await.unwrap();
    }
    store.ping().await.unwrap();
    set(Gate::Open);
    assert_eq!(put.await.unwrap().unwrap(), 300 << 10);
}

#[tokio::test]
async fn an_argument_that_would_fill_the_memory_is_refused() {
    let store = client(StoreServer::new(Length)).await;
    let rows = |count| vec![Vec::new(); count];
    assert_eq!(store.count(rows(1 << 20)).await.unwrap(), 1 << 20);
    let error = store.count(rows(12 << 20)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, farcall::Executed::No), "{error}");
    assert!(error.message().contains("take more memory"), "{error}");
}

const MIB: usize = 1 << 20;

/// A server with a budget, and a client that sends what takes much more memory there than on the wire.
async fn bounded() -> (Handle, StoreClient) {
    let config = Config::from_toml("[limits]\nmemory = 67_108_864").unwrap();
    let server =
        Server::builder().add(StoreServer::new(Length)).config(config).bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (format!("tcp://{}", server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    (handle, StoreClient::new(Channel::connect(&address).await.unwrap()))
}

/// Returns how much the server holds for arguments of handlers, in bytes.
fn arguments(server: &Handle) -> usize {
    server.stats().peers.iter().map(|peer| peer.arguments).sum()
}

fn poll<F: Future>(call: Pin<&mut F>) -> Poll<F::Output> {
    call.poll(&mut Context::from_waker(Waker::noop()))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn decoded_arguments_count_as_long_as_their_handlers_hold_them() {
    let (server, store) = bounded().await;
    let mut calls = Vec::new();
    let refusal = loop {
        assert!(calls.len() < 100, "{:?}", server.stats());
        let (store, before) = (store.clone(), arguments(&server));
        // 60 KiB on the wire, 1.5 MiB in memory.
        let call = tokio::spawn(async move { store.hold(vec![Vec::new(); 60 << 10]).await });
        until("the call is neither held nor refused", || {
            call.is_finished() || arguments(&server) > before + MIB
        })
        .await;
        if call.is_finished() {
            break call.await.unwrap().unwrap_err();
        }
        calls.push(call);
    };
    assert_eq!((refusal.code(), refusal.executed()), (Code::ResourceExhausted, Executed::No), "{refusal}");
    assert!(refusal.message().contains("limits.memory"), "{refusal}");
    assert!(server.stats().memory_peak <= 64 * MIB, "{:?}", server.stats());
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    until("memory is not given back", || arguments(&server) == 0).await;
}

#[tokio::test]
async fn a_decoded_item_counts_until_the_next_one_is_read() {
    let (server, store) = bounded().await;
    let (items, rows) = stream::channel(1);
    let mut call = pin!(store.hold_items(rows));
    assert!(poll(call.as_mut()).is_pending());
    for (count, held) in [(1 << 20, 24 * MIB - (64 << 10)..usize::MAX), (1, 0..64 << 10)] {
        let sent = async {
            items.send(vec![Vec::new(); count]).await.unwrap();
            until("the item is not read", || held.contains(&arguments(&server))).await;
        };
        tokio::select! {
            ended = &mut call => panic!("{ended:?}"),
            () = sent => {}
        }
    }
    drop(items);
    call.await.unwrap();
}
