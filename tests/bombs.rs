//! Short compressed messages that become long ones, whose values would take much more memory still.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::fs;
use std::marker::PhantomData;

use farcall::middleware::ServiceExt;
use farcall::{
    Channel, Code, Compression, Executed, Prost, Server, ServerBuilder, Status, Stream, Streaming, stream,
};
use prost::DecodeError;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::Mutex;

/// The values of a bomb. As many bytes stand for them before they are compressed: nearly as many as a message may have.
const VALUES: usize = 63 << 20;

/// The memory that this process may have held at any time, in KiB. Client and server hold the bomb as it was before it was
/// compressed, and the values that are decoded until they take too much. All its values would take 1.5 GiB or more.
const MEMORY: usize = 1 << 20;

/// A test holds this, because the memory is that of the process.
static TEST: Mutex<()> = Mutex::const_new(());

/// Millions of values that take a byte or two each.
#[derive(Clone, Debug, Default, PartialEq)]
struct Bomb;

/// As a `Vec` of so many empty `Vec`s.
impl Serialize for Bomb {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&vec![0; VALUES])
    }
}

/// With the signature of what it poses as.
impl<'de> Deserialize<'de> for Bomb {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Rows::deserialize(from).map(|_| Self)
    }
}

/// As a [`Tree`] of so many empty ones.
impl prost::Message for Bomb {
    fn encode_raw(&self, to: &mut impl BufMut) {
        to.put_slice(&[0x0a, 0].repeat(VALUES / 2));
    }

    fn merge_field(
        &mut self,
        _: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        prost::encoding::skip_field(kind, 1, from, context)
    }

    fn encoded_len(&self) -> usize {
        VALUES / 2 * 2
    }

    fn clear(&mut self) {}
}

type Rows = Vec<Vec<u8>>;

#[derive(Clone, PartialEq, prost::Message)]
struct Tree {
    #[prost(message, repeated, tag = "1")]
    children: Vec<Self>,
}

#[farcall::service]
trait ByPostcard<T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    async fn put(&self, value: T) -> farcall::Result<()>;
    async fn get(&self) -> farcall::Result<T>;
    async fn put_all(&self, values: Streaming<T>) -> farcall::Result<()>;
    fn get_all(&self) -> impl Stream<Item = farcall::Result<T>>;
    async fn ping(&self) -> farcall::Result<()>;
}

#[farcall::service(codec = Prost)]
trait ByProst<T>
where
    T: prost::Message + Default + 'static,
{
    async fn put(&self, value: T) -> farcall::Result<()>;
    async fn get(&self) -> farcall::Result<T>;
    async fn put_all(&self, values: Streaming<T>) -> farcall::Result<()>;
    fn get_all(&self) -> impl Stream<Item = farcall::Result<T>>;
    async fn ping(&self) -> farcall::Result<()>;
}

/// Takes and returns values.
struct Store<T>(PhantomData<fn() -> T>);

macro_rules! store {
    ($service:ident, $($bounds:tt)+) => {
        impl<T: $($bounds)+> $service<T> for Store<T> {
            async fn put(&self, _: T) -> farcall::Result<()> {
                Err(Status::internal("the handler has run"))
            }

            async fn get(&self) -> farcall::Result<T> {
                Ok(T::default())
            }

            async fn put_all(&self, mut values: Streaming<T>) -> farcall::Result<()> {
                while values.message().await?.is_some() {}
                Ok(())
            }

            fn get_all(&self) -> impl Stream<Item = farcall::Result<T>> {
                stream::iter([Ok(T::default())])
            }

            async fn ping(&self) -> farcall::Result<()> {
                Ok(())
            }
        }
    };
}

store!(ByPostcard, Serialize + DeserializeOwned + Default + Send + 'static);
store!(ByProst, prost::Message + Default + 'static);

async fn serve(server: ServerBuilder) -> String {
    let server = server.compress(Compression::Zstd).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    address
}

/// Waits for a call with a bomb. Calls of another client, on the only thread of the runtime, go on meanwhile.
async fn beside<T>(
    bomb: impl Future<Output = farcall::Result<T>>,
    ping: impl AsyncFn() -> farcall::Result<()>,
) -> Status {
    let others = async {
        loop {
            ping().await.unwrap();
        }
    };
    tokio::select! {
        ended = bomb => match ended {
            Ok(_) => panic!("the values were decoded"),
            Err(status) => status,
        },
        () = others => unreachable!(),
    }
}

fn check(what: &str, status: &Status, executed: Executed) {
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, executed), "{what}: {status}");
    assert!(status.message().contains("take more memory"), "{what}: {status}");
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let peak = own.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < MEMORY, "{what}: {peak} KiB");
}

macro_rules! bombs {
    ($client:ident, $server:ident, $honest:ty) => {
        let _turn = TEST.lock().await;
        let server = $server::<_, $honest>::named("store", Store(PhantomData::<fn() -> $honest>));
        let address = serve(Server::builder().add(server)).await;
        let channel = Channel::builder().compress(Compression::Zstd).connect(&address).await.unwrap();
        let hostile = $client::<Bomb>::named("store", &channel);
        let other = $client::<$honest>::named("store", Channel::connect(&address).await.unwrap());
        let ping = async || other.ping().await;

        check("an argument", &beside(hostile.put(Bomb), ping).await, Executed::No);
        let items = stream::iter([Bomb]);
        check("an item of a client", &beside(hostile.put_all(items), ping).await, Executed::Yes);

        let server = $server::<_, Bomb>::named("store", Store(PhantomData::<fn() -> Bomb>));
        let hostile = serve(Server::builder().add(server.compress(Compression::Zstd))).await;
        let client = $client::<$honest>::named("store", Channel::connect(&hostile).await.unwrap());
        check("an answer", &beside(client.get(), ping).await, Executed::Yes);
        let mut items = client.get_all().await.unwrap();
        check("an item of a server", &beside(items.message(), ping).await, Executed::Yes);
    };
}

#[tokio::test]
async fn bombs_of_postcard_fail_their_calls_alone() {
    bombs!(ByPostcardClient, ByPostcardServer, Rows);
}

#[tokio::test]
async fn bombs_of_protobuf_fail_their_calls_alone() {
    bombs!(ByProstClient, ByProstServer, Tree);
}
