//! Memory that devices read and write: mappings, what they are divided into, and views of it.
//!
//! A [`Slot`] of a [`Slab`] or an [`Extent`] of an [`Arena`] has one owner at a time: the code that holds it, a queue into
//! which it was moved, a [`ReadTarget`], or the views ([`Bytes`]) into which it was frozen. The last of them makes it free
//! again. The mapping stays until the last of these is gone, whatever has become of device and runtime; a registration
//! keeps the mapping, and nothing here keeps a registration. The argument why this is sound stands in [`crate::verbs`].

#![expect(unsafe_code, reason = "maps memory for devices; see the argument of `verbs`")]

mod arena;
mod bitmap;
mod free_list;
mod mapped_words;
mod mapping;
mod read_target;
mod shared_extent;
mod slab;
mod source;
mod words;

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

pub use arena::{Arena, Extent};
pub use mapped_words::MappedWords;
pub(crate) use mapping::Mapping;
pub use mapping::Pages;
pub use read_target::ReadTarget;
pub use shared_extent::SharedExtent;
pub use slab::{Slab, SlabLayout, Slot};
pub use source::Source;
pub(crate) use words::Exposed;
pub use words::{RegisteredWords, SharesWords};

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// How many objects and mappings of this process could not be destroyed. Zero, unless a driver fails.
pub fn leaks() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// Counts and logs an object that stays because its destruction failed.
pub(crate) fn leaked(operation: &'static str, errno: i32) {
    LEAKED.fetch_add(1, Ordering::Relaxed);
    let error = std::io::Error::from_raw_os_error(errno);
    tracing::error!(operation, %error, "an RDMA object could not be destroyed and stays allocated");
}

/// Turns a part of a slot or extent into an immutable view.
fn freeze<T: Deref<Target = [u8]> + Send + 'static>(owner: T, range: Range<usize>) -> Bytes {
    assert!(range.start <= range.end && range.end <= owner.len(), "{range:?} of {} bytes", owner.len());
    Bytes::from_owner(View { owner, range })
}

/// A buffer that is only read from now on.
struct View<T> {
    owner: T,
    range: Range<usize>,
}

impl<T: Deref<Target = [u8]>> AsRef<[u8]> for View<T> {
    fn as_ref(&self) -> &[u8] {
        &self.owner[self.range.clone()]
    }
}

#[cfg(test)]
mod tests;
