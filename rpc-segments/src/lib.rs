//! A [`BufMut`] that keeps long byte strings by reference, so that protobuf's `bytes` fields travel without a copy.
//!
//! A crate of its own, because `BufMut` is an unsafe trait and `farcall-proto` forbids unsafe code. Users of a `BufMut`
//! write through the pointer that `chunk_mut` returns. Ownership: that memory is the spare capacity of one `BytesMut`, which
//! `Segments` borrows. It stays in its place until the next call that takes `&mut Segments`. Each such call either is
//! `advance_mut`, which makes the bytes written so far a part of the buffer, or forgets them.
#![expect(
    unsafe_code,
    reason = "`BufMut` is an unsafe trait; the arguments are above and at the implementation"
)]

use std::fmt;

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Appends to a buffer, and hands over long byte strings instead of copying them.
pub struct Segments<'a, K> {
    buffer: &'a mut BytesMut,
    longest_copy: usize,
    keep: K,
}

impl<'a, K: FnMut(&mut BytesMut, Bytes)> Segments<'a, K> {
    /// Appends to `buffer`. A byte string of more than `longest_copy` bytes goes to `keep` instead, with the buffer, which
    /// holds all that was written before the string and gets all that follows it; `keep` may replace the content.
    pub fn new(buffer: &'a mut BytesMut, longest_copy: usize, keep: K) -> Self {
        Self { buffer, longest_copy, keep }
    }
}

impl<K> fmt::Debug for Segments<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments").field("len", &self.buffer.len()).finish_non_exhaustive()
    }
}

// SAFETY: unsafe code relies on `remaining_mut`, `chunk_mut` and `advance_mut`, which are those of `BytesMut`, on one buffer:
// `chunk_mut` returns memory that is exclusively ours, and `advance_mut` follows it. `put` may replace the buffer's content, but
// never between a `chunk_mut` and its `advance_mut`, because it takes `&mut self` too.
unsafe impl<K: FnMut(&mut BytesMut, Bytes)> BufMut for Segments<'_, K> {
    fn remaining_mut(&self) -> usize {
        // As for `BytesMut`, which grows as needed.
        usize::MAX
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: our caller promises what `BytesMut::advance_mut` asks for: the next `count` bytes of the chunk, which was
        // that of this buffer, are initialised.
        unsafe { self.buffer.advance_mut(count) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.buffer.chunk_mut()
    }

    // prost puts `bytes` fields with this method. From a `Bytes`, `copy_to_bytes` takes another reference.
    fn put<T: Buf>(&mut self, mut source: T) {
        while source.has_remaining() {
            let chunk = source.chunk();
            let length = chunk.len();
            if length > self.longest_copy {
                let bytes = source.copy_to_bytes(length);
                (self.keep)(self.buffer, bytes);
            } else {
                self.buffer.extend_from_slice(chunk);
                source.advance(length);
            }
        }
    }

    fn put_slice(&mut self, source: &[u8]) {
        self.buffer.extend_from_slice(source);
    }
}
