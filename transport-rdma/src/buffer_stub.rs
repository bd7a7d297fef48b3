//! Buffers that a device can let peers read, where there are no devices.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// Memory that is registered with an RDMA device. There is none on this platform.
#[derive(Debug)]
pub struct Registered(Infallible);

impl Registered {
    /// `None`.
    pub fn take(_: usize) -> Option<Self> {
        None
    }

    /// What can be sent.
    pub fn freeze(self, _: usize) -> Bytes {
        match self.0 {}
    }
}

impl Deref for Registered {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0 {}
    }
}

impl DerefMut for Registered {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self.0 {}
    }
}
