//! Zstandard, in frames that say how long their content is.

use std::fmt;

use zstd::zstd_safe::{self, CCtx, DCtx};

use super::{CantUnpack, room};

/// Zstandard's contexts, each made when it is first needed. Both allocate far more than a message needs.
#[derive(Default)]
pub(super) struct Contexts {
    compressor: Option<CCtx<'static>>,
    decompressor: Option<DCtx<'static>>,
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

/// `None`: the bytes become more than `most`, or there is no memory.
pub(super) fn pack(contexts: &mut Contexts, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut packed = room(most).ok()?;
    let compressor = match &mut contexts.compressor {
        Some(compressor) => compressor,
        none => none.insert(CCtx::try_create()?),
    };
    // Bytes that do not fit are an error, too.
    compressor.compress(&mut packed, bytes, zstd::DEFAULT_COMPRESSION_LEVEL).ok()?;
    packed.shrink_to_fit();
    (packed.len() <= most).then_some(packed)
}

/// Decompresses a frame of `len` bytes.
pub(super) fn unpack(contexts: &mut Contexts, packed: &[u8], len: usize) -> Result<Vec<u8>, CantUnpack> {
    // Checked before there is memory for it.
    if zstd_safe::get_frame_content_size(packed).ok().flatten() != Some(len as u64) {
        return Err(CantUnpack::Malformed);
    }
    let mut bytes = room(len)?;
    let decompressor = match &mut contexts.decompressor {
        Some(decompressor) => decompressor,
        none => none.insert(DCtx::try_create().ok_or(CantUnpack::NoMemory)?),
    };
    let unpacked = decompressor.decompress(&mut bytes, packed).ok();
    if unpacked == Some(len) { Ok(bytes) } else { Err(CantUnpack::Malformed) }
}
