//! TLS as configuration: files, and what is asked of the peer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use super::refused::Naming;

/// Certificates, keys and trust, as PEM files. One section serves for both sides of a process.
///
/// ```toml
/// [tls]
/// ca = "ca.pem"            # whom to trust
/// cert = "node7.pem"       # who this side is: its certificate, then those between it and the CA
/// key = "node7.key"
/// ```
///
/// Files are read again when they have changed: see `reload_s`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TlsConfig {
    /// The certificates of the CAs that must have signed the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// This side's certificate, and those between it and its CA. Servers need one. Clients need one where servers want one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The private key of `cert`: PKCS #8, PKCS #1 or SEC 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Lists of certificates that were revoked, from each CA that signs the peers'. To revoke
    /// certificates later without a restart, name an empty list now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
    /// For clients: the name that the server's certificate must have. Default: the host in the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// For servers: whether clients must have a certificate. Default `require`.
    pub client_auth: ClientAuth,
    /// For how many seconds files count as unchanged. After that, the next connection has those read again that have changed, and
    /// uses what was read. It waits for that, a second at most. Connections that exist go on, as long as
    /// `limits.max_connection_age_ms` lets them. Default 60; 0: files are never read again.
    pub reload_s: u64,
}

/// The certificate that a server asks of its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ClientAuth {
    /// A certificate that a CA in `ca` has signed.
    #[default]
    Require,
    /// A certificate that a CA in `ca` has signed, or none.
    Optional,
    /// Nothing: anyone may connect.
    None,
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            ca: None,
            cert: None,
            key: None,
            crl: None,
            server_name: None,
            client_auth: ClientAuth::default(),
            reload_s: 60,
        }
    }
}

/// TLS that can't be had; the text names the setting and says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(pub(super) String);

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

type Result<T> = std::result::Result<T, TlsError>;

fn wrong<T>(why: impl Into<String>) -> Result<T> {
    Err(TlsError(why.into()))
}

impl TlsConfig {
    pub(super) fn reload(&self) -> Option<Duration> {
        (self.reload_s > 0).then(|| Duration::from_secs(self.reload_s))
    }

    /// Returns when and how long the files were when they were last written.
    pub(super) fn stamps(&self) -> Vec<Option<(SystemTime, u64)>> {
        let files = [&self.ca, &self.cert, &self.key, &self.crl].into_iter().flatten();
        let stamp = |file: &PathBuf| {
            let metadata = std::fs::metadata(file).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        files.map(stamp).collect()
    }

    /// Reads the files of a server.
    pub(super) fn server(&self) -> Result<ServerConfig> {
        let Some((chain, key)) = self.identity()? else {
            return wrong("a server needs tls.cert and tls.key");
        };
        let builder = ServerConfig::builder_with_provider(provider()?);
        let builder = builder.with_safe_default_protocol_versions().map_err(|e| TlsError(e.to_string()))?;
        let builder = match self.client_verifier()? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        builder.with_single_cert(chain, key).or_else(|error| self.wrong_identity(&error))
    }

    /// Reads the files of a client.
    pub(super) fn client(&self) -> Result<ClientConfig> {
        let Some(roots) = self.roots()? else {
            return wrong("a client needs tls.ca, the certificates of the CAs that sign those of servers");
        };
        let provider = provider()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = verifier.with_crls(self.revoked()?).build().map_err(|e| self.wrong_trust(&e))?;
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(|e| TlsError(e.to_string()))?;
        // It decides as rustls' own verifier does.
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Naming(verifier)));
        match self.identity()? {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).or_else(|error| self.wrong_identity(&error))
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }

    fn client_verifier(&self) -> Result<Option<Arc<dyn ClientCertVerifier>>> {
        if self.client_auth == ClientAuth::None {
            return Ok(None);
        }
        let Some(roots) = self.roots()? else {
            return wrong(
                "a server needs tls.ca, the certificates of the CAs that sign those of clients; to serve anyone, set \
                 tls.client_auth = \"none\"",
            );
        };
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()?);
        let builder = builder.with_crls(self.revoked()?);
        let builder = match self.client_auth {
            ClientAuth::Optional => builder.allow_unauthenticated(),
            _ => builder,
        };
        let verifier = builder.build().map_err(|error| self.wrong_trust(&error))?;
        Ok(Some(Arc::new(Naming(verifier))))
    }

    fn roots(&self) -> Result<Option<RootCertStore>> {
        let Some(file) = &self.ca else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in read::<CertificateDer<'static>>("tls.ca", file)? {
            let added = roots.add(certificate);
            added.map_err(|error| TlsError(format!("tls.ca: {}: {error}", file.display())))?;
        }
        Ok(Some(roots))
    }

    fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>> {
        self.crl.as_ref().map_or_else(|| Ok(Vec::new()), |file| read("tls.crl", file))
    }

    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>> {
        let (cert, key) = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) => return Ok(None),
            _ => return wrong("tls.cert and tls.key belong together: one of them is missing"),
        };
        let chain = read("tls.cert", cert)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("tls.key", key, error))?;
        Ok(Some((chain, key)))
    }

    fn wrong_identity<T>(&self, error: &rustls::Error) -> Result<T> {
        let file =
            |path: &Option<PathBuf>| path.as_deref().map_or_else(String::new, |p| p.display().to_string());
        let (cert, key) = (file(&self.cert), file(&self.key));
        match error {
            rustls::Error::InconsistentKeys(_) => {
                wrong(format!("tls.key: {key} is not the key of the certificate in {cert} (tls.cert)"))
            }
            other => wrong(format!("tls.cert: {cert}, tls.key: {key}: {other}")),
        }
    }

    fn wrong_trust(&self, error: &dyn std::fmt::Display) -> TlsError {
        let files = [&self.ca, &self.crl].into_iter().flatten().map(|file| file.display().to_string());
        TlsError(format!("tls.ca, tls.crl: {}: {error}", files.collect::<Vec<_>>().join(", ")))
    }
}

/// Returns the crypto of the process: what the application has installed, or what was built in.
fn provider() -> Result<Arc<CryptoProvider>> {
    if let Some(installed) = CryptoProvider::get_default() {
        return Ok(installed.clone());
    }
    #[cfg(feature = "tls-ring")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(not(feature = "tls-ring"))]
    wrong(
        "there is no crypto for TLS: build farcall with the feature `tls-ring`, or have the program call \
         `CryptoProvider::install_default()` of rustls",
    )
}

/// Reads all items of a kind in a PEM file. There must be one at least.
fn read<T: PemObject>(setting: &str, file: &Path) -> Result<Vec<T>> {
    let items = T::pem_file_iter(file).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match items {
        Ok(items) if items.is_empty() => Err(unreadable(setting, file, pem::Error::NoItemsFound)),
        Ok(items) => Ok(items),
        Err(error) => Err(unreadable(setting, file, error)),
    }
}

fn unreadable(setting: &str, file: &Path, error: pem::Error) -> TlsError {
    let why = match error {
        pem::Error::NoItemsFound => "there is nothing of this kind in it; it must be PEM".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        other => format!("{other:?}"),
    };
    TlsError(format!("{setting}: {}: {why}", file.display()))
}
