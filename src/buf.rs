//! Buffers to send from.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

#[cfg(feature = "rdma")]
use std::sync::Arc;

use bytes::Bytes;
use farcall_core::bulk::Lend;
#[cfg(feature = "rdma")]
use farcall_core::region::Exportable;
use farcall_core::transport::SHARED_BUFFER;
#[cfg(feature = "rdma")]
use farcall_core::transport::words;

/// A buffer for `capacity` bytes, empty at first, for a long message or a part of one.
///
/// Where the process uses RDMA, its memory is registered with the device: what is [frozen](Buf::freeze) from it goes to
/// the peer without a copy, if it is 16 KiB or more and the only long part of its message. Bytes from anywhere else are
/// copied once. For fewer bytes and elsewhere it is ordinary memory, with which everything works, too; also when
/// `rdma.bulk_memory` is used up, and while more of it is being registered, in the background, because what there was
/// did not suffice. [`Buf::registered`] waits for that instead.
///
/// ```
/// use std::io::Write;
///
/// let mut page = farcall::buf(1 << 20);
/// page.write_all(b"header")?;
/// page.resize(1 << 20);
/// page[8..16].copy_from_slice(&42_u64.to_le_bytes());
/// let value: bytes::Bytes = page.freeze();
/// assert_eq!(value.len(), 1 << 20);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn buf(capacity: usize) -> Buf {
    #[cfg(feature = "rdma")]
    if let Some(memory) = farcall_rdma::Registered::take(capacity) {
        return Buf::of(memory);
    }
    Buf::on_heap(capacity)
}

/// A buffer to send from; see [`buf`](buf()).
///
/// It dereferences to what has been written. Its capacity does not grow.
///
/// A buffer that a lend fills as a whole may hold the peer's message itself. The first write to such a buffer copies it.
pub struct Buf {
    memory: Memory,
    len: usize,
    /// Up to here the memory holds zeroes or what was written to this buffer; behind it, other messages.
    ours: usize,
}

enum Memory {
    #[cfg(feature = "rdma")]
    Registered(farcall_rdma::Registered),
    Heap(Vec<u8>),
    /// A message of the peer, with nothing behind it. It is copied when somebody writes to it.
    Received(Bytes),
    /// Registered memory while it is lent, and a device may write to it.
    #[cfg(feature = "rdma")]
    Shared(Arc<farcall_rdma::SharedExtent>),
}

impl Buf {
    /// Returns a buffer for `capacity` bytes, as [`buf`](buf()) does, but waits while memory for it is being registered, for milliseconds.
    /// For buffers that are lent or filled again and again, such as the frames of a page cache: what has no registered memory
    /// at first never gets some. It is ordinary memory still for less than 16 KiB, where the process has connected to nobody
    /// by RDMA yet, and where `rdma.bulk_memory` is used up; [`is_registered`](Self::is_registered) tells. Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut frame = farcall::Buf::registered(1 << 20).await;
    /// frame.resize(1 << 20);
    /// assert_eq!(frame.len(), 1 << 20);
    /// # }
    /// ```
    pub async fn registered(capacity: usize) -> Self {
        #[cfg(feature = "rdma")]
        if let Some(memory) = farcall_rdma::Registered::grow(capacity).await {
            return Self::of(memory);
        }
        Self::on_heap(capacity)
    }

    #[cfg(feature = "rdma")]
    fn of(memory: farcall_rdma::Registered) -> Self {
        Self { memory: Memory::Registered(memory), len: 0, ours: 0 }
    }

    fn on_heap(capacity: usize) -> Self {
        Self { memory: Memory::Heap(vec![0; capacity]), len: 0, ours: capacity }
    }

    /// Whether a device can read its memory, and write there, without a copy.
    pub fn is_registered(&self) -> bool {
        !matches!(self.memory, Memory::Heap(_) | Memory::Received(_))
    }

