//! Sealed links: all that leaves by the queue pair is encrypted and authenticated (WIRE.md section 11).
//!
//! A queue pair delivers in order and once. So messages are counted on both sides and carry no number; what an attacker
//! inserts, repeats or leaves out does not open. Long messages lie in exposed memory in encrypted form only.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, BufMut, Bytes};
use farcall_core::transport::{Cipher, Key, Reason, Secret, TAG_LEN, Unavailable};
use tokio::runtime::Handle;

/// The bytes of a long message that are sealed as one text. A key seals 2^20 texts (WIRE.md, section 11.2), an eighth of what AES-GCM
/// allows (RFC 9001, section 6.6 and appendix B).
pub(super) const CHUNK: usize = 64 << 10;

/// The end of the connection that a side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    Client = 0,
    Server = 1,
}

impl End {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The use of a key.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Use {
    /// Messages that are sent.
    Messages = 0,
    /// Chunks of messages that are read.
    Chunks = 1,
}

/// All that the keys of a link are derived from.
#[derive(Debug, Clone)]
pub(crate) struct KeyTerms {
    pub(crate) secret: Arc<dyn Secret>,
    pub(crate) cipher: Cipher,
    pub(crate) epoch: u32,
    /// The transport's data in OFFER and ANSWER. Both name a queue pair and its first packet, which is random.
    pub(crate) offer: Bytes,
    pub(crate) answer: Bytes,
}

impl KeyTerms {
    /// The key derivation's info, but for the number of the key.
    fn info(&self, from: End, of: Use) -> Vec<u8> {
        let mut info = Vec::with_capacity(128);
        info.put_slice(b"farcall/1 rdma");
        info.put_u8(from as u8);
        info.put_u8(of as u8);
        info.put_u32_le(self.epoch);
        for data in [&self.offer, &self.answer] {
            info.put_u16_le(data.len() as u16);
            info.put_slice(data);
        }
        info
    }

