//! The service: one method for each thing that travels in a way of its own.

use std::collections::BTreeMap;

use bytes::Bytes;
use farcall::{Compression, Context, Result, Status, Stream, Streaming, stream};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    Nothing,
    Numbers(u8, i64, f64, Option<u128>),
    Named { text: String, bytes: Bytes, map: BTreeMap<u32, String> },
    Many(Vec<Self>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Error {
    Odd { number: u32 },
    Call(Status),
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

#[farcall::service(package = "versions")]
pub(crate) trait Versions {
    /// Returns both arguments, with the metadata of the call as leading and trailing metadata.
    async fn echo(&self, cx: &Context, value: Value, bytes: Bytes) -> Result<(Value, Bytes)>;
    /// Returns an error of its own.
    async fn even(&self, number: u32) -> Result<u32, Error>;
    /// Returns a status with this message and details.
    async fn refuse(&self, why: String) -> Result<()>;
    /// Answers after its caller has given up.
    async fn never(&self) -> Result<()>;
    /// Returns its argument compressed by LZ4.
    async fn packed(&self, cx: &Context, bytes: Bytes) -> Result<Bytes>;
    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>>;
    async fn total(&self, items: Streaming<Bytes>) -> Result<u64>;
    fn repeat(&self, items: Streaming<Bytes>) -> impl Stream<Item = Result<Bytes>>;
}

#[derive(Debug)]
pub(crate) struct Everything;

impl Versions for Everything {
    async fn echo(&self, cx: &Context, value: Value, bytes: Bytes) -> Result<(Value, Bytes)> {
        if let (Some(text), Some(binary)) = (cx.metadata().get("text"), cx.metadata().get_bin("some-bin")) {
            cx.reply_metadata(|metadata| metadata.insert("text", text))?;
            cx.reply_trailers(|trailers| trailers.insert_bin("some-bin", binary))?;
        }
        Ok((value, bytes))
    }

    async fn even(&self, number: u32) -> Result<u32, Error> {
        if number.is_multiple_of(2) { Ok(number) } else { Err(Error::Odd { number }) }
    }

    async fn refuse(&self, why: String) -> Result<()> {
        Err(Status::failed_precondition(why).with_details(Bytes::from_static(b"details")))
    }

    async fn never(&self) -> Result<()> {
        std::future::pending().await
    }

    async fn packed(&self, cx: &Context, bytes: Bytes) -> Result<Bytes> {
        cx.compress(Compression::Lz4)?;
        if cx.compression() == Compression::None {
            return Err(Status::invalid_argument("the argument came uncompressed"));
        }
        Ok(bytes)
    }

    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>> {
        let end = Err(Status::out_of_range("it counts to 1000"));
        stream::iter((0..to.min(1000)).map(Ok).chain((to > 1000).then_some(end)))
    }

    async fn total(&self, mut items: Streaming<Bytes>) -> Result<u64> {
        let mut total = 0;
        while let Some(item) = items.message().await? {
            total += item.len() as u64;
        }
        Ok(total)
    }

    fn repeat(&self, items: Streaming<Bytes>) -> impl Stream<Item = Result<Bytes>> {
        items
    }
}
