//! Memory of the application that a device has registered.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use farcall_core::transport::Words;

/// Words that a device has registered, so that peers can use them through windows.
///
/// They are atomic, so all parties may read and change them at once, and no reference says otherwise. They stay where they are as long
/// as this exists: it holds the `Arc` through which it has borrowed them, and hands out nothing by which that could be changed.
pub struct RegisteredWords {
    /// The device's registration of the words. It is dropped before them.
    registration: Box<dyn Any + Send + Sync>,
    words: Words,
    range: Range<usize>,
}

impl RegisteredWords {
    /// Registers words by `register`, which gets their addresses.
    pub(crate) fn new<R: Any + Send + Sync, E>(
        words: Words,
        register: impl FnOnce(Range<usize>) -> Result<R, E>,
    ) -> Result<Self, E> {
        let range = {
            let slice = (*words).as_ref();
            let start = slice.as_ptr().expose_provenance();
            start..start + size_of_val(slice)
        };
        let registration = Box::new(register(range.clone())?);
        Ok(Self { registration, words, range })
    }

    /// Words in memory that is registered anyway, of which the peer may reach so many bytes.
    pub fn within_arena(words: Words, len: usize) -> Self {
        let range = {
            let slice = (*words).as_ref();
            let start = slice.as_ptr().expose_provenance();
            start..start + len.min(size_of_val(slice))
        };
        Self { registration: Box::new(()), words, range }
    }

    /// The addresses of the words.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns what the device has of them, if it is of this type.
    pub(crate) fn registration<R: Any>(&self) -> Option<&R> {
        self.registration.downcast_ref()
    }

    /// Writes bytes, as a device does, for a device that is software.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        farcall_core::transport::words::copy_in((*self.words).as_ref(), offset, bytes);
    }

    /// Returns a copy of some bytes, for a device that is software.
    pub(crate) fn copy(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        farcall_core::transport::words::copy_out((*self.words).as_ref(), offset, len).ok()
    }
}

impl fmt::Debug for RegisteredWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredWords").field("bytes", &self.range.len()).finish_non_exhaustive()
    }
}

/// A share in registered words.
pub trait SharesWords: fmt::Debug + Send + Sync {
    /// Returns the words.
    fn words(&self) -> &RegisteredWords;

    /// Returns the addresses of the share: all, or a part.
    fn range(&self) -> Range<usize> {
        self.words().range()
    }

    /// Returns where among the words the share begins, in bytes.
    fn begin(&self) -> usize {
        self.range().start - self.words().range().start
    }
}

impl SharesWords for RegisteredWords {
    fn words(&self) -> &RegisteredWords {
        self
    }
}

/// Memory that a peer may use for a while.
#[derive(Clone)]
pub(crate) enum Exposed {
    /// A message, or the end of one.
    Message(bytes::Bytes),
    /// A region of the application, or what it lends to be written.
    Words(Arc<dyn SharesWords>),
}

impl Exposed {
    /// The addresses of the bytes.
    pub(crate) fn range(&self) -> Range<usize> {
        match self {
            Self::Message(bytes) => {
                let start = bytes.as_ptr() as usize;
                start..start + bytes.len()
            }
            Self::Words(shares) => shares.range(),
        }
    }

    /// Returns where among their words the bytes begin.
    pub(crate) fn begin(&self) -> usize {
        match self {
            Self::Message(_) => 0,
            Self::Words(shares) => shares.begin(),
        }
    }

    /// Returns a part, for a device that is software. `None` if it is not within the memory.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<bytes::Bytes> {
        let end = offset.checked_add(len).filter(|end| *end <= self.range().len())?;
        match self {
            Self::Message(bytes) => Some(bytes.slice(offset..end)),
            Self::Words(shares) => shares.words().copy(self.begin() + offset, len).map(Into::into),
        }
    }
}

/// The length only: it may hold a secret.
impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} exposed bytes", self.range().len())
    }
}
