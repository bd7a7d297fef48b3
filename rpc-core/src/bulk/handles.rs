//! Handles of lent memory, which travel in the arguments of a call.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

use super::lent_region::LentRegion;
use super::loan::{Lend, LendParts, Loan, Readable, Writable};
use crate::access::{self, Accesses, LentMemory};
use crate::codec::loan;
use crate::context::Context;
use crate::proto::wire::Target;
use crate::region::Region;
use crate::status::{Blame, Code, Executed, Status};

/// Memory of the client that the server of one call may read, an argument of its method. See [the module](super).
///
/// Clones name the same memory, so that several calls may lend it, also to several servers at once.
#[derive(Clone)]
pub struct BulkRead {
    memory: Handle,
}

/// Memory of the client that the server of one call may write, an argument of its method. See [the module](super).
///
/// Clones name the same memory.
#[derive(Clone)]
pub struct BulkWrite {
    memory: Handle,
}

impl BulkRead {
    /// Lends memory: `Bytes`, or several. `Bytes::from` converts a vector. `Vec::from` converts it back, without a copy if no other
    /// clone exists.
    ///
    /// Bytes of [`farcall::buf`](https://docs.rs/farcall/latest/farcall/fn.buf.html) go to an RDMA peer without a copy: the peer reads
    /// them by itself, if they are 16 pieces at most, of 16 KiB or more on average.
    pub fn lend<M: LendParts + Sync>(memory: M) -> (Self, Loan<M>) {
        let parts = memory.parts();
        let len = parts.iter().map(Bytes::len).sum();
        let pieces = parts.iter().filter(|part| !part.is_empty()).count();
        let (lent, loan) = Loan::new(memory, len, pieces, parts, |_| ());
        (Self { memory: Handle::Lender(Arc::new(Readable(lent)), len) }, loan)
    }

    /// Lends a range of a region of this process. Others may read and change the region meanwhile.
    ///
    /// By RDMA the server reads 16 KiB or more by itself, without a copy. For that the device registers the whole region when such a range
    /// is lent first, and the server reads by messages until it has. The region stays registered until it is revoked, and counts against
    /// the limit on locked memory. If the device can't register it, the server goes on to read by messages.
    ///
    /// [Reclaim](Loan::reclaim) the loan of a call that was given up before you use the range for something else. If a transfer of the range
    /// was given up, await [`Region::settled`] before you lend it.
    ///
    /// A server that reads by messages is refused with CANCELLED when the region was revoked. One that reads by itself can go on until the
    /// call ends, and [`Region::revoke`] waits for that.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the range is not within the region.
    /// - FAILED_PRECONDITION, if the region was revoked.
    ///
    /// ```
    /// # mod farcall { pub use farcall_core::{bulk::BulkRead, region, status::Status}; }
    /// use farcall::BulkRead;
    /// use farcall::region::{Region, Rights};
    ///
    /// let cache = Region::zeroed(1 << 20, Rights::NONE);
    /// let (page, loan) = BulkRead::of_region(&cache, 16 << 10..32 << 10)?;
    /// // client.put_page(1, page).await?;
    /// # assert_eq!(page.len(), 16 << 10);
    /// # drop(loan);
    /// # Ok::<_, farcall::Status>(())
    /// ```
    pub fn of_region(region: &Region, range: impl RangeBounds<usize>) -> Result<(Self, Loan<()>), Status> {
        let (memory, loan) = Handle::of_region(region, range, false)?;
        Ok((Self { memory }, loan))
    }

    /// Returns the length of the memory, in bytes. On the server it is what the client says: hold it against a limit before you take
    /// as much memory.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Server: reads a range of the client's memory. Several reads may be under way at once, and are faster so; further ones than
    /// 64 on a connection wait.
    ///
    /// It waits as long as the call lasts, if the client does not answer. The bytes count in this server's `limits.memory` until the last
    /// view of them is dropped.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the range is not within the memory.
    /// - CANCELLED, if the client's call has ended, and its loan with it.
    /// - INVALID_ARGUMENT, if the range is longer than this server's `limits.max_message` allows, which is 64 bytes less.
    /// - RESOURCE_EXHAUSTED, if this side has no memory for the bytes, or `limits.memory` no room.
    /// - FAILED_PRECONDITION, if the memory is not lent to this side.
    /// - UNAVAILABLE, if the connection is lost.
    pub async fn read(&self, range: impl RangeBounds<usize>) -> Result<Bytes, Status> {
        let (offset, len) = access::range(range, self.len())?;
        let (accesses, target) = self.memory.lender()?;
        accesses.read(target, offset as u64, len).await
    }

