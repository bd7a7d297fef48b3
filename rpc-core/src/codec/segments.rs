//! An encoder seen as a [`BufMut`], which is what prost writes to. The one module of this crate with `unsafe`.
//!
//! `BufMut` is an unsafe trait because its users write through the pointer that `chunk_mut` hands out. Ownership: the
//! memory behind that pointer is the spare capacity of the encoder's `BytesMut`. It stays where it is until the next
//! call that takes `&mut Segments`, and every such call either is `advance_mut`, which makes the bytes written so
//! far part of the buffer, or forgets them. Nothing else has the buffer: `Segments` borrows the encoder.
#![expect(
    unsafe_code,
    reason = "`BufMut` is an unsafe trait; the arguments are above and at the implementation"
)]

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut};

use crate::payload::{BY_REFERENCE, Encoder};

/// Appends to an encoder, and keeps long byte strings by reference.
pub(super) struct Segments<'a>(pub(super) &'a mut Encoder);

// SAFETY: the three methods that unsafe code relies on are those of `BytesMut`, on one buffer: `chunk_mut` gives
// memory that is exclusively ours, and `advance_mut` follows it. `put` may replace the buffer, but never between a
// `chunk_mut` and its `advance_mut`, because it takes `&mut self` as well.
unsafe impl BufMut for Segments<'_> {
    fn remaining_mut(&self) -> usize {
        // What `BytesMut` says, too: it grows as needed.
        usize::MAX
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: our caller promises what `BytesMut::advance_mut` asks for: that the next `count` bytes of the
        // chunk, which was that of this buffer, are initialised.
        unsafe { self.0.buffer().advance_mut(count) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.0.buffer().chunk_mut()
    }

    // prost puts `bytes` fields with this method. From a `Bytes`, `copy_to_bytes` takes another reference.
    fn put<T: Buf>(&mut self, mut source: T) {
        while source.has_remaining() {
            let chunk = source.chunk();
            let length = chunk.len();
            if length > BY_REFERENCE {
                let bytes = source.copy_to_bytes(length);
                self.0.put_bytes(&bytes);
            } else {
                self.0.put_slice(chunk);
                source.advance(length);
            }
        }
    }

    fn put_slice(&mut self, source: &[u8]) {
        self.0.put_slice(source);
    }
}
