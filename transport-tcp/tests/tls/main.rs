//! TLS: links that are encrypted, what each side refuses and says, files that change, peers that tamper.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

#[path = "../../../tests/authority/mod.rs"]
mod authority;
mod endless;
#[path = "../../../tests/log/mod.rs"]
mod log;
mod middle;
mod openssl;
mod reloading;
mod resuming;

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::{FrameType, Header, PREFACE};
use farcall_core::testing::{End, Event, conformance, hello};
use farcall_core::transport::{Identity, Link};
use farcall_tcp::tls::{ClientAuth, TlsClient, TlsConfig, TlsServer};
use farcall_tcp::{Acceptor, TcpConfig, TcpLink, connect, connect_tls, tls};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use authority::{
    Authority, Change, as_it_is, expired, for_clients, for_db1, for_servers, not_yet_valid, with_serial,
};

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(60);

async fn acceptor(tls: Option<&TlsServer>) -> (Acceptor, String) {
    let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    let target = acceptor.local_addr().unwrap().to_string();
    (if let Some(tls) = tls { acceptor.with_tls(tls.clone()) } else { acceptor }, target)
}

/// The two ends of a connection; `None`: without TLS.
async fn links(client: Option<&TlsClient>, server: Option<&TlsServer>) -> (Arc<TcpLink>, Arc<TcpLink>) {
    let (acceptor, target) = acceptor(server).await;
    let config = TcpConfig::default();
    let connecting = async {
        match client {
            Some(tls) => connect_tls(&target, "127.0.0.1", &config, tls, PATIENCE).await,
            None => connect(&target, &config, PATIENCE).await,
        }
    };
    let (near, far) = tokio::join!(connecting, acceptor.accept());
    (near.unwrap(), far)
}

fn client(files: &TlsConfig) -> TlsClient {
    TlsClient::from_files(files).unwrap()
}

fn server(files: &TlsConfig) -> TlsServer {
    TlsServer::from_files(files).unwrap()
}

fn frame(len: usize) -> Frame {
    let header = Header { len: len as u32, seq: 1, ..Header::new(FrameType::REQUEST, 1) };
    Frame { header, pieces: bytes::Bytes::from(vec![5; len]).into() }
}

fn greeting() -> Frame {
    let mut payload = BytesMut::new();
    hello().encode(&mut payload);
    Frame::link(FrameType::HELLO, payload.freeze())
}

/// How the session between these ends, at the client and at the server. `Ok`: the peer's HELLO has arrived.
async fn met(
    client: Option<&TlsClient>,
    server: Option<&TlsServer>,
) -> [Result<Option<Arc<Identity>>, String>; 2] {
    let (near, far) = links(client, server).await;
    let seen = async |link: Arc<TcpLink>| {
        let mut end = End::start(link.clone());
        end.send([greeting()]);
        match end.next().await.unwrap() {
            // The server's comes after it has taken the client's certificate.
            Event::Frame(..) => Ok(link.identity()),
            Event::End(end) => Err(end.to_string()),
            other => panic!("{other:?}"),
        }
    };
    <[_; 2]>::from(tokio::join!(seen(near), seen(far)))
}

async fn pair() -> conformance::Pair {
    let authority = Authority::new("ca");
    let tls = (client(&authority.issue("a", as_it_is)), server(&authority.issue("b", as_it_is)));
    let (near, far) = links(Some(&tls.0), Some(&tls.1)).await;
    (near as Arc<dyn Link>, far as Arc<dyn Link>)
}