    fn keys(&self, from: End, of: Use) -> Result<Keys, Unavailable> {
        let (secret, info) = (Arc::clone(&self.secret), self.info(from, of));
        let key = derive(&*secret, self.cipher, &info, 0).ok_or_else(|| {
            Unavailable::new(Reason::Encrypted, format!("no key for {} could be derived", self.cipher))
        })?;
        let texts_per_key_log2 = secret.texts_per_key_log2();
        Ok(Keys { secret, cipher: self.cipher, info, texts_per_key_log2, number: 0, key })
    }
}

fn derive(secret: &dyn Secret, cipher: Cipher, info: &[u8], number: u64) -> Option<Arc<dyn Key>> {
    secret.key(cipher, &[info, &number.to_le_bytes()].concat())
}

/// The keys of one direction and use, one after the other.
struct Keys {
    secret: Arc<dyn Secret>,
    cipher: Cipher,
    info: Vec<u8>,
    /// The binary logarithm of the number of texts that one key seals.
    texts_per_key_log2: u32,
    /// The key that was used last, and its number.
    key: Arc<dyn Key>,
    number: u64,
}

impl Keys {
    /// The key of a text.
    fn of(&mut self, text: u64) -> Option<Arc<dyn Key>> {
        let number = text >> self.texts_per_key_log2;
        if number != self.number {
            self.key = derive(&*self.secret, self.cipher, &self.info, number)?;
            self.number = number;
        }
        Some(Arc::clone(&self.key))
    }
}

/// Keys, and the number of the next text.
struct Counted {
    keys: Keys,
    next: u64,
}

impl Counted {
    fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

/// How a link seals and opens.
pub(crate) struct Seal {
    /// Tells the link from all others of this process.
    id: u64,
    cipher: Cipher,
    /// Where long messages are opened.
    runtime: Handle,
    sent: Mutex<Counted>,
    received: Mutex<Counted>,
    exposed: Mutex<Counted>,
    read: Mutex<Keys>,
}

/// A text that does not open, or can't be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsealable;

impl Seal {
    /// The seal of this end's side of a link.
    pub(crate) fn new(terms: &KeyTerms, end: End, runtime: Handle) -> Result<Self, Unavailable> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let counted = |from, of| terms.keys(from, of).map(|keys| Mutex::new(Counted { keys, next: 0 }));
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            cipher: terms.cipher,
            runtime,
            sent: counted(end, Use::Messages)?,
            received: counted(end.other(), Use::Messages)?,
            exposed: counted(end, Use::Chunks)?,
            read: Mutex::new(terms.keys(end.other(), Use::Chunks)?),
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn cipher(&self) -> Cipher {
        self.cipher
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Seals the next message in place. Its tag is to follow it. Messages are sent in the order in which they are sealed.
    pub(super) fn seal(&self, message: &mut [u8]) -> Result<[u8; TAG_LEN], Unsealable> {
        let mut sent = lock(&self.sent);
        let number = sent.take_number();
        sent.keys.of(number).and_then(|key| key.seal(number, message)).ok_or(Unsealable)
    }

    /// Opens the next message in place. Returns its length.
    pub(super) fn open(&self, message: &mut [u8]) -> Result<usize, Unsealable> {
        let len = message.len().checked_sub(TAG_LEN).ok_or(Unsealable)?;
        let mut received = lock(&self.received);
        let number = received.take_number();
        let is_open = received.keys.of(number).is_some_and(|key| key.open(number, message));
        is_open.then_some(len).ok_or(Unsealable)
    }

    /// Copies a long message, chunk by chunk, seals each, and appends the tags. `to` has room for exactly that. Returns the
    /// number of the first chunk.
    pub(super) fn seal_chunks(&self, pieces: &[Bytes], to: &mut [u8]) -> Result<u64, Unsealable> {
        let len = pieces.iter().map(Bytes::len).sum();
        let (text, mut tags) = to.split_at_mut_checked(len).ok_or(Unsealable)?;
        let first = {
            let mut exposed = lock(&self.exposed);
            let first = exposed.next;
            exposed.next += chunks(len) as u64;
            first
        };
        let mut pieces = Pieces(pieces.iter().map(|piece| &piece[..]).collect());
        for (number, chunk) in (first..).zip(text.chunks_mut(CHUNK)) {
            pieces.fill(chunk);
            let key = lock(&self.exposed).keys.of(number).ok_or(Unsealable)?;
            let tag = key.seal(number, chunk).ok_or(Unsealable)?;
            if tags.remaining_mut() < TAG_LEN {
                return Err(Unsealable);
            }
            tags.put_slice(&tag);
        }
        Ok(first)
    }

    /// Opens one chunk in place. `sealed` has all chunks of a message, and then their tags; `len` is the message's length.
    pub(super) fn open_chunk(
        &self,
        sealed: &mut [u8],
        len: usize,
        first: u64,
        index: usize,
    ) -> Result<(), Unsealable> {
        let tag = sealed.get(len + index * TAG_LEN..).and_then(<[u8]>::first_chunk::<TAG_LEN>).copied();
        let (tag, at) = (tag.ok_or(Unsealable)?, index * CHUNK);
        let end = len.min(at + CHUNK);
        let text_and_tag = sealed.get_mut(at..end + TAG_LEN).ok_or(Unsealable)?;
        // A cipher wants the tag behind the text, where the next chunk begins. The chunk gets its bytes back.
        let (_, behind) = text_and_tag.split_last_chunk_mut::<TAG_LEN>().ok_or(Unsealable)?;
        let kept = std::mem::replace(behind, tag);
        let number = first.checked_add(index as u64).ok_or(Unsealable)?;
        let key = lock(&self.read).of(number).ok_or(Unsealable)?;
        if !key.open(number, text_and_tag) {
            return Err(Unsealable);
        }
        sealed[end..end + TAG_LEN].copy_from_slice(&kept);
        Ok(())
    }
}

/// How many chunks a message of this length has.
pub(super) fn chunks(len: usize) -> usize {
    len.div_ceil(CHUNK)
}

/// How many bytes a sealed message of this length has.
pub(super) fn sealed_len(len: usize) -> usize {
    len + chunks(len) * TAG_LEN
}

/// Bytes that lie in several places.
struct Pieces<'a>(VecDeque<&'a [u8]>);

impl Pieces<'_> {
    /// Moves the next bytes to `to`, as many as there is room for.
    fn fill(&mut self, mut to: &mut [u8]) {
        while !to.is_empty()
            && let Some(piece) = self.0.front_mut()
        {
            let len = piece.len().min(to.len());
            to.put_slice(&piece[..len]);
            piece.advance(len);
            if piece.is_empty() {
                self.0.pop_front();
            }
        }
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
