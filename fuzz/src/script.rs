//! How an input describes the frames of a session, so that most inputs get past the first checks.

use bytes::Bytes;
use farcall_core::proto::wire::{FrameType, Header};

/// Reads an input as steps of six bytes, each with a payload behind it:
///
/// | Byte | Meaning |
/// |---|---|
/// | 0 | An event (targets give meanings to the low values), or a frame |
/// | 1 | The type of the frame |
/// | 2 | Its flags |
/// | 3 | Its call in the low four bits; bit 4: it comes by the stream link; bit 5: it has a wrong number |
/// | 4, 5 | The length of its payload |
pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

/// One step of a script.
pub(crate) struct Step {
    pub(crate) event: u8,
    pub(crate) header: Header,
    pub(crate) by_stream: bool,
    pub(crate) wrong_number: bool,
    pub(crate) payload: Bytes,
}

impl<'a> Script<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }
}

impl Iterator for Script<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let (&[event, kind, flags, call, low, high], rest) = self.rest.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (payload, rest) = rest.split_at(len);
        self.rest = rest;
        let mut header = Header::new(FrameType(kind), u64::from(call & 15));
        (header.flags, header.len) = (flags, len as u32);
        let (by_stream, wrong_number) = (call & 16 != 0, call & 32 != 0);
        Some(Step { event, header, by_stream, wrong_number, payload: Bytes::copy_from_slice(payload) })
    }
}
