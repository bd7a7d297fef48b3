//! The name of a compression, and its number on the wire (WIRE.md section 5.2).

use serde::{Deserialize, Serialize};

/// A compression algorithm for messages.
///
/// An argument, a result or an item is compressed if its side asks for it, its peer can read it, it has 1 KiB or more,
/// and it becomes shorter by a sixteenth at least. Otherwise it is sent as it is.
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

impl Compression {
    /// Its name, in a configuration and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Its number in a message.
    pub fn to_wire(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
            Self::Lz4 => 2,
        }
    }

    /// Returns the algorithm with this number.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::None, Self::Zstd, Self::Lz4].get(usize::from(number)).copied()
    }
}
