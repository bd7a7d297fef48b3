//! Operations on numbers of eight bytes that a device does in memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::BoxFuture;
use crate::status::Executed;

/// An operation on a number of eight bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Replaces the number if it is the expected one.
    CompareAndSwap {
        /// The number that is replaced.
        expected: u64,
        /// The number that replaces it.
        new: u64,
    },
    /// Adds to the number, which wraps.
    FetchAdd(u64),
}

impl Atomic {
    /// Returns what the operation makes of a value.
    pub fn apply(self, value: u64) -> u64 {
        match self {
            Self::CompareAndSwap { expected, new } if value == expected => new,
            Self::CompareAndSwap { .. } => value,
            Self::FetchAdd(add) => value.wrapping_add(add),
        }
    }
}

/// The identity of an open device, unique within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId(u64);

impl DeviceId {
    /// Returns an id that no other device has.
    pub fn unique() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// A device that does the operations on numbers of this process's memory, for this process.
///
/// A device's operations are atomic among each other, and not with those of the processor. So as long as peers can have a device change
/// numbers, everybody has to.
pub trait DeviceAtomics: fmt::Debug + Send + Sync {
    /// Returns the device's id.
    fn device(&self) -> DeviceId;

    /// Whether the device does operations. Once false, it stays so.
    fn is_open(&self) -> bool;

    /// Does an operation on the number at an offset, which is within the memory and a multiple of eight. Resolves to the number before it,
    /// or to whether the operation may have been done. It may be done later if the future is dropped.
    fn change(&self, offset: usize, atomic: Atomic) -> BoxFuture<Result<u64, Executed>>;
}
