//! Decoding takes no more memory than a message may, or than its process has left.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farcall::{Channel, Code, Config, Executed, Handle, Server, Streaming, stream};
use serde::de::DeserializeOwned;
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[farcall::service]
trait Store {
    async fn count(&self, rows: Vec<Vec<u8>>) -> farcall::Result<usize>;
    /// Holds the rows until the call is cancelled.
    async fn hold(&self, rows: Vec<Vec<u8>>) -> farcall::Result<()>;
    /// Holds the last item until the call is cancelled.
    async fn hold_items(&self, items: Streaming<Vec<Vec<u8>>>) -> farcall::Result<()>;
}

struct Length;

impl Store for Length {
    async fn count(&self, rows: Vec<Vec<u8>>) -> farcall::Result<usize> {
        Ok(rows.len())
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
async fn an_argument_that_would_fill_the_memory_is_refused() {
    let store = client(StoreServer::new(Length)).await;
    let rows = |count| vec![Vec::new(); count];
    assert_eq!(store.count(rows(1 << 20)).await.unwrap(), 1 << 20);
    let error = store.count(rows(12 << 20)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, farcall::Executed::No), "{error}");
    assert!(error.message().contains("take more memory"), "{error}");
}

/// A message of protobuf, two bytes of which are a message within.
#[cfg(feature = "prost")]
#[derive(Clone, PartialEq, prost::Message)]
struct Tree {
    #[prost(message, repeated, tag = "1")]
    children: Vec<Self>,
}

#[cfg(feature = "prost")]
#[farcall::service(codec = farcall::Prost)]
trait Trees {
    async fn count(&self, tree: Tree) -> farcall::Result<u64>;
}

#[cfg(feature = "prost")]
impl Trees for Length {
    async fn count(&self, tree: Tree) -> farcall::Result<u64> {
        Ok(tree.children.len() as u64)
    }
}

#[cfg(feature = "prost")]
#[tokio::test]
async fn a_message_of_protobuf_that_would_fill_the_memory_is_refused() {
    let trees = TreesClient::in_process(Length);
    let tree = |count| Tree { children: vec![Tree::default(); count] };
    assert_eq!(trees.count(tree(500_000)).await.unwrap(), 500_000);
    let error = trees.count(tree(2 << 20)).await.unwrap_err();
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
    for (count, held) in [(1 << 18, 6 * MIB - (64 << 10)..usize::MAX), (1, 0..64 << 10)] {
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

/// A list of which each link is nested within the one before.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Chain(Option<Box<Self>>);

/// A chain of a mebibyte of links, each of which takes a byte.
#[derive(Debug, Default)]
struct Deep;

impl Serialize for Deep {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut links = to.serialize_tuple(MIB)?;
        (0..MIB).try_for_each(|_| links.serialize_element(&true))?;
        links.end()
    }
}

/// Reads a [`Chain`], to have its signature.
impl<'de> Deserialize<'de> for Deep {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Chain::deserialize(from).map(|_| Self)
    }
}

#[farcall::service]
trait Chains<T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    async fn put(&self, chain: T) -> farcall::Result<()>;
    async fn get(&self) -> farcall::Result<T>;
}

impl<T: Serialize + DeserializeOwned + Default + Send + 'static> Chains<T> for Length {
    async fn put(&self, _: T) -> farcall::Result<()> {
        Ok(())
    }

    async fn get(&self) -> farcall::Result<T> {
        Ok(T::default())
    }
}

/// Returns two clients of a server. The second one has the server's type, and the first one another.
async fn chains<A, B>() -> (ChainsClient<A>, ChainsClient<B>)
where
    A: Serialize + DeserializeOwned + Default + Send + 'static,
    B: Serialize + DeserializeOwned + Default + Send + 'static,
{
    let server = Server::builder().add(ChainsServer::<_, B>::named("chains", Length));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    (ChainsClient::named("chains", &channel), ChainsClient::named("chains", &channel))
}

#[tokio::test]
async fn values_that_are_nested_too_deep_fail_their_calls_alone() {
    let (hostile, other) = chains::<Deep, Chain>().await;
    let argument = hostile.put(Deep).await.unwrap_err();
    other.put(Chain(Some(Box::default()))).await.unwrap();
    let (other, _) = chains::<Chain, Deep>().await;
    let answer = other.get().await.unwrap_err();
    for (status, executed) in [(argument, Executed::No), (answer, Executed::Yes)] {
        assert_eq!((status.code(), status.executed()), (Code::Internal, executed), "{status}");
        assert!(status.message().contains("nested more than 128 deep"), "{status}");
    }
    other.put(Chain::default()).await.unwrap();
}
