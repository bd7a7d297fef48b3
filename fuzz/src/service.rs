//! The service that both ends of a session speak of.

use bytes::Bytes;
use farcall::bulk::{BulkRead, BulkWrite};
use farcall::{Context, Result, Status, Stream, Streaming, stream};

use crate::values::Value;

#[farcall::service]
pub(crate) trait Fuzzed {
    async fn echo(&self, cx: &Context, value: Value, bytes: Bytes) -> Result<Value>;
    async fn hang(&self) -> Result<()>;
    async fn total(&self, items: Streaming<u32>) -> Result<u64>;
    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>>;
    fn repeat(&self, items: Streaming<Bytes>) -> impl Stream<Item = Result<Bytes>>;
    async fn fill(&self, from: BulkRead, into: BulkWrite) -> Result<usize>;
}

pub(crate) struct Handler;

impl Fuzzed for Handler {
    async fn echo(&self, cx: &Context, value: Value, bytes: Bytes) -> Result<Value> {
        if cx.metadata().is_empty() && bytes.is_empty() {
            return Err(Status::invalid_argument("there is nothing in it"));
        }
        Ok(value)
    }

    async fn hang(&self) -> Result<()> {
        std::future::pending().await
    }

    async fn total(&self, mut items: Streaming<u32>) -> Result<u64> {
        let mut total = 0;
        while let Some(item) = items.message().await? {
            total += u64::from(item);
        }
        Ok(total)
    }

    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>> {
        stream::iter((0..to.min(1000)).map(Ok))
    }

    fn repeat(&self, items: Streaming<Bytes>) -> impl Stream<Item = Result<Bytes>> {
        items
    }

    async fn fill(&self, from: BulkRead, into: BulkWrite) -> Result<usize> {
        let bytes = from.read(..from.len().min(100_000)).await?;
        into.write(into.len().saturating_sub(bytes.len()), bytes).await?;
        Ok(into.len())
    }
}
