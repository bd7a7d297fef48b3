//! Seals by themselves: what opens, what does not, and that a second implementation agrees.

use std::process::Command;

use farcall_core::transport::Unavailable;

use super::*;

const EXPORTED: [u8; 32] = [7; 32];

/// WIRE.md, section 11.2.
const TEXTS_PER_KEY: u64 = 1 << 20;

fn terms(cipher: Cipher) -> KeyTerms {
    let secret = farcall_tcp::tls::exported(cipher, &EXPORTED).unwrap();
    let [offer, answer] = [&b"offer"[..], b"answer"].map(Bytes::from_static);
    KeyTerms { secret, cipher, epoch: 3, offer, answer }
}

fn seal(terms: &KeyTerms, end: End) -> Seal {
    Seal::new(terms, end, Handle::current()).unwrap()
}

fn ends(cipher: Cipher) -> [Seal; 2] {
    [End::Client, End::Server].map(|end| seal(&terms(cipher), end))
}

fn sealed(seal: &Seal, text: &[u8]) -> Vec<u8> {
    let mut message = text.to_vec();
    let tag = seal.seal(&mut message).unwrap();
    message.extend_from_slice(&tag);
    message
}

fn opened(seal: &Seal, mut message: Vec<u8>) -> Result<Vec<u8>, Unsealable> {
    let len = seal.open(&mut message)?;
    message.truncate(len);
    Ok(message)
}

#[tokio::test]
async fn messages_open_at_the_other_end_in_their_order() {
    for cipher in Cipher::ALL {
        let [client, server] = ends(cipher);
        for (from, to) in [(&client, &server), (&server, &client)] {
            for len in [0, 1, 16, 200, 8000] {
                let message = sealed(from, &vec![5; len]);
                assert!(!message.windows(16).any(|part| part == [5; 16]));
                assert_eq!(opened(to, message), Ok(vec![5; len]));
            }
        }
    }
}

#[tokio::test]
async fn nothing_else_opens() {
    for cipher in Cipher::ALL {
        // Any bit is changed, or bytes are missing.
        for at in 0..48 {
            let [client, server] = ends(cipher);
            let mut message = sealed(&client, &[5; 32]);
            message[at] ^= 1 << (at % 8);
            assert_eq!(opened(&server, message), Err(Unsealable), "byte {at}");
        }
        for len in 0..48 {
            let [client, server] = ends(cipher);
            let mut message = sealed(&client, &[5; 32]);
            message.truncate(len);
            assert_eq!(opened(&server, message), Err(Unsealable), "{len} bytes");
        }
        // It comes again.
        let [client, server] = ends(cipher);
        let first = sealed(&client, b"one");
        assert!(opened(&server, first.clone()).is_ok());
        assert_eq!(opened(&server, first), Err(Unsealable));
        // Another comes before it.
        let [client, server] = ends(cipher);
        let [_, second] = [sealed(&client, b"one"), sealed(&client, b"two")];
        assert_eq!(opened(&server, second), Err(Unsealable));
        // It comes back to where it is from.
        let [client, _] = ends(cipher);
        let message = sealed(&client, b"one");
        assert_eq!(opened(&client, message), Err(Unsealable));
    }
}

#[tokio::test]
async fn every_link_has_keys_of_its_own() {
    let base = terms(Cipher::Aes256Gcm);
    let other = Bytes::from_static(b"other");
    let mut changed = [(); 5].map(|()| base.clone());
    changed[0].epoch = 4;
    changed[1].offer = other.clone();
    changed[2].answer = other;
    changed[3].cipher = Cipher::ChaCha20Poly1305;
    changed[4].secret = farcall_tcp::tls::exported(Cipher::Aes256Gcm, &[8; 32]).unwrap();
    // The boundary between the two is part of what is derived from.
    let mut moved = base.clone();
    (moved.offer, moved.answer) = (Bytes::from_static(b"offe"), Bytes::from_static(b"ranswer"));
    for terms in changed.iter().chain([&moved]) {
        let message = sealed(&seal(&base, End::Client), b"text");
        assert_eq!(opened(&seal(terms, End::Server), message), Err(Unsealable), "{terms:?}");
    }
    // Chunks and messages have different keys.
    let [client, server] = ends(Cipher::Aes256Gcm);
    let mut chunk = vec![0; 20];
    client.seal_chunks(&[Bytes::from_static(b"text")], &mut chunk).unwrap();
    assert_eq!(opened(&server, chunk), Err(Unsealable));
}

#[tokio::test]
async fn keys_follow_each_other() {
    for cipher in Cipher::ALL {
        let [client, server] = ends(cipher);
        for seal in [&client.sent, &server.received] {
            lock(seal).next = TEXTS_PER_KEY - 2;
        }
        for text in [b"a", b"b", b"c", b"d"] {
            assert_eq!(opened(&server, sealed(&client, text)).as_deref(), Ok(&text[..]));
        }
        // The numbers go on, so that only another key can make a difference.
        let sent = client.sent.into_inner().unwrap();
        assert_eq!((sent.next, sent.keys.number), (TEXTS_PER_KEY + 2, 1));
        let [client, server] = ends(cipher);
        // A sender that takes the first key for the second.
        {
            let mut sent = lock(&client.sent);
            sent.next = TEXTS_PER_KEY;
            sent.keys.number = 1;
        }
        lock(&server.received).next = TEXTS_PER_KEY;
        assert_eq!(opened(&server, sealed(&client, b"c")), Err(Unsealable), "the first key seals no more");
    }
}

