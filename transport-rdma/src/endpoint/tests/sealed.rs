//! How two ends agree on what protects a link, and what becomes of those that don't.

use std::sync::Mutex;

use farcall_core::proto::message::{Bulk, Expose, Exposing};
use farcall_core::transport::{Cipher, Direction, FrameSource, Secret};

use super::*;
use crate::link::{Bootstrap, PLAINTEXT};
use crate::sim::Crossing;

fn secret(cipher: Cipher, exported: u8) -> Result<Arc<dyn Secret>, transport::Unavailable> {
    farcall_tcp::tls::exported(cipher, &[exported; 32])
}

fn encrypted() -> Result<Arc<dyn Secret>, transport::Unavailable> {
    secret(Cipher::Aes256Gcm, 1)
}

/// The lack of a secret, as of a session of TLS 1.2.
fn no_secret() -> Result<Arc<dyn Secret>, transport::Unavailable> {
    Err(transport::Unavailable::new(Reason::Encrypted, "keys need TLS 1.3"))
}

impl Node {
    fn protected(mut self, secret: Result<Arc<dyn Secret>, transport::Unavailable>, trusts: bool) -> Self {
        self.attempt.secret = secret;
        self.attempt.allows_plaintext = trusts;
        self
    }

    /// The cipher of its only link.
    fn cipher(&self) -> Option<Cipher> {
        let shard = self.shard();
        let links = shard.links();
        assert_eq!(links.len(), 1);
        links.values().next().unwrap().seal().map(|seal| seal.cipher())
    }
}

/// Two encrypted machines that do not trust the fabric.
pub(super) fn sealed_nodes(seed: u64) -> (Arc<Fabric>, [Node; 2]) {
    let (fabric, nodes) = nodes(seed);
    (fabric, nodes.map(|node| node.protected(encrypted(), false)))
}

#[tokio::test]
async fn plaintext_needs_the_consent_of_both_sides() {
    for (client_trusts, server_trusts) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_fabric, [near, far]) = nodes(1);
        let near = near.protected(encrypted(), client_trusts);
        let far = far.protected(encrypted(), server_trusts);
        let [a, mut b] = near.link(&far).await;
        a.send(3, LONE);
        b.receive(3).await;
        let expected = (!(client_trusts && server_trusts)).then_some(Cipher::Aes256Gcm);
        assert_eq!((near.cipher(), far.cipher()), (expected, expected), "{client_trusts} {server_trusts}");
    }
}

#[tokio::test]
async fn the_server_prefers_the_cipher_of_its_session() {
    for cipher in Cipher::ALL {
        let (_fabric, [near, far]) = nodes(1);
        // Sessions agree on one cipher. The secret of the client's end does not say which.
        let [near, far] =
            [near.protected(secret(Cipher::Aes256Gcm, 1), false), far.protected(secret(cipher, 1), false)];
        let candidates = near.candidates(&far).await.unwrap();
        assert_eq!(far.cipher(), Some(cipher));
        drop(candidates);
    }
}

#[tokio::test]
async fn sides_that_can_not_agree_say_so() {
    let plain = || no_secret();
    for (client, server, words) in [
        // Neither the client's session nor its configuration allows a link.
        ((plain(), false), (encrypted(), false), "rdma.plaintext = \"trusted-fabric\""),
        ((encrypted(), false), (plain(), false), "rdma.plaintext = \"trusted-fabric\""),
        // One would send plaintext, and the other must encrypt.
        ((plain(), true), (encrypted(), false), "the peer offers no cipher"),
        ((encrypted(), false), (plain(), true), "the peer offers no cipher"),
    ] {
        let (fabric, [near, far]) = nodes(1);
        let (near, far) = (near.protected(client.0, client.1), far.protected(server.0, server.1));
        let why = near.try_link(&far).await.map(drop).unwrap_err();
        assert_eq!(why.reason, Reason::Encrypted, "{why}");
        assert!(why.detail.contains(words), "{why}");
        until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
    }
}

/// Changes what an ANSWER says of the link's protection.
fn with_protection(answer: Bytes, protection: u8) -> Bytes {
    let mut bootstrap = Bootstrap::decode(answer).unwrap();
    bootstrap.protection = protection;
    bootstrap.encode()
}

#[tokio::test]
async fn an_answer_that_was_not_offered_is_refused() {
    for (protection, words) in [
        (PLAINTEXT, "does not encrypt RDMA"),
        (0, "names the protection 0x00"),
        (Cipher::Aes256Gcm as u8 | PLAINTEXT, "names the protection 0x03"),
        (Cipher::Aes256Gcm as u8 | Cipher::ChaCha20Poly1305 as u8, "names the protection 0x06"),
        (0x80, "names the protection 0x80"),
    ] {
        let (_fabric, [near, far]) = sealed_nodes(1);
        let (client, server, answer) = near.candidates(&far).await.unwrap();
        let why = client.complete(1, Some(with_protection(answer, protection))).await.unwrap_err();
        assert!(why.reason == Reason::Encrypted && why.detail.contains(words), "{protection:#x}: {why}");
        drop(server);
    }
}

