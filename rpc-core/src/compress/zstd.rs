//! Zstandard, in frames that say how long their content is.

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe;

thread_local! {
    /// What they have allocated is worth keeping.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// `None`: the bytes become more than `most`.
pub(super) fn pack(bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut packed = Vec::with_capacity(most);
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => kept.insert(Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL).ok()?),
        };
        // What does not fit is an error, too.
        compressor.compress_to_buffer(bytes, &mut packed).ok()
    })?;
    packed.shrink_to_fit();
    (packed.len() <= most).then_some(packed)
}

/// `None`: this is no frame, or one of another length.
pub(super) fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    // Before there is memory for it.
    if zstd_safe::get_frame_content_size(packed).ok()? != Some(len as u64) {
        return None;
    }
    let mut bytes = Vec::with_capacity(len);
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new().ok()?),
        };
        decompressor.decompress_to_buffer(packed, &mut bytes).ok()
    })?;
    (bytes.len() == len).then_some(bytes)
}
