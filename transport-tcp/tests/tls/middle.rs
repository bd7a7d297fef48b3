//! Somebody between client and server, who edits what they send.

use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};

use super::*;

/// Passes bytes on between two sockets, and changes one of those that the client sends, after so many.
async fn tamper(listener: TcpListener, target: String, at: usize) {
    let mut near = listener.accept().await.unwrap().0;
    let mut far = TcpStream::connect(target).await.unwrap();
    let (mut from_near, mut to_near) = near.split();
    let (mut from_far, mut to_far) = far.split();
    let there = async {
        let (mut passed, mut buffer) = (0, vec![0; 1000]);
        while let Ok(n @ 1..) = from_near.read(&mut buffer).await {
            if (passed..passed + n).contains(&at) {
                buffer[at - passed] ^= 1;
            }
            passed += n;
            if to_far.write_all(&buffer[..n]).await.is_err() {
                break;
            }
        }
    };
    let back = tokio::io::copy(&mut from_far, &mut to_near);
    tokio::join!(there, async { drop(back.await) });
}

#[tokio::test]
async fn a_record_that_was_changed_ends_the_connection_and_is_not_delivered() {
    let authority = Authority::new("ca");
    let (near, far) = (client(&authority.issue("a", as_it_is)), server(&authority.issue("b", as_it_is)));
    // In the midst of the long frame.
    let at = 20_000;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = listener.local_addr().unwrap().to_string();
    let (acceptor, target) = acceptor(Some(&far)).await;
    tokio::spawn(tamper(listener, target, at));
    let config = TcpConfig::default();
    let (near, far) =
        tokio::join!(connect_tls(&through, "localhost", &config, &near, PATIENCE), acceptor.accept());
    let (mut near, mut far) = (End::start(near.unwrap() as Arc<dyn Link>), End::start(far as Arc<dyn Link>));
    near.send([frame(50_000)]);
    match far.next().await.unwrap() {
        Event::End(why) => assert!(why.to_string().contains("changed on its way"), "{why}"),
        other => panic!("it was delivered: {other:?}"),
    }
    let why = near.end().await.to_string();
    assert!(why.contains("changed on its way") || why.contains("reset"), "{why}");
}

#[tokio::test]
async fn a_connection_that_is_cut_off_is_no_orderly_end() {
    let authority = Authority::new("ca");
    let (near, far) = (client(&authority.issue("a", as_it_is)), server(&authority.issue("b", as_it_is)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = listener.local_addr().unwrap().to_string();
    let (acceptor, target) = acceptor(Some(&far)).await;
    let middle = tokio::spawn(tamper(listener, target, usize::MAX));
    let config = TcpConfig::default();
    let (near, far) =
        tokio::join!(connect_tls(&through, "localhost", &config, &near, PATIENCE), acceptor.accept());
    let (near, mut far) = (End::start(near.unwrap() as Arc<dyn Link>), End::start(far as Arc<dyn Link>));
    near.send([greeting()]);
    far.frame().await;
    middle.abort();
    let why = far.end().await.to_string();
    assert!(why.contains("cut off") || why.contains("reset"), "{why}");
}

/// The side whose first record is edited: its ClientHello or ServerHello.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hello {
    Client,
    Server,
}

type Edit = fn(&mut Vec<u8>);

/// The client's versions, the record that is edited and how, and words of what one of the sides says.
type Case<'a> = (&'a [&'static SupportedProtocolVersion], Hello, Edit, &'a str);

/// Passes bytes on between two sockets. Edits the first record of one side.
async fn edit_hello(listener: TcpListener, target: String, of: Hello, edit: Edit) {
    let mut near = listener.accept().await.unwrap().0;
    let mut far = TcpStream::connect(target).await.unwrap();
    let mut record = first_record(&mut near).await;
    if of == Hello::Client {
        edit(&mut record);
    }
    far.write_all(&record).await.unwrap();
    let mut record = first_record(&mut far).await;
    if of == Hello::Server {
        edit(&mut record);
    }
    near.write_all(&record).await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
}

async fn first_record(from: &mut TcpStream) -> Vec<u8> {
    let mut record = vec![0; 5];
    from.read_exact(&mut record).await.unwrap();
    record.resize(5 + number(&record, 3), 0);
    from.read_exact(&mut record[5..]).await.unwrap();
    record
}

/// The two bytes there.
fn number(record: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([record[at], record[at + 1]]))
}

