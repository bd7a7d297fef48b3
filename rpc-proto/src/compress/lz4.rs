//! LZ4, in its block format.

use lz4_flex::block;

use super::{CantUnpack, room};

/// No byte of a block stands for more than so many.
const MOST_RATIO: usize = 255;

/// `None`: the bytes become more than `most`.
pub(super) fn pack(bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut packed = vec![0; block::get_maximum_output_size(bytes.len())];
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
