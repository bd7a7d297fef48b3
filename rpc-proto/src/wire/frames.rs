//! Frames that arrive together.

use bytes::{Buf, Bytes};

use super::header::{HEADER_LEN, Header};
use super::read::WireError;

/// Whole frames, one behind the other in one piece of memory, of which their payloads are views. They end before one that is
/// malformed.
#[derive(Debug)]
pub struct Frames {
    rest: Bytes,
    malformed: Option<WireError>,
}

impl Frames {
    /// The frames in `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self { rest: bytes, malformed: None }
    }

    /// Returns the fault of the frame before which the iterator ended, if there was one.
    pub fn malformed(&self) -> Option<&WireError> {
        self.malformed.as_ref()
    }

    #[inline(always)]
    fn header(&mut self) -> Option<Header> {
        let header = Header::decode(self.rest.first_chunk()?);
        let is_whole = |header: &Header| header.len as usize <= self.rest.len() - HEADER_LEN;
        match header {
            Ok(header) if is_whole(&header) => Some(header),
            decoded => {
                let cut = WireError::new("header.len", "goes past the end of what arrived");
                self.malformed = Some(decoded.err().unwrap_or(cut));
                None
            }
        }
    }
}

impl Iterator for Frames {
    type Item = (Header, Bytes);

    // One piece with what takes them in, or each would go through memory.
    #[inline(always)]
    fn next(&mut self) -> Option<(Header, Bytes)> {
        let header = self.header()?;
        let end = HEADER_LEN + header.len as usize;
        let mut payload = if end == self.rest.len() {
            std::mem::take(&mut self.rest)
        } else {
            let frame = self.rest.slice(..end);
            self.rest.advance(end);
            frame
        };
        payload.advance(HEADER_LEN);
        Some((header, payload))
    }
}
