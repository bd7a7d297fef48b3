//! The bytes of a body: shared with whoever has a view of them, or just written.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::{Bytes, BytesMut};

use super::{BY_REFERENCE, SHORT_BODY};

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

/// A buffer of one message. Its memory is used again by the next one that is made on the thread where it is dropped.
#[derive(Debug)]
pub(crate) struct Written(
    /// One word, because payloads are moved about a lot. `None` only when it is over.
    Option<Box<BytesMut>>,
);

/// What a new buffer has room for.
const LEAST: usize = 256;

/// A buffer with more room is not kept for the next message, which may be a few bytes and wait for long.
const KEPT: usize = 2 * BY_REFERENCE;

thread_local! {
    static SPARE: Cell<Option<Box<BytesMut>>> = const { Cell::new(None) };
}

impl Written {
    #[inline]
    pub(super) fn new() -> Self {
        Self(Some(SPARE.take().unwrap_or_else(|| Box::new(BytesMut::with_capacity(LEAST)))))
    }

    #[inline]
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        self.0.get_or_insert_with(gone)
    }

    #[cold]
    pub(super) fn freeze(self) -> Bytes {
        self.into_buffer().freeze()
    }

    pub(super) fn into_buffer(mut self) -> BytesMut {
        self.0.take().map_or_else(BytesMut::new, |buffer| *buffer)
    }
}

impl From<BytesMut> for Written {
    fn from(buffer: BytesMut) -> Self {
        Self(Some(Box::new(buffer)))
    }
}

/// In place of a buffer that was given away.
#[cold]
fn gone() -> Box<BytesMut> {
    Box::default()
}

impl Deref for Written {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.as_deref().map_or(&[], |buffer| buffer)
    }
}

impl Clone for Written {
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        copy.buffer().extend_from_slice(self);
        copy
    }
}

impl Drop for Written {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut buffer) = self.0.take()
            && buffer.capacity() <= KEPT
        {
            buffer.clear();
            // A thread that is being torn down keeps nothing.
            let _ = SPARE.try_with(|spare| spare.set(Some(buffer)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(len: usize) -> Body {
        let mut written = Written::new();
        written.buffer().resize(len, 7);
        written.into()
    }

    #[test]
    fn memory_is_used_again_when_its_message_is_gone() {
        let (first, second) = (written(1), written(2));
        assert_ne!(first.as_ptr(), second.as_ptr());
        let address = first.as_ptr();
        drop(first);
        let third = written(3);
        assert_eq!((third.as_ptr(), &*third), (address, &[7; 3][..]));
    }

    #[test]
    fn the_memory_of_a_long_message_is_not_kept_for_short_ones() {
        drop(written(1 << 20));
        assert!(SPARE.take().is_none());
        let mut large = Written::new();
        large.buffer().reserve(1 << 20);
        drop(large);
        assert!(SPARE.take().is_none());
    }
}
