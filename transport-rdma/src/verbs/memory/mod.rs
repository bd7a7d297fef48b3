//! Memory that devices read and write: mappings, what they are divided into, and views of it.
//!
//! A [`Slot`] of a [`Slab`] or an [`Extent`] of an [`Arena`] has one owner at a time: the code that holds it, a queue into
//! which it was moved, a [`Landing`], or the views ([`Bytes`]) into which it was frozen. The last of them makes it free
//! again. The mapping stays until the last of these is gone, whatever has become of device and runtime; a registration
//! keeps the mapping, and nothing here keeps a registration.

mod arena;
mod bitmap;
mod landing;
mod mapping;
mod slab;

use std::ops::{Deref, Range};

use bytes::Bytes;

pub use arena::{Arena, Extent};
pub use landing::Landing;
pub(crate) use mapping::Mapping;
pub use mapping::Pages;
pub use slab::{Slab, SlabLayout, Slot};

/// Turns a part of a slot or extent into an immutable view.
fn freeze<T: Deref<Target = [u8]> + Send + 'static>(owner: T, range: Range<usize>) -> Bytes {
    assert!(range.start <= range.end && range.end <= owner.len(), "{range:?} of {} bytes", owner.len());
    Bytes::from_owner(View { owner, range })
}

/// What is only read from now on.
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
