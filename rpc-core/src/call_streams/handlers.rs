//! The streams of a call, as its handler has them.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use futures_core::Stream;

use super::{CallStreams, Encoded, ItemsBy, Pump, Pumped, Reader};
use crate::compress::give_way;
use crate::context::Context;
use crate::payload::Encoder;
use crate::proto::wire::EndReason;
use crate::reply::{Reply, Sent};

/// The streams of a call, as its handler has them.
#[derive(Debug)]
pub struct Streams(Arc<CallStreams>);

impl Streams {
    pub(crate) fn new(streams: Arc<CallStreams>) -> Self {
        Self(streams)
    }

    /// Returns the end of them that receives what the client sends.
    pub(crate) fn reader(&self) -> Reader {
        Reader::new(self.0.clone())
    }

    /// Answers with a stream, each of whose items `encode` encodes; the first `Err` is its end. Gives the handler's reply.
    /// The metadata that are set until the stream has been polled once go with its beginning.
    pub async fn answer<S, F>(self, stream: S, encode: F) -> Reply
    where
        S: Stream + Send,
        F: FnMut(&S::Item, &mut Encoder) -> Result<(), Reply> + Send,
    {
        let (stream, context) = (pin!(stream), Context::current_shared());
        let choice = context.as_ref().and_then(Context::choice);
        if self.0.table().is_some_and(|table| table.sender.terms().compresses(choice)) {
            // Where its request was read others wait, and that may take long.
            give_way().await;
        }
        let mut pump = Pump::new(self.0, Encoded { stream, encode }, ItemsBy::Answer(context));
        match poll_fn(|cx| pump.poll(cx)).await {
            Pumped::Done => Reply::End(Sent::new(EndReason::Completed)),
            Pumped::Closed => Reply::End(Sent::new(EndReason::Cancelled)),
            Pumped::Failed(reply) => reply,
        }
    }
}
