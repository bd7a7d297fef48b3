//! The log of a session at its most talkative, beside all that the session has to keep secret.

use std::fmt;
use std::sync::{Arc, Mutex};

use farcall::auth::{Token, Tokens, verify};
use farcall::tls::rustls::KeyLog;
use farcall::trace;

use super::*;
use crate::log::Log;

/// Notes the secrets of handshakes, that of the exporter included, from which the keys of RDMA come.
#[derive(Clone, Default)]
struct Secrets(Arc<Mutex<Vec<Vec<u8>>>>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl KeyLog for Secrets {
    fn log(&self, _: &str, _: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().push(secret.to_vec());
    }
}

/// The forms in which bytes could get into a log: text, hexadecimal digits, numbers.
fn forms(secret: &[u8]) -> Vec<String> {
    let part = &secret[..secret.len().min(12)];
    let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
    let numbers = format!("{part:?}").trim_matches(['[', ']']).to_owned();
    let text = std::str::from_utf8(part).ok().map(str::to_owned);
    [hex.to_uppercase(), hex, numbers].into_iter().chain(text).collect()
}

/// Calls with a token go by TLS, and some of them fail. Everything about it that is logged is read.
#[tokio::test]
async fn no_log_line_holds_keys_payload_or_tokens() {
    const TOKEN: &str = "token-for-nobody-to-read";
    const PAYLOAD: &[u8] = b"payload-for-nobody-to-read";
    let log = Log::default();
    // The runtime has this thread alone, so the log has all of the client, the server and their connections.
    let _listening = log.listen();
    let authority = Authority::new("ca");
    let (theirs, ours) = (authority.issue("desk", as_it_is), authority.issue("ann", as_it_is));
    let secrets = Secrets::default();
    let mut config = rustls_server(&theirs);
    config.key_log = Arc::new(secrets.clone());
    let check = verify(|token| async move {
        if token == TOKEN { Ok(()) } else { Err(Status::permission_denied("not this one")) }
    });
    let server = Server::builder().add(DeskServer::new(Office)).intercept(check).intercept(trace::server);
    let server = server.tls(TlsServer::new(config)).bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().to_string();
    tokio::spawn(server.serve());

    let channel = connect("farcall+tls", &address, with(ours.clone())).await.unwrap();
    let tokens = |token: &'static str| Tokens::new(move || async move { Ok(Token::new(token)) });
    let caller = channel.intercept(tokens(TOKEN).interceptor()).intercept(trace::client);
    let client = DeskClient::new(caller);
    for times in [1, 5000] {
        let payload = Bytes::from(PAYLOAD.repeat(times));
        assert_eq!(client.echo(payload.clone()).await.unwrap(), payload);
    }
    let mut numbers = client.count(100).await.unwrap();
    while numbers.message().await.unwrap().is_some() {}
    let refused = DeskClient::new(channel.intercept(tokens("another-token").interceptor()));
    refused.echo(PAYLOAD).await.unwrap_err();
    tracing::trace!(?channel, ?client, ?ours, connection = ?channel.connection().await.unwrap());

    let log = log.lines().join("\n");
    for said in ["a TLS session was established", "farcall::call", "connection=Connection", address.as_str()]
    {
        assert!(log.contains(said), "{said}: {log}");
    }
    let secrets = secrets.0.lock().unwrap().clone();
    assert!(secrets.len() >= 5, "{} secrets", secrets.len());
    let mut kept: Vec<Vec<u8>> = [TOKEN.as_bytes(), b"another-token", PAYLOAD].map(<[u8]>::to_vec).into();
    kept.extend(secrets);
    for files in [&theirs, &ours] {
        let pem = std::fs::read_to_string(files.key.as_ref().unwrap()).unwrap();
        kept.extend(pem.lines().filter(|line| !line.starts_with('-')).map(|line| line.as_bytes().to_vec()));
    }
    for form in kept.iter().flat_map(|secret| forms(secret)) {
        assert!(!log.contains(&form), "{form} is in the log");
    }
}
