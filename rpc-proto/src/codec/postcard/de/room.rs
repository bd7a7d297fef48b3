//! The memory of collections: more than their elements, which are all that a message shows.

use super::{ALLOCATION, Deserializer, Result};

/// The fewest elements that a B-tree or a hash table makes room for: a leaf of a B-tree has so many places.
const LEAST_ROOM: usize = 11;

/// The most memory that serde makes room for on the word of a peer that there are so many elements, in bytes.
const CLAIMED_ROOM: usize = 1 << 20;

/// How a collection lies in memory.
#[derive(Clone, Copy)]
pub(super) enum Layout {
    /// One element behind the other.
    List,
    /// An allocation for each element.
    Nodes,
    /// In the nodes of a B-tree, of which half may be empty, or in a hash table, of which more than half may be.
    Table,
}

impl Layout {
    /// Returns the layout of a collection. serde shows no more of it than its name, and a name that is not known counts as a table.
    #[inline]
    pub(super) fn of<C>() -> Self {
        const LISTS: [&str; 3] = [
            "alloc::vec::Vec<",
            "alloc::collections::vec_deque::VecDeque<",
            "alloc::collections::binary_heap::BinaryHeap<",
        ];
        let name = std::any::type_name::<C>();
        if LISTS.iter().any(|list| name.starts_with(list)) {
            Self::List
        } else if name.starts_with("alloc::collections::linked_list::LinkedList<") {
            Self::Nodes
        } else {
            Self::Table
        }
    }

    /// Whether elements of this size take no more than their message.
    #[inline(always)]
    pub(super) fn is_free(self, size: usize) -> bool {
        matches!(self, Self::List) && size <= 1
    }

    /// Returns for how many elements there is room at once, where the peer claims so many.
    fn first_room(self, claimed: usize, size: usize) -> usize {
        let claimed = claimed.min(CLAIMED_ROOM / size.max(1));
        match self {
            Self::List => claimed.max(1),
            Self::Nodes => 1,
            Self::Table => claimed.max(LEAST_ROOM),
        }
    }

    /// Returns the memory of so many elements, each of this size.
    fn memory(self, elements: usize, size: usize) -> usize {
        let each = match self {
            Self::List => size,
            // A node has two links.
            Self::Nodes => size + 2 * size_of::<usize>() + ALLOCATION,
            Self::Table if elements == LEAST_ROOM => size,
            // A hash table has a byte for each place.
            Self::Table => (size + 1).saturating_mul(5) / 2,
        };
        elements.saturating_mul(each)
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
            None => layout.first_room(claimed(), size_of::<T>()),
        };
        *room = Some(elements - 1);
        self.input.take_memory(layout.memory(elements, size_of::<T>()))?;
        Ok(())
    }
}
