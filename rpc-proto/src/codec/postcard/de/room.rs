//! The memory of collections: more than their elements, which are all that a message shows.

use super::{ALLOCATION, Deserializer, Result};

/// The least elements that a collection makes room for: a leaf of a B-tree has so many places, whatever is in it.
const LEAST_ROOM: usize = 11;

/// The most memory that serde makes room for on the word of a peer that there are so many elements, in bytes.
const CLAIMED_ROOM: usize = 1 << 20;

/// How a collection lies in memory.
#[derive(Clone, Copy)]
pub(super) enum Layout {
    /// One behind the other.
    List,
    /// In the nodes of a B-tree, of which half may be empty, or in a hash table, of which more than half may be.
    Map,
}

impl Layout {
    /// Returns the memory of so many elements, each of this size.
    #[inline]
    fn memory(self, elements: usize, size: usize) -> usize {
        let together = elements.saturating_mul(size);
        match self {
            Self::Map if elements != LEAST_ROOM => together.saturating_mul(5) / 2,
            Self::List | Self::Map => together,
        }
    }
}

impl Deserializer<'_> {
    /// Reads how many elements a collection claims to have, and counts what its memory takes beyond these.
    #[inline]
    pub(super) fn length_of_collection(&mut self) -> Result<usize> {
        let length = self.length()?;
        if length > 0 {
            self.input.take_memory(ALLOCATION)?;
        }
        Ok(length)
    }

    /// Counts the memory of a collection's next element. `room`: for how many more that was done already, once it has begun. `claimed`: how
    /// many serde is told of when the collection begins.
    #[inline(always)]
    pub(super) fn take_room<T>(
        &mut self,
        room: &mut Option<usize>,
        claimed: impl FnOnce() -> usize,
        layout: Layout,
    ) -> Result<()> {
        if let Some(left) = room.and_then(|room| room.checked_sub(1)) {
            *room = Some(left);
            return Ok(());
        }
        let elements = match room {
            Some(_) => 1,
            None => claimed().min(CLAIMED_ROOM / size_of::<T>().max(1)).max(LEAST_ROOM),
        };
        *room = Some(elements - 1);
        self.input.take_memory(layout.memory(elements, size_of::<T>()))?;
        Ok(())
    }
}
