//! Memory that one process exports, and that others read, write and count in.
//!
//! The owner [exports](Region::export) memory and sends the [`RemoteRegion`] that names it to others, in any message. A peer
//! with that handle and a connection to the owner may read, write, and change numbers of eight bytes atomically, as far as the region's
//! [`Rights`] allow. The owner ends it all by [`revoke`](Region::revoke).
//!
//! ```
//! # mod farcall { pub use farcall_core::region; pub use farcall_core::status::Status; }
//! use farcall::region::{Region, RemoteRegion, Rights};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! // The owner, for example a server:
//! let counters = Region::zeroed(4096, Rights::READ | Rights::ATOMICS);
//! let handle: RemoteRegion = counters.remote(); // the answer to a call
//!
//! // A peer that has the handle, and a channel to the owner:
//! // let ticket = handle.on(&channel).fetch_add(0, 1).await?;
//!
//! assert_eq!(counters.fetch_add(0, 1).await?, 0);
//! assert_eq!(counters.read(..8)?, [1, 0, 0, 0, 0, 0, 0, 0]);
//! # assert_eq!(handle.len(), 4096);
//! counters.revoke().await;
//! # Ok::<_, farcall::Status>(())
//! # }).unwrap();
//! ```
//!
//! # What holds
//!
//! - A handle is a capability: it has a random key of 128 bits. Send it by encrypted connections where others may listen.
//! - A region belongs to its process, not to one of its servers. A handle works by any connection to the process, also after the
//!   server has closed that sent it.
//! - Numbers are little-endian, at offsets that are multiples of eight. Operations on them are atomic among each other, by whichever
//!   peer, and among those of the owner through [`Region`]. `load` and `store` never see, or leave, half a number. An owner that
//!   changes the words it has exported by other means says so by [`by_processor`](Region::by_processor).
//! - Other reads and writes may see each other half done: a device may read or write the bytes of one access in any order. Put a
//!   checksum with what belongs together, as the example `index` does. Or keep a version: the writer makes it odd, awaits that, writes,
//!   awaits that, and makes it even. A reader loads the version, reads, and loads the version again, each when the access before it has
//!   returned. Its read is whole if both loads have the same even number. A version that comes with the read itself tells
//!   nothing: the device may have read the rest later.
//! - An access that is started after another has returned takes effect after it. Others take effect in any order.
//! - An access that fails with the connection [may have been done](crate::status::Executed::Maybe), or may still be done, because the
//!   owner may have received it already. farcall does not repeat it. Use numbers that only grow to find out, as the example
//!   `sequencer` does with its locks.
//! - A number that peers count in is changed by operations on numbers only. A `write` to it may undo one of these.
//! - By RDMA peers [read](RemoteMemory::read) and [write](RemoteMemory::write) a region by themselves, and have the owner's device change
//!   numbers. The owner's program has no part in that. The device then changes the numbers for everybody, the owner included. It must
//!   be able to register the memory, which stays in RAM as long as a peer uses it, and counts against the limit on locked memory.
//!   A region whose numbers peers have changed by RDMA stays there until it is revoked. The owner's runtime does all other accesses, and
//!   those that go by TCP.
//! - If the RDMA link fails and the connection does not, accesses go on by TCP. farcall repeats a read or write that this process's device
//!   was doing. So the write may take effect twice, both times before it returns. An operation on a number that a device was doing
//!   fails with UNAVAILABLE, and may have been done. farcall never repeats one.

mod exported;
mod local;
mod numbers;
mod remote;

use std::fmt;
use std::ops::BitOr;

use serde::{Deserialize, Serialize};

pub use self::exported::Region;
pub use self::remote::{RemoteMemory, RemoteRegion};
pub use crate::transport::Exportable;

/// The rights of peers to a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rights(u8);

impl Rights {
    /// Peers may do nothing: the region is for transfers that this process starts, such as a page cache.
    pub const NONE: Self = Self(0);

    /// Peers may read it.
    pub const READ: Self = Self(1);

    /// Peers may write it.
    pub const WRITE: Self = Self(2);

    /// Peers may use `compare_and_swap` and `fetch_add`.
    pub const ATOMICS: Self = Self(4);

    /// Whether these rights include others.
    pub fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("NONE");
        }
        let names = [(Self::READ, "READ"), (Self::WRITE, "WRITE"), (Self::ATOMICS, "ATOMICS")];
        let names = names.into_iter().filter(|(right, _)| self.contains(*right));
        f.write_str(&names.map(|(_, name)| name).collect::<Vec<_>>().join(" | "))
    }
}