#[tokio::test]
async fn tls_conforms() {
    conformance::check(pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_conforms_on_two_threads() {
    conformance::check(pair).await;
}

#[tokio::test]
async fn each_side_knows_who_the_other_is() {
    let authority = Authority::new("ca");
    let (a, b) = (authority.issue("a", as_it_is), authority.issue("b", as_it_is));
    let [at_client, at_server] = met(Some(&client(&a)), Some(&server(&b))).await;
    let (b, a) = (at_client.unwrap().unwrap(), at_server.unwrap().unwrap());
    assert_eq!((&*b.subject, b.spiffe_id()), ("CN=b", Some("spiffe://example.org/b")));
    assert_eq!((&*a.subject, a.spiffe_id()), ("CN=a", Some("spiffe://example.org/a")));
    assert_eq!(a.dns_names, ["localhost"]);
    assert_eq!(a.ip_addresses, ["127.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(a.certificates.len(), 1);
    let mut anyone = authority.issue("b", as_it_is);
    for auth in [ClientAuth::None, ClientAuth::Optional] {
        anyone.client_auth = auth;
        let [at_client, at_server] = met(Some(&client(&authority.trusted())), Some(&server(&anyone))).await;
        assert!(at_client.unwrap().is_some() && at_server.unwrap().is_none());
    }
}

const OURS: &str = "this side refused the peer's certificate";
const THEIRS: &str = "the peer refused this side";

/// The names of both certificates, as messages have them.
const A: &str = " (\"CN=a\", signed in the name of \"CN=ca\"): ";
const B: &str = " (\"CN=b\", signed in the name of \"CN=ca\"): ";

/// The client's certificate, the server's, and words of what each of them says.
type Refusal = (Option<Change>, Change, &'static [&'static str], &'static [&'static str]);

#[tokio::test]
async fn a_refusal_is_told_on_both_sides() {
    let authority = Authority::new("ca");
    let refusals: &[Refusal] = &[
        (None, as_it_is, &[THEIRS, "set tls.cert"], &["no certificate", "tls.cert"]),
        (Some(expired), as_it_is, &[THEIRS, "has expired"], &[OURS, A, "it expired "]),
        (
            Some(not_yet_valid),
            as_it_is,
            &[THEIRS, "expired, or a clock"],
            &[OURS, A, "not valid yet", "clock"],
        ),
        (Some(for_servers), as_it_is, &[THEIRS, "purpose"], &[OURS, A, "purpose"]),
        (Some(as_it_is), expired, &[OURS, B, "it expired "], &[THEIRS, "has expired"]),
        (
            Some(as_it_is),
            for_db1,
            &[OURS, B, "for DnsName(\"db1\"), and not for 127.0.0.1"],
            &[THEIRS, "name"],
        ),
        (Some(as_it_is), for_clients, &[OURS, B, "purpose"], &[THEIRS, "purpose"]),
    ];
    for (n, (clients, servers, at_client, at_server)) in refusals.iter().enumerate() {
        let near = clients.map_or_else(|| authority.trusted(), |change| authority.issue("a", change));
        let far = authority.issue("b", *servers);
        let [near, far] = met(Some(&client(&near)), Some(&server(&far))).await;
        let (near, far) = (near.unwrap_err(), far.unwrap_err());
        assert!(at_client.iter().all(|words| near.contains(words)), "{n}: the client says: {near}");
        assert!(at_server.iter().all(|words| far.contains(words)), "{n}: the server says: {far}");
    }
}

/// The client's words say that the server's log has more.
#[tokio::test]
async fn a_server_logs_why_it_refuses_a_client() {
    let log = log::Log::default();
    let _listening = log.listen();
    let authority = Authority::new("ca");
    let (near, far) = (client(&authority.issue("a", for_servers)), server(&authority.issue("b", as_it_is)));
    let [_, refused] = met(Some(&near), Some(&far)).await;
    refused.unwrap_err();
    let lines = log.lines();
    let warned = lines.iter().find(|line| line.starts_with("WARN"));
    assert!(warned.is_some_and(|line| line.contains("127.0.0.1") && line.contains("purpose")), "{lines:?}");
}

#[tokio::test]
async fn the_certificate_of_another_ca_is_refused() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let (a, b) = (authority.issue("a", as_it_is), authority.issue("b", as_it_is));
    let [near, far] = met(Some(&client(&other.trusted())), Some(&server(&b))).await;
    let near = near.unwrap_err();
    assert!(near.contains(&format!("{OURS}{B}it was not signed by any CA in tls.ca")), "{near}");
    assert!(far.unwrap_err().contains("its tls.ca"));
    let mut stranger = other.issue("a", as_it_is);
    stranger.ca = a.ca;
    let [near, far] = met(Some(&client(&stranger)), Some(&server(&b))).await;
    assert!(near.unwrap_err().contains("the peer refused this side"));
    assert!(far.unwrap_err().contains("not signed by any CA in tls.ca"));
}

#[tokio::test]
async fn a_name_that_is_set_counts_in_place_of_the_host() {
    let authority = Authority::new("ca");
    let mut files = authority.issue("a", as_it_is);
    files.server_name = Some("db1".into());
    let server = server(&authority.issue("b", for_db1));
    let [near, far] = met(Some(&client(&files)), Some(&server)).await;
    assert!(near.is_ok() && far.is_ok(), "{near:?} {far:?}");
}

#[tokio::test]
async fn a_peer_without_tls_is_named_on_both_sides() {
    let authority = Authority::new("ca");
    let files = authority.issue("a", as_it_is);
    let [near, far] = met(None, Some(&server(&files))).await;
    let (near, far) = (near.unwrap_err(), far.unwrap_err());
    assert!(near.contains("the peer speaks TLS, and this side does not"), "{near}");
    assert!(
        far.contains("does not speak TLS: its first bytes are `farcall") || far.contains("[tls]"),
        "{far}"
    );
    let [near, far] = met(Some(&client(&files)), None).await;
    let (near, far) = (near.unwrap_err(), far.unwrap_err());
    assert!(near.contains("does not speak TLS"), "{near}");
    assert!(far.contains("the peer speaks TLS"), "{far}");
}

/// Accepts with a bare rustls, and returns what a farcall client says of it.
async fn client_of_bare(authority: &Authority, alpn: Vec<Vec<u8>>) -> String {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let files = authority.issue("b", as_it_is);
    let chain = vec![CertificateDer::from_pem_file(files.cert.unwrap()).unwrap()];
    let key = PrivateKeyDer::from_pem_file(files.key.unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let bare = std::thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        let mut tls = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        while tls.complete_io(&mut socket).is_ok_and(|(read, _)| read > 0) {}
    });
    let link =
        connect_tls(&target, "localhost", &TcpConfig::default(), &client(&authority.trusted()), PATIENCE)
            .await
            .unwrap();
    let why = End::start(link).end().await.to_string();
    bare.join().unwrap();
    why
}

