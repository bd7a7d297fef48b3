//! What takes a stream's items, as the application asks for them.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use bytes::Bytes;
use tokio::task::coop;

use super::call::{CallStreams, Ended};
use super::poll_share;
use crate::payload::Decoder;
use crate::proto::wire::{ItemHead, Items, WireError};
use crate::status::{Blame, Code, Executed, Status};

/// After so many items the peer may be told that they were taken, though others of their message are left.
const OFTEN: u64 = 256;

/// The end of a stream that receives. Dropping it is for who has it to tell the peer of.
#[derive(Debug)]
pub(crate) struct Reader {
    streams: Arc<CallStreams>,
    /// Those of the message that is being read.
    items: Items,
    /// How many bytes that has; 0: there is none.
    bytes: u64,
    /// How many were taken that the stream does not know of.
    taken: u64,
}

impl Reader {
    pub(crate) fn new(streams: Arc<CallStreams>) -> Self {
        Self { streams, items: Items::default(), bytes: 0, taken: 0 }
    }

    pub(crate) fn streams(&self) -> &Arc<CallStreams> {
        &self.streams
    }

    /// Reads the next item. `None`: the next message [must come](Self::poll) first. `Err`: how the stream has ended.
    #[inline]
    pub(crate) fn read<R>(
        &mut self,
        cx: &mut TaskContext<'_>,
        read: impl FnOnce(&mut Decoder) -> R,
    ) -> Poll<Option<Result<R, Ended>>> {
        ready!(poll_share(self.taken, cx));
        let item = match self.items.next_item() {
            Some(Ok(item)) => read(item),
            Some(Err(error)) => return Poll::Ready(Some(Err(self.malformed(&error)))),
            None => return Poll::Ready(None),
        };
        self.taken += 1;
        if self.taken >= OFTEN {
            self.tell(0);
        }
        Poll::Ready(Some(Ok(item)))
    }

    /// Goes on with the next message, when all items of the last were [read](Self::read). `Err`: how the stream has ended; that
    /// again and again.
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Ended>> {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes > 0 {
            self.items.clear();
            self.tell(bytes);
        }
        let budget = ready!(coop::poll_proceed(cx));
        let message = match ready!(self.streams.next(cx)) {
            Ok(message) => message,
            Err(ended) => return Poll::Ready(Err(ended)),
        };
        budget.made_progress();
        Poll::Ready(self.begin(message).map_err(|error| self.malformed(&error)))
    }

    fn begin(&mut self, message: Bytes) -> Result<(), WireError> {
        self.bytes = message.len() as u64;
        let (head, content) = ItemHead::decode(message)?;
        self.items.go_on_in(head, content);
        Ok(())
    }

    fn tell(&mut self, bytes: u64) {
        let items = std::mem::take(&mut self.taken);
        if self.streams.consumed(items, bytes)
            && let Some(connection) = self.streams.connection()
        {
            connection.flush_soon();
        }
    }

    /// The peer broke the protocol, which ends the connection.
    #[cold]
    fn malformed(&self, error: &WireError) -> Ended {
        if let Some(connection) = self.streams.connection() {
            connection.protocol_error(error);
        }
        let status = Status::new(Code::Internal, format!("an item of the stream: {error}"));
        Ended::Lost(status.with_executed(Executed::Maybe).with_blame(Blame::Peer))
    }
}
