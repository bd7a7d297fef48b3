//! Calls over TCP that end because nothing of them moves, and long ones that do not.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod clock;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use farcall::{Bytes, Channel, Code, Config, EndReason, Executed, Result, Server, Stream, Streaming, stream};
use tokio::sync::Notify;

#[farcall::service]
trait Snapshots {
    async fn hang(&self) -> Result<()>;
    fn fetch(&self, parts: u64, then_hang: bool) -> impl Stream<Item = Result<Bytes>>;
    async fn store(&self, parts: Streaming<Bytes>) -> Result<u64>;
    async fn echo(&self, all: Bytes) -> Result<Bytes>;
}

#[derive(Clone, Default)]
struct Store(Arc<Notify>);

/// Tells when a handler is dropped.
struct Gone(Arc<Notify>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

const PART: usize = 100_000;

impl Snapshots for Store {
    async fn hang(&self) -> Result<()> {
        let _gone = Gone(self.0.clone());
        pending().await
    }

    fn fetch(&self, parts: u64, then_hang: bool) -> impl Stream<Item = Result<Bytes>> {
        let gone = Gone(self.0.clone());
        stream::generate(async move |items| {
            let _gone = gone;
            for _ in 0..parts {
                items.send(vec![7; PART].into()).await;
            }
            if then_hang { pending().await } else { Ok(()) }
        })
    }

    async fn store(&self, mut parts: Streaming<Bytes>) -> Result<u64> {
        let mut len = 0;
        while let Some(part) = parts.message().await? {
            len += part.len() as u64;
        }
        Ok(len)
    }

    async fn echo(&self, all: Bytes) -> Result<Bytes> {
        Ok(all)
    }
}

/// Returns a client whose channel sets a progress timeout, and what is notified when a handler is dropped.
async fn connect(progress_timeout_ms: u64) -> (SnapshotsClient, Arc<Notify>) {
    let store = Store::default();
    let gone = store.0.clone();
    let server = Server::builder().add(SnapshotsServer::new(store)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let config = Config::from_toml(&format!("calls.progress_timeout_ms = {progress_timeout_ms}")).unwrap();
    let channel = Channel::builder().config(config).connect(&address).await.unwrap();
    (SnapshotsClient::new(channel), gone)
}

/// Returns the output of a future for which time must pass.
async fn in_time<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let task = tokio::spawn(future);
    clock::until(async || {
        tokio::time::advance(Duration::from_millis(10)).await;
        task.is_finished()
    })
    .await;
    task.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn calls_and_streams_that_stand_still_end_and_their_handlers_are_dropped() {
    clock::still();
    let (client, gone) = connect(50).await;
    let late = in_time(client.hang().into_future()).await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::Maybe));
    assert!(late.message().contains("nothing of the call has moved for 50ms"), "{late}");
    gone.notified().await;

    let mut parts = client.fetch(5, true).await.unwrap();
    for _ in 0..5 {
        assert_eq!(parts.message().await.unwrap().unwrap().len(), PART);
    }
    let (late, parts) = in_time(async move { (parts.message().await.unwrap_err(), parts) }).await;
    assert_eq!((late.code(), parts.end_reason()), (Code::DeadlineExceeded, Some(EndReason::Deadline)));
    assert!(late.message().contains("5 items of a stream have come"), "{late}");
    gone.notified().await;
}

#[tokio::test]
async fn long_calls_and_streams_that_move_do_not() {
    let (client, _) = connect(10_000).await;
    let all = Bytes::from(vec![7; 32 << 20]);
    assert_eq!(client.echo(all.clone()).await.unwrap().len(), all.len());
    let mut parts = client.fetch(500, false).await.unwrap();
    let mut count = 0;
    while parts.message().await.unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 500);
    let part = all.slice(..PART);
    let stored = client.store(stream::iter((0..500).map(move |_| part.clone()))).await.unwrap();
    assert_eq!(stored, 500 * PART as u64);
}
