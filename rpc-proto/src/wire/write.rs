//! Fields of limited length, and what does not fit into them.

use std::fmt;

use bytes::{BufMut, BytesMut};

use crate::text::cut;

/// A part of a message that has no room in its field. The message can't be sent; the connection is unharmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The part, as the specification names it.
    pub what: &'static str,
    /// The most that fits: bytes, or entries of a list.
    pub max: u64,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} exceeds {}, which is all that the protocol has room for", self.what, self.max)
    }
}

impl std::error::Error for TooLong {}

/// A length or count that has two bytes.
pub(super) fn len16(len: usize, what: &'static str) -> Result<u16, TooLong> {
    u16::try_from(len).map_err(|_| TooLong { what, max: u16::MAX.into() })
}

/// Appends a length or count in four bytes.
pub(super) fn put_len32(out: &mut impl BufMut, len: usize, what: &'static str) -> Result<(), TooLong> {
    out.put_u32_le(u32::try_from(len).map_err(|_| TooLong { what, max: u32::MAX.into() })?);
    Ok(())
}

/// Appends a name after its length in one byte.
pub(super) fn put_name(out: &mut BytesMut, name: &str) {
    out.put_u8(u8::try_from(name.len()).expect("the caller keeps names to 255 bytes"));
    out.put_slice(name.as_bytes());
}

/// A text for a person is cut to this many bytes when it is sent, so that its frame fits on any link, and when it is read, so that
/// no peer has it kept at any length.
pub(super) const MAX_TEXT: usize = 512;

/// Appends a text for a person, to the end of the frame.
pub(super) fn put_text(out: &mut BytesMut, text: &str) {
    out.put_slice(cut(text, MAX_TEXT).as_bytes());
}