/// Opens all chunks of a message.
fn open_all(seal: &Seal, sealed: &mut [u8], len: usize, first: u64) -> Result<(), Unsealable> {
    (0..chunks(len)).try_for_each(|index| seal.open_chunk(sealed, len, first, index))
}

#[tokio::test]
async fn long_messages_are_sealed_chunk_by_chunk() {
    for cipher in Cipher::ALL {
        let [client, server] = ends(cipher);
        // One byte to several chunks, the last of which may be shorter than a tag.
        for len in [1, 100, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 15, 2 * CHUNK + 16, 3 * CHUNK + 17] {
            let text: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            let pieces: Vec<Bytes> = text.chunks(50_000).map(Bytes::copy_from_slice).collect();
            let mut exposed = vec![0; sealed_len(len)];
            let first = client.seal_chunks(&pieces, &mut exposed).unwrap();
            let mut read = exposed.clone();
            open_all(&server, &mut read, len, first).unwrap();
            assert!(read[..len] == text, "{len} bytes");
            // Chunks that change places, from other messages, or changed.
            for at in [0, len / 2, len - 1, len, exposed.len() - 1] {
                let mut changed = exposed.clone();
                changed[at] ^= 0x10;
                assert_eq!(open_all(&server, &mut changed, len, first), Err(Unsealable), "{len}: byte {at}");
            }
            assert_eq!(open_all(&server, &mut exposed.clone(), len, first + 1), Err(Unsealable));
            if len >= 2 * CHUNK {
                let mut swapped = exposed.clone();
                swapped[..2 * CHUNK].rotate_left(CHUNK);
                swapped[len..len + 2 * TAG_LEN].rotate_left(TAG_LEN);
                assert_eq!(open_all(&server, &mut swapped, len, first), Err(Unsealable), "{len}: swapped");
            }
        }
    }
}

#[tokio::test]
async fn chunks_that_a_peer_makes_up_can_not_do_harm() {
    let [_, server] = ends(Cipher::Aes256Gcm);
    for (have, len, first, index) in
        [(0, 0, 0, 0), (16, 0, 0, 0), (15, 1, 0, 0), (100, 84, u64::MAX, 0), (100, 84, 0, 1)]
    {
        assert_eq!(server.open_chunk(&mut vec![0; have], len, first, index), Err(Unsealable));
    }
}

#[tokio::test]
async fn a_cipher_that_is_not_there_is_named() {
    #[derive(Debug)]
    struct Nothing;
    impl Secret for Nothing {
        fn ciphers(&self) -> Vec<Cipher> {
            Vec::new()
        }

        fn key(&self, _: Cipher, _: &[u8]) -> Option<Arc<dyn Key>> {
            None
        }
    }
    let terms = KeyTerms { secret: Arc::new(Nothing), ..terms(Cipher::Aes256Gcm) };
    let error: Unavailable = Seal::new(&terms, End::Client, Handle::current()).unwrap_err();
    assert!(error.to_string().contains("AES-256-GCM"), "{error}");
}

/// Python's `cryptography` derives the keys anew, opens what was sealed here, and checks the vectors of WIRE.md.
#[tokio::test]
async fn a_second_implementation_agrees() {
    let mut lines = String::new();
    for cipher in Cipher::ALL {
        for (from, end) in [(0, End::Client), (1, End::Server)] {
            let seal = seal(&terms(cipher), end);
            for (number, text) in [(0, &b"one"[..]), (1, b""), (2, &[9; 300])] {
                let message = sealed(&seal, text);
                lines += &format!("{cipher} {from} 0 {number} {} {}\n", hex(text), hex(&message));
            }
            lock(&seal.sent).next = TEXTS_PER_KEY + 5;
            let message = sealed(&seal, b"later");
            lines +=
                &format!("{cipher} {from} 0 {} {} {}\n", TEXTS_PER_KEY + 5, hex(b"later"), hex(&message));
            let mut chunk = vec![0; 5 + TAG_LEN];
            seal.seal_chunks(&[Bytes::from_static(b"chunk")], &mut chunk).unwrap();
            lines += &format!("{cipher} {from} 1 0 {} {}\n", hex(b"chunk"), hex(&chunk));
        }
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/link/seal/check.py");
    let mut child = Command::new("python3")
        .args([script, "../docs/WIRE.md"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 is installed: `cargo xtask test` installs it");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let needs = "python3 needs its module `cryptography`: `cargo xtask test` installs it";
    assert!(output.status.success(), "{needs}: {said}");
    assert_eq!(said.trim(), format!("{} agree", lines.lines().count() + 4));
}

/// The vectors of WIRE.md, opened by this implementation.
#[tokio::test]
async fn the_vectors_of_the_specification_open() {
    let document = include_str!("../../../../docs/WIRE.md");
    let mut seen = 0;
    for block in document.split("```seal ").skip(1) {
        let block = block.split("```").next().unwrap();
        let field = |name: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            unhex(line.unwrap_or_else(|| panic!("{name} is missing in {block}")))
        };
        let cipher = Cipher::ALL.into_iter().find(|cipher| block.starts_with(&cipher.to_string())).unwrap();
        let secret = farcall_tcp::tls::exported(cipher, field("exported").first_chunk().unwrap()).unwrap();
        let info = field("info");
        let keys = secret.key(cipher, &info).unwrap();
        let number = u64::from_le_bytes(*field("number").first_chunk().unwrap());
        let mut message = field("sealed");
        assert!(keys.open(number, &mut message));
        message.truncate(message.len() - TAG_LEN);
        assert_eq!(message, field("text"));
        seen += 1;
    }
    assert_eq!(seen, 4);
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}
