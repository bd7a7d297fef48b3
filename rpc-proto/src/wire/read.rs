//! A cursor over what a peer sent.

use std::fmt;

use bytes::{Buf, Bytes};

/// A frame that is not what the specification says. The connection it came on is closed: after one such frame
/// nothing that follows can be trusted.
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
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed frame: {}: {}", self.what, self.why)
    }
}

impl std::error::Error for WireError {}

/// Reads fields off the front of a buffer; every method names the field for the error.
#[derive(Debug)]
pub struct Reader {
    rest: Bytes,
}

const SHORT: &str = "the frame ends before it";

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
        let bytes = self.bytes(len, what)?;
        match std::str::from_utf8(&bytes) {
            Ok(s) => Ok(s.to_owned()),
            Err(_) => Err(WireError::new(what, "is not UTF-8")),
        }
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
