//! The secret of a TLS session, from which other links' keys are derived (WIRE.md section 11.2).
//!
//! The ciphers are those of the crypto provider that the session uses. rustls hands them out with its support for QUIC, whose
//! packets are sealed as these texts are.

use std::fmt;
use std::sync::Arc;

use farcall_core::transport::{Cipher, Key, Reason, Secret, TAG_LEN, Unavailable};
use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{AeadKey, Iv, NONCE_LEN};
use rustls::crypto::tls13::HkdfExpander;
use rustls::quic::{Algorithm, PacketKey};
use rustls::{CipherSuite, Connection, SupportedCipherSuite, Tls13CipherSuite};
use zeroize::Zeroizing;

/// The label of the exporter (RFC 5705, section 4).
const LABEL: &[u8] = b"EXPERIMENTAL farcall/1 seal";

/// The length of a key of every cipher here, in bytes.
const KEY_LEN: usize = 32;

/// A secret of a TLS 1.3 session, as the pseudorandom key of an HKDF (RFC 5869).
pub(super) struct SessionSecret {
    hkdf: Box<dyn HkdfExpander>,
    ciphers: Vec<(Cipher, &'static dyn Algorithm)>,
}

impl SessionSecret {
    /// Exports the secret of a session whose handshake is over. No other place calls the exporter.
    pub(super) fn export(connection: &Connection, provider: &CryptoProvider) -> Result<Self, Unavailable> {
        let Some(SupportedCipherSuite::Tls13(suite)) = connection.negotiated_cipher_suite() else {
            return Err(unavailable("the session is of TLS 1.2, and keys for RDMA need TLS 1.3"));
        };
        let exported = connection
            .export_keying_material(Zeroizing::new([0; KEY_LEN]), LABEL, None)
            .map_err(|error| unavailable(&format!("TLS exports no keys: {error}")))?;
        Self::new(suite, provider, &exported)
    }

    fn new(
        suite: &Tls13CipherSuite,
        provider: &CryptoProvider,
        exported: &[u8; KEY_LEN],
    ) -> Result<Self, Unavailable> {
        let hkdf = suite.hkdf_provider.extract_from_secret(None, exported);
        let mut ciphers: Vec<_> = Cipher::ALL
            .into_iter()
            .filter_map(|cipher| Some((cipher, algorithm(cipher, provider)?)))
            .collect();
        // Both sides prefer what they have agreed on for the session.
        ciphers.sort_by_key(|(cipher, _)| suite_of(*cipher) != suite.common.suite);
        if ciphers.is_empty() {
            let why = "the crypto provider of rustls has neither AES-256-GCM nor ChaCha20-Poly1305 for QUIC";
            return Err(unavailable(why));
        }
        Ok(Self { hkdf, ciphers })
    }
}

impl Secret for SessionSecret {
    fn ciphers(&self) -> Vec<Cipher> {
        self.ciphers.iter().map(|(cipher, _)| *cipher).collect()
    }

    fn key(&self, cipher: Cipher, info: &[u8]) -> Option<Arc<dyn Key>> {
        let (_, algorithm) = self.ciphers.iter().find(|(known, _)| *known == cipher)?;
        let mut material = Zeroizing::new([0; KEY_LEN + NONCE_LEN]);
        self.hkdf.expand_slice(&[info], &mut *material).ok()?;
        let (key, iv) = material.split_first_chunk::<KEY_LEN>()?;
        let iv = Iv::new(*iv.first_chunk()?);
        Some(Arc::new(SealingKey(algorithm.packet_key(AeadKey::from(*key), iv))))
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSecret").field("ciphers", &self.ciphers()).finish_non_exhaustive()
    }
}

/// A key whose nonces are those of TLS 1.3 (RFC 8446, section 5.3): the initialisation vector, and the number in its last bytes
/// (exclusive or).
struct SealingKey(Box<dyn PacketKey>);

impl Key for SealingKey {
    fn seal(&self, number: u64, text: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let tag = self.0.encrypt_in_place(number, &[], text).ok()?;
        tag.as_ref().first_chunk().copied()
    }

    fn open(&self, number: u64, text_and_tag: &mut [u8]) -> bool {
        self.0.decrypt_in_place(number, &[], text_and_tag).is_ok()
    }
}

fn suite_of(cipher: Cipher) -> CipherSuite {
    match cipher {
        Cipher::Aes256Gcm => CipherSuite::TLS13_AES_256_GCM_SHA384,
        Cipher::ChaCha20Poly1305 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    }
}

fn algorithm(cipher: Cipher, provider: &CryptoProvider) -> Option<&'static dyn Algorithm> {
    let suites = provider.cipher_suites.iter().filter_map(SupportedCipherSuite::tls13);
    let suite = suites.into_iter().find(|suite| suite.common.suite == suite_of(cipher))?;
    suite.quic.filter(|algorithm| algorithm.aead_key_len() == KEY_LEN)
}

fn unavailable(why: &str) -> Unavailable {
    Unavailable::new(Reason::Encrypted, why)
}

/// Returns the secret of a session that exports these bytes and has agreed on this cipher, with the crypto provider `ring`.
#[cfg(feature = "testing")]
pub fn exported(cipher: Cipher, bytes: &[u8; KEY_LEN]) -> Result<Arc<dyn Secret>, Unavailable> {
    let provider = rustls::crypto::ring::default_provider();
    let suite = provider.cipher_suites.iter().filter_map(SupportedCipherSuite::tls13);
    let suite = suite.into_iter().find(|suite| suite.common.suite == suite_of(cipher));
    let suite = suite.ok_or_else(|| unavailable("`ring` does not have the cipher"))?;
    Ok(Arc::new(SessionSecret::new(suite, &provider, bytes)?))
}