/// Takes an extension out of the record of a ClientHello or ServerHello (RFC 8446, section 4.1).
fn strip(hello: &mut Vec<u8>, extension: usize) {
    const CLIENT_HELLO: u8 = 1;
    // The headers of record and message, the version, and 32 random bytes.
    let mut begin = 5 + 4 + 2 + 32;
    begin += 1 + usize::from(hello[begin]);
    if hello[5] == CLIENT_HELLO {
        begin += 2 + number(hello, begin);
        begin += 1 + usize::from(hello[begin]);
    } else {
        begin += 2 + 1;
    }
    let mut at = begin + 2;
    while number(hello, at) != extension {
        at += 4 + number(hello, at + 2);
    }
    let len = 4 + number(hello, at + 2);
    hello.drain(at..at + len);
    // The lengths of the record, of the message, whose upper byte is zero, and of all extensions.
    for place in [3, 7, begin] {
        let left = (number(hello, place) - len) as u16;
        hello[place..place + 2].copy_from_slice(&left.to_be_bytes());
    }
}

fn strip_alpn(hello: &mut Vec<u8>) {
    strip(hello, 16);
}

/// Without this extension the server takes the client for one that has TLS 1.2 only, with which there are no keys for RDMA.
fn strip_versions(hello: &mut Vec<u8>) {
    strip(hello, 43);
}

fn change_alpn(hello: &mut [u8]) {
    const NAME: &[u8] = b"farcall/1";
    let at = hello.windows(NAME.len()).position(|part| part == NAME).unwrap();
    hello[at + NAME.len() - 1] = b'2';
}

/// A client that has these versions only.
fn client_of(authority: &Authority, versions: &[&'static SupportedProtocolVersion]) -> TlsClient {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.trusted().ca.unwrap()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_protocol_versions(versions).unwrap();
    TlsClient::new(config.with_root_certificates(roots).with_no_client_auth())
}

#[tokio::test]
async fn a_handshake_that_is_edited_fails_in_words_on_both_sides() {
    let authority = Authority::new("ca");
    let mut files = authority.issue("b", as_it_is);
    files.client_auth = ClientAuth::None;
    let far = server(&files);
    let (all, old) = (&[&version::TLS13, &version::TLS12][..], &[&version::TLS12][..]);
    let cases: [Case<'_>; 7] = [
        (all, Hello::Client, |_| {}, ""),
        (all, Hello::Client, strip_alpn, "changed on its way"),
        (all, Hello::Client, |hello| change_alpn(hello), "ALPN"),
        (all, Hello::Client, strip_versions, "the peer has TLS 1.3, and was not told"),
        (old, Hello::Client, strip_alpn, "changed on its way"),
        // With TLS 1.3 the server's is encrypted.
        (old, Hello::Server, strip_alpn, "changed on its way"),
        (old, Hello::Server, |hello| change_alpn(hello), "ALPN"),
    ];
    for (versions, of, edit, words) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let through = listener.local_addr().unwrap().to_string();
        let (acceptor, target) = acceptor(Some(&far)).await;
        let middle = tokio::spawn(edit_hello(listener, target, of, edit));
        let (config, near) = (TcpConfig::default(), client_of(&authority, versions));
        let (near, far) =
            tokio::join!(connect_tls(&through, "localhost", &config, &near, PATIENCE), acceptor.accept());
        let [near, far] = [near.unwrap(), far].map(|link| async {
            let mut end = End::start(link as Arc<dyn Link>);
            end.send([greeting()]);
            match end.next().await.unwrap() {
                Event::Frame(..) => None,
                Event::End(why) => Some(why.to_string()),
                other => panic!("{other:?}"),
            }
        });
        let said = <[_; 2]>::from(tokio::join!(near, far));
        middle.abort();
        if words.is_empty() {
            assert_eq!(said, [None, None], "nothing was edited");
            continue;
        }
        let said = said.map(Option::unwrap);
        assert!(said.iter().all(|why| why.starts_with("TLS: ")), "{of:?}: {said:?}");
        assert!(said.iter().any(|why| why.contains(words)), "{of:?}: {words}: {said:?}");
    }
}
