//! Services whose type is erased: `#[farcall::service(dyn)]`.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;

use farcall::{Context, Result, Status, Stream, Streaming, in_process, stream};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

#[farcall::service(dyn)]
trait Kv {
    /// Has a context and arguments.
    async fn get(&self, cx: &Context, key: String, cx_of_key: u32) -> Result<String>;
    fn keys(&self, cx: &Context) -> impl Stream<Item = Result<u32>>;
    fn passed_on(&self, keys: Streaming<u32>) -> impl Stream<Item = Result<u32>>;
    async fn given(&self, keys: Streaming<u32>) -> Result<Streaming<u32>>;
    async fn open(&self, up_to: u32) -> Result<impl Stream<Item = Result<u32>>>;
    async fn sum(&self, keys: Streaming<u32>) -> Result<u32>;
}

struct Store(u32);

impl Kv for Store {
    async fn get(&self, cx: &Context, key: String, cx_of_key: u32) -> Result<String> {
        let token = cx.metadata().get("token").unwrap_or("no token").to_owned();
        Ok(format!("{key} {cx_of_key} {} {token}", self.0))
    }

    fn keys(&self, _: &Context) -> impl Stream<Item = Result<u32>> {
        stream::iter((0..self.0).map(Ok))
    }

    fn passed_on(&self, keys: Streaming<u32>) -> impl Stream<Item = Result<u32>> {
        keys
    }

    async fn given(&self, keys: Streaming<u32>) -> Result<Streaming<u32>> {
        Ok(keys)
    }

    async fn open(&self, up_to: u32) -> Result<impl Stream<Item = Result<u32>>> {
        if up_to > self.0 {
            return Err(Status::out_of_range("too many"));
        }
        Ok(stream::iter((0..up_to).map(Ok)))
    }

    async fn sum(&self, mut keys: Streaming<u32>) -> Result<u32> {
        let mut sum = 0;
        while let Some(key) = keys.message().await? {
            sum += key;
        }
        Ok(sum)
    }
}

async fn all(items: impl Stream<Item = Result<u32>>) -> Vec<u32> {
    let (mut all, mut items) = (Vec::new(), pin!(items));
    while let Some(item) = poll_fn(|cx| items.as_mut().poll_next(cx)).await {
        all.push(item.unwrap());
    }
    all
}

#[tokio::test]
async fn erased_services_of_all_kinds_are_called_and_served() {
    let objects =
        [DynKv::new(Store(3)), DynKv::new(KvClient::in_process(Store(3))), DynKv::new(DynKv::new(Store(3)))];
    let numbers = || Streaming::new(stream::iter([4, 5].map(Ok)));
    for object in objects {
        let cx = Context::background();
        assert_eq!(object.get(&cx, "a".into(), 7).await.unwrap(), "a 7 3 no token");
        assert_eq!(all(object.keys(&cx)).await, [0, 1, 2]);
        assert_eq!(all(object.passed_on(numbers())).await, [4, 5]);
        assert_eq!(all(object.given(numbers()).await.unwrap()).await, [4, 5]);
        assert_eq!(all(object.open(2).await.unwrap()).await, [0, 1]);
        assert!(object.open(4).await.is_err());
        assert_eq!(object.sum(numbers()).await.unwrap(), 9);

        let client = KvClient::new(in_process(KvServer::new(object.clone())));
        assert_eq!(client.get("b", 8).await.unwrap(), "b 8 3 no token");
        assert_eq!(all(client.keys().await.unwrap()).await, [0, 1, 2]);
        assert_eq!(all(client.passed_on(stream::iter([6])).await.unwrap()).await, [6]);
        assert_eq!(all(client.given(stream::iter([6])).await.unwrap()).await, [6]);
        assert_eq!(all(client.open(1).await.unwrap()).await, [0]);
        assert_eq!(client.open(4).await.unwrap_err().message(), "too many");
        assert_eq!(client.sum(stream::iter([1, 2])).await.unwrap(), 3);
    }
}

#[tokio::test]
async fn an_erased_service_has_the_context_of_its_call() {
    let client = KvClient::in_process(DynKv::new(Store(3)));
    assert_eq!(client.get("b", 8).metadata("token", "mine").await.unwrap(), "b 8 3 mine");
}

#[farcall::service(dyn)]
trait Cache<K, V>
where
    K: Serialize + DeserializeOwned + Debug + Send + 'static,
    V: Serialize + DeserializeOwned + Debug + Send + 'static,
{
    async fn get(&self, key: K) -> Result<Option<V>>;
}

struct Table(BTreeMap<u8, Entry>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry(String);

impl Cache<u8, Entry> for Table {
    async fn get(&self, key: u8) -> Result<Option<Entry>> {
        Ok(self.0.get(&key).cloned())
    }
}

#[tokio::test]
async fn generic_services_are_erased_too() {
    let table = Table(BTreeMap::from([(1, Entry("one".into()))]));
    let cache = CacheClient::<u8, Entry>::in_process("cache.test", DynCache::new(table).clone());
    assert_eq!(cache.get(1).await.unwrap(), Some(Entry("one".into())));
    assert_eq!(cache.get(2).await.unwrap(), None);
}
