//! The keys by which an upgraded link encrypts what it moves. They are derived from a secret of the encrypted stream link
//! (WIRE.md section 11).

use std::fmt;
use std::sync::Arc;

use super::{Description, Reason, Unavailable};
use crate::class::TrafficClass;

/// The bytes that sealing adds to a text.
pub const TAG_LEN: usize = 16;

/// A cipher that encrypts and authenticates. The numbers are bits, from WIRE.md section 11.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cipher {
    /// AES-256-GCM.
    Aes256Gcm = 0x02,
    /// ChaCha20-Poly1305 (RFC 8439).
    ChaCha20Poly1305 = 0x04,
}

impl Cipher {
    /// All ciphers.
    pub const ALL: [Self; 2] = [Self::Aes256Gcm, Self::ChaCha20Poly1305];
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        })
    }
}

/// A secret that the two ends of an encrypted stream link share, and nobody else.
pub trait Secret: Send + Sync + fmt::Debug {
    /// Returns the ciphers that this side has, the best first.
    fn ciphers(&self) -> Vec<Cipher>;

    /// Derives a key. `info` tells it from all other keys of the secret. `None`: this side does not have the cipher.
    fn key(&self, cipher: Cipher, info: &[u8]) -> Option<Arc<dyn Key>>;

    /// Returns the binary logarithm of the number of texts that one key seals, before another follows. Both ends must have the one of
    /// WIRE.md, section 11.2, which is the default. Tests have keys that follow each other sooner.
    fn texts_per_key_log2(&self) -> u32 {
        20
    }
}

/// A key for texts that go in one direction.
pub trait Key: Send + Sync {
    /// Encrypts a text in place, and returns its tag. No number may be used twice. `None`: the cipher has failed.
    #[must_use]
    fn seal(&self, number: u64, text: &mut [u8]) -> Option<[u8; TAG_LEN]>;

    /// Decrypts a text in place; its tag comes last. False: these are not the bytes that the peer has sealed with this
    /// number.
    #[must_use]
    fn open(&self, number: u64, text_and_tag: &mut [u8]) -> bool;
}

/// An attempt to move a session to another kind of link.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The stream link of the session.
    pub stream: Description,
    /// The class of the connection.
    pub class: TrafficClass,
    /// Whether the link may move bytes as they are.
    pub allows_plaintext: bool,
    /// The secret from which the link derives its keys, or why there is none.
    pub secret: Result<Arc<dyn Secret>, Unavailable>,
}

impl Attempt {
    /// Returns an attempt of a session that is not encrypted.
    pub fn plain(stream: Description, class: TrafficClass) -> Self {
        let why = Unavailable::new(Reason::Other, "the session is not encrypted");
        Self { stream, class, allows_plaintext: true, secret: Err(why) }
    }
}