    /// Server: reads a range of the client's memory into a region of its own, from a place on. A page cache fills its pages like this.
    /// The range may be of any length.
    ///
    /// By RDMA the bytes go straight to the region, without a copy. The first transfer by a device waits until that has registered the
    /// whole region. The region stays registered until it is revoked, and counts against the limit on locked memory. The bytes come by
    /// messages, and are copied, if the device can't register the region, or the client's memory is not such that it can be read. The
    /// copies take up to 4 MiB.
    ///
    /// Transfers of one region that would get in each other's way take turns, in the order in which they were begun. A client that does not
    /// answer keeps its turn as long as its call lasts, so bound that by a deadline where others need the page.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the bytes may be in the region, or get there later. Await [`Region::settled`] before you use the
    /// range for something else.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read) but INVALID_ARGUMENT. OUT_OF_RANGE also if the bytes do not fit into the region, and
    /// FAILED_PRECONDITION if that was revoked. The region may have some of the bytes then.
    ///
    /// ```
    /// # mod farcall { pub use farcall_core::{bulk::BulkRead, region, status::Status}; }
    /// use farcall::BulkRead;
    /// use farcall::region::Region;
    ///
    /// /// Stores a page of 16 KiB that the caller lends.
    /// async fn put_page(pages: &Region, index: usize, data: BulkRead) -> Result<(), farcall::Status> {
    ///     data.read_into(..16 << 10, pages, index * (16 << 10)).await
    /// }
    /// ```
    pub async fn read_into(
        &self,
        range: impl RangeBounds<usize>,
        region: &Region,
        at: usize,
    ) -> Result<(), Status> {
        let (offset, len) = access::range(range, self.len())?;
        let into = region.local(at..at.saturating_add(len))?;
        let (accesses, target) = self.memory.lender()?;
        accesses.read_into(target, offset as u64, &into).await
    }
}

/// For memory that need not be reclaimed.
impl From<Bytes> for BulkRead {
    fn from(memory: Bytes) -> Self {
        Self::lend(memory).0
    }
}

impl BulkWrite {
    /// Lends memory: a byte vector or buffer, or several. See [`Lend`].
    ///
    /// Buffers of [`farcall::buf`](https://docs.rs/farcall/latest/farcall/fn.buf.html) spare a copy. By RDMA the server writes to them by
    /// itself, if they are 16 at most, of 16 KiB or more on average. Otherwise, if the server writes a whole one of 64 KiB or more by one
    /// write of at most 1 MiB, the buffer takes over the memory in which the bytes have arrived.
    pub fn lend<M: Lend>(mut memory: M) -> (Self, Loan<M>) {
        let (len, pieces) = (memory.size(), memory.pieces());
        let (lent, loan) = Loan::new(memory, len, pieces, Vec::new(), M::unshare);
        (Self { memory: Handle::Lender(Arc::new(Writable(lent)), len) }, loan)
    }

    /// Lends a range of a region of this process, which others may read and change meanwhile. By RDMA the server writes 16 KiB or more by
    /// itself, without a copy. [`BulkRead::of_region`] says when, and how long the region is registered.
    ///
    /// [Reclaim](Loan::reclaim) the loan before you read the range, if the call was given up. If a transfer of the range was given up, await
    /// [`Region::settled`] before you lend it.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the range is not within the region.
    /// - FAILED_PRECONDITION, if the region was revoked.
    pub fn of_region(region: &Region, range: impl RangeBounds<usize>) -> Result<(Self, Loan<()>), Status> {
        let (memory, loan) = Handle::of_region(region, range, true)?;
        Ok((Self { memory }, loan))
    }

    /// Returns the length of the memory, in bytes. On the server it is what the client says: hold it against a limit before you take
    /// as much memory.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Server: writes to the client's memory, from an offset on. Returns when the bytes are there. Several writes may be under
    /// way at once; those to one place take effect in any order.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the bytes may have been written, or be written later while the call lasts.
    ///
    /// # Errors
    ///
    /// - OUT_OF_RANGE, if the bytes do not fit.
    /// - CANCELLED, if the client's call has ended, and its loan with it.
    /// - RESOURCE_EXHAUSTED, if the client has no memory for what arrives.
    /// - FAILED_PRECONDITION, if the memory is not lent to this side.
    /// - UNAVAILABLE, if the connection is lost.
    pub async fn write(&self, offset: usize, bytes: impl Into<Bytes>) -> Result<(), Status> {
        let bytes = bytes.into();
        access::range(offset..offset.saturating_add(bytes.len()), self.len())?;
        let (accesses, target) = self.memory.lender()?;
        accesses.write(target, offset as u64, bytes).await
    }

