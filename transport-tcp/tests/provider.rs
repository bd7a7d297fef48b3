//! The crypto of TLS: what the application has installed or passed, what is built in, and what is said where there is none.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

#[path = "../../tests/authority/mod.rs"]
mod authority;

use farcall_tcp::tls::{self, TlsClient};

use authority::{Authority, as_it_is};

#[cfg(not(feature = "tls-ring"))]
#[test]
fn a_process_without_crypto_says_how_to_get_it() {
    let error = TlsClient::from_files(&Authority::new("ca").issue("a", as_it_is)).map(drop).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("`tls-ring`") && said.contains("CryptoProvider::install_default()"), "{said}");
}

#[cfg(feature = "tls-ring")]
mod chosen {
    use std::sync::Arc;
    use std::time::Duration;

    use farcall_core::proto::message::Frame;
    use farcall_core::proto::wire::FrameType;
    use farcall_core::testing::{End, Event, hello};
    use farcall_core::transport::{Cipher, Link};
    use farcall_tcp::tls::TlsServer;
    use farcall_tcp::{Acceptor, TcpConfig, connect_tls};
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::{CipherSuite, ClientConfig, RootCertStore};

    use super::*;

    /// A provider that has one cipher suite only.
    fn with_suite(suite: CipherSuite) -> CryptoProvider {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|has| has.suite() == suite);
        assert_eq!(provider.cipher_suites.len(), 1);
        provider
    }

    /// Returns the ciphers that both ends have for RDMA, or what the client says.
    async fn ciphers(near: &TlsClient, far: &TlsServer) -> Result<[Vec<Cipher>; 2], String> {
        let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
        let target = acceptor.local_addr().unwrap().to_string();
        let (acceptor, config) = (acceptor.with_tls(far.clone()), TcpConfig::default());
        let near = connect_tls(&target, "localhost", &config, near, Duration::from_secs(60));
        let (near, far) = tokio::join!(near, acceptor.accept());
        let links = [near.unwrap() as Arc<dyn Link>, far];
        let mut ends = links.each_ref().map(|link| End::start(link.clone()));
        for end in &ends {
            let mut payload = bytes::BytesMut::new();
            hello().encode(&mut payload);
            end.send([Frame::link(FrameType::HELLO, payload.freeze())]);
        }
        for end in &mut ends {
            if let Event::End(why) = end.next().await.unwrap() {
                return Err(why.to_string());
            }
        }
        Ok(links.map(|link| link.secret().unwrap().ciphers()))
    }

    fn client_by(provider: CryptoProvider, authority: &Authority) -> TlsClient {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.trusted().ca.unwrap()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(provider));
        let config = config.with_safe_default_protocol_versions().unwrap();
        TlsClient::new(config.with_root_certificates(roots).with_no_client_auth())
    }

    /// One test, because a process installs one provider, once.
    #[tokio::test]
    async fn the_crypto_is_the_applications() {
        let authority = Authority::new("ca");
        let mut files = authority.issue("b", as_it_is);
        files.client_auth = tls::ClientAuth::None;
        let ends = || (TlsClient::from_files(&files).unwrap(), TlsServer::from_files(&files).unwrap());
        let (near, built_in) = ends();
        let all = vec![Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];
        assert_eq!(ciphers(&near, &built_in).await.unwrap(), [all.clone(), all.clone()]);

        // Passed to one side, it decides for that side, and what both can agree on.
        let passed = client_by(with_suite(CipherSuite::TLS13_AES_256_GCM_SHA384), &authority);
        let [near, far] = ciphers(&passed, &built_in).await.unwrap();
        assert_eq!((near, far), (vec![Cipher::Aes256Gcm], all));

        // Installed, it takes the place of what is built in.
        with_suite(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256).install_default().unwrap();
        let (near, far) = ends();
        let one = vec![Cipher::ChaCha20Poly1305];
        assert_eq!(ciphers(&near, &far).await.unwrap(), [one.clone(), one]);
        let why = ciphers(&passed, &far).await.unwrap_err();
        assert!(why.contains("no cipher suite in common"), "{why}");
    }
}
