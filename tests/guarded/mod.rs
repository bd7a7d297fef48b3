//! Memory to lend, with canaries around the part that is lent.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use farcall::bulk::Lend;
use farcall::region::Exportable;
use farcall::{Buf, Bytes};

/// Memory with canaries around it.
pub(crate) struct Guarded {
    whole: Vec<u8>,
    len: usize,
}

impl Guarded {
    const CANARY: usize = 64;
}

impl Lend for Guarded {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        vec![self.lent()]
    }
}

/// Memory with canaries around what is lent of it.
pub(crate) trait Guard: Lend + Sized {
    /// Memory of which so much is lent.
    fn new(len: usize) -> Self;
    fn lent(&mut self) -> &mut [u8];
    /// Returns what is lent, after a look at the canaries.
    fn intact(&mut self) -> &mut [u8];
    /// Returns what was lent, to be read by a peer.
    fn freeze(self) -> Bytes;
}

/// Looks at the canaries around so many bytes.
fn is_intact(whole: &[u8], len: usize) {
    let (before, rest) = whole.split_at(Guarded::CANARY);
    let (_, behind) = rest.split_at(len);
    assert!(
        before.iter().chain(behind).all(|&byte| byte == 0xc5),
        "something was written beside what is lent"
    );
}

impl Guard for Guarded {
    fn new(len: usize) -> Self {
        Self { whole: vec![0xc5; len + 2 * Self::CANARY], len }
    }

    fn lent(&mut self) -> &mut [u8] {
        &mut self.whole[Self::CANARY..Self::CANARY + self.len]
    }

    fn intact(&mut self) -> &mut [u8] {
        is_intact(&self.whole, self.len);
        self.lent()
    }

    fn freeze(self) -> Bytes {
        Bytes::from(self.whole).slice(Self::CANARY..Self::CANARY + self.len)
    }
}

/// A buffer of which a part is lent, which a device may write to, with canaries around that part.
pub(crate) struct Within {
    buf: Buf,
    len: usize,
}

/// The words of a buffer from those on that are lent.
struct LentWords(Arc<dyn Exportable>);

impl AsRef<[AtomicU64]> for LentWords {
    fn as_ref(&self) -> &[AtomicU64] {
        &(*self.0).as_ref()[Guarded::CANARY / 8..]
    }
}

impl Exportable for LentWords {}

impl Lend for Within {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        vec![self.lent()]
    }

    fn size(&mut self) -> usize {
        self.len
    }

    fn share(&mut self) -> Vec<(Arc<dyn Exportable>, usize)> {
        let shared = self.buf.share().into_iter();
        shared.map(|(words, _)| (Arc::new(LentWords(words)) as _, self.len)).collect()
    }

    fn unshare(&mut self) {
        self.buf.unshare();
    }

    fn fill(&mut self, offset: usize, bytes: Bytes) -> Bytes {
        self.buf.fill(Guarded::CANARY + offset, bytes)
    }
}

impl Guard for Within {
    fn new(len: usize) -> Self {
        let whole = len + 2 * Guarded::CANARY;
        let mut buf = farcall::buf(whole);
        buf.spare().fill(0xc5);
        buf.advance(whole);
        Self { buf, len }
    }

    fn lent(&mut self) -> &mut [u8] {
        &mut self.buf[Guarded::CANARY..Guarded::CANARY + self.len]
    }

    fn intact(&mut self) -> &mut [u8] {
        is_intact(&self.buf, self.len);
        self.lent()
    }

    fn freeze(self) -> Bytes {
        self.buf.freeze().slice(Guarded::CANARY..Guarded::CANARY + self.len)
    }
}
