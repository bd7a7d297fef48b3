//! An extent as words, for a peer's device to write to while this process may write to it, too.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use farcall_core::region::Exportable;

use super::arena::Extent;

/// An extent that nobody reaches but by its words, which are atomic. Only the last owner gets the extent back.
pub struct SharedExtent(Extent);

impl SharedExtent {
    /// Takes the extent out of reach.
    pub fn new(extent: Extent) -> Arc<Self> {
        Arc::new(Self(extent))
    }

    /// Returns the extent, if nobody else has its words.
    pub fn into_extent(this: Arc<Self>) -> Result<Extent, Arc<Self>> {
        Ok(Arc::try_unwrap(this)?.0)
    }
}

impl AsRef<[AtomicU64]> for SharedExtent {
    fn as_ref(&self) -> &[AtomicU64] {
        let words = self.0.size().div_ceil(size_of::<AtomicU64>());
        // SAFETY: whole pages of the extent, at the beginning of one, for as long as `self` keeps it. Any bytes are valid words, and
        // there is no way to the extent but by these atomic ones while it is in here.
        unsafe { slice::from_raw_parts(self.0.start().cast(), words) }
    }
}

impl Exportable for SharedExtent {}

impl fmt::Debug for SharedExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedExtent").field(&self.0).finish()
    }
}
