//! Targets of READs: memory that a device writes to while it READs from a peer.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::Extent;

/// An extent while READs into it may be in flight. Every work request that writes to it holds a clone of the `Arc`. Only the sole
/// owner gets the extent back, or a look at its bytes.
///
/// The part of a message that came with its announcement is written to the extent before the extent becomes a read
/// target.
pub struct ReadTarget {
    /// The lock is for the simulated device, which writes by itself.
    extent: Mutex<Extent>,
    start: usize,
    len: usize,
}

impl ReadTarget {
    /// Takes the extent out of reach.
    pub fn new(extent: Extent) -> Arc<Self> {
        let (start, len) = (extent.start() as usize, extent.len());
        Arc::new(Self { extent: Mutex::new(extent), start, len })
    }

    /// Returns the extent, if nothing else holds the target that might have a device write to it.
    pub fn into_extent(this: Arc<Self>) -> Result<Extent, Arc<Self>> {
        let read_target = Arc::try_unwrap(this)?;
        Ok(read_target.extent.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the bytes, if nothing else holds the target that might have a device write to it.
    pub(crate) fn bytes(this: &mut Arc<Self>) -> Option<&[u8]> {
        let extent = &mut Arc::get_mut(this)?.extent;
        Some(extent.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// The extent's length.
    #[cfg_attr(
        feature = "testing",
        expect(clippy::len_without_is_empty, reason = "nobody has a read_target of nothing")
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of this part, if it is within the extent.
    pub(crate) fn address(&self, at: usize, len: usize) -> Option<usize> {
        (at.checked_add(len)? <= self.len).then_some(self.start + at)
    }

    /// Writes, as a device does, for a device that is software. Bytes that do not fit are left out.
    pub(crate) fn write(&self, at: usize, data: &[u8]) {
        let mut extent = self.extent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = extent.get_mut(at..).and_then(|rest| rest.get_mut(..data.len())) {
            part.copy_from_slice(data);
        }
    }
}

impl fmt::Debug for ReadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadTarget").field("len", &self.len).finish_non_exhaustive()
    }
}
