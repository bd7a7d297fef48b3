//! TLS, by rustls: what servers and clients are configured with, and the sessions that they begin.
//!
//! TLS goes around the stream before its first byte. Certificates are checked by rustls alone.

mod config;
mod explain;
mod identity;
mod refusals;
mod refused;
mod reloading;
mod resumption;
mod secret;
mod session;

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::server::ServerSessionMemoryCache;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

pub use rustls;

pub use self::config::{ClientAuth, TlsConfig, TlsError};
pub use self::explain::explanations;
use self::refusals::Refusals;
use self::reloading::Reloading;
use self::resumption::{Resumption, Sessions};
#[cfg(feature = "testing")]
pub use self::secret::exported;
pub(crate) use self::session::Session;

/// The protocol that both sides must agree on (RFC 7301).
pub(crate) const ALPN: &[u8] = b"farcall/1";

/// How many sessions a server remembers, which clients may resume without a full handshake.
const SESSIONS: usize = 4096;

/// The TLS of a server. Clones share it: what is replaced or read again counts for all of them, from the next connection on.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<Reloading<ServerTls>>);

/// The configuration of a server, its sessions, and what it has refused.
struct ServerTls {
    config: Arc<ServerConfig>,
    sessions: Arc<Sessions>,
    refusals: Arc<Refusals>,
}

/// The TLS of a client. Clones share it: what is replaced or read again counts for all of them, from the next connection on.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<Reloading<ClientConfig>>);

impl TlsServer {
    /// Returns the TLS that a configuration of rustls describes. Its ALPN protocols are farcall's.
    ///
    /// A session is not resumed when the peer's certificate has expired since. For a verifier that accepts expired certificates, switch
    /// resumption off.
    pub fn new(config: ServerConfig) -> Self {
        Self(Reloading::fixed(ServerTls::of(config)))
    }

    /// Reads certificate, key and CAs from files.
    ///
    /// # Errors
    ///
    /// The setting and the file that is wrong.
    pub fn from_files(files: &TlsConfig) -> Result<Self, TlsError> {
        let read = |files: &TlsConfig| {
            let mut config = files.server()?;
            config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
            Ok(ServerTls::of(config))
        };
        Reloading::from_files(files, read).map(Self)
    }

    /// Uses another configuration for connections from now on.
    pub fn replace(&self, config: ServerConfig) {
        self.0.replace(ServerTls::of(config));
    }

    /// Reads the files again, whether they have changed or not. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// The setting and the file that is wrong. The files that were read before stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.0.reload()
    }

    /// Has files that have changed read, when it is time to look at them. Waits for a second at most.
    pub(crate) async fn refresh(&self) {
        self.0.refresh().await;
    }

    /// Begins a session of a connection that was accepted.
    pub(crate) fn session(&self) -> Result<Session, TlsError> {
        let ServerTls { config, sessions, refusals } = &*self.0.config();
        let provider = config.crypto_provider().clone();
        let resumption = Resumption { clock: config.time_provider.clone(), sessions: Some(sessions.clone()) };
        let connection = ServerConnection::new(config.clone());
        connection
            .map(|connection| Session::new(connection, provider, resumption, Some(refusals.clone())))
            .map_err(|error| TlsError(error.to_string()))
    }
}

impl TlsClient {
    /// Returns the TLS that a configuration of rustls describes. Its ALPN protocols are farcall's.
    ///
    /// A session is not resumed when the peer's certificate has expired since. For a verifier that accepts expired certificates, switch
    /// resumption off.
    pub fn new(config: ClientConfig) -> Self {
        Self(Reloading::fixed(with_alpn_of_client(config)))
    }

    /// Reads certificate, key and CAs from files.
    ///
    /// # Errors
    ///
    /// The setting and the file that is wrong.
    pub fn from_files(files: &TlsConfig) -> Result<Self, TlsError> {
        if let Some(name) = &files.server_name {
            server_name(name)?;
        }
        let read = |files: &TlsConfig| files.client().map(with_alpn_of_client);
        Reloading::from_files(files, read).map(Self)
    }

    /// Uses another configuration for connections from now on.
    pub fn replace(&self, config: ClientConfig) {
        self.0.replace(with_alpn_of_client(config));
    }

    /// Reads the files again, whether they have changed or not. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// The setting and the file that is wrong. The files that were read before stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.0.reload()
    }

    /// Has files that have changed read, when it is time to look at them. Waits for a second at most.
    pub(crate) async fn refresh(&self) {
        self.0.refresh().await;
    }

    /// Begins a session with the server at this host.
    pub(crate) fn session(&self, host: &str) -> Result<Session, TlsError> {
        let wanted = self.0.files().and_then(|files| files.server_name.as_deref());
        let name = server_name(wanted.unwrap_or(host))?;
        let config = self.0.config();
        let provider = config.crypto_provider().clone();
        let resumption = Resumption { clock: config.time_provider.clone(), sessions: None };
        let connection = ClientConnection::new(config, name);
        connection
            .map(|connection| Session::new(connection, provider, resumption, None))
            .map_err(|error| TlsError(error.to_string()))
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let wrong = |_| TlsError(format!("`{name}` is no name that a certificate can have; set tls.server_name"));
    ServerName::try_from(name.to_owned()).map_err(wrong)
}

impl ServerTls {
    fn of(mut config: ServerConfig) -> Self {
        config.alpn_protocols = vec![ALPN.to_vec()];
        let sessions = Sessions::new(config.session_storage);
        config.session_storage = sessions.clone();
        Self { config: Arc::new(config), sessions, refusals: Arc::default() }
    }
}

fn with_alpn_of_client(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config
}
