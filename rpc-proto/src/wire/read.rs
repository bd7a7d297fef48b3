//! A cursor over what a peer sent.

use std::fmt;

use bytes::{Buf, Bytes};

use crate::text::cut;

/// A frame that is not what the specification says. The connection it came on is closed: after one such frame
/// nothing that follows can be trusted. Or one that this side [has no memory](Self::no_memory) to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// The part of the frame that is wrong, as the specification names it.
    pub what: &'static str,
    /// The fault.
    pub why: &'static str,
}

impl WireError {
    /// Returns an error that names a field, and says what is wrong with it.
    pub const fn new(what: &'static str, why: &'static str) -> Self {
        Self { what, why }
    }

    /// Returns the error that this side has no memory for a field. The frame may be as it should be.
    #[cold]
    pub const fn no_memory(what: &'static str) -> Self {
        Self { what, why: NO_MEMORY }
    }

    /// Whether this side has [no memory](Self::no_memory) for the field.
    pub fn is_no_memory(&self) -> bool {
        self.why == NO_MEMORY
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, why } = self;
        if self.is_no_memory() {
            write!(f, "{what}: {why}")
        } else {
            write!(f, "malformed frame: {what}: {why}")
        }
    }
}

impl std::error::Error for WireError {}

/// Reads fields off the front of a buffer; every method names the field for the error.
#[derive(Debug)]
pub struct Reader {
    rest: Bytes,
}

const SHORT: &str = "the frame ends before it";

const NO_MEMORY: &str = "this process has no memory for it";

/// Returns an empty list with room for as many elements as a peer has sent.
///
/// # Errors
///
/// There is [no memory](WireError::no_memory) for the field, `what`.
pub fn list_of<T>(count: usize, what: &'static str) -> Result<Vec<T>, WireError> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| WireError::no_memory(what))?;
    Ok(list)
}

impl Reader {
    /// Reads `bytes` from the start.
    pub fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }

    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.rest.try_get_u8().map_err(|_| WireError::new(what, SHORT))
    }

    /// Two bytes, little-endian, as everything here.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, WireError> {
        self.rest.try_get_u16_le().map_err(|_| WireError::new(what, SHORT))
    }

    /// Four bytes.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.rest.try_get_u32_le().map_err(|_| WireError::new(what, SHORT))
    }

    /// Eight bytes.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.rest.try_get_u64_le().map_err(|_| WireError::new(what, SHORT))
    }

    /// `len` bytes, as a view.
    pub fn bytes(&mut self, len: usize, what: &'static str) -> Result<Bytes, WireError> {
        if len > self.rest.len() {
            return Err(WireError::new(what, SHORT));
        }
        Ok(self.rest.split_to(len))
    }

    /// A string of `len` bytes.
    pub fn string(&mut self, len: usize, what: &'static str) -> Result<String, WireError> {
        self.text(len, len, what)
    }

    /// A text for a person, of `len` bytes. One of more than `max` is cut to that, whatever its sender should have done.
    pub(super) fn text(&mut self, len: usize, max: usize, what: &'static str) -> Result<String, WireError> {
        let bytes = self.bytes(len, what)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| WireError::new(what, "is not UTF-8"))?;
        let text = cut(text, max);
        let mut copy = String::new();
        copy.try_reserve_exact(text.len()).map_err(|_| WireError::no_memory(what))?;
        copy.push_str(&text);
        Ok(copy)
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// All that is left.
    pub fn rest(self) -> Bytes {
        self.rest
    }

    /// Ends the reading of a frame that must hold nothing more.
    pub fn finish(self, what: &'static str) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::new(what, "has bytes after its end")) }
    }
}
