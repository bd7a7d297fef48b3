//! Zstandard, in frames that say how long their content is.

use std::fmt;

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe;

/// Zstandard's contexts, each made when it is first needed. Both allocate far more than a message needs.
#[derive(Default)]
pub(super) struct Contexts {
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
}

impl Contexts {
    pub(super) const fn new() -> Self {
        Self { compressor: None, decompressor: None }
    }
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").finish_non_exhaustive()
    }
}

/// `None`: the bytes become more than `most`.
pub(super) fn pack(contexts: &mut Contexts, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut packed = Vec::with_capacity(most);
    let compressor = match &mut contexts.compressor {
        Some(compressor) => compressor,
        none => none.insert(Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL).ok()?),
    };
    // Bytes that do not fit are an error, too.
    compressor.compress_to_buffer(bytes, &mut packed).ok()?;
    packed.shrink_to_fit();
    (packed.len() <= most).then_some(packed)
}

/// `None`: this is no frame, or one of another length.
pub(super) fn unpack(contexts: &mut Contexts, packed: &[u8], len: usize) -> Option<Vec<u8>> {
    // Before there is memory for it.
    if zstd_safe::get_frame_content_size(packed).ok()? != Some(len as u64) {
        return None;
    }
    let mut bytes = Vec::with_capacity(len);
    let decompressor = match &mut contexts.decompressor {
        Some(decompressor) => decompressor,
        none => none.insert(Decompressor::new().ok()?),
    };
    decompressor.decompress_to_buffer(packed, &mut bytes).ok()?;
    (bytes.len() == len).then_some(bytes)
}
