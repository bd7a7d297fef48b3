//! Compression of what messages say: body and attachments together (WIRE.md section 5.2).

mod choice;
#[cfg(feature = "lz4")]
mod lz4;
#[cfg(test)]
mod tests;
#[cfg(feature = "zstd")]
mod zstd;

use serde::{Deserialize, Serialize};

pub(crate) use self::choice::{Choice, ItemsBy};
use crate::payload::{Packed, Payload};
use crate::proto::wire::features;
use crate::status::{Blame, Code, Executed, Status};

/// What a message is compressed by.
///
/// An argument, a result or an item is compressed if its side asks for it, its peer can read it, it has 1 KiB or more, and it
/// becomes shorter by a sixteenth at least. Else it is sent as it is.
///
/// Each is a feature of the crate, `lz4` and `zstd`, which is off unless asked for. To ask for one that was not built in is an
/// error; to be called by a peer that has it is none, for that sends nothing that this side can't read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// Nothing.
    #[default]
    None,
    /// LZ4: fast, and worse than the other.
    Lz4,
    /// Zstandard, as its level 3 does it.
    Zstd,
}

/// What is shorter is sent as it is.
pub(crate) const MIN: usize = 1024;

/// What is longer is not (un)packed by who reads a connection, for it would hold up all others there.
pub(crate) const LONG: usize = 64 << 10;

impl Compression {
    /// Whether this build has it.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::None => true,
            Self::Lz4 => cfg!(feature = "lz4"),
            Self::Zstd => cfg!(feature = "zstd"),
        }
    }

    /// Its name, in a configuration and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// That this build lacks it, if it does.
    pub(crate) fn check(self) -> Result<(), Status> {
        if self.is_built_in() {
            return Ok(());
        }
        let message = format!("this side can't compress by it: built without the feature `{}`", self.name());
        let status = Status::new(Code::FailedPrecondition, message);
        Err(status.with_executed(Executed::No).with_blame(Blame::Caller))
    }

    /// The bit of HELLO by which a side says that it reads it.
    pub(crate) fn feature(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Lz4 => features::LZ4,
            Self::Zstd => features::ZSTD,
        }
    }

    /// The bits of all that this build has.
    pub(crate) fn features() -> u64 {
        let built_in = [Self::Lz4, Self::Zstd].into_iter().filter(|it| it.is_built_in());
        built_in.fold(0, |bits, it| bits | it.feature())
    }

    /// Its number in a message.
    pub(crate) fn to_wire(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
            Self::Lz4 => 2,
        }
    }

    /// What has this number.
    pub(crate) fn from_wire(number: u8) -> Option<Self> {
        [Self::None, Self::Zstd, Self::Lz4].get(usize::from(number)).copied()
    }
}

/// Compresses a payload. `None`: it would not become shorter by enough, or has a part of 4 GiB.
pub(crate) fn pack(by: Compression, payload: &Payload) -> Option<Payload> {
    let packed = Packed::of(payload, by)?;
    let whole = payload.to_contiguous();
    let bytes = pack_bytes(by, &whole, whole.len() - whole.len() / 16)?;
    Some(Payload::packed(bytes.into(), packed))
}

/// What a packed payload was. It takes as much memory as the payload says and no more: who calls this has looked whether that
/// is allowed. `None`: it is malformed, or of another length than it says.
pub(crate) fn unpack(payload: Payload) -> Option<Payload> {
    let (bytes, packed) = payload.into_packed()?;
    let whole = unpack_bytes(packed.by(), &bytes, usize::try_from(packed.len()).ok()?)?;
    Some(packed.split(whole.into()))
}

/// `None`: they become more than `most`.
fn pack_bytes(by: Compression, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    match by {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => lz4::pack(bytes, most),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::pack(bytes, most),
        _ => {
            let _ = (bytes, most);
            None
        }
    }
}

/// `None`: it does not become as many as `len`.
fn unpack_bytes(by: Compression, packed: &[u8], len: usize) -> Option<Vec<u8>> {
    match by {
        #[cfg(feature = "lz4")]
        Compression::Lz4 => lz4::unpack(packed, len),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::unpack(packed, len),
        _ => {
            let _ = (packed, len);
            None
        }
    }
}
