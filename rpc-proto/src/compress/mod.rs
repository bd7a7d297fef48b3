//! Compression of what messages say: body and attachments together (WIRE.md section 5.2).

#[cfg(feature = "lz4")]
mod lz4;
#[cfg(test)]
mod tests;
#[cfg(feature = "zstd")]
mod zstd;

pub use crate::compression::Compression;
use crate::payload::{Packed, Payload};
use crate::status::{Blame, Code, Executed, Status};
use crate::wire::features;

/// A shorter payload is sent as it is. Bytes.
pub const MIN: usize = 1024;

/// A longer payload takes so long to compress or decompress that the task which reads a connection must not do it. Bytes.
pub const LONG: usize = 64 << 10;

/// The memory that compressing one message leaves for the next.
#[derive(Debug, Default)]
pub struct Workspace {
    #[cfg(feature = "zstd")]
    zstd: zstd::Contexts,
}

impl Workspace {
    /// Returns an empty workspace, which allocates when it is first used.
    pub const fn new() -> Self {
        Self {
            #[cfg(feature = "zstd")]
            zstd: zstd::Contexts::new(),
        }
    }
}

impl Compression {
    /// Whether this build has it.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::None => true,
            Self::Lz4 => cfg!(feature = "lz4"),
            Self::Zstd => cfg!(feature = "zstd"),
        }
    }

    /// Checks that this build has it.
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, not executed, with the name of the feature that is missing.
    pub fn check(self) -> Result<(), Status> {
        if self.is_built_in() {
            return Ok(());
        }
        let message = format!("this side can't compress by it: built without the feature `{}`", self.name());
        let status = Status::new(Code::FailedPrecondition, message);
        Err(status.with_executed(Executed::No).with_blame(Blame::Caller))
    }

    /// The bit of HELLO by which a side says that it reads it.
    pub fn feature(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Lz4 => features::LZ4,
            Self::Zstd => features::ZSTD,
        }
    }

    /// The bits of all that this build has.
    pub fn features() -> u64 {
        let built_in = [Self::Lz4, Self::Zstd].into_iter().filter(|it| it.is_built_in());
        built_in.fold(0, |bits, it| bits | it.feature())
    }
}

/// Compresses a payload. `None`: it would not become shorter by enough, has a part of 4 GiB, or there is no memory.
pub fn pack(workspace: &mut Workspace, by: Compression, payload: &Payload) -> Option<Payload> {
    let packed = Packed::of(payload, by)?;
    let whole = payload.to_contiguous()?;
    let bytes = pack_bytes(workspace, by, &whole, whole.len() - whole.len() / 16)?;
    Some(Payload::packed(bytes.into(), packed))
}

/// Why a payload can't be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CantUnpack {
    /// It is malformed, or of another length than it says.
    Malformed,
    /// There is no memory for what it says that it was.
    NoMemory,
}

impl CantUnpack {
    /// Returns the status of a call whose arguments, result or item, as `what` says, can't be decompressed.
    pub fn status(self, what: &str) -> Status {
        let (code, blame, why) = match self {
            Self::Malformed => (
                Code::Internal,
                Blame::Peer,
                "the peer's compressed bytes are malformed, or become another length than the peer says",
            ),
            Self::NoMemory => (
                Code::ResourceExhausted,
                Blame::Environment,
                "the receiver has no memory to decompress them; give it more, or send less",
            ),
        };
        Status::new(code, format!("{what}: {why}")).with_executed(Executed::Maybe).with_blame(blame)
    }
}

/// Decompresses a payload, which takes as much memory as the payload says and no more: the caller has checked that this is
/// allowed.
pub fn unpack(workspace: &mut Workspace, payload: Payload) -> Result<Payload, CantUnpack> {
    let (bytes, packed) = payload.into_packed().ok_or(CantUnpack::Malformed)?;
    let len = usize::try_from(packed.unpacked_len()).map_err(|_| CantUnpack::NoMemory)?;
    let whole = unpack_bytes(workspace, packed.by(), &bytes, len)?;
    packed.split(whole.into()).ok_or(CantUnpack::NoMemory)
}

/// Returns an empty buffer with room for so many bytes.
#[cfg(any(feature = "lz4", feature = "zstd"))]
fn room(len: usize) -> Result<Vec<u8>, CantUnpack> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| CantUnpack::NoMemory)?;
    Ok(bytes)
}

/// `None`: they become more than `most`, or there is no memory.
fn pack_bytes(workspace: &mut Workspace, by: Compression, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    match by {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => lz4::pack(bytes, most),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::pack(&mut workspace.zstd, bytes, most),
        _ => {
            let _ = (workspace, bytes, most);
            None
        }
    }
}

/// Decompresses to `len` bytes.
fn unpack_bytes(
    workspace: &mut Workspace,
    by: Compression,
    packed: &[u8],
    len: usize,
) -> Result<Vec<u8>, CantUnpack> {
    match by {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => lz4::unpack(packed, len),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::unpack(&mut workspace.zstd, packed, len),
        _ => {
            let _ = (workspace, packed, len);
            Err(CantUnpack::Malformed)
        }
    }
}
