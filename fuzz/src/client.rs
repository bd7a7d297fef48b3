//! A client with a hostile server.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use farcall::bulk::{BulkRead, BulkWrite};
use farcall::region::{Region, Rights};
use farcall::stream;
use farcall_core::client::{Connector, RawChannel};
use farcall_core::proto::wire::FrameType;
use farcall_core::status::Status;
use farcall_core::transport::{BoxFuture, Link};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::fake_link::FakeLink;
use crate::server::{frame, hello, runtime, settings, settle};
use crate::service::FuzzedClient;
use crate::values::Value;

/// Plays the input as the frames of a server that has said HELLO, while a call of every kind is under way. When the
/// connection is over, every call has ended.
pub fn client(data: &[u8]) {
    thread_local!(static RUNTIME: Runtime = runtime());
    RUNTIME.with(|runtime| {
        let _inside = runtime.enter();
        let link = Arc::new(FakeLink::default());
        let channel = RawChannel::new(Once(Mutex::new(Some(Arc::clone(&link)))), settings());
        let mut calls = calls(&FuzzedClient::new(channel.clone()), channel);
        settle(runtime);
        let mut payload = BytesMut::new();
        hello().encode(&mut payload);
        link.deliver(frame(FrameType::HELLO, 0, &payload), payload.freeze());
        settle(runtime);
        link.play(data, 0, || settle(runtime));
        link.end();
        runtime.block_on(async { while calls.join_next().await.is_some_and(|ended| ended.is_ok()) {} });
        assert!(calls.is_empty(), "no call panics");
    });
}

/// Calls of every kind, each in a task that ends with it.
fn calls(client: &FuzzedClient, channel: RawChannel) -> JoinSet<()> {
    let mut calls = JoinSet::new();
    let mut spawn = |call: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| drop(calls.spawn(call));
    let (echo, hang, total, count, repeat) =
        (client.clone(), client.clone(), client.clone(), client.clone(), client.clone());
    spawn(Box::pin(async move { drop(echo.echo(Value::Nothing, Bytes::from_static(b"here")).await) }));
    spawn(Box::pin(async move { drop(hang.hang().with_parts().await) }));
    spawn(Box::pin(async move { drop(total.total(stream::iter(0..40)).await) }));
    spawn(Box::pin(async move {
        if let Ok(mut items) = count.count(10).await {
            while let Ok(Some(_)) = items.message().await {}
        }
    }));
    spawn(Box::pin(async move {
        if let Ok(mut items) = repeat.repeat(stream::iter((0..4).map(|_| Bytes::from_static(b"again")))).await
        {
            while let Ok(Some(_)) = items.message().await {}
        }
    }));
    let fill = client.clone();
    spawn(Box::pin(async move {
        let (from, _loan) = BulkRead::lend(Bytes::from_static(b"from here"));
        let (into, loan) = BulkWrite::lend(vec![0; 100]);
        drop(fill.fill(from, into).await);
        loan.reclaim().await;
    }));
    let region = Region::zeroed(64, Rights::READ | Rights::ATOMICS);
    let memory = region.remote().on(channel);
    spawn(Box::pin(async move {
        drop(memory.read(..).await);
        drop(memory.fetch_add(8, 1).await);
    }));
    calls
}

/// A server that can be reached once.
struct Once(Mutex<Option<Arc<FakeLink>>>);

impl Connector for Once {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async { Ok(link.ok_or_else(|| Status::unavailable("it was here once"))? as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "the fuzzer".into()
    }
}