    /// Server: writes a range of a region of its own to the client's memory, from an offset on. Returns when the bytes are there. The
    /// range may be of any length.
    ///
    /// By RDMA nothing is copied. [`BulkRead::read_into`] says when, and what the device has to do first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the bytes may have been written, or be written later while the call lasts. They are what the region
    /// has then. Await [`Region::settled`] before you write there what this client may not see.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write). OUT_OF_RANGE also if the range is not within the region, and FAILED_PRECONDITION if that was
    /// revoked.
    pub async fn write_from(
        &self,
        offset: usize,
        region: &Region,
        range: impl RangeBounds<usize>,
    ) -> Result<(), Status> {
        let from = region.local(range)?;
        access::range(offset..offset.saturating_add(from.len()), self.len())?;
        let (accesses, target) = self.memory.lender()?;
        accesses.write_from(target, offset as u64, &from).await
    }
}

/// Lent memory, as one of the two sides has it.
#[derive(Clone)]
enum Handle {
    /// Of the client, with its length.
    Lender(Arc<dyn LentMemory>, usize),
    /// Of the server, for one call.
    Borrower(Arc<Borrowed>),
}

/// Memory that is lent to this side.
struct Borrowed {
    call: u64,
    number: u64,
    len: u64,
    by: Weak<Accesses>,
}

impl Borrowed {
    fn target(&self) -> Target {
        Target::Loan { call: self.call, number: self.number }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(accesses) = self.by.upgrade() {
            accesses.give_back(self.target());
        }
    }
}

impl Handle {
    fn of_region(
        region: &Region,
        range: impl RangeBounds<usize>,
        write: bool,
    ) -> Result<(Self, Loan<()>), Status> {
        let range = region.local(range)?;
        let len = range.len();
        let (lent, loan) = LentRegion::new(range, write)?;
        Ok((Self::Lender(lent, len), loan))
    }

    fn len(&self) -> usize {
        match self {
            Self::Lender(_, len) => *len,
            Self::Borrower(borrowed) => usize::try_from(borrowed.len).unwrap_or(usize::MAX),
        }
    }

    /// Returns the way to the client that lends the memory.
    fn lender(&self) -> Result<(Arc<Accesses>, Target), Status> {
        let Self::Borrower(borrowed) = self else {
            return Err(precondition("this side lends the memory; only the server of the call uses it"));
        };
        let gone = || match Weak::ptr_eq(&borrowed.by, &Weak::new()) {
            true => precondition("the memory was not lent to this side"),
            false => Status::new(Code::Unavailable, "the connection by which the memory was lent is gone")
                .with_executed(Executed::No),
        };
        Ok((borrowed.by.upgrade().ok_or_else(gone)?, borrowed.target()))
    }

    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Lender(memory, len) => {
                loan::serialize(&(memory.number(), *len as u64), Arc::new(memory.clone()), serializer)
            }
            Self::Borrower(_) => Err(serde::ser::Error::custom(
                "memory that was lent can't be passed on; read it, and lend the copy",
            )),
        }
    }
}

fn precondition(why: &'static str) -> Status {
    Status::new(Code::FailedPrecondition, why).with_blame(Blame::Application).with_executed(Executed::No)
}

macro_rules! travels {
    ($($handle:ident)*) => {$(
        impl Serialize for $handle {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.memory.serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $handle {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                /// The loan's number and the length of its memory. Its name is part of a method's signature.
                #[derive(serde::Deserialize)]
                struct $handle(u64, u64);

                let $handle(number, len) = $handle::deserialize(deserializer)?;
                let (by, call) = Context::current_accesses();
                let memory = Handle::Borrower(Arc::new(Borrowed { call, number, len, by }));
                Ok(Self { memory })
            }
        }

        impl fmt::Debug for $handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($handle)).field("len", &self.len()).finish_non_exhaustive()
            }
        }
    )*};
}

travels! { BulkRead BulkWrite }