#[tokio::test]
async fn keys_cover_all_that_both_sides_have_said() {
    // The answer names another cipher than the server has chosen; the client has offered both.
    let (_fabric, [near, far]) = sealed_nodes(1);
    let (client, server, answer) = near.candidates(&far).await.unwrap();
    let other = with_protection(answer, Cipher::ChaCha20Poly1305 as u8);
    let ends = tokio::join!(client.complete(1, Some(other)), server.complete(1, None));
    let why = ends.1.unwrap_err();
    assert!(why.reason == Reason::ProbeLost && why.detail.contains("what the peer has sealed"), "{why}");
    assert!(ends.0.is_err());
    // The sides take the probe for one of different epochs.
    let (_fabric, [near, far]) = sealed_nodes(1);
    let (client, server, answer) = near.candidates(&far).await.unwrap();
    let ends = tokio::join!(client.complete(2, Some(answer)), server.complete(1, None));
    assert_eq!([ends.0.unwrap_err().reason, ends.1.unwrap_err().reason], [Reason::ProbeLost; 2]);
}

#[tokio::test]
async fn another_session_has_other_keys() {
    let (fabric, [near, far]) = nodes(1);
    let near = near.protected(secret(Cipher::Aes256Gcm, 1), false);
    let far = far.protected(secret(Cipher::Aes256Gcm, 2), false);
    let why = near.try_link(&far).await.map(drop).unwrap_err();
    assert_eq!(why.reason, Reason::ProbeLost, "{why}");
    until("queue pairs stay", || fabric.queue_pairs().is_empty()).await;
}

#[tokio::test]
async fn nothing_crosses_in_the_clear_from_the_first_message_on() {
    let (fabric, [near, far]) = sealed_nodes(1);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&heard);
    fabric.tap(move |_: Crossing, _, bytes: &mut Vec<u8>| ear.lock().unwrap().push(bytes.clone()));
    let [mut a, mut b] = near.link(&far).await;
    a.send(500, 100);
    b.receive(500).await;
    b.send(20, LONE);
    a.receive(20).await;
    let heard = heard.lock().unwrap();
    // Probes have 8 KiB that are mostly zero, frames are full of sevens.
    assert!(heard.len() > 20);
    for byte in [0, 7] {
        assert!(!heard.iter().any(|bytes| bytes.windows(16).any(|part| part == [byte; 16])));
    }
}

/// Asks a link to expose something, and sends nothing.
struct Asking<'a> {
    bulk: &'a Bulk,
    answer: Option<Exposing>,
}

impl FrameSource for Asking<'_> {
    fn next(&mut self, _: usize) -> Option<Frame> {
        None
    }

    fn next_exposing(&mut self, _: usize, expose: &mut dyn Expose) -> Option<Frame> {
        self.answer = Some(expose.expose(1, self.bulk));
        None
    }
}

impl End {
    async fn stage(&self, message: &Bytes) -> Bulk {
        let patience = async {
            loop {
                // There is memory for it soon.
                match self.link().stage(Direction::Request, std::slice::from_ref(message)) {
                    Bulk::None => tokio::time::sleep(Duration::from_millis(1)).await,
                    bulk => break bulk,
                }
            }
        };
        tokio::time::timeout(LIMIT, patience).await.expect("no memory comes")
    }

    async fn exposes(&self, bulk: &Bulk) -> bool {
        let patience = async {
            loop {
                let mut asking = Asking { bulk, answer: None };
                self.link().send(&mut asking);
                match asking.answer {
                    Some(Exposing::Described(_)) => break true,
                    Some(Exposing::Never) => break false,
                    // Memory windows are on their way.
                    Some(Exposing::Later) | None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        tokio::time::timeout(LIMIT, patience).await.expect("no memory windows come")
    }
}

#[tokio::test]
async fn a_message_that_was_sealed_for_a_former_link_is_not_exposed_by_the_next() {
    let (_fabric, [near, far]) = sealed_nodes(1);
    let message = Bytes::from(vec![7; 1 << 20]);
    let [a, _b] = near.link(&far).await;
    let [c, _d] = near.link(&far).await;
    let (for_a, for_c) = (a.stage(&message).await, c.stage(&message).await);
    assert!(a.exposes(&for_a).await && c.exposes(&for_c).await);
    assert!(!c.exposes(&for_a).await && !a.exposes(&for_c).await);
    // A link without a seal exposes neither, and a sealed one nothing that is not sealed.
    let [near, far] = [near, far].map(|node| node.protected(encrypted(), true));
    let [e, _f] = near.link(&far).await;
    let for_e = e.stage(&message).await;
    assert!(e.exposes(&for_e).await);
    assert!(!e.exposes(&for_a).await && !a.exposes(&for_e).await);
}