    /// How many bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If they do not fit: [`io::Write`] tells instead.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        let (start, end) = (self.len, self.len + bytes.len());
        assert!(end <= self.capacity(), "{end} bytes do not fit into a buffer of {}", self.capacity());
        self.len = end;
        self.ours = self.ours.max(end);
        self[start..].copy_from_slice(bytes);
    }

    /// Makes it longer, with zeroes, or shorter.
    ///
    /// # Panics
    /// If `len` is more than its capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes do not fit into a buffer of {}", self.capacity());
        let old = std::mem::replace(&mut self.len, len);
        if old < len {
            self.ours = self.ours.max(len);
            self[old..].fill(0);
        }
    }

    /// Makes it shorter; nothing if it is not longer than `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the rest of its capacity, to be written to: by `read(2)`, for example. It holds zeroes and what was written to
    /// this buffer before, never bytes of other messages. [`advance`](Self::advance) says how much of it was written.
    ///
    /// The first call for a buffer zeroes the rest of its memory, each byte once.
    pub fn spare(&mut self) -> &mut [u8] {
        self.zero_to(self.capacity());
        let len = self.len;
        &mut self.memory.bytes_mut()[len..]
    }

    /// Makes the next `count` bytes of [`spare`](Self::spare) part of the buffer's content.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.capacity() - self.len, "{count} bytes do not fit");
        self.len += count;
        self.zero_to(self.len);
    }

    /// Zeroes what is not ours up to there.
    fn zero_to(&mut self, end: usize) {
        if let Some(others) = self.memory.bytes_mut().get_mut(self.ours..end) {
            others.fill(0);
            self.ours = end;
        }
    }

    /// Returns the written bytes as the argument or result of a call, without a copy.
    pub fn freeze(self) -> Bytes {
        match self.memory {
            #[cfg(feature = "rdma")]
            Memory::Registered(memory) => memory.freeze(self.len),
            Memory::Heap(mut memory) => {
                memory.truncate(self.len);
                memory.into()
            }
            Memory::Received(bytes) => bytes.slice(..self.len),
            // Unreachable: nobody has a buffer while it is lent.
            #[cfg(feature = "rdma")]
            Memory::Shared(_) => Bytes::new(),
        }
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            #[cfg(feature = "rdma")]
            Self::Registered(memory) => memory,
            Self::Heap(memory) => memory,
            Self::Received(bytes) => bytes,
            // Unreachable: nobody has a buffer while it is lent.
            #[cfg(feature = "rdma")]
            Self::Shared(_) => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if let Self::Received(bytes) = self {
            *self = Self::copy_of(bytes);
        }
        match self {
            #[cfg(feature = "rdma")]
            Self::Registered(memory) => memory,
            Self::Heap(memory) => memory,
            // Unreachable: it was copied above.
            Self::Received(_) => &mut [],
            // Unreachable: nobody has a buffer while it is lent.
            #[cfg(feature = "rdma")]
            Self::Shared(_) => &mut [],
        }
    }

    fn copy_of(bytes: &[u8]) -> Self {
        #[cfg(feature = "rdma")]
        if let Some(mut memory) = farcall_rdma::Registered::take(bytes.len()) {
            memory.copy_from_slice(bytes);
            return Self::Registered(memory);
        }
        Self::Heap(bytes.to_vec())
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.memory.bytes_mut()[..len]
    }
}

impl From<Buf> for Bytes {
    fn from(buf: Buf) -> Self {
        buf.freeze()
    }
}

