//! Old clients with new servers and the other way round: `docs/EVOLUTION.md` over a real connection.

use farcall::{Blame, Bytes, Channel, Code, Executed, Result, Server, Status, Stream, Streaming, stream};

/// The first version of the service.
mod old {
    use super::*;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    pub(super) struct Entry {
        pub(super) key: String,
        pub(super) written: u64,
        pub(super) read: u64,
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    pub(super) enum Level {
        Fast,
        Safe,
    }

    #[farcall::service(package = "shop.v1")]
    pub(super) trait Kv {
        async fn get(&self, key: String) -> Result<Option<Bytes>>;
        async fn put(&self, key: String, value: Bytes) -> Result<String>;
        async fn stat(&self, key: String) -> Result<Entry>;
        async fn sync(&self, level: Level) -> Result<bool>;
        async fn rename(&self, from: String, to: String) -> Result<()>;
        async fn forget(&self, key: String) -> Result<()>;
        fn watch(&self, key: String) -> impl Stream<Item = Result<u64>>;
        async fn tail(&self, key: String) -> Result<impl Stream<Item = Result<u64>>>;
        async fn keys(&self) -> Result<Vec<String>>;
        fn values(&self) -> impl Stream<Item = Result<String>>;
        fn sizes(&self) -> impl Stream<Item = Result<u32>>;
        async fn load(&self, rows: Streaming<u64>) -> Result<u64>;
        async fn fill(&self, rows: Streaming<u64>) -> Result<u64>;
    }

    pub(super) struct Store;

    impl Kv for Store {
        async fn get(&self, key: String) -> Result<Option<Bytes>> {
            Ok(Some(key.into()))
        }

        async fn put(&self, key: String, value: Bytes) -> Result<String> {
            Ok(format!("{key} {}", value.len()))
        }

        async fn stat(&self, key: String) -> Result<Entry> {
            Ok(Entry { key, written: 1, read: 2 })
        }

        async fn sync(&self, level: Level) -> Result<bool> {
            Ok(level == Level::Safe)
        }

        async fn rename(&self, _from: String, _to: String) -> Result<()> {
            Ok(())
        }

        async fn forget(&self, _key: String) -> Result<()> {
            Ok(())
        }

        fn watch(&self, key: String) -> impl Stream<Item = Result<u64>> {
            stream::iter([Ok(key.len() as u64)])
        }

        async fn tail(&self, key: String) -> Result<impl Stream<Item = Result<u64>>> {
            Ok(self.watch(key))
        }

        async fn keys(&self) -> Result<Vec<String>> {
            Ok(vec![])
        }

        fn values(&self) -> impl Stream<Item = Result<String>> {
            stream::iter([])
        }

        fn sizes(&self) -> impl Stream<Item = Result<u32>> {
            stream::iter([])
        }

        async fn load(&self, rows: Streaming<u64>) -> Result<u64> {
            sum(rows).await
        }

        async fn fill(&self, rows: Streaming<u64>) -> Result<u64> {
            sum(rows).await
        }
    }
}

async fn sum(mut rows: Streaming<u64>) -> Result<u64> {
    let mut sum = 0;
    while let Some(row) = rows.message().await? {
        sum += row;
    }
    Ok(sum)
}

/// A later version, with changes of every kind.
mod new {
    use super::*;

    /// Two fields of the same type have changed places: every message of the old form reads as one of the new.
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    pub(super) struct Entry {
        pub(super) key: String,
        pub(super) read: u64,
        pub(super) written: u64,
    }

    /// A variant more.
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    pub(super) enum Level {
        Fast,
        Safe,
        Safest,
    }

