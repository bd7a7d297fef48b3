//! Compressed items, on their way to their reader.

use std::task::{Context as TaskContext, Poll, ready};

use super::call::{CallStreams, Ended};
use crate::compress::{Compression, Room};
use crate::memory::{Account, Gauge, Use};
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::wire::{Content, EndReason, ItemHead, WireError, encode_status};
use crate::status::{Blame, Executed, Status};
use crate::transport::BoxFuture;

/// A compressed ITEM, and the memory that its items take until they are read.
pub(super) struct Unpack {
    by: Compression,
    head: ItemHead,
    len: u64,
    /// `None`: it was returned.
    item: Option<BoxFuture<Result<(Payload, Room), Status>>>,
    room: Option<Room>,
}

impl Unpack {
    /// Starts to decompress an ITEM of `len` bytes. Fails if it is malformed.
    #[cold]
    pub(super) fn new(
        streams: &CallStreams,
        head: ItemHead,
        payload: Payload,
        len: u64,
    ) -> Result<Box<Self>, WireError> {
        let (by, is_answer) = (payload.compression(), streams.is_answer());
        let unpacking = streams.unpacking().clone();
        let admitted = match payload.as_packed() {
            Some(packed) => unpacking.admit(packed)?,
            None => Ok(()),
        };
        // Nothing limits items whose connection is gone.
        let account = streams.table().map(|table| table.sender.account().clone());
        let account = account.unwrap_or_else(|| Account::unlimited(None));
        let gauge = Gauge::new(&account, Use::Items);
        let item: BoxFuture<_> = Box::pin(async move {
            let what = "an item of the stream";
            let whose = if is_answer { "the client's" } else { "the server's" };
            admitted.map_err(|too_long| too_long.status(what, whose).with_blame(Blame::Peer))?;
            unpacking.unpack(payload, gauge).await.map_err(|why| why.status(what))
        });
        Ok(Box::new(Self { by, head, len, item: Some(item), room: None }))
    }

    pub(super) fn by(&self) -> Compression {
        self.by
    }

    /// Whether the ITEM was not [returned](Self::poll) yet.
    pub(super) fn is_pending(&self) -> bool {
        self.item.is_some()
    }

    /// Returns the ITEM and its received length in bytes. Can succeed once.
    pub(super) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(ItemHead, Content, u64), Ended>> {
        let Some(unpacking) = &mut self.item else { return Poll::Ready(Err(Ended::gave_up())) };
        let unpacked = ready!(unpacking.as_mut().poll(cx));
        self.item = None;
        Poll::Ready(unpacked.map_err(failed).map(|(payload, room)| {
            self.room = Some(room);
            (self.head, Content { payload, ..Content::default() }, self.len)
        }))
    }

    /// Frees the memory of items that have been read.
    pub(super) fn give_back(&mut self) {
        self.room = None;
    }
}

/// Returns the end of a stream with this status.
fn failed(status: Status) -> Ended {
    let status = status.with_executed(Executed::Maybe);
    let payload = Payload::from_body(encode_status(&status));
    Ended::Said { reason: EndReason::Status, payload, metadata: AnswerMetadata::default() }
}
