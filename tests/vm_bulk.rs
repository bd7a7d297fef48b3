//! Long messages over an RDMA device: read from the memory they lie in, and sent when they can't be.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use farcall::{Buf, Bytes, Channel, Config, Connection, Handle, Policy, Server, buf};

#[farcall::service(package = "test")]
trait Store {
    async fn put(&self, key: String, value: Bytes) -> farcall::Result<()>;
    async fn get(&self, key: String) -> farcall::Result<Option<Bytes>>;
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<HashMap<String, Bytes>>>);

impl Store for Memory {
    async fn put(&self, key: String, value: Bytes) -> farcall::Result<()> {
        self.0.lock().unwrap().insert(key, value);
        Ok(())
    }

    async fn get(&self, key: String) -> farcall::Result<Option<Bytes>> {
        Ok(self.0.lock().unwrap().get(&key).cloned())
    }
}

fn made(id: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| (i.wrapping_mul(31) ^ id) as u8).collect()
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.rdma.strict_credits = true;
    config.liveness.connect_ms = 60_000;
    config
}

async fn serve(config: Config, memory: &Memory) -> (String, Handle) {
    let server = Server::builder().add(StoreServer::new(memory.clone())).config(config).bind("127.0.0.1:0");
    let server = server.await.unwrap();
    let address = format!("rdma://{}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(server.serve());
    (address, handle)
}

struct Ends {
    store: StoreClient,
    near: Arc<Connection>,
    far: Arc<Connection>,
}

async fn connect(config: Config, memory: &Memory) -> Ends {
    let (address, server) = serve(config.clone(), memory).await;
    let channel = Channel::builder().config(config).connect(&address).await.unwrap();
    assert_eq!(channel.transport().await.unwrap().name, "rdma");
    let near = channel.connection().await.unwrap();
    Ends { store: StoreClient::new(channel), near, far: server.connections()[0].clone() }
}

impl Ends {
    fn copied(&self) -> [u64; 2] {
        [&self.near, &self.far].map(|end| end.traffic().upgraded.bytes_copied)
    }
}

/// In memory that the device can let the peer read.
async fn registered(id: u64, len: usize) -> Bytes {
    let is_registered = |buffer: &Buf| format!("{buffer:?}").contains("registered: true");
    let mut buffer = buf(len);
    // The first to find too little left has more registered, in the background.
    while !is_registered(&buffer) {
        tokio::task::yield_now().await;
        buffer = buf(len);
    }
    buffer.put_slice(&made(id, len));
    buffer.freeze()
}

#[tokio::test]
async fn a_long_value_is_put_and_got_without_a_copy() {
    let ends = connect(config(), &Memory::default()).await;
    // Slabs grow and windows come with the first.
    ends.store.put("first", registered(0, 100_000).await).await.unwrap();
    ends.store.get("first").await.unwrap();
    for len in [16 << 10, 64 << 10, 1 << 20, 3_000_001] {
        let value = registered(len as u64, len).await;
        let (before, sent) = (ends.copied(), ends.near.traffic());
        ends.store.put("k", value.clone()).await.unwrap();
        assert_eq!(ends.store.get("k").await.unwrap().unwrap(), value);
        let copied: Vec<u64> = ends.copied().iter().zip(before).map(|(now, before)| now - before).collect();
        // Short frames are copied: requests, answers, and what goes before a long value.
        assert!(copied.iter().all(|&bytes| bytes < 1000), "{len} bytes: {copied:?} copied");
        let moved = ends.near.traffic().upgraded.bytes_sent - sent.upgraded.bytes_sent;
        assert!(moved >= len as u64, "{moved} bytes were counted");
        let by_tcp = ends.near.traffic().stream.bytes_sent - sent.stream.bytes_sent;
        assert!(by_tcp < 1000, "{by_tcp} bytes went by TCP");
    }
}

#[tokio::test]
async fn a_value_from_anywhere_is_copied_once() {
    let ends = connect(config(), &Memory::default()).await;
    ends.store.put("first", made(0, 100_000)).await.unwrap();
    let before = ends.copied();
    ends.store.put("k", made(1, 1 << 20)).await.unwrap();
    assert_eq!(ends.store.get("k").await.unwrap().unwrap(), made(1, 1 << 20));
    let [near, far] = [0, 1].map(|end| ends.copied()[end] - before[end]);
    assert!((1 << 20..(1 << 20) + 2000).contains(&near), "by who puts: {near}");
    assert!(far < 2000, "by who keeps: {far}");
}

#[tokio::test]
async fn the_longest_messages_come_back_however_much_memory_there_is() {
    // 60 MiB do not fit into what is registered at first; with a limit of 8 MiB they never do.
    for limit in [512 << 20, 8 << 20] {
        let mut config = config();
        config.rdma.bulk_memory = limit;
        let ends = connect(config, &Memory::default()).await;
        let value = made(7, if limit > 8 << 20 { 60 << 20 } else { 12 << 20 });
        for _ in 0..2 {
            ends.store.put("k", value.clone()).await.unwrap();
            assert!(ends.store.get("k").await.unwrap().unwrap() == value, "unchanged");
        }
    }
}

#[tokio::test]
async fn an_application_that_keeps_all_that_arrives_gets_copies_in_the_end_and_starves_nobody() {
    let mut config = config();
    config.rdma.bulk_memory = 16 << 20;
    let ends = connect(config, &Memory::default()).await;
    let mut kept = Vec::new();
    for i in 0..200_u64 {
        let key = format!("{i}");
        ends.store.put(&key, made(i, 200_000)).await.unwrap();
        kept.push(ends.store.get(&key).await.unwrap().unwrap());
    }
    for (i, kept) in kept.iter().enumerate() {
        assert!(*kept == made(i as u64, 200_000), "{i} is unchanged");
    }
}