impl Lend for Buf {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        vec![self]
    }

    fn size(&mut self) -> usize {
        self.len
    }

    // Its parts are to be written to, for which a message of the peer would be copied.
    fn pieces(&mut self) -> usize {
        usize::from(self.len > 0)
    }

    #[cfg(feature = "rdma")]
    fn share(&mut self) -> Vec<(Arc<dyn Exportable>, usize)> {
        if let Memory::Received(bytes) = &self.memory {
            self.memory = Memory::copy_of(bytes);
        }
        let words = match std::mem::replace(&mut self.memory, Memory::Heap(Vec::new())) {
            Memory::Registered(memory) => memory.share(),
            Memory::Shared(words) => words,
            other => {
                self.memory = other;
                return Vec::new();
            }
        };
        self.memory = Memory::Shared(Arc::clone(&words));
        vec![(words, self.len)]
    }

    #[cfg(feature = "rdma")]
    fn unshare(&mut self) {
        match std::mem::replace(&mut self.memory, Memory::Heap(Vec::new())) {
            Memory::Shared(words) => {
                self.memory = match farcall_rdma::Registered::unshare(words) {
                    Ok(memory) => Memory::Registered(memory),
                    // Somebody has kept the words. Later writes to them are not this buffer's.
                    Err(words) => {
                        Memory::Heap(words::copy_out((*words).as_ref(), 0, self.len).unwrap_or_default())
                    }
                };
            }
            other => self.memory = other,
        }
    }

    fn fill(&mut self, offset: usize, mut bytes: Bytes) -> Bytes {
        #[cfg(feature = "rdma")]
        if let Memory::Shared(words) = &self.memory {
            let rest = bytes.split_off(bytes.len().min(self.len - offset.min(self.len)));
            words::copy_in((**words).as_ref(), offset, &bytes);
            return rest;
        }
        let is_whole = offset == 0 && bytes.len() >= self.len && self.len == self.capacity();
        let rest = bytes.split_off(bytes.len().min(self.len - offset.min(self.len)));
        if is_whole && bytes.len() >= WORTH_KEEPING {
            self.memory = Memory::Received(bytes);
        } else if !bytes.is_empty() {
            self[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        rest
    }
}

/// A shorter message may lie in an allocation that is as long as this. Bytes.
const WORTH_KEEPING: usize = SHARED_BUFFER;

/// Writes as much as fits; then `write_all` fails with `WriteZero`.
impl io::Write for Buf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.capacity() - self.len);
        self.put_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("registered", &self.is_registered())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer whose memory an earlier message has left its bytes in, as registered memory is.
    fn used() -> Buf {
        Buf { memory: Memory::Heap(b"secretsecret".to_vec()), len: 0, ours: 0 }
    }

    #[test]
    fn no_bytes_of_other_messages_are_shown() {
        let mut buf = used();
        buf.put_slice(b"mine");
        assert_eq!(buf.spare(), [0; 8]);
        buf.truncate(2);
        assert_eq!(buf.spare(), b"ne\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn no_bytes_of_other_messages_are_sent() {
        let mut unwritten = used();
        unwritten.put_slice(b"mine");
        unwritten.advance(4);
        assert_eq!(unwritten.freeze(), b"mine\0\0\0\0"[..]);
        let mut longer = used();
        longer.resize(6);
        assert_eq!(longer.freeze(), [0; 6][..]);
    }

    #[test]
    fn bytes_written_to_spare_are_sent() {
        let mut buf = used();
        buf.spare()[..5].copy_from_slice(b"bytes");
        buf.advance(5);
        assert_eq!((buf.spare().len(), buf.freeze()), (7, Bytes::from_static(b"bytes")));
    }

    #[tokio::test]
    async fn a_buffer_that_holds_a_message_is_lent_again_without_a_copy() {
        const LEN: usize = WORTH_KEEPING;
        let mut buf = Buf::on_heap(LEN);
        buf.resize(LEN);
        let message = Bytes::from(vec![7; LEN]);
        assert!(buf.fill(0, message.clone()).is_empty());
        let (_into, loan) = farcall_core::bulk::BulkWrite::lend(vec![buf]);
        let buf = loan.reclaim().await.pop().unwrap();
        assert_eq!(buf.as_ptr(), message.as_ptr());
    }
}
