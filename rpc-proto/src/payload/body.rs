//! The bytes of a body: shared with whoever has a view of them, or just written.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::{Bytes, BytesMut};

use super::SHORT_BODY;

/// A body, or the first piece of one.
#[derive(Clone)]
pub(crate) enum Body {
    /// No longer than [`SHORT_BODY`]: it is copied where it is sent, and nobody counts references to it until then.
    Written(Written),
    Shared(Bytes),
}

impl Body {
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Written(written) => written.freeze(),
            Self::Shared(bytes) => bytes,
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::Shared(Bytes::new())
    }
}

impl From<Written> for Body {
    #[inline]
    fn from(written: Written) -> Self {
        if written.len() <= SHORT_BODY { Self::Written(written) } else { Self::Shared(written.freeze()) }
    }
}

impl Deref for Body {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Written(written) => written,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Body {}

impl Hash for Body {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

/// The buffer that one message was written to.
#[derive(Debug)]
pub(crate) struct Written(
    /// One word, because payloads are moved about a lot.
    Box<BytesMut>,
);

/// The room of a new buffer, in bytes.
const LEAST: usize = 256;

impl Written {
    pub(super) fn new() -> Self {
        BytesMut::with_capacity(LEAST).into()
    }

    #[inline]
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.0
    }

    #[cold]
    pub(super) fn freeze(self) -> Bytes {
        self.0.freeze()
    }

    pub(super) fn into_buffer(self) -> Box<BytesMut> {
        self.0
    }
}

impl From<BytesMut> for Written {
    fn from(buffer: BytesMut) -> Self {
        Self(Box::new(buffer))
    }
}

impl From<Box<BytesMut>> for Written {
    #[inline]
    fn from(buffer: Box<BytesMut>) -> Self {
        Self(buffer)
    }
}

impl Deref for Written {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Clone for Written {
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        copy.buffer().extend_from_slice(self);
        copy
    }
}
