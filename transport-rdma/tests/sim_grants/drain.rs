//! Connections that drain while a peer uses memory by itself.

use std::sync::Arc;

use bytes::Bytes;
use farcall_core::region::{Region, RemoteMemory, Rights};
use farcall_core::status::Result;
use tokio::task::JoinHandle;

use crate::setup::{PATIENCE, Setup, bytes, words};

/// A client's accesses that its device, or the owner's, has under way.
struct UnderWay {
    t: Setup,
    region: Region,
    remote: RemoteMemory,
    expected: Vec<u8>,
    reading: JoinHandle<Result<Bytes>>,
    adding: JoinHandle<Result<u64>>,
}

impl UnderWay {
    /// Begins to read and to change a number. Neither ends before the network lets it.
    async fn begin() -> Self {
        let t = Setup::new(None);
        let memory = words(4096);
        let region = Region::export(Arc::clone(&memory), Rights::READ | Rights::WRITE | Rights::ATOMICS);
        let remote = region.remote().on(t.channel.clone());
        t.until_direct(&remote).await;
        t.until_counted(&remote).await;
        t.fabric.set_reads(false);
        let reading = tokio::spawn({
            let remote = remote.clone();
            async move { remote.read(2048..).await }
        });
        let adding = tokio::spawn({
            let remote = remote.clone();
            async move { remote.fetch_add(8, 5).await }
        });
        t.until(|_| region.load(8).unwrap() == 6).await;
        Self { t, region, remote, expected: bytes(&memory)[2048..].to_vec(), reading, adding }
    }

    /// Lets other tasks run for long, during which the connection must not end.
    async fn stays_open(&self) {
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(self.t.host.connections().len(), 1, "the connection was closed under an access");
    }

    /// Lets the network go on. The accesses end as if nothing had happened.
    async fn end(self) -> (Setup, Region, RemoteMemory) {
        self.t.fabric.set_reads(true);
        let ended = async { (self.reading.await.unwrap(), self.adding.await.unwrap()) };
        let (read, added) = tokio::time::timeout(PATIENCE, ended).await.expect("an access is lost");
        assert!(read.unwrap() == self.expected);
        assert_eq!((added.unwrap(), self.region.load(8).unwrap()), (1, 6));
        (self.t, self.region, self.remote)
    }
}

#[tokio::test]
async fn a_server_that_drains_closes_when_its_clients_device_is_done() {
    let accesses = UnderWay::begin().await;
    let host = Arc::clone(&accesses.t.host);
    let draining = tokio::spawn(async move { host.drain(PATIENCE).await });
    accesses.stays_open().await;
    let (t, region, _) = accesses.end().await;
    tokio::time::timeout(PATIENCE, draining).await.expect("it drains for ever").unwrap();
    assert!(t.host.connections().is_empty());
    // Nothing keeps the memory.
    tokio::time::timeout(PATIENCE, region.revoke()).await.expect("a link that is gone keeps the memory");
}

#[tokio::test]
async fn a_client_that_drains_closes_when_its_device_is_done() {
    let accesses = UnderWay::begin().await;
    let connection = accesses.t.channel.connection().await.unwrap();
    let draining = tokio::spawn(async move { connection.drain("the test drains").await });
    accesses.stays_open().await;
    let (t, _region, remote) = accesses.end().await;
    tokio::time::timeout(PATIENCE, draining).await.expect("it drains for ever").unwrap();
    // The next access takes another connection.
    assert_eq!(remote.fetch_add(8, 0).await.unwrap(), 6);
    t.until(|t| t.host.connections().len() == 1).await;
}
