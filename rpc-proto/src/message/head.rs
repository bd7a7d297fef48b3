//! The bytes before a message's payload.

use bytes::{Bytes, BytesMut};

use crate::wire::{Content, EndHead, ItemHead, RequestHead, ResponseHead, TooLong};

/// The bytes before a message's payload: mostly a few, which cost no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Head {
    /// A few bytes.
    Inline(InlineHead),
    /// Any bytes.
    Long(Bytes),
}

impl Head {
    /// The head of a request.
    pub fn request(head: &RequestHead, content: &Content) -> Result<Self, TooLong> {
        match head.len(content) {
            len @ ..=InlineHead::MAX => InlineHead::write(len, |mut out| head.encode(content, &mut out)),
            len => long(len, |out| head.encode(content, out)),
        }
    }

    /// The head of an item, or of several.
    pub fn item(head: ItemHead, content: &Content) -> Result<Self, TooLong> {
        match head.len(content) {
            len @ ..=InlineHead::MAX => InlineHead::write(len, |mut out| head.encode(content, &mut out)),
            len => long(len, |out| head.encode(content, out)),
        }
    }

    /// The head of the end of a stream.
    pub fn end(head: EndHead, content: &Content) -> Result<Self, TooLong> {
        long(head.len(content), |out| head.encode(content, out))
    }

    /// The head of a response.
    pub fn response(head: &ResponseHead, content: &Content) -> Result<Self, TooLong> {
        match head.len(content) {
            len @ ..=InlineHead::MAX => InlineHead::write(len, |mut out| head.encode(content, &mut out)),
            len => long(len, |out| head.encode(content, out)),
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(short) => short.as_slice().len(),
            Self::Long(long) => long.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to be sent by reference.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Inline(short) => Bytes::copy_from_slice(short.as_slice()),
            Self::Long(long) => long,
        }
    }
}

fn long<E>(len: usize, write: impl FnOnce(&mut BytesMut) -> Result<(), E>) -> Result<Head, E> {
    let mut long = BytesMut::with_capacity(len);
    write(&mut long)?;
    Ok(Head::Long(long.freeze()))
}

impl From<Bytes> for Head {
    fn from(bytes: Bytes) -> Self {
        InlineHead::new(&bytes).map_or(Self::Long(bytes), Self::Inline)
    }
}

/// A few bytes, in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InlineHead {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl InlineHead {
    /// As many as make it no larger than [`Bytes`] are in an enum with them.
    const MAX: usize = 23;

    fn write<E>(len: usize, write: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Head, E> {
        let mut short = Self { len: len as u8, ..Self::default() };
        write(&mut short.bytes)?;
        Ok(Head::Inline(short))
    }

    pub(super) fn new(from: &[u8]) -> Option<Self> {
        let mut short = Self { len: from.len() as u8, ..Self::default() };
        short.bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(short)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(Self::MAX)]
    }
}
