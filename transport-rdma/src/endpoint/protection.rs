//! How two ends agree on what protects a link (WIRE.md section 11.1).

use bytes::Bytes;
use farcall_core::transport::{Attempt, Cipher, Reason, Unavailable};
use tokio::runtime::Handle;

use crate::link::{End, KeyTerms, PLAINTEXT, Seal};

/// Returns the bits of all that this side accepts.
pub(super) fn acceptable(attempt: &Attempt) -> Result<u8, Unavailable> {
    let plaintext = if attempt.allows_plaintext { PLAINTEXT } else { 0 };
    match &attempt.secret {
        Ok(secret) => Ok(secret.ciphers().into_iter().fold(plaintext, |bits, cipher| bits | cipher as u8)),
        Err(_) if attempt.allows_plaintext => Ok(plaintext),
        Err(why) => Err(Unavailable {
            detail: format!("{}; rdma.plaintext = \"trusted-fabric\" on both sides does without", why.detail),
            ..why.clone()
        }),
    }
}

/// Server: returns the bit of what protects the link. Plaintext comes first: it needs the consent of both sides.
pub(super) fn choose(attempt: &Attempt, offered: u8) -> Result<u8, Unavailable> {
    let common = acceptable(attempt)? & offered;
    if common & PLAINTEXT != 0 {
        return Ok(PLAINTEXT);
    }
    let ciphers = attempt.secret.iter().flat_map(|secret| secret.ciphers());
    let mut bits = ciphers.map(|cipher| cipher as u8);
    bits.find(|bit| common & bit != 0).ok_or_else(|| {
        let detail = "this side must encrypt RDMA, and the peer offers no cipher that this side has; check that both sides \
                      use TLS, and a version of farcall that can encrypt RDMA";
        Unavailable::new(Reason::Encrypted, detail)
    })
}

/// Client: refuses an answer that is not one of what was offered.
pub(super) fn check(offered: u8, answered: u8) -> Result<(), Unavailable> {
    if answered.count_ones() == 1 && answered & offered != 0 {
        return Ok(());
    }
    let detail = if answered == PLAINTEXT {
        "it would send by RDMA in the clear: its version of farcall does not encrypt RDMA".to_owned()
    } else {
        format!("its answer names the protection {answered:#04x}, where {offered:#04x} was offered")
    };
    Err(Unavailable::at_peer(Reason::Encrypted, detail))
}

/// Returns this end's seal of a link with this protection. `None`: it has none.
pub(super) fn seal(
    attempt: &Attempt,
    protection: u8,
    epoch: u32,
    [offer, answer]: [Bytes; 2],
    end: End,
) -> Result<Option<Seal>, Unavailable> {
    let Some(cipher) = Cipher::ALL.into_iter().find(|cipher| *cipher as u8 == protection) else {
        return Ok(None);
    };
    let secret = attempt.secret.clone()?;
    let terms = KeyTerms { secret, cipher, epoch, offer, answer };
    Seal::new(&terms, end, Handle::current()).map(Some)
}
