//! Sources of WRITEs: memory of this side that a device takes to a peer.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::words::SharesWords;

/// Bytes that a device takes to a peer. Every work request holds its own clone until it has completed.
#[derive(Clone)]
pub enum Source {
    /// Bytes that nobody changes.
    Bytes(Bytes),
    /// A part of registered words, which others may change meanwhile.
    Words(Arc<dyn SharesWords>, Range<usize>),
}

impl Source {
    /// Returns how many bytes these are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Words(_, range) => range.len(),
        }
    }

    /// Returns a part, which must be within this.
    pub(crate) fn slice(&self, part: Range<usize>) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.slice(part)),
            Self::Words(words, range) => {
                let (start, end) = (range.start + part.start, range.start + part.end);
                assert!(start <= end && end <= range.end, "{part:?} of {} bytes", range.len());
                Self::Words(Arc::clone(words), start..end)
            }
        }
    }

    /// Returns the address of the first byte. `None`: the words are fewer.
    pub(crate) fn address(&self) -> Option<usize> {
        match self {
            Self::Bytes(bytes) => Some(bytes.as_ptr() as usize),
            Self::Words(words, range) => {
                let all = words.range();
                (range.end <= all.len()).then_some(all.start + range.start)
            }
        }
    }

    /// Returns the bytes as they are now, for a device that is software. `None`: the words are fewer.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes.clone()),
            Self::Words(words, range) => {
                let bytes = words.words().copy(words.begin() + range.start, range.len())?;
                (bytes.len() == range.len()).then(|| bytes.into())
            }
        }
    }
}

impl From<Bytes> for Source {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// The length only: it may hold a secret.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
