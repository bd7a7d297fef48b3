//! Decompression of what peers have sent, within the memory that this side gives it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Semaphore;

use super::{CantUnpack, LONG, unpack};
use crate::payload::{Packed, Payload};
use crate::proto::wire::WireError;
use crate::refusal::refusal;
use crate::status::{Code, Status};

/// How much of what the peer has sent this side unpacks, at most.
#[derive(Debug)]
pub(crate) struct Unpacking {
    max_message: u64,
    /// The bytes that may be unpacked beside those that are.
    room: Semaphore,
}

/// A share of that, which is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    of: Arc<Unpacking>,
    len: usize,
}

impl Unpacking {
    /// Messages of up to so many bytes each are unpacked, and of so many together.
    pub(crate) fn new(max_message: u64, max_together: u64) -> Arc<Self> {
        let most = max_together.min(Semaphore::MAX_PERMITS as u64);
        Arc::new(Self { max_message, room: Semaphore::new(most as usize) })
    }

    /// Whether it takes what a peer has sent, compressed: unpacked that may be longer than any message. `Err`: this side has
    /// not said that it reads it.
    pub(crate) fn admit(&self, packed: &Packed) -> Result<Result<(), TooLong>, WireError> {
        if !packed.by().is_built_in() {
            return Err(WireError::new("content.compression", "is one that was not agreed on"));
        }
        let (len, max) = (packed.unpacked_len(), self.max_message);
        Ok(if len <= max { Ok(()) } else { Err(TooLong { len, max }) })
    }

    /// Unpacks what was [admitted](Self::admit) when there is room for it; until then it has no more memory than it came in.
    pub(crate) async fn unpack(self: Arc<Self>, payload: Payload) -> Result<(Payload, Room), CantUnpack> {
        // No more than a message may have, and so it can be had some time.
        let len = payload.as_packed().and_then(|packed| u32::try_from(packed.unpacked_len()).ok());
        let len = len.ok_or(CantUnpack::Malformed)?;
        if len as usize > LONG {
            give_way().await;
        }
        // It is never closed.
        self.room.acquire_many(len).await.map_err(|_| CantUnpack::NoMemory)?.forget();
        let room = Room { of: self, len: len as usize };
        Ok((unpack(payload)?, room))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.room.add_permits(self.len);
    }
}

/// A message that would be longer, unpacked, than this side takes any.
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

/// Ready when it is polled again, by the task that a handler becomes which is not done at once.
pub(crate) async fn give_way() {
    let mut has = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
