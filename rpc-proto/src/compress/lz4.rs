//! LZ4, in its block format.

use lz4_flex::block;

use super::{CantUnpack, room};

/// No byte of a block stands for more than so many.
const MOST_RATIO: usize = 255;

/// `None`: the bytes become more than `most`, or there is no memory.
pub(super) fn pack(bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    // More than `most`: with less room, this encoder does not begin.
    let longest = block::get_maximum_output_size(bytes.len());
    let mut packed = room(longest).ok()?;
    packed.resize(longest, 0);
    let len = block::compress_into(bytes, &mut packed).ok()?;
    packed.truncate(len);
    packed.shrink_to_fit();
    (len <= most).then_some(packed)
}

/// Malformed is what is no block, or one of another length.
pub(super) fn unpack(packed: &[u8], len: usize) -> Result<Vec<u8>, CantUnpack> {
    if len / MOST_RATIO > packed.len() {
        return Err(CantUnpack::Malformed);
    }
    let mut bytes = room(len)?;
    bytes.resize(len, 0);
    match block::decompress_into(packed, &mut bytes) {
        Ok(unpacked) if unpacked == len => Ok(bytes),
        _ => Err(CantUnpack::Malformed),
    }
}
