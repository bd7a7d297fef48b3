//! Compressed messages of calls: what is sent so, and how much this side unpacks of what its peer has sent.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Semaphore;

use super::Connection;
use super::registry::{Found, Registry, refusal};
use crate::compress::{self, CantUnpack, Compression, LONG, MIN};
use crate::config::Limits;
use crate::payload::{Packed, Payload};
use crate::proto::wire::WireError;
use crate::service::{HandlerFuture, Reply, Request};
use crate::status::{Code, Executed, Status};

impl Connection {
    /// Whether a message of so many bytes is compressed though nobody has said so of this one.
    #[inline]
    pub(super) fn packs(&self, len: u32) -> bool {
        len as usize >= MIN && self.settings.calls.compress != Compression::None
    }

    /// What is compressed by, of what is to be so: nothing that the peer can't read. `by`: `None` is as the settings have it.
    fn agreed(&self, by: Option<Compression>) -> Option<Compression> {
        let by = by.unwrap_or(self.settings.calls.compress);
        self.sender.peer().filter(|peer| peer.features & by.feature() != 0).map(|_| by)
    }

    /// Whether anything is compressed that is to be so.
    pub(crate) fn compresses(&self, by: Option<Compression>) -> bool {
        self.agreed(by).is_some()
    }

    /// What is sent of a payload that is to be compressed.
    #[inline(never)]
    pub(super) fn packed(&self, by: Option<Compression>, payload: Payload) -> Payload {
        let Some(by) = self.agreed(by) else { return payload };
        // What is too long for the peer is too long for it compressed, too.
        let most = self.sender.peer().map_or(0, |peer| peer.max_message);
        let fits = payload.len() >= MIN && payload.len() as u64 <= most;
        if fits { compress::pack(by, &payload).unwrap_or(payload) } else { payload }
    }

    /// Whether to compress a reply takes long.
    #[cold]
    pub(super) fn packs_long(&self, reply: &Reply) -> bool {
        let (reply, by) = match reply {
            Reply::With(with) => (&with.reply, with.compression),
            reply => (reply, None),
        };
        let (Reply::Ok(payload) | Reply::Err(payload)) = reply else { return false };
        payload.len() > LONG && self.compresses(by)
    }

    /// The handler of a call whose arguments are compressed, perhaps.
    #[cold]
    pub(super) fn handler_of_any(
        &self,
        registry: &Arc<Registry>,
        found: Found,
        request: Request,
    ) -> HandlerFuture {
        if request.payload.as_packed().is_none() {
            return registry.call(found, request);
        }
        let (registry, unpacking) = (registry.clone(), self.unpacking.clone());
        Box::pin(async move {
            let Request { context, payload, streams } = request;
            match unpacking.unpack(payload).await {
                // As long as the handler has them.
                Ok((payload, _room)) => registry.call(found, Request { context, payload, streams }).await,
                Err(why) => Reply::Status(why.status("the arguments").with_executed(Executed::No)),
            }
        })
    }

    /// Unpacks an answer, if it is compressed, in the task that waits for it.
    #[cold]
    pub(super) fn unpack_answer(&self, payload: Payload) -> Result<Result<Payload, Status>, WireError> {
        let Some(packed) = payload.as_packed() else { return Ok(Ok(payload)) };
        if let Err(too_long) = self.unpacking.admit(packed)? {
            return Ok(Err(too_long.status("the result", "the client's").with_executed(Executed::Maybe)));
        }
        Ok(compress::unpack(payload).map_err(|why| why.status("the result")))
    }
}

/// How much of what the peer has sent this side unpacks, at most.
#[derive(Debug)]
pub(super) struct Unpacking {
    max_message: u64,
    /// The bytes that may be unpacked beside those that are.
    room: Semaphore,
}

/// A share of that, which is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    of: Arc<Unpacking>,
    len: usize,
}

impl Unpacking {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        let most = limits.max_assembly.min(Semaphore::MAX_PERMITS as u64);
        Arc::new(Self { max_message: limits.max_message, room: Semaphore::new(most as usize) })
    }

    /// Whether it takes what a peer has sent, compressed: unpacked that may be longer than any message. `Err`: this side has
    /// not said that it reads it.
    pub(super) fn admit(&self, packed: &Packed) -> Result<Result<(), TooLong>, WireError> {
        if !packed.by().is_built_in() {
            return Err(WireError::new("content.compression", "is one that was not agreed on"));
        }
        let (len, max) = (packed.unpacked_len(), self.max_message);
        Ok(if len <= max { Ok(()) } else { Err(TooLong { len, max }) })
    }

    /// Unpacks what was [admitted](Self::admit) when there is room for it; until then it has no more memory than it came in.
    pub(super) async fn unpack(self: Arc<Self>, payload: Payload) -> Result<(Payload, Room), CantUnpack> {
        // No more than a message may have, and so it can be had some time.
        let len = payload.as_packed().and_then(|packed| u32::try_from(packed.unpacked_len()).ok());
        let len = len.ok_or(CantUnpack::Malformed)?;
        if len as usize > LONG {
            give_way().await;
        }
        // It is never closed.
        self.room.acquire_many(len).await.map_err(|_| CantUnpack::NoMemory)?.forget();
        let room = Room { of: self, len: len as usize };
        Ok((compress::unpack(payload)?, room))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.room.add_permits(self.len);
    }
}

/// A message that would be longer, unpacked, than this side takes any.
pub(super) struct TooLong {
    len: u64,
    max: u64,
}

impl TooLong {
    pub(super) fn status(&self, what: &str, whose: &str) -> Status {
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
