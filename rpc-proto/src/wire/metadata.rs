//! The metadata block of a content (WIRE.md section 5.2).

use bytes::{BufMut, Bytes, BytesMut};

use super::read::{Reader, WireError};
use crate::metadata::{AnswerMetadata, Metadata};

/// Stands before trailing metadata, where a key would have its length.
const TRAILING: u8 = 0;

const KEY: &str = "metadata.key";
const VALUE: &str = "metadata.value";

/// The block of a REQUEST.
pub fn encode_metadata(metadata: &Metadata) -> Bytes {
    Bytes::copy_from_slice(metadata.block())
}

/// Reads what [`encode_metadata`] wrote. The result has its own memory.
pub fn decode_metadata(block: Bytes) -> Result<Metadata, WireError> {
    match entries(&mut Reader::new(block), &mut Metadata::new())? {
        (metadata, false) => Ok(metadata),
        (_, true) => Err(WireError::new(KEY, "is empty")),
    }
}

/// The block of a RESPONSE.
pub fn encode_answer_metadata(metadata: &AnswerMetadata) -> Bytes {
    let AnswerMetadata { initial, trailing, causes } = metadata;
    let mut block = BytesMut::with_capacity(initial.size() + 1 + trailing.size() + causes.size());
    block.put_slice(initial.block());
    if !(trailing.is_empty() && causes.is_empty()) {
        block.put_u8(TRAILING);
        block.put_slice(trailing.block());
        block.put_slice(causes.block());
    }
    block.freeze()
}

/// Reads what [`encode_answer_metadata`] wrote. The result has its own memory.
pub fn decode_answer_metadata(block: Bytes) -> Result<AnswerMetadata, WireError> {
    let mut r = Reader::new(block);
    let mut causes = Metadata::new();
    let (initial, more) = entries(&mut r, &mut causes)?;
    if !more {
        return Ok(AnswerMetadata { initial, trailing: Metadata::new(), causes });
    }
    if r.remaining() == 0 {
        return Err(WireError::new("metadata.trailing", "are none"));
    }
    match entries(&mut r, &mut causes)? {
        (trailing, false) => Ok(AnswerMetadata { initial, trailing, causes }),
        (_, true) => Err(WireError::new("metadata.trailing", "begin again")),
    }
}

/// Reads entries to the end, or, which it says then, to where the trailing ones begin.
fn entries(r: &mut Reader, causes: &mut Metadata) -> Result<(Metadata, bool), WireError> {
    let mut metadata = Metadata::new();
    while r.remaining() > 0 {
        let key_len = r.u8(KEY)?;
        if key_len == TRAILING {
            return Ok((metadata, true));
        }
        let key = r.bytes(key_len.into(), KEY)?;
        let value_len = r.u16(VALUE)?;
        let value = r.bytes(value_len.into(), VALUE)?;
        metadata.receive(&key, &value, causes).map_err(|why| WireError::new("metadata", why))?;
    }
    Ok((metadata, false))
}
