//! Decompression of the peer's messages within a limit of memory.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{CantUnpack, LONG, unpack};
use crate::decoding::{self, VERY_LONG};
use crate::memory::Gauge;
use crate::payload::{Packed, Payload};
use crate::proto::wire::WireError;
use crate::refusal::refusal;
use crate::status::{Blame, Code, Executed, Status};

/// The limits on decompression of the peer's messages.
#[derive(Debug)]
pub(crate) struct Unpacking {
    max_message: u64,
    /// The bytes that may still be unpacked at this time.
    room: Semaphore,
}

/// A share of the [room](Unpacking), and the count of the memory that is in it. Both are freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    of: Arc<Unpacking>,
    len: usize,
    gauge: Gauge,
}

impl Unpacking {
    /// Returns limits: `max_message` bytes for each message, `max_together` bytes for all at one time.
    pub(crate) fn new(max_message: u64, max_together: u64) -> Arc<Self> {
        let most = max_together.min(Semaphore::MAX_PERMITS as u64);
        Arc::new(Self { max_message, room: Semaphore::new(most as usize) })
    }

    /// Checks a compressed message before it is unpacked: its unpacked length may exceed the limit for messages. `Err`:
    /// this side has not announced that it reads this compression.
    pub(crate) fn admit(&self, packed: &Packed) -> Result<Result<(), TooLong>, WireError> {
        if !packed.by().is_built_in() {
            return Err(WireError::new("content.compression", "is one that was not agreed on"));
        }
        let (len, max) = (packed.unpacked_len(), self.max_message);
        Ok(if len <= max { Ok(()) } else { Err(TooLong { len, max }) })
    }

    /// Unpacks an [admitted](Self::admit) message when there is room for it. Until then it takes no more memory than it
    /// arrived in. `gauge` counts the memory from before it is taken, and refuses what its account has no room for.
    pub(crate) async fn unpack(
        self: Arc<Self>,
        payload: Payload,
        gauge: Gauge,
    ) -> Result<(Payload, Room), NotUnpacked> {
        // At most the length of a message, which is at most the whole room; so it becomes available at some time.
        let len = payload.as_packed().and_then(|packed| u32::try_from(packed.unpacked_len()).ok());
        let len = len.ok_or(NotUnpacked::Cant(CantUnpack::Malformed))?;
        if len as usize > LONG {
            decoding::in_task().await;
        }
        // The semaphore is never closed.
        self.room.acquire_many(len).await.map_err(|_| NotUnpacked::Cant(CantUnpack::NoMemory))?.forget();
        let mut room = Room { of: self, len: len as usize, gauge };
        if !room.gauge.account().has_room(room.len) {
            return Err(NotUnpacked::NoRoom(room.len));
        }
        room.gauge.set(room.len);
        // A thread that unpacks goes on when the call has been given up, and keeps the room until it is done.
        let (unpacked, mut room) = match len as usize > VERY_LONG {
            true => {
                let host = room.gauge.account().turn();
                decoding::apart(Some(host), move || (unpack(payload), room)).await
            }
            false => (unpack(payload), room),
        };
        let unpacked = unpacked.map_err(NotUnpacked::Cant)?;
        room.gauge.set(unpacked.memory());
        Ok((unpacked, room))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.room.add_permits(self.len);
    }
}

/// The reason why a message was not unpacked.
#[derive(Debug)]
pub(crate) enum NotUnpacked {
    Cant(CantUnpack),
    /// `limits.memory` has no room for so many bytes.
    NoRoom(usize),
}

impl NotUnpacked {
    /// Whether there is no room for it in `limits.memory`.
    pub(crate) fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom(_))
    }

    pub(crate) fn status(self, what: &str) -> Status {
        match self {
            Self::Cant(why) => why.status(what),
            Self::NoRoom(len) => {
                let message = format!(
                    "{what}: {len} bytes when unpacked, for which the server's limits.memory has no room now; try again later, or \
                     send less"
                );
                let status = Status::new(Code::ResourceExhausted, message);
                status.with_executed(Executed::Maybe).with_blame(Blame::Environment)
            }
        }
    }
}

/// A message that is longer when unpacked than this side's limit.
pub(crate) struct TooLong {
    len: u64,
    max: u64,
}

impl TooLong {
    pub(crate) fn status(&self, what: &str, whose: &str) -> Status {
        let Self { len, max } = self;
        let message = format!(
            "{what}: {len} bytes when unpacked, but {whose} limits.max_message is {max}; raise it there, or send less"
        );
        refusal(Code::ResourceExhausted, message)
    }
}

#[cfg(test)]
mod tests {
    use farcall_proto::compress::Compression;

    use super::*;
    use crate::compress::pack;
    use crate::memory::{Account, Budget, Use};

    #[tokio::test]
    async fn messages_without_room_in_the_budget_are_not_unpacked() {
        const LEN: usize = 500 << 10;
        let account = Account::open(Budget::new(1 << 20), None);
        let unpacking = Unpacking::new(1 << 20, 8 << 20);
        let packed = pack(Compression::Lz4, &Payload::from_body(vec![7; LEN].into())).unwrap();
        let unpack =
            async || unpacking.clone().unpack(packed.clone(), Gauge::new(&account, Use::Arguments)).await;
        let (payload, first) = unpack().await.unwrap();
        assert!(payload.len() == LEN && account.held(Use::Arguments) >= LEN);
        let (_, _second) = unpack().await.unwrap();
        let refused = unpack().await.unwrap_err().status("the arguments");
        assert!(refused.message().contains("limits.memory"), "{refused}");
        // A refusal holds nothing.
        assert_eq!(account.held(Use::Arguments), 2 * LEN.next_multiple_of(4096));
        drop(first);
        assert!(unpack().await.is_ok());
    }
}
