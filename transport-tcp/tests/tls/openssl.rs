//! The handshake against another implementation: OpenSSL's command.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use super::*;

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `openssl` with these words; `FILE` stands for the configuration's.
fn openssl(files: &TlsConfig, words: &str) -> Killed {
    let path = |file: &Option<std::path::PathBuf>| file.as_ref().unwrap().display().to_string();
    let words = words.split(' ').map(|word| match word {
        "CA" => path(&files.ca),
        "CERT" => path(&files.cert),
        "KEY" => path(&files.key),
        word => word.to_owned(),
    });
    let mut command = Command::new("openssl");
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Killed(command.spawn().expect("openssl is not installed: apt install openssl"))
}

/// A farcall peer's preface and HELLO.
fn hello_bytes() -> Vec<u8> {
    let frame = greeting();
    let payload = frame.pieces.slices().flatten().copied().collect::<Vec<u8>>();
    [PREFACE, &frame.header.encode()[..], &payload].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_openssl_is_understood() {
    let authority = Authority::new("ca");
    let files = authority.issue("a", as_it_is);
    for version in ["-tls1_3", "-tls1_2"] {
        let (acceptor, target) = acceptor(Some(&server(&authority.issue("b", as_it_is)))).await;
        let words = format!(
            "s_client {version} -quiet -connect {target} -alpn farcall/1 -CAfile CA -cert CERT -key KEY -verify_return_error"
        );
        let mut client = openssl(&files, &words);
        let link = acceptor.accept().await;
        let mut end = End::start(link.clone() as Arc<dyn Link>);
        let mut stdin = client.0.stdin.take().unwrap();
        stdin.write_all(&hello_bytes()).unwrap();
        stdin.flush().unwrap();
        assert_eq!(end.frame().await.0.kind, FrameType::HELLO);
        assert_eq!(link.identity().unwrap().subject, "CN=a");
        end.send([greeting()]);
        let mut stdout = client.0.stdout.take().unwrap();
        let mut preface = [0; PREFACE.len()];
        tokio::task::spawn_blocking(move || {
            stdout.read_exact(&mut preface).unwrap();
            assert_eq!(preface, *PREFACE);
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_openssl_without_a_certificate_is_refused() {
    let authority = Authority::new("ca");
    let files = authority.issue("a", as_it_is);
    let (acceptor, target) = acceptor(Some(&server(&authority.issue("b", as_it_is)))).await;
    let _client = openssl(&files, &format!("s_client -quiet -connect {target} -alpn farcall/1 -CAfile CA"));
    let why = End::start(acceptor.accept().await as Arc<dyn Link>).end().await.to_string();
    assert!(why.contains("no certificate"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_openssl_is_understood() {
    let authority = Authority::new("ca");
    let files = authority.issue("b", as_it_is);
    let near = client(&authority.issue("a", as_it_is));
    for version in ["-tls1_3", "-tls1_2"] {
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let words = format!(
            "s_server {version} -quiet -accept 127.0.0.1:{port} -alpn farcall/1 -cert CERT -key KEY -CAfile CA -Verify 1 \
             -verify_return_error"
        );
        let mut server = openssl(&files, &words);
        let target = format!("127.0.0.1:{port}");
        let config = TcpConfig::default();
        let connecting = async {
            loop {
                match connect_tls(&target, "localhost", &config, &near, PATIENCE).await {
                    Ok(link) => return link,
                    // It does not listen yet.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let link = tokio::time::timeout(PATIENCE, connecting).await.unwrap();
        let mut end = End::start(link.clone() as Arc<dyn Link>);
        let mut stdin = server.0.stdin.take().unwrap();
        stdin.write_all(&hello_bytes()).unwrap();
        stdin.flush().unwrap();
        match end.next().await.unwrap() {
            Event::Frame(header, _) => assert_eq!(header.kind, FrameType::HELLO),
            other => {
                drop(stdin);
                let _ = server.0.kill();
                let stderr = BufReader::new(server.0.stderr.take().unwrap());
                panic!("{other:?}: {:?}", stderr.lines().map_while(Result::ok).collect::<Vec<_>>());
            }
        }
        assert_eq!(link.identity().unwrap().subject, "CN=b");
    }
}
