//! Handshakes that never end. rustls bounds the bytes of each of their messages, and how many records may say nothing.

use std::io::Write;

use super::*;

/// The most that a peer can send after its end: what a closed link reads yet, and what buffers of the kernel hold. Bytes.
const MOST: usize = (64 << 20) + (32 << 20);

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const CHANGE_CIPHER_SPEC: u8 = 20;

/// A record of RFC 8446, section 5.1.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[kind, 3, 3, high, low], content].concat()
}

/// Sends the beginning, and what follows again and again, until nobody takes it. Returns how much was sent, in bytes.
fn send_endlessly(mut socket: std::net::TcpStream, begin: &[u8], again: &[u8]) -> usize {
    let piece = again.repeat((64 << 10) / again.len() + 1);
    let mut sent = 0;
    let mut next = begin;
    while let Ok(n @ 1..) = socket.write(next) {
        sent += n;
        next = if next.len() == n { &piece } else { &next[n..] };
        assert!(sent <= MOST, "{sent} bytes were taken");
    }
    sent
}

#[tokio::test]
async fn a_peer_whose_handshake_has_no_end_is_cut_off() {
    let authority = Authority::new("ca");
    let far = server(&authority.issue("b", as_it_is));
    let near = client(&authority.trusted());
    // The type of a message, and its length, as for a ClientHello or ServerHello.
    let message = |kind: u8, [a, b, c]: [u8; 3]| record(HANDSHAKE, &[kind, a, b, c]);
    for (words, begin, again) in [
        // 16 MiB; rustls takes 64 KiB.
        ("HandshakePayloadTooLarge", [0xff; 3], record(HANDSHAKE, &[0; 16_384])),
        // The longest, a byte in each record.
        ("TLS: a handshake message of the peer is too long", [0, 0xff, 0xff], record(HANDSHAKE, &[0])),
        ("TLS: ", [0, 0, 100], record(HANDSHAKE, &[])),
        ("TLS: ", [0, 0, 100], record(CHANGE_CIPHER_SPEC, &[1])),
        ("TLS: ", [0, 0, 100], record(ALERT, &[1, 90])),
        // The record's own length is too long.
        ("TLS: ", [0, 0, 100], vec![HANDSHAKE, 3, 3, 0xff, 0xff]),
    ] {
        let (acceptor, target) = acceptor(Some(&far)).await;
        let (hello, repeated) = (message(1, begin), again.clone());
        let sending = std::thread::spawn(move || {
            send_endlessly(std::net::TcpStream::connect(target).unwrap(), &hello, &repeated)
        });
        let why = End::start(acceptor.accept().await as Arc<dyn Link>).end().await.to_string();
        assert!(why.contains(words), "server: {words}: {why}");
        tokio::task::spawn_blocking(|| sending.join().unwrap()).await.unwrap();

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let hello = message(2, begin);
        let sending =
            std::thread::spawn(move || send_endlessly(listener.accept().unwrap().0, &hello, &again));
        let link = connect_tls(&target, "localhost", &TcpConfig::default(), &near, PATIENCE).await.unwrap();
        let why = End::start(link as Arc<dyn Link>).end().await.to_string();
        assert!(why.contains(words), "client: {words}: {why}");
        tokio::task::spawn_blocking(|| sending.join().unwrap()).await.unwrap();
    }
}
