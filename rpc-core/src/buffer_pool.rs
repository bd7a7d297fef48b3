//! Buffers that wait for their next use: large ones of the whole process, and one small one of each thread.
//!
//! An allocator gives large memory back to the system as soon as it is free, and the system hands it out again page by page,
//! each zeroed. For a payload of 64 KiB that costs more than the call.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use crate::payload::Encoder;

/// A small buffer with more room is not kept: the next message may be a few bytes and wait for long. Bytes.
const MOST_SMALL: usize = 8192;

thread_local! {
    /// The buffer of the thread's last short message, if that is gone.
    static SMALL: Cell<Option<Box<BytesMut>>> = const { Cell::new(None) };
}

/// Returns an empty encoder, whose memory is that of the thread's last short message if this was [recycled](recycle).
#[inline]
pub fn encoder() -> Encoder {
    SMALL.take().map_or_else(Encoder::new, Encoder::reusing)
}

/// Keeps the [buffer](crate::payload::Payload::into_buffer) of a short message, if it had one, for the thread's next one.
#[inline]
pub fn recycle(buffer: Option<Box<BytesMut>>) {
    if let Some(buffer) = buffer
        && buffer.capacity() <= MOST_SMALL
    {
        // A thread that is being torn down keeps nothing.
        let _ = SMALL.try_with(|small| small.set(Some(buffer)));
    }
}

/// All are a multiple of this long, so that one fits many needs: bytes.
const STEP: usize = 16 << 10;

/// Longer ones are not kept.
const LONGEST: usize = 512 << 10;

/// How many bytes are kept at most, whatever the process does.
const MOST: usize = 16 << 20;

/// How many buffers are looked at for one that fits.
const LOOKED_AT: usize = 8;

#[derive(Debug)]
struct Spare {
    buffers: VecDeque<BytesMut>,
    bytes: usize,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare { buffers: VecDeque::new(), bytes: 0 });

fn spare() -> MutexGuard<'static, Spare> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An empty buffer with room for this many bytes, rounded up to a multiple of 16 KiB. Whoever [gives](give) or
/// [shares](share) it says how much that was: a buffer does not tell when a part has been cut off it.
pub fn take(least: usize) -> BytesMut {
    let size = least.next_multiple_of(STEP);
    let found = if size <= LONGEST { spare().take(size) } else { None };
    found.unwrap_or_else(|| BytesMut::with_capacity(size))
}

/// Keeps a buffer that had so much room for who needs one next, unless others have views of it.
pub fn give(mut buffer: BytesMut, size: usize) {
    buffer.clear();
    // All of it comes back, or it is not ours alone.
    if (STEP..=LONGEST).contains(&size) && buffer.try_reclaim(size) && buffer.capacity() == size {
        let too_many = spare().give(buffer);
        // Freed without the lock.
        drop(too_many);
    }
}

/// What is in a buffer that had so much room. When nobody has a view of it any more, it is kept for who needs one next.
pub fn share(buffer: BytesMut, size: usize) -> Bytes {
    Bytes::from_owner(Shared { buffer, size })
}

struct Shared {
    buffer: BytesMut,
    size: usize,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.buffer), self.size);
    }
}

impl Spare {
    /// The last one of this size: what was used just now is still in the processor's cache.
    fn take(&mut self, size: usize) -> Option<BytesMut> {
        let from_end =
            self.buffers.iter().rev().take(LOOKED_AT).position(|buffer| buffer.capacity() == size)?;
        self.bytes -= size;
        self.buffers.remove(self.buffers.len() - 1 - from_end)
    }

    /// Gives those that are too many then: the oldest, of a size that is asked for no more.
    fn give(&mut self, buffer: BytesMut) -> Vec<BytesMut> {
        self.bytes += buffer.capacity();
        self.buffers.push_back(buffer);
        let mut too_many = Vec::new();
        while self.bytes > MOST
            && let Some(oldest) = self.buffers.pop_front()
        {
            self.bytes -= oldest.capacity();
            too_many.push(oldest);
        }
        too_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(len: usize) -> crate::payload::Payload {
        let mut encoder = encoder();
        encoder.put_slice(&vec![7; len]);
        encoder.finish()
    }

    #[test]
    fn the_next_short_message_gets_the_memory_of_a_recycled_one() {
        let (first, second) = (written(1), written(2));
        let address = first.body().as_ptr();
        assert_ne!(address, second.body().as_ptr());
        recycle(first.into_buffer());
        let third = written(3);
        assert_eq!((third.body().as_ptr(), third.body()), (address, &[7; 3][..]));
    }

    #[test]
    fn the_memory_of_a_long_message_is_not_kept_for_short_ones() {
        recycle(written(1 << 20).into_buffer());
        assert!(SMALL.take().is_none());
        let mut large = encoder();
        large.buffer().reserve(1 << 20);
        recycle(large.finish().into_buffer());
        assert!(SMALL.take().is_none());
    }

    #[test]
    fn what_a_burst_has_needed_is_let_go() {
        let mut spare = Spare { buffers: VecDeque::new(), bytes: 0 };
        let oldest = BytesMut::with_capacity(STEP);
        let lies_at = oldest.as_ptr();
        assert!(spare.give(oldest).is_empty());
        let let_go = (0..1000).flat_map(|_| spare.give(BytesMut::with_capacity(4 * STEP)));
        let let_go: Vec<BytesMut> = let_go.collect();
        assert_eq!(let_go[0].as_ptr(), lies_at, "what has not been asked for longest goes first");
        let kept: usize = spare.buffers.iter().map(BytesMut::capacity).sum();
        assert!(kept == spare.bytes && kept <= MOST, "{kept} bytes");
    }
}
