//! Sessions that are resumed: no longer than the peer's certificate is valid.
//!
//! rustls verifies certificates in full handshakes alone, and a resumed session begets the next one. So without this a certificate would count
//! as long as its owner comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::pki_types::UnixTime;
use rustls::server::StoresServerSessions;
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, Connection, Error, HandshakeKind};

use super::explain;
use super::identity::{named, not_after};

/// The sessions that a server remembers, which it can forget all at once.
#[derive(Debug)]
pub(super) struct Sessions {
    kept: Arc<dyn StoresServerSessions>,
    /// A part of each key. Those of earlier generations are found no more.
    generation: AtomicU64,
}

impl Sessions {
    pub(super) fn new(kept: Arc<dyn StoresServerSessions>) -> Arc<Self> {
        Arc::new(Self { kept, generation: AtomicU64::new(0) })
    }

    fn forget_all(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.generation.load(Ordering::Relaxed).to_le_bytes(), key].concat()
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.kept.put(self.key(&key), value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.kept.get(&self.key(key))
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.kept.take(&self.key(key))
    }

    fn can_cache(&self) -> bool {
        self.kept.can_cache()
    }
}

/// The check of sessions that are resumed.
#[derive(Debug)]
pub(super) struct Resumption {
    pub(super) clock: Arc<dyn TimeProvider>,
    /// Those of this side, if it is a server.
    pub(super) sessions: Option<Arc<Sessions>>,
}

impl Resumption {
    /// Checks that the peer's certificate is valid still, if the handshake has resumed a session. If it is not, a server forgets its
    /// sessions: the next handshake is a full one, which ends with an alert that says why.
    ///
    /// # Errors
    ///
    /// The certificate has expired, in words.
    pub(super) fn check(&self, connection: &Connection) -> Result<(), String> {
        if connection.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Ok(());
        }
        let own = connection.peer_certificates().and_then(<[_]>::first);
        let Some(not_after) = own.and_then(not_after) else { return Ok(()) };
        let not_after = UnixTime::since_unix_epoch(not_after);
        let why = match self.clock.current_time() {
            Some(time) if time <= not_after => return Ok(()),
            Some(time) => Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }),
            None => Error::FailedToGetCurrentTime,
        };
        if let Some(sessions) = &self.sessions {
            sessions.forget_all();
        }
        Err(explain::in_words(&why, own.map(|own| named(own)).as_deref()))
    }
}
