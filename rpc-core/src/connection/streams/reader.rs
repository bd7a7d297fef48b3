//! What takes a stream's items, as the application asks for them.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use bytes::Bytes;
use tokio::task::coop;

use super::call::{CallStreams, Ended};
use super::poll_share;
use crate::payload::Payload;
use crate::proto::wire::{ItemHead, Items, WireError};
use crate::status::{Blame, Code, Executed, Status};

/// After so many items the peer may be told that they were taken, though others of their message are left.
const OFTEN: u64 = 256;

/// The end of a stream that receives. Dropping it is for who has it to tell the peer of.
#[derive(Debug)]
pub(crate) struct Reader {
    streams: Arc<CallStreams>,
    /// Those of the message that is being read, which has so many bytes.
    items: Option<(Items, u64)>,
    /// How many were taken that the stream does not know of.
    taken: u64,
}

impl Reader {
    pub(crate) fn new(streams: Arc<CallStreams>) -> Self {
        Self { streams, items: None, taken: 0 }
    }

    pub(crate) fn streams(&self) -> &Arc<CallStreams> {
        &self.streams
    }

    /// The next item, or how the stream has ended; that again and again.
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Payload, Ended>> {
        loop {
            if let Some((items, bytes)) = &mut self.items {
                ready!(poll_share(self.taken, cx));
                match items.next() {
                    Some(Ok(item)) => {
                        self.taken += 1;
                        if self.taken >= OFTEN {
                            self.tell(0);
                        }
                        return Poll::Ready(Ok(item));
                    }
                    None => {
                        let bytes = *bytes;
                        self.items = None;
                        self.tell(bytes);
                    }
                    Some(Err(error)) => {
                        self.items = None;
                        return Poll::Ready(Err(self.malformed(&error)));
                    }
                }
            }
            let budget = ready!(coop::poll_proceed(cx));
            let message = match ready!(self.streams.next(cx)) {
                Ok(message) => message,
                Err(ended) => return Poll::Ready(Err(ended)),
            };
            budget.made_progress();
            if let Err(error) = self.read(message) {
                return Poll::Ready(Err(self.malformed(&error)));
            }
        }
    }

    fn read(&mut self, message: Bytes) -> Result<(), WireError> {
        let len = message.len() as u64;
        let (head, content) = ItemHead::decode(message)?;
        self.items = Some((Items::new(head, content), len));
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
    fn malformed(&self, error: &WireError) -> Ended {
        if let Some(connection) = self.streams.connection() {
            connection.protocol_error(error);
        }
        let status = Status::new(Code::Internal, format!("an item of the stream: {error}"));
        Ended::Lost(status.with_executed(Executed::Maybe).with_blame(Blame::Peer))
    }
}
