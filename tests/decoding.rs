//! Long arguments are decoded away from the thread that reads their connection.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use farcall::{Channel, Code, Server};
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
