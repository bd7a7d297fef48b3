//! Encrypted connections by the arguments of commands alone.

#![cfg(feature = "tls")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

#[path = "../../tests/authority/mod.rs"]
mod authority;
mod common;
mod serving;

use farcall::tls::{self, TlsConfig};
use rcgen::SanType;

use authority::Authority;
use common::{complaint, farcall, printed};
use serving::Server;

/// Returns the arguments that name these files.
fn arguments(files: &TlsConfig) -> Vec<&str> {
    let files = [("--ca", &files.ca), ("--cert", &files.cert), ("--key", &files.key)];
    let given = files.into_iter().filter_map(|(name, file)| Some([name, file.as_deref()?.to_str()?]));
    given.flatten().collect()
}

/// The name in the server's certificate, as an argument.
const NAME: [&str; 2] = ["--server-name", "db1.example.org"];

/// Returns a server, whose certificate is not for the address that it listens on, and the files of a client.
fn served(authority: &Authority) -> (Server, TlsConfig) {
    let server = authority.issue("db1", |params| {
        params.subject_alt_names = vec![SanType::DnsName(NAME[1].try_into().unwrap())];
    });
    (Server::start(&arguments(&server)), authority.issue("operator", |_| {}))
}

#[test]
fn both_sides_take_certificates_as_arguments() {
    let authority = Authority::new("Operators");
    let (server, client) = served(&authority);
    let connect = |more: &[&str]| farcall(&[&["connect", &server.address], more].concat());

    let known = [&arguments(&client)[..], &NAME].concat();
    let connected = connect(&known);
    assert_eq!(connected.status.code(), Some(0), "{}", complaint(&connected));
    assert!(printed(&connected).contains("calls travel by"), "{}", printed(&connected));
    // `compat` and `doctor` do not need a server, and take the name as well.
    let compared = farcall(&[&["compat", &server.address, &server.address], &known[..]].concat());
    assert_eq!(compared.status.code(), Some(0), "{}", complaint(&compared));
    let looked = farcall(&[&["doctor", &server.address, "--no-trial", "--json"], &known[..]].concat());
    assert!(printed(&looked).contains("\"there\": {"), "{}{}", printed(&looked), complaint(&looked));

    let other_name = connect(&arguments(&client));
    assert_eq!(other_name.status.code(), Some(1));
    assert!(complaint(&other_name).contains("db1.example.org"), "{}", complaint(&other_name));

    let trusted = authority.trusted();
    let stranger = connect(&[&arguments(&trusted)[..], &NAME].concat());
    assert_eq!(stranger.status.code(), Some(1));
    assert!(complaint(&stranger).contains("tls.cert"), "{}", complaint(&stranger));

    assert_eq!(connect(&[]).status.code(), Some(1));
}

#[test]
fn calls_are_made_through_encrypted_connections_alone() {
    let authority = Authority::new("Operators");
    let (server, client) = served(&authority);
    let call = |server: &Server, more: &[&str]| {
        let method = ["call", &server.address, "Perf/echo", "{\"data\": \"aGVsbG8=\"}"];
        farcall(&[&method[..], more].concat())
    };
    let known = [&arguments(&client)[..], &NAME].concat();
    let expected = call(&Server::start(&[]), &[]);
    assert_eq!(expected.status.code(), Some(0), "{}", complaint(&expected));
    for by in ["auto", "tcp"] {
        let answered = call(&server, &[&known[..], &["--transport", by]].concat());
        assert_eq!(answered.status.code(), Some(0), "{by}: {}", complaint(&answered));
        assert_eq!(printed(&answered), printed(&expected), "{by}");
    }

    // Another name than the certificate's, no certificate of one's own, and no encryption at all.
    let trusted = authority.trusted();
    let stranger = [&arguments(&trusted)[..], &NAME].concat();
    for (more, says) in
        [(&arguments(&client)[..], "db1.example.org"), (&stranger[..], "tls.cert"), (&[], "TLS")]
    {
        let refused = call(&server, more);
        assert_eq!(refused.status.code(), Some(1), "{}", printed(&refused));
        assert!(complaint(&refused).contains(says), "{says}: {}", complaint(&refused));
        assert_eq!(printed(&refused), "");
    }
}

#[test]
fn wrong_files_are_named() {
    let authority = Authority::new("Operators");
    let files = authority.issue("operator", |_| {});
    let cert = files.cert.as_deref().unwrap().to_str().unwrap();
    let without_key = farcall(&["connect", "127.0.0.1:1", "--cert", cert]);
    assert_eq!(without_key.status.code(), Some(64));
    assert!(complaint(&without_key).contains("--key"), "{}", complaint(&without_key));
    let missing = farcall(&["connect", "127.0.0.1:1", "--ca", "/no/such.pem"]);
    assert_eq!(missing.status.code(), Some(64));
    assert!(complaint(&missing).contains("/no/such.pem"), "{}", complaint(&missing));
}
