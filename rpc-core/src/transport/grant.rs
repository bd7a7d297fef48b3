//! Memory that the peer may use by itself, for as long as a link lets it.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::Words;

/// Memory that a call lends, or a piece of it, for the peer to use by itself.
pub enum DirectMemory {
    /// To be read.
    Read(Bytes),
    /// To be written: so many bytes from the first word on. Nothing in this process reads or writes the memory but by these words.
    Write(Words, usize),
    /// A range of memory that a device has registered, to be read, or to be written.
    Registered {
        /// The memory.
        memory: Arc<dyn Registered>,
        /// The part that is lent.
        range: Range<usize>,
        /// Whether the peer writes to it. Otherwise it reads.
        write: bool,
    },
}

impl DirectMemory {
    /// Returns how many bytes are lent.
    #[expect(clippy::len_without_is_empty, reason = "nothing is lent by itself")]
    pub fn len(&self) -> usize {
        match self {
            Self::Read(bytes) => bytes.len(),
            Self::Write(_, len) => *len,
            Self::Registered { range, .. } => range.len(),
        }
    }
}

/// The length only: the memory may hold a secret.
impl fmt::Debug for DirectMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Memory of this process as a device has registered it, so that the links of this device can move bytes there and back. It stays
/// registered as long as this exists. The links know what it is.
pub trait Registered: Any + fmt::Debug + Send + Sync {
    /// Whether the device is gone, so that the memory is of no use for any link.
    fn is_over(&self) -> bool;
}

/// The terms of a [`Grant`].
#[derive(Debug)]
pub struct GrantTerms {
    /// Whether the peer may read.
    pub read: bool,
    /// Whether the peer may write.
    pub write: bool,
    /// Whether the peer may have the device change numbers.
    pub atomics: bool,
    /// Kept together with the memory, and dropped when the peer can do nothing any more by the grant.
    pub in_effect: watch::Sender<()>,
}

/// Memory that the peer may use. Dropping it ends that: the link lets go of the memory as soon as the peer can use it no more.
#[derive(Debug)]
pub struct Grant {
    /// The place of the memory, for the peer's link, in
    /// [`Granted::MAX_DESCRIPTOR`](crate::proto::wire::Granted::MAX_DESCRIPTOR) bytes at most.
    pub descriptor: Bytes,
    /// The link's own part.
    pub hold: Box<dyn Hold>,
}

/// A link's part of a [`Grant`].
pub trait Hold: fmt::Debug + Send + Sync {
    /// Whether the grant has ended, with its link.
    fn is_over(&self) -> bool;
}
