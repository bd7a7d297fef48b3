//! The handle of a region, and its use by a peer.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Region, Rights};
use crate::access::{self, Accesses};
use crate::client::RawChannel;
use crate::context::Context;
use crate::proto::wire::Target;
use crate::refusal::refusal;
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::Atomic;

/// The handle of a region that another process exports, to be sent in any message. See [the module](super).
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteRegion {
    number: u64,
    key: u128,
    len: u64,
    rights: Rights,
}

impl RemoteRegion {
    pub(super) fn new(number: u64, key: u128, len: usize, rights: Rights) -> Self {
        Self { number, key, len: len as u64, rights }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the length of the region, in bytes. It is what the sender of the handle says: hold it against a limit before you take
    /// as much memory.
    pub fn len(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the rights of peers.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Returns the region as it is reached by a channel to the process that exports it. If the channel is to another process, each
    /// access fails NOT_FOUND.
    pub fn on(&self, channel: impl Into<RawChannel>) -> RemoteMemory {
        RemoteMemory { region: self.clone(), way: Way::Channel(channel.into()) }
    }

    /// Returns the region as a handler reaches it, if the caller exports it.
    pub fn of_caller(&self, cx: &Context) -> RemoteMemory {
        RemoteMemory { region: self.clone(), way: Way::Caller(cx.accesses()) }
    }
}

/// Shows no key.
impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, len, rights, .. } = self;
        f.debug_struct("RemoteRegion")
            .field("number", number)
            .field("len", len)
            .field("rights", rights)
            .finish_non_exhaustive()
    }
}

/// A region of another process, and the way to it.
///
/// Each method is one access. Several may be under way at once; further ones than 64 on a connection wait.
///
/// By RDMA all but the first accesses to a region need nothing of the owner's program: this process reads and writes the memory
/// by itself, and the owner's device changes numbers. The owner's runtime does what that can't do:
///
/// - everything on an encrypted link, with a device that has no memory windows of type 2B, for further regions than 16 on a connection, and
///   for memory that the owner's device can't register: the limit on locked memory is too low, for example;
/// - writes and operations on numbers, if the region's length is no multiple of eight;
/// - operations on numbers, with a device that has no atomic operations, or if the owner wants them done
///   [by its processor](super::Region::by_processor);
/// - [`store`](Self::store), and [`load`](Self::load) without the right to atomic operations.
///
/// # Cancel safety
///
/// An access whose future is dropped may have been done, or be done later. So `tokio::time::timeout` bounds how long an access is
/// waited for, not when it is done. There is no other limit, except that the connection to a silent peer is closed.
///
/// # Errors
///
/// - OUT_OF_RANGE, if the access is not within the region, or a number is not at a multiple of eight.
/// - PERMISSION_DENIED, if the region's rights do not allow it.
/// - NOT_FOUND, if the peer does not export the region: it was revoked, or has expired.
/// - UNAVAILABLE, if there is no connection. An access that had not begun moves to the next connection, four attempts in all. If it
///   says [Maybe](Executed::Maybe), the connection was lost, and the access may have been done. farcall does not repeat it. So it is with
///   an operation on a number that an RDMA device was doing when it, or the link, failed. A read or write whose RDMA link fails is no
///   error: it is done again by TCP, and the write may take effect twice, both times before it returns.
/// - UNIMPLEMENTED, if the peer's farcall is too old.
#[derive(Clone, Debug)]
pub struct RemoteMemory {
    region: RemoteRegion,
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    Channel(RawChannel),
    Caller(Weak<Accesses>),
}

impl RemoteMemory {
    /// Returns the handle.
    pub fn region(&self) -> &RemoteRegion {
        &self.region
    }

    /// Reads a range. At most this side's `limits.max_message`, else INVALID_ARGUMENT. On a server the bytes count in its `limits.memory`
    /// until the last view of them is dropped, and RESOURCE_EXHAUSTED says that there is no room.
    pub async fn read(&self, range: impl RangeBounds<usize>) -> Result<Bytes, Status> {
        let (offset, len) = access::range(range, self.region.len())?;
        self.allowed(Rights::READ)?;
        let target = self.target();
        self.way.access(move |on| async move { on.read(target, offset as u64, len).await }).await
    }

    /// Writes bytes, from an offset on. Long ones are written in pieces of 1 MiB, in any order.
    pub async fn write(&self, offset: usize, bytes: impl Into<Bytes>) -> Result<(), Status> {
        let bytes = bytes.into();
        access::range(offset..offset.saturating_add(bytes.len()), self.region.len())?;
        self.allowed(Rights::WRITE)?;
        let target = self.target();
        let write = move |on: Arc<Accesses>| {
            let bytes = bytes.clone();
            async move { on.write(target, offset as u64, bytes).await }
        };
        self.way.access(write).await
    }

