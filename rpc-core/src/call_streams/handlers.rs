//! The streams of a call for its handler.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use futures_core::Stream;

use super::{CallStreams, Encoded, ItemsBy, Pump, Pumped, Reader};
use crate::context::Context;
use crate::decoding::in_task;
use crate::memory::{Gauge, Use};
use crate::payload::Encoder;
use crate::proto::wire::EndReason;
use crate::reply::{Reply, Sent};

/// The streams of a call for its handler.
#[derive(Debug)]
pub struct Streams(Arc<CallStreams>);

impl Streams {
    pub(crate) fn new(streams: Arc<CallStreams>) -> Self {
        Self(streams)
    }

    /// Returns a reader of what the client sends.
    pub(crate) fn reader(&self) -> Reader {
        let mut reader = Reader::new(self.0.clone());
        if let Some(table) = self.0.table() {
            reader.count_in(Box::new(Gauge::new(table.sender.account(), Use::Arguments)));
        }
        reader
    }

    /// Answers with a stream and returns the handler's reply. `encode` encodes each item; its first `Err` ends the
    /// stream. Metadata that are set before the end of the stream's first poll are sent before the first item.
    pub async fn answer<S, F>(self, stream: S, encode: F) -> Reply
    where
        S: Stream + Send,
        F: FnMut(&S::Item, &mut Encoder) -> Result<(), Reply> + Send,
    {
        let (stream, context) = (pin!(stream), Context::current_shared());
        let choice = context.as_ref().and_then(Context::choice);
        if self.0.table().is_some_and(|table| table.sender.terms().compresses(choice)) {
            // This may take long, and others wait where the request was read.
            in_task().await;
        }
        let mut pump = Pump::new(self.0, Encoded { stream, encode }, ItemsBy::Answer(context));
        match poll_fn(|cx| pump.poll(cx)).await {
            Pumped::Done => Reply::End(Sent::new(EndReason::Completed)),
            Pumped::Closed => Reply::End(Sent::new(EndReason::Cancelled)),
            Pumped::Failed(reply) => reply,
        }
    }
}
