//! LZ4, in its block format.

use lz4_flex::block;

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

/// `None`: this is no block, or one of another length.
pub(super) fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    if len / MOST_RATIO > packed.len() {
        return None;
    }
    let mut bytes = vec![0; len];
    (block::decompress_into(packed, &mut bytes).ok()? == len).then_some(bytes)
}
