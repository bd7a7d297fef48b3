//! A server in a process of its own, and the ways to it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use farcall_core::client::RawChannel;
use farcall_core::proto::wire::PREFACE;
use farcall_tcp::tls::{TlsClient, TlsConfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::attackers::{Attacker, Cut, connected};
use crate::server::{To, settings};

/// A server as its clients and attackers know it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// The file of the CA that signed its certificate; without one, nothing is encrypted.
    pub(crate) ca: Option<PathBuf>,
}

impl Target {
    /// Returns it as words for a process.
    pub(crate) fn told(&self) -> String {
        format!(
            "{} {}",
            self.address,
            self.ca.as_deref().map_or_else(|| "-".into(), |ca| ca.display().to_string())
        )
    }

    /// Takes it from the first of the words that a process was told. Returns the others as well.
    pub(crate) fn of_words(words: &str) -> (Self, &str) {
        let mut words = words.splitn(3, ' ');
        let mut next = || words.next().unwrap();
        let (address, ca) = (next().parse().unwrap(), next());
        (Self { address, ca: (ca != "-").then(|| ca.into()) }, words.next().unwrap_or_default())
    }

    /// Returns an honest client of it.
    pub(crate) fn honest(&self) -> RawChannel {
        let tls = self.ca.clone().map(|ca| {
            let mut files = TlsConfig::default();
            files.ca = Some(ca);
            TlsClient::from_files(&files).unwrap()
        });
        RawChannel::new(To(self.address, tls), settings(0))
    }

    /// Returns what attackers connect with.
    pub(crate) fn attacked(&self) -> Attacked {
        Attacked { address: self.address, tls: self.ca.as_ref().map(trusting) }
    }
}

/// A server, and how to encrypt for it.
#[derive(Clone)]
pub(crate) struct Attacked {
    pub(crate) address: SocketAddr,
    tls: Option<TlsConnector>,
}

impl Attacked {
    /// Connects from 127.0.0.`n`, as the server wants it. `None` if it does not want it.
    pub(crate) async fn connect(&self, n: u8) -> Option<Attacker> {
        match &self.tls {
            Some(tls) => Attacker::try_encrypted(self.address, n, tls).await,
            None => Attacker::try_new(self.address, n).await,
        }
    }

    /// Connects by TLS from 127.0.0.`n`. Only as many bytes go out as the number says that is returned, too.
    pub(crate) async fn connect_to_be_cut(&self, n: u8) -> Option<(Attacker, Arc<AtomicUsize>)> {
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let connection = Cut(connected(self.address, n).await?, Arc::clone(&left));
        let attacker = Attacker::encrypt(connection, self.address, self.tls.as_ref()?).await?;
        Some((attacker, left))
    }

    /// Returns what a connection begins with.
    pub(crate) fn greeting(&self) -> &'static [u8] {
        // A record of RFC 8446, section 5.1, with the beginning of a ClientHello.
        if self.tls.is_some() { &[22, 3, 1, 2, 0, 1, 0, 1] } else { PREFACE }
    }
}

/// Returns the client's side of TLS, which trusts a CA.
fn trusting(ca: &PathBuf) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"farcall/1".to_vec()];
    Arc::new(config).into()
}
