//! The reader of a stream's items, as the application asks for them.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use bytes::Bytes;
use tokio::task::coop;

use super::call::{CallStreams, Ended};
use super::poll_share;
use super::unpack::Unpack;
use crate::compress::Compression;
use crate::payload::{Decoder, MemoryGrant};
use crate::proto::wire::{ItemHead, Items, WireError};
use crate::status::{Blame, Code, Executed, Status};

/// After how many items the peer may be told that they were taken, even in the middle of a message.
const OFTEN: u64 = 256;

/// A decoder for the next item. `None`: the next message [must come](Reader::poll) first. `Err`: how the stream has
/// ended.
pub(crate) type NextItem<'a, E> = Poll<Option<Result<&'a mut Decoder, E>>>;

/// The receiving end of a stream. Its owner must tell the peer when it drops the reader.
pub(crate) struct Reader {
    streams: Arc<CallStreams>,
    /// The items of the message that is being read.
    items: Items,
    /// The length of that message in bytes; 0 if there is none.
    bytes: u64,
    /// How many items were taken that the stream was not told of.
    taken: u64,
    /// The message that is being read, or was, if it is compressed.
    packed: Option<Box<Unpack>>,
}

impl Reader {
    pub(crate) fn new(streams: Arc<CallStreams>) -> Self {
        Self { streams, items: Items::default(), bytes: 0, taken: 0, packed: None }
    }

    /// Counts the memory of an item's values in this account, until the next item is read or the reader is dropped.
    pub(crate) fn count_in(&mut self, account: Box<dyn MemoryGrant>) {
        self.items.count_in(account);
    }

    /// Returns the compression of the last item.
    pub(crate) fn compression(&self) -> Compression {
        self.packed.as_ref().map_or(Compression::None, |packed| packed.by())
    }

    pub(crate) fn streams(&self) -> &Arc<CallStreams> {
        &self.streams
    }

    /// Advances to the next item.
    #[inline]
    pub(crate) fn next(&mut self, cx: &mut TaskContext<'_>) -> NextItem<'_, Ended> {
        ready!(poll_share(self.taken, cx));
        match self.items.advance() {
            Some(Ok(())) => {}
            Some(Err(error)) => return Poll::Ready(Some(Err(self.malformed(&error)))),
            None => return Poll::Ready(None),
        }
        self.taken += 1;
        if self.taken >= OFTEN {
            self.tell(0);
        }
        Poll::Ready(Some(Ok(self.items.input())))
    }

    /// Takes the items of the current message, to decode the one that was [advanced to](Self::next) elsewhere. There is none until
    /// they are [returned](Self::go_on_with).
    pub(crate) fn take_items(&mut self) -> Items {
        std::mem::take(&mut self.items)
    }

    /// Goes on with items that were [taken](Self::take_items).
    pub(crate) fn go_on_with(&mut self, items: Items) {
        self.items = items;
    }

    /// Advances to the next message, when all items of the last were [read](Self::next). `Err`: how the stream has
    /// ended; every later call returns that again.
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Ended>> {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes > 0 {
            self.items.clear();
            if let Some(packed) = &mut self.packed {
                packed.give_back();
            }
            self.tell(bytes);
        }
        if self.packed.as_ref().is_some_and(|packed| packed.is_pending()) {
            return self.poll_unpacked(cx);
        }
        let budget = ready!(coop::poll_proceed(cx));
        let message = match ready!(self.streams.next(cx)) {
            Ok(message) => message,
            Err(ended) => return Poll::Ready(Err(ended)),
        };
        budget.made_progress();
        match self.begin(message) {
            Ok(()) => self.poll_unpacked(cx),
            Err(error) => Poll::Ready(Err(self.malformed(&error))),
        }
    }

    /// Waits until the current message is decompressed, if it is compressed.
    fn poll_unpacked(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Ended>> {
        if let Some(packed) = &mut self.packed {
            let (head, content, bytes) = ready!(packed.poll(cx))?;
            self.items.go_on_in(head, content);
            self.bytes = bytes;
        }
        Poll::Ready(Ok(()))
    }

    fn begin(&mut self, message: Bytes) -> Result<(), WireError> {
        let bytes = message.len() as u64;
        let (head, content) = ItemHead::decode(message)?;
        self.packed = None;
        if content.payload.as_packed().is_some() {
            self.packed = Some(Unpack::new(&self.streams, head, content.payload, bytes)?);
        } else {
            self.items.go_on_in(head, content);
            self.bytes = bytes;
        }
        Ok(())
    }

    fn tell(&mut self, bytes: u64) {
        let items = std::mem::take(&mut self.taken);
        if self.streams.consumed(items, bytes)
            && let Some(table) = self.streams.table()
        {
            table.sender.flush_soon();
        }
    }

    /// Closes the connection, because the peer broke the protocol or there is no memory for its message.
    #[cold]
    fn malformed(&self, error: &WireError) -> Ended {
        if let Some(table) = self.streams.table() {
            table.sender.protocol_error(error);
        }
        let (code, blame) = match error.is_no_memory() {
            true => (Code::ResourceExhausted, Blame::Environment),
            false => (Code::Internal, Blame::Peer),
        };
        let status = Status::new(code, format!("an item of the stream: {error}"));
        Ended::Lost(status.with_executed(Executed::Maybe).with_blame(blame))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("streams", &self.streams).finish_non_exhaustive()
    }
}