    #[farcall::service(package = "shop.v1")]
    pub(super) trait Kv {
        // As it was.
        async fn get(&self, key: String) -> Result<Option<Bytes>>;
        // Two arguments more, which old callers do not send.
        async fn put(
            &self,
            key: String,
            value: Bytes,
            #[rpc(default)] expires: Option<u64>,
            #[rpc(default)] tags: Vec<String>,
        ) -> Result<String>;
        async fn stat(&self, key: String) -> Result<Entry>;
        async fn sync(&self, level: Level) -> Result<bool>;
        // The arguments have changed places.
        async fn rename(&self, to: String, from: String) -> Result<()>;
        // Other names in Rust, the same on the wire.
        #[rpc(name = "forget")]
        async fn delete(&self, #[rpc(name = "key")] name: String) -> Result<()>;
        // It may refuse now, which its callers knew before.
        async fn watch(&self, key: String) -> Result<impl Stream<Item = Result<u64>>>;
        // And the other way round.
        fn tail(&self, key: String) -> impl Stream<Item = Result<u64>>;
        // The items that came at once come one by one.
        fn keys(&self) -> impl Stream<Item = Result<String>>;
        // And the other way round.
        async fn values(&self) -> Result<Vec<String>>;
        // Another type of item.
        fn sizes(&self) -> impl Stream<Item = Result<u64>>;
        // An argument more, which old callers do not send.
        async fn load(&self, #[rpc(default)] base: u64, rows: Streaming<u64>) -> Result<u64>;
        // Another type of item.
        async fn fill(&self, rows: Streaming<i64>) -> Result<u64>;
        // New.
        async fn count(&self) -> Result<u64>;
        // New.
        fn changes(&self) -> impl Stream<Item = Result<String>>;
    }

    pub(super) struct Store;

    impl Kv for Store {
        async fn get(&self, key: String) -> Result<Option<Bytes>> {
            Ok(Some(key.into()))
        }

        async fn put(
            &self,
            key: String,
            value: Bytes,
            expires: Option<u64>,
            tags: Vec<String>,
        ) -> Result<String> {
            Ok(format!("{key} {} {expires:?} {tags:?}", value.len()))
        }

        async fn stat(&self, key: String) -> Result<Entry> {
            Ok(Entry { key, read: 2, written: 1 })
        }

        async fn sync(&self, level: Level) -> Result<bool> {
            Ok(level == Level::Safest)
        }

        async fn rename(&self, _to: String, _from: String) -> Result<()> {
            Ok(())
        }

        async fn delete(&self, _name: String) -> Result<()> {
            Ok(())
        }

        async fn watch(&self, key: String) -> Result<impl Stream<Item = Result<u64>>> {
            Ok(self.tail(key))
        }

        fn tail(&self, key: String) -> impl Stream<Item = Result<u64>> {
            stream::iter([Ok(key.len() as u64), Ok(0)])
        }

        fn keys(&self) -> impl Stream<Item = Result<String>> {
            stream::iter([])
        }

        async fn values(&self) -> Result<Vec<String>> {
            Ok(vec![])
        }

        fn sizes(&self) -> impl Stream<Item = Result<u64>> {
            stream::iter([])
        }

        async fn load(&self, base: u64, rows: Streaming<u64>) -> Result<u64> {
            Ok(base + sum(rows).await?)
        }

        async fn fill(&self, _rows: Streaming<i64>) -> Result<u64> {
            Ok(0)
        }

        async fn count(&self) -> Result<u64> {
            Ok(7)
        }

        fn changes(&self) -> impl Stream<Item = Result<String>> {
            stream::iter([])
        }
    }
}

/// A channel to a server of its own.
async fn channel(builder: farcall::ServerBuilder) -> Channel {
    let server = builder.bind("127.0.0.1:0").await.expect("bind");
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    Channel::connect(&address).await.expect("connect")
}

/// Checks the refusal of a call whose method has another signature: the fingerprints and signatures of both are named.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, method: &str, signatures: [(u64, String); 2]) {
    let status = result.expect_err(method);
    let seen = (status.code(), status.executed(), status.blame());
    assert_eq!(seen, (Code::FailedPrecondition, Executed::No, Blame::Caller), "{status}");
    assert!(status.message().contains(method), "{status}");
    for (fingerprint, signature) in signatures {
        assert!(status.message().contains(&format!("{fingerprint:016x}")), "{status}");
        assert!(status.message().contains(&format!("`{signature}`")), "{status}");
    }
}

/// Fingerprint and signature of the method that has this name on the wire, of the old version and the new.
fn signatures(method: &str) -> [(u64, String); 2] {
    use farcall_core::service::Service;

    let old = old::KvServer::new(old::Store);
    let new = new::KvServer::new(new::Store);
    [old.info(), new.info()].map(|info| {
        let method = info.methods.iter().find(|m| m.name == method).expect("a method of both");
        (method.fingerprint, method.signature.clone())
    })
}

#[tokio::test]
async fn an_old_client_calls_a_new_server() {
    let channel = channel(Server::builder().add(new::KvServer::new(new::Store))).await;
    let kv = old::KvClient::new(channel);

    assert_eq!(kv.get("key").await.unwrap().unwrap(), "key");
    // The arguments that the old client does not know of have their defaults.
    assert_eq!(kv.put("key", "12345").await.unwrap(), "key 5 None []");
    assert_eq!(kv.put("key", vec![0; 10_000]).await.unwrap(), "key 10000 None []");
    kv.forget("key").await.unwrap();

    assert_refused(kv.stat("key").await, "stat", signatures("stat"));
    assert_refused(kv.sync(old::Level::Safe).await, "sync", signatures("sync"));
    assert_refused(kv.rename("a", "b").await, "rename", signatures("rename"));

    assert_eq!(sum(kv.watch("key").await.unwrap()).await.unwrap(), 3);
    assert_eq!(sum(kv.tail("key").await.unwrap()).await.unwrap(), 3);
    assert_eq!(kv.load(stream::iter([1, 2])).await.unwrap(), 3);
    assert_refused(kv.keys().await, "keys", signatures("keys"));
    assert_refused(kv.values().await, "values", signatures("values"));
    assert_refused(kv.sizes().await, "sizes", signatures("sizes"));
    assert_refused(kv.fill(stream::iter([1, 2])).await, "fill", signatures("fill"));
    // The other methods go on, on the same connection.
    assert_eq!(kv.get("again").await.unwrap().unwrap(), "again");
}

#[tokio::test]
async fn a_new_client_calls_an_old_server() {
    let channel = channel(Server::builder().add(old::KvServer::new(old::Store))).await;
    let kv = new::KvClient::new(channel);

    assert_eq!(kv.get("key").await.unwrap().unwrap(), "key");
    kv.delete("key").await.unwrap();

    // The server can't know what to do with the new arguments: servers are upgraded first.
    let call = kv.put("key", "12345", Some(9), vec!["tag".into()]);
    assert_refused(call.await, "put", signatures("put"));
    assert_refused(kv.stat("key").await, "stat", signatures("stat"));
    assert_refused(kv.sync(new::Level::Safest).await, "sync", signatures("sync"));
    assert_refused(kv.rename("a", "b").await, "rename", signatures("rename"));

    assert_eq!(sum(kv.watch("key").await.unwrap()).await.unwrap(), 3);
    assert_eq!(sum(kv.tail("key").await.unwrap()).await.unwrap(), 3);
    assert_refused(kv.load(1, stream::iter([1, 2])).await, "load", signatures("load"));
    assert_refused(kv.keys().await, "keys", signatures("keys"));
    assert_refused(kv.values().await, "values", signatures("values"));
    assert_refused(kv.sizes().await, "sizes", signatures("sizes"));
    assert_refused(kv.fill(stream::iter([1, 2])).await, "fill", signatures("fill"));

    let status = kv.changes().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No), "{status}");
    let status = kv.count().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No), "{status}");
    assert_eq!(kv.get("again").await.unwrap().unwrap(), "again");
}