    /// Reads a range into a region of this process, from a place on. The range may be of any length.
    ///
    /// By RDMA the bytes go straight there, without a copy. [`BulkRead::read_into`](crate::bulk::BulkRead::read_into) says when, and what the
    /// device has to do first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, bytes may get to the region later. Await [`Region::settled`] before you use the range for something else.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE also if the bytes do not fit into this process's region, and FAILED_PRECONDITION if that was revoked.
    pub async fn read_into(
        &self,
        range: impl RangeBounds<usize>,
        region: &Region,
        at: usize,
    ) -> Result<(), Status> {
        let (offset, len) = access::range(range, self.region.len())?;
        let into = region.local(at..at.saturating_add(len))?;
        self.allowed(Rights::READ)?;
        let target = self.target();
        let read = move |on: Arc<Accesses>| {
            let into = into.clone();
            async move { on.read_into(target, offset as u64, &into).await }
        };
        self.way.access(read).await
    }

    /// Writes a range of a region of this process, from an offset on. The range may be of any length.
    ///
    /// By RDMA nothing is copied. [`BulkRead::read_into`](crate::bulk::BulkRead::read_into) says when, and what the device has to do first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, bytes may be written later, as this process's region has them then. Await [`Region::settled`] before you
    /// write there what the peer may not see.
    ///
    /// # Errors
    ///
    /// OUT_OF_RANGE also if the range is not within this process's region, and FAILED_PRECONDITION if that was revoked.
    pub async fn write_from(
        &self,
        offset: usize,
        region: &Region,
        range: impl RangeBounds<usize>,
    ) -> Result<(), Status> {
        let from = region.local(range)?;
        access::range(offset..offset.saturating_add(from.len()), self.region.len())?;
        self.allowed(Rights::WRITE)?;
        let target = self.target();
        let write = move |on: Arc<Accesses>| {
            let from = from.clone();
            async move { on.write_from(target, offset as u64, &from).await }
        };
        self.way.access(write).await
    }

    /// Returns the number at an offset. It needs the right to read; with the right to atomic operations the owner's device may do it.
    pub async fn load(&self, offset: usize) -> Result<u64, Status> {
        self.is_number(offset)?;
        self.allowed(Rights::READ)?;
        let target = self.target();
        self.way.access(move |on| async move { on.load(target, offset as u64).await }).await
    }

    /// Sets the number at an offset. It needs the right to write.
    pub async fn store(&self, offset: usize, number: u64) -> Result<(), Status> {
        self.is_number(offset)?;
        self.allowed(Rights::WRITE)?;
        let target = self.target();
        self.way.access(move |on| async move { on.store(target, offset as u64, number).await }).await
    }

    /// Replaces the number at an offset by `new` if it is `expected`. Returns the number before: the swap was done if that is
    /// `expected`.
    pub async fn compare_and_swap(&self, offset: usize, expected: u64, new: u64) -> Result<u64, Status> {
        self.atomic(offset, Atomic::CompareAndSwap { expected, new }).await
    }

    /// Adds to the number at an offset, which wraps. Returns the number before.
    pub async fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Status> {
        self.atomic(offset, Atomic::FetchAdd(add)).await
    }

    async fn atomic(&self, offset: usize, atomic: Atomic) -> Result<u64, Status> {
        self.is_number(offset)?;
        self.allowed(Rights::ATOMICS)?;
        let target = self.target();
        self.way.access(move |on| async move { on.atomic(target, offset as u64, atomic).await }).await
    }

    /// Checks the place of a number.
    fn is_number(&self, offset: usize) -> Result<(), Status> {
        access::check_number(offset, self.region.len()).map_err(|_| {
            let message = format!(
                "there is no number at {offset} in a region of {} bytes: it must be at a multiple of 8 within it",
                self.region.len
            );
            refusal(Code::OutOfRange, message).with_blame(Blame::Application)
        })
    }

    /// Saves a round trip that would be in vain. The owner checks it, too.
    fn allowed(&self, right: Rights) -> Result<(), Status> {
        if self.region.rights.contains(right) {
            return Ok(());
        }
        let message = format!("the region's rights are {:?}, and this needs {right:?}", self.region.rights);
        Err(Status::new(Code::PermissionDenied, message)
            .with_blame(Blame::Application)
            .with_executed(Executed::No))
    }

    fn target(&self) -> Target {
        Target::Region { number: self.region.number, key: self.region.key }
    }
}

/// Attempts at an access, each on another connection; as many as for a call.
const ATTEMPTS: usize = 4;

impl Way {
    /// Makes an access. If the connection ends before it has begun, the next connection makes it.
    async fn access<T, F>(&self, access: impl Fn(Arc<Accesses>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        for _ in 1..ATTEMPTS {
            match access(self.accesses().await?).await {
                Err(status) if self.may_move(&status) => {}
                done => return done,
            }
        }
        access(self.accesses().await?).await
    }

    /// Whether an access that has failed like this may be made by another connection.
    fn may_move(&self, status: &Status) -> bool {
        let has_not_begun = status.code() == Code::Unavailable && status.executed() == Executed::No;
        has_not_begun && matches!(self, Self::Channel(_))
    }

    async fn accesses(&self) -> Result<Arc<Accesses>, Status> {
        match self {
            Self::Channel(channel) => Ok(channel.connection().await?.accesses().clone()),
            Self::Caller(accesses) => accesses.upgrade().ok_or_else(|| {
                Status::new(Code::Unavailable, "the caller's connection is gone").with_executed(Executed::No)
            }),
        }
    }
}
