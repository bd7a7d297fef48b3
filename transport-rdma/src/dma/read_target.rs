//! Targets of READs: memory that a device writes to while it READs from a peer.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::Extent;
use super::words::{RegisteredWords, SharesWords};

/// Memory while READs into it may be in flight: an extent, or registered words. Every work request that writes to it holds a clone of
/// the `Arc`. Only the sole owner gets an extent back, or a look at its bytes.
///
/// The part of a message that came with its announcement is written to the extent before the extent becomes a read
/// target.
pub struct ReadTarget {
    memory: Memory,
    start: usize,
    len: usize,
}

enum Memory {
    /// The lock is for the simulated device, which writes by itself.
    Extent(Mutex<Extent>),
    Words(Arc<dyn SharesWords>),
}

impl ReadTarget {
    /// Takes the extent out of reach.
    pub fn new(extent: Extent) -> Arc<Self> {
        let (start, len) = (extent.start() as usize, extent.len());
        Arc::new(Self { memory: Memory::Extent(Mutex::new(extent)), start, len })
    }

    /// Makes words a target. Others may read and change them meanwhile.
    pub fn within(words: Arc<dyn SharesWords>) -> Arc<Self> {
        let range = words.range();
        Arc::new(Self { memory: Memory::Words(words), start: range.start, len: range.len() })
    }

    /// Returns the words, if it is these.
    pub(crate) fn words(&self) -> Option<&RegisteredWords> {
        match &self.memory {
            Memory::Extent(_) => None,
            Memory::Words(words) => Some(words.words()),
        }
    }

    /// Returns the extent, if it is one, and nothing else holds the target that might have a device write to it.
    pub fn into_extent(this: Arc<Self>) -> Result<Extent, Arc<Self>> {
        match Arc::try_unwrap(this)? {
            Self { memory: Memory::Extent(extent), .. } => {
                Ok(extent.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            words => Err(Arc::new(words)),
        }
    }

    /// Returns the bytes of an extent, if nothing else holds the target that might have a device write to it.
    pub(crate) fn bytes(this: &mut Arc<Self>) -> Option<&[u8]> {
        match &mut Arc::get_mut(this)?.memory {
            Memory::Extent(extent) => Some(extent.get_mut().unwrap_or_else(PoisonError::into_inner)),
            Memory::Words(_) => None,
        }
    }

    /// The memory's length.
    #[cfg_attr(
        feature = "testing",
        expect(clippy::len_without_is_empty, reason = "nobody has a read_target of nothing")
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of this part, if it is within the memory.
    pub(crate) fn address(&self, at: usize, len: usize) -> Option<usize> {
        (at.checked_add(len)? <= self.len).then_some(self.start + at)
    }

    /// Writes, as a device does, for a device that is software. Bytes that do not fit are left out.
    pub(crate) fn write(&self, at: usize, data: &[u8]) {
        let mut extent = match &self.memory {
            Memory::Extent(extent) => extent.lock().unwrap_or_else(PoisonError::into_inner),
            Memory::Words(words) => return words.words().write(words.begin() + at, data),
        };
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
