//! Calls by TLS, end to end: identities, configuration, what is said where it can't be.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

#[path = "../authority/mod.rs"]
mod authority;
#[cfg(target_os = "linux")] // All of 127.0.0.0/8 is this host there.
mod crowd;
#[path = "../log/mod.rs"]
mod log;
#[path = "../process/mod.rs"]
mod process;
mod secrets;
mod several;

use std::time::Duration;

use farcall::middleware::authorize;
use farcall::tls::{self, TlsClient, TlsConfig, TlsServer};
use farcall::{
    Bytes, Channel, Code, Config, ConfigErrorKind, Context, Executed, Reason, Server, Status, Stream,
    Streaming,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use authority::{Authority, SERIAL, as_it_is, expired, with_serial};

#[farcall::service(package = "test")]
trait Desk {
    async fn whoami(&self, cx: &Context) -> farcall::Result<Option<String>>;
    async fn echo(&self, bytes: Bytes) -> farcall::Result<Bytes>;
    async fn count(&self, to: u32) -> farcall::Result<impl Stream<Item = farcall::Result<u32>>>;
}

#[derive(Clone)]
struct Office;

impl Desk for Office {
    async fn whoami(&self, cx: &Context) -> farcall::Result<Option<String>> {
        Ok(cx.identity().map(|identity| identity.name().to_owned()))
    }

    async fn echo(&self, bytes: Bytes) -> farcall::Result<Bytes> {
        Ok(bytes)
    }

    async fn count(&self, to: u32) -> farcall::Result<impl Stream<Item = farcall::Result<u32>>> {
        Ok(farcall::stream::iter((0..to).map(Ok)))
    }
}

fn with(files: TlsConfig) -> Config {
    let mut config = Config::default();
    config.tls = Some(files);
    config
}

/// Starts a server, and returns `HOST:PORT`.
async fn serve(config: Config) -> String {
    let server =
        Server::builder().add(DeskServer::new(Office)).config(config).bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().to_string();
    tokio::spawn(server.serve());
    address
}

async fn connect(scheme: &str, address: &str, config: Config) -> Result<Channel, Status> {
    Channel::builder().config(config).connect(&format!("{scheme}://{address}")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_streams_go_by_tls() {
    let authority = Authority::new("ca");
    let address = serve(with(authority.issue("desk", as_it_is))).await;
    for scheme in ["farcall", "farcall+tls", "tcp+tls"] {
        let channel = connect(scheme, &address, with(authority.issue("ann", as_it_is))).await.unwrap();
        let connection = channel.connection().await.unwrap();
        assert!(connection.is_encrypted());
        assert_eq!(connection.identity().unwrap().name(), "spiffe://example.org/desk");
        let client = DeskClient::new(&channel);
        assert_eq!(client.whoami().await.unwrap().as_deref(), Some("spiffe://example.org/ann"));
        for len in [0, 1, 1000, 20_000, 300_000, 10_000_000] {
            let bytes: Bytes = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            assert_eq!(client.echo(bytes.clone()).await.unwrap(), bytes);
        }
        let mut numbers: Streaming<u32> = client.count(100_000).await.unwrap();
        let mut next = 0;
        while let Some(number) = numbers.message().await.unwrap() {
            assert_eq!(number, next);
            next += 1;
        }
        assert_eq!(next, 100_000);
        let many = (0..500u32).map(|n| client.echo(n.to_le_bytes().to_vec()));
        for (n, call) in many.map(farcall_spawn).collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(&call.await.unwrap().unwrap()[..], (n as u32).to_le_bytes());
        }
    }
}

fn farcall_spawn<F: IntoFuture>(call: F) -> tokio::task::JoinHandle<F::Output>
where
    F::IntoFuture: Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(call.into_future())
}

#[tokio::test]
async fn encryption_does_not_keep_a_session_from_rdma() {
    let authority = Authority::new("ca");
    let address = serve(with(authority.issue("desk", as_it_is))).await;
    let channel = connect("farcall", &address, with(authority.issue("ann", as_it_is))).await.unwrap();
    // This machine may have no device; then that is the reason.
    if let Some(why) = channel.transport().await.unwrap().why_not_rdma {
        assert_ne!(why.reason, Reason::Encrypted, "{why}");
    }
}

#[tokio::test]
async fn rdma_that_is_asked_for_is_not_replaced_by_tcp() {
    let authority = Authority::new("ca");
    let address = serve(with(authority.issue("desk", as_it_is))).await;
    // This machine may have a device.
    match connect("rdma+tls", &address, with(authority.issue("ann", as_it_is))).await {
        Ok(channel) => assert_eq!(channel.transport().await.unwrap().name, "rdma"),
        Err(error) => {
            assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
            let channel = connect("farcall+tls", &address, with(authority.issue("ann", as_it_is))).await;
            let why = channel.unwrap().transport().await.unwrap().why_not_rdma.unwrap();
            assert!(error.message().contains(&why.to_string()), "{error}, not {why}");
        }
    }
}

#[tokio::test]
async fn callers_are_authorised_by_who_they_are() {
    let authority = Authority::new("ca");
    let mut files = authority.issue("desk", as_it_is);
    files.client_auth = tls::ClientAuth::Optional;
    let rules = authorize(|who, path| {
        path != "test.Desk/echo" || who.spiffe_id() == Some("spiffe://example.org/ann")
    });
    let server = Server::builder().add(DeskServer::new(Office)).intercept(rules).config(with(files));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().to_string();
    tokio::spawn(server.serve());
    let client = async |files| DeskClient::new(connect("farcall", &address, with(files)).await.unwrap());
    let ann = client(authority.issue("ann", as_it_is)).await;
    let bob = client(authority.issue("bob", as_it_is)).await;
    let nobody = client(authority.trusted()).await;
    ann.echo("x").await.unwrap();
    assert_eq!(bob.whoami().await.unwrap().as_deref(), Some("spiffe://example.org/bob"));
    let refused = bob.echo("x").await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (Code::PermissionDenied, Executed::No));
    assert!(refused.message().contains("spiffe://example.org/bob may not call test.Desk/echo"), "{refused}");
    let refused = nobody.whoami().await.unwrap_err();
    assert_eq!((refused.code(), refused.executed()), (Code::Unauthenticated, Executed::No));
    assert_eq!(DeskClient::new(farcall::in_process(DeskServer::new(Office))).whoami().await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_handshake_is_told_to_the_caller() {
    let authority = Authority::new("ca");
    let address = serve(with(authority.issue("desk", as_it_is))).await;
    let plain = serve(Config::default()).await;
    for (address, config, words) in [
        (&address, Config::default(), "the peer speaks TLS, and this side does not"),
        (&address, with(authority.trusted()), "set tls.cert and tls.key on this side"),
        (&address, with(authority.issue("late", expired)), "this side's certificate has expired"),
        (&plain, with(authority.issue("ann", as_it_is)), "does not speak TLS"),
    ] {
        let error = connect("farcall", address, config).await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[tokio::test]
async fn configurations_that_can_not_be_used_are_named() {
    let kind = |address: &str, config: Config| {
        Channel::builder().config(config).connect_lazy(address).map(drop).unwrap_err()
    };
    let error = kind("farcall+tls://a:1", Config::default());
    assert_eq!(error.kind(), ConfigErrorKind::Tls);
    assert!(error.to_string().contains("[tls]"), "{error}");
    let config = Config::from_toml("[tls]\nca = \"/no/such.pem\"").unwrap();
    let error = kind("farcall://a:1", config.clone());
    assert!(error.to_string().contains("tls.ca: /no/such.pem: No such file"), "{error}");
    let error = Server::builder().config(config).bind("127.0.0.1:0").await.unwrap_err().to_string();
    assert!(error.contains("a server needs tls.cert and tls.key"), "{error}");
    let error = Config::from_toml("[tls]\nclient_auth = \"maybe\"").unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Syntax);
    let config =
        Config::from_toml("[tls]\nca = \"ca.pem\"\nclient_auth = \"optional\"\nreload_s = 5").unwrap();
    assert_eq!(config.tls.unwrap().client_auth, tls::ClientAuth::Optional);
}

#[tokio::test]
async fn certificates_are_replaced_while_a_server_runs() {
    let authority = Authority::new("ca");
    let (one, two) = (authority.issue("one", as_it_is), authority.issue("two", as_it_is));
    let server_tls = TlsServer::from_files(&one).unwrap();
    let server = Server::builder().add(DeskServer::new(Office)).tls(server_tls.clone());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("farcall+tls://{}", server.local_addr());
    tokio::spawn(server.serve());
    let client_tls = TlsClient::from_files(&two).unwrap();
    let name = async || {
        let channel = Channel::builder().tls(client_tls.clone()).connect(&address).await.unwrap();
        (channel.connection().await.unwrap().identity().unwrap().name().to_owned(), channel)
    };
    let (before, old) = name().await;
    assert_eq!(before, "spiffe://example.org/one");
    let other = TlsServer::from_files(&two).unwrap();
    drop(other);
    server_tls.replace(rustls_server(&two));
    assert_eq!(name().await.0, "spiffe://example.org/two");
    // Connections go on.
    DeskClient::new(&old).echo("x").await.unwrap();
}

#[tokio::test]
async fn a_client_that_is_revoked_while_a_server_runs_does_not_come_back() {
    let authority = Authority::new("ca");
    let mut files = authority.issue("desk", as_it_is);
    files.crl = Some(authority.revoke(&[]));
    let tls = TlsServer::from_files(&files).unwrap();
    let server = Server::builder().add(DeskServer::new(Office)).tls(tls.clone());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().to_string();
    tokio::spawn(server.serve());
    let (ann, bob) = (authority.issue("ann", with_serial), authority.issue("bob", as_it_is));
    let old = connect("tcp", &address, with(ann.clone())).await.unwrap();
    authority.revoke(&[SERIAL]);
    tls.reload().unwrap();
    let error = connect("tcp", &address, with(ann)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    assert!(error.message().contains("this side's certificate was revoked"), "{error}");
    // Connections go on.
    DeskClient::new(&old).echo("x").await.unwrap();
    let other = connect("tcp", &address, with(bob)).await.unwrap();
    DeskClient::new(&other).echo("x").await.unwrap();
}

#[tokio::test]
async fn a_handshake_that_is_not_finished_ends_when_its_time_is_over() {
    let authority = Authority::new("ca");
    let mut config = with(authority.issue("desk", as_it_is));
    config.liveness.connect_ms = 2000;
    let address = serve(config).await;
    let channel = connect("tcp", &address, with(authority.issue("ann", as_it_is))).await.unwrap();
    for begin in [&[][..], &[22, 3, 1, 2, 0, 1, 0]] {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        socket.write_all(begin).await.unwrap();
        let ended = async { while !matches!(socket.read(&mut [0; 100]).await, Ok(0) | Err(_)) {} };
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it does not end");
    }
    // One that goes on and on has no more time.
    let mut socket = TcpStream::connect(&address).await.unwrap();
    socket.write_all(&[22, 3, 1, 0, 4, 1, 0, 0xff, 0xff]).await.unwrap();
    let endless = async {
        while socket.write_all(&[22, 3, 1, 0, 1, 0]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), endless).await.expect("it does not end");
    DeskClient::new(&channel).echo("x").await.unwrap();
}

/// A configuration of rustls' own.
fn rustls_server(files: &TlsConfig) -> tls::rustls::ServerConfig {
    use tls::rustls::pki_types::pem::PemObject;
    use tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = CertificateDer::pem_file_iter(files.cert.as_ref().unwrap()).unwrap();
    let key = PrivateKeyDer::from_pem_file(files.key.as_ref().unwrap()).unwrap();
    let provider = std::sync::Arc::new(tls::rustls::crypto::ring::default_provider());
    let builder = tls::rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    builder.with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_handshakes_do_not_keep_others_out() {
    let authority = Authority::new("ca");
    let mut config = with(authority.issue("desk", as_it_is));
    config.limits.handshakes = 100;
    let address = serve(config).await;
    let mut silent = Vec::new();
    for n in 0..400 {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        if n % 2 == 0 {
            // The beginning of a ClientHello.
            socket.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.unwrap();
        }
        silent.push(socket);
    }
    let channel = connect("farcall", &address, with(authority.issue("ann", as_it_is)));
    let channel = tokio::time::timeout(Duration::from_secs(60), channel).await.unwrap().unwrap();
    DeskClient::new(&channel).echo("x").await.unwrap();
    // The oldest have made room.
    let mut byte = [0; 1];
    let ended = tokio::time::timeout(Duration::from_secs(60), silent[0].read(&mut byte)).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

#[tokio::test]
async fn streams_of_the_application_are_encrypted() {
    let authority = Authority::new("ca");
    let (near, far) = tokio::io::duplex(16 << 10);
    let accepted = farcall::Listener::incoming(farcall::stream::iter([Ok(far)]));
    let server =
        Server::builder().add(DeskServer::new(Office)).config(with(authority.issue("desk", as_it_is)));
    tokio::spawn(server.listen(accepted).build().await.unwrap().serve());
    let near = std::sync::Mutex::new(Some(near));
    let channel = Channel::builder()
        .dial_with(move |_| {
            std::future::ready(near.lock().unwrap().take().ok_or_else(|| std::io::ErrorKind::Other.into()))
        })
        .config(with(authority.issue("ann", as_it_is)));
    let channel = channel.connect("tcp+tls://localhost:1").await.unwrap();
    assert!(channel.connection().await.unwrap().is_encrypted());
    let desk = DeskClient::new(&channel);
    assert_eq!(desk.whoami().await.unwrap().as_deref(), Some("spiffe://example.org/ann"));
    assert_eq!(desk.echo(vec![7; 1 << 20]).await.unwrap(), vec![7; 1 << 20]);
}

#[cfg(unix)]
#[tokio::test]
async fn unix_sockets_are_not_encrypted_and_the_callers_process_is_known() {
    let authority = Authority::new("ca");
    let path = authority.write("socket", "");
    std::fs::remove_file(&path).unwrap();
    let address = format!("unix:{}", path.display());
    let server =
        Server::builder().add(DeskServer::new(Office)).config(with(authority.issue("desk", as_it_is)));
    let server = server.listen(&address).bind("127.0.0.1:0").await.unwrap();
    let tcp = server.local_addr().to_string();
    tokio::spawn(server.serve());
    for config in [Config::default(), with(authority.issue("ann", as_it_is))] {
        let channel = Channel::builder().config(config).connect(&address).await.unwrap();
        assert!(!channel.connection().await.unwrap().is_encrypted());
        assert!(DeskClient::new(&channel).whoami().await.unwrap().unwrap().starts_with("uid="));
    }
    assert!(connect("tcp", &tcp, Config::default()).await.is_err());
}