#[tokio::test]
async fn clients_of_one_version_understand_each_other() {
    let channel = channel(Server::builder().add(new::KvServer::new(new::Store))).await;
    let kv = new::KvClient::new(channel);
    assert_eq!(kv.put("key", "1", Some(9), vec!["tag".into()]).await.unwrap(), "key 1 Some(9) [\"tag\"]");
    assert_eq!(kv.stat("key").await.unwrap(), new::Entry { key: "key".into(), read: 2, written: 1 });
    assert!(kv.sync(new::Level::Safest).await.unwrap());
    assert_eq!(kv.load(1, stream::iter([1, 2])).await.unwrap(), 4);
    assert_eq!(kv.count().await.unwrap(), 7);
}

/// The guard is needed: without it, the changed struct would be read, and wrongly.
#[test]
fn the_changed_struct_would_be_misread() {
    use farcall::Postcard;
    use farcall::codec::{from_payload, to_payload};

    let entry = old::Entry { key: "key".into(), written: 1, read: 2 };
    let misread: new::Entry =
        from_payload::<Postcard, _>(to_payload::<Postcard, _>(&entry).unwrap()).unwrap();
    assert_eq!(misread, new::Entry { key: "key".into(), read: 1, written: 2 });
}

/// Two services differ in their codec: no method of one is a method of the other.
#[tokio::test]
async fn another_codec_is_another_service() {
    mod prost {
        #[farcall::service(package = "shop.v1", codec = farcall::Prost)]
        pub(super) trait Kv {
            async fn forget(&self, key: String) -> farcall::Result<()>;
        }
    }
    let channel = channel(Server::builder().add(old::KvServer::new(old::Store))).await;
    let status: Status = prost::KvClient::new(channel).forget("key").await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::FailedPrecondition, Executed::No), "{status}");
    assert!(status.message().contains("prost") && status.message().contains("postcard"), "{status}");
}
