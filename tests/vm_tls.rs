//! Sessions by TLS that move to an RDMA device, where they stay encrypted.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod authority;

use std::sync::Arc;

use farcall::tls::rustls::crypto::{CryptoProvider, ring};
use farcall::tls::rustls::pki_types::pem::PemObject;
use farcall::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use farcall::tls::rustls::{
    CipherSuite, ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version,
};
use farcall::tls::{self, TlsClient, TlsConfig, TlsServer};
use farcall::{Bytes, Channel, Code, Config, Executed, Policy, Reason, Server, Status, rdma};

use authority::{Authority, as_it_is};

#[farcall::service(package = "test")]
trait Echo {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes>;
}

struct Mirror;

impl Echo for Mirror {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes> {
        Ok(content)
    }
}

fn config(plaintext: Option<rdma::Plaintext>) -> Config {
    let mut config = Config::default();
    config.rdma.strict_credits = true;
    config.rdma.plaintext = plaintext;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

/// Starts a server, and returns `HOST:PORT`.
async fn serve(tls: TlsServer, plaintext: Option<rdma::Plaintext>) -> String {
    let server = Server::builder().add(EchoServer::new(Mirror)).config(config(plaintext)).tls(tls);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().to_string();
    tokio::spawn(server.serve());
    address
}

async fn connect(
    scheme: &str,
    address: &str,
    tls: TlsClient,
    plaintext: Option<rdma::Plaintext>,
) -> Result<Channel, Status> {
    let channel = Channel::builder().config(config(plaintext)).tls(tls);
    channel.connect(&format!("{scheme}://{address}")).await
}

/// A way to configure both ends.
struct Terms {
    version: &'static SupportedProtocolVersion,
    /// The cipher suite that the client likes best.
    suite: Option<CipherSuite>,
}

impl Terms {
    fn ends(&self, files: &TlsConfig) -> (TlsServer, TlsClient) {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(files.cert.as_ref().unwrap()).unwrap().collect();
        let key = PrivateKeyDer::from_pem_file(files.key.as_ref().unwrap()).unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[self.version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.unwrap(), key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(files.ca.as_ref().unwrap()).unwrap() {
            roots.add(certificate.unwrap()).unwrap();
        }
        let mut provider: CryptoProvider = ring::default_provider();
        provider.cipher_suites.sort_by_key(|suite| Some(suite.suite()) != self.suite);
        let client = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[self.version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (TlsServer::new(server), TlsClient::new(client))
    }
}

fn content(len: usize) -> Bytes {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

async fn call_with_all_sizes(channel: &Channel) {
    let echo = EchoClient::new(channel);
    for len in [0, 1, 100, 8000, 8192, 60_000, 100_000, 1 << 20, 5_000_001] {
        assert_eq!(echo.echo(content(len)).await.unwrap(), content(len), "{len} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_sizes_go_by_sealed_links_with_every_cipher() {
    let authority = Authority::new("ca");
    let files = authority.issue("echo", as_it_is);
    for suite in [
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ] {
        let terms = Terms { version: &version::TLS13, suite: Some(suite) };
        let (server, client) = terms.ends(&files);
        let address = serve(server, None).await;
        let channel = connect("rdma", &address, client, None).await.unwrap();
        let connection = channel.connection().await.unwrap();
        assert!(connection.is_encrypted(), "{suite:?}");
        call_with_all_sizes(&channel).await;
        assert_eq!(connection.transport().name, "rdma");
        let traffic = connection.traffic();
        assert!(traffic.upgraded.bytes_sent > 5 << 20 && traffic.stream.bytes_sent < 64 << 10, "{traffic:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rdma_is_used_whether_it_is_asked_for_or_left_to_both_ends() {
    let authority = Authority::new("ca");
    let files = authority.issue("echo", as_it_is);
    let (server, client) = Terms { version: &version::TLS13, suite: None }.ends(&files);
    let address = serve(server, None).await;
    for (scheme, policy) in
        [("rdma+tls", None), ("farcall+tls", Some(Policy::Auto)), ("farcall", None), ("tcp+tls", None)]
    {
        let mut config = config(None);
        config.transport = policy;
        let channel = Channel::builder().config(config).tls(client.clone());
        let channel = channel.connect(&format!("{scheme}://{address}")).await.unwrap();
        call_with_all_sizes(&channel).await;
        let connection = channel.connection().await.unwrap();
        let expected = if scheme == "tcp+tls" { "tcp" } else { "rdma" };
        assert_eq!((connection.transport().name, connection.is_encrypted()), (expected, true), "{scheme}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plaintext_goes_by_the_device_if_both_sides_trust_the_fabric() {
    let trusted = Some(rdma::Plaintext::TrustedFabric);
    let authority = Authority::new("ca");
    let files = authority.issue("echo", as_it_is);
    let terms = Terms { version: &version::TLS13, suite: None };
    for (one, other) in [(trusted, trusted), (trusted, None), (None, trusted)] {
        let (server, client) = terms.ends(&files);
        let address = serve(server, one).await;
        let channel = connect("rdma", &address, client, other).await.unwrap();
        call_with_all_sizes(&channel).await;
        let connection = channel.connection().await.unwrap();
        assert_eq!(connection.is_encrypted(), (one, other) != (trusted, trusted));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_1_2_has_no_keys_for_the_device() {
    let authority = Authority::new("ca");
    let files = authority.issue("echo", as_it_is);
    let terms = Terms { version: &version::TLS12, suite: None };
    let (server, client) = terms.ends(&files);
    let address = serve(server, None).await;
    // Calls go by TCP, encrypted, and the reason is there to be read.
    let channel = connect("farcall", &address, client.clone(), None).await.unwrap();
    call_with_all_sizes(&channel).await;
    let connection = channel.connection().await.unwrap();
    let transport = connection.transport();
    let why = transport.why_not_rdma.as_ref().unwrap();
    assert_eq!((transport.name, why.reason), ("tcp", Reason::Encrypted), "{why}");
    assert!(connection.is_encrypted());
    let said = why.to_string();
    assert!(said.contains("TLS 1.2") && said.contains("trusted-fabric"), "{said}");
    // With RDMA or nothing it is nothing.
    let error = connect("rdma", &address, client, None).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
    assert!(error.message().contains("TLS 1.2"), "{error}");
}
