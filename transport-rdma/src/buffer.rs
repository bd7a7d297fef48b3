//! Buffers that a device can let peers read.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;

use crate::device::Extent;
use crate::dma::SharedExtent;

/// Memory that is registered with an RDMA device: a long message in it is sent without a copy.
#[derive(Debug)]
pub struct Registered(pub(crate) Extent);

impl Registered {
    /// Memory of this length, from the first open device that has some; with whatever an earlier message of this process
    /// left in it. `None`: no device is open, its `bulk_memory` is used up, or so little is copied anyway.
    pub fn take(len: usize) -> Option<Self> {
        if len < crate::link::LEAST_EXPOSED {
            return None;
        }
        crate::resources::take_anywhere(len).map(Self)
    }

    /// Returns registered memory of this length, and waits while more is being registered. `None`: no device will have some soon, or so
    /// little is copied anyway. Cancel safe.
    pub async fn grow(len: usize) -> Option<Self> {
        if len < crate::link::LEAST_EXPOSED {
            return None;
        }
        crate::resources::grow_anywhere(len).await.map(Self)
    }

    /// The first `len` bytes as what can be sent, without a copy.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn freeze(self, len: usize) -> Bytes {
        self.0.freeze(0..len)
    }

    /// Returns the memory as words, which a device may write to.
    pub fn share(self) -> Arc<SharedExtent> {
        SharedExtent::new(self.0)
    }

    /// Returns the memory, if nobody else has the words.
    ///
    /// # Errors
    ///
    /// The words, if somebody has.
    pub fn unshare(words: Arc<SharedExtent>) -> Result<Self, Arc<SharedExtent>> {
        SharedExtent::into_extent(words).map(Self)
    }
}

impl Deref for Registered {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Registered {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