#[tokio::test]
async fn a_server_that_does_not_agree_to_farcall_is_left() {
    let authority = Authority::new("ca");
    let why = client_of_bare(&authority, Vec::new()).await;
    assert!(why.contains("does not speak farcall") && why.contains("ALPN"), "{why}");
    let why = client_of_bare(&authority, vec![b"h2".to_vec()]).await;
    assert!(why.contains("does not speak farcall") && why.contains("ALPN"), "{why}");
}

#[tokio::test]
async fn a_client_that_does_not_ask_for_farcall_is_left() {
    let authority = Authority::new("ca");
    let mut files = authority.issue("b", as_it_is);
    files.client_auth = ClientAuth::None;
    for (alpn, words) in [(Vec::new(), "ALPN"), (vec![b"h2".to_vec()], "ALPN")] {
        let (acceptor, target) = acceptor(Some(&server(&files))).await;
        let roots = authority.trusted();
        let bare = std::thread::spawn(move || {
            use rustls::pki_types::{CertificateDer, pem::PemObject};
            let mut store = rustls::RootCertStore::empty();
            store.add(CertificateDer::from_pem_file(roots.ca.unwrap()).unwrap()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = rustls::ClientConfig::builder_with_provider(provider);
            let config = config.with_safe_default_protocol_versions().unwrap();
            let mut config = config.with_root_certificates(store).with_no_client_auth();
            config.alpn_protocols = alpn;
            let name = ServerName::try_from("localhost").unwrap();
            let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
            let mut socket = std::net::TcpStream::connect(target).unwrap();
            while tls.complete_io(&mut socket).is_ok_and(|(read, _)| read > 0) {}
        });
        let why = End::start(acceptor.accept().await as Arc<dyn Link>).end().await.to_string();
        assert!(why.contains(words) && why.contains("farcall"), "{why}");
        bare.join().unwrap();
    }
}

#[test]
fn files_that_can_not_be_used_are_named() {
    let authority = Authority::new("ca");
    let other = Authority::new("other");
    let good = authority.issue("a", as_it_is);
    let with = |change: &dyn Fn(&mut TlsConfig)| {
        let mut files = good.clone();
        change(&mut files);
        TlsServer::from_files(&files).map(drop).unwrap_err().to_string()
    };
    let empty = authority.write("empty.pem", "");
    for (error, words) in [
        (with(&|files| files.cert = None), "tls.cert and tls.key belong together"),
        (with(&|files| (files.cert, files.key) = (None, None)), "a server needs tls.cert and tls.key"),
        (with(&|files| files.ca = None), "tls.client_auth = \"none\""),
        (with(&|files| files.cert = Some("/no/such.pem".into())), "tls.cert: /no/such.pem: No such file"),
        (with(&|files| files.ca = Some(empty.clone())), "nothing of this kind"),
        (with(&|files| files.key = other.issue("a", as_it_is).key), "is not the key of the certificate in"),
        (with(&|files| files.crl = Some(empty.clone())), "tls.crl: "),
    ] {
        assert!(error.contains(words), "{error}");
    }
    let error = TlsClient::from_files(&TlsConfig::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("a client needs tls.ca"), "{error}");
    let mut named = authority.trusted();
    named.server_name = Some("not a name".into());
    let error = TlsClient::from_files(&named).map(drop).unwrap_err().to_string();
    assert!(error.contains("tls.server_name"), "{error}");
}
