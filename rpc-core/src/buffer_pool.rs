//! Buffers for reuse: large ones shared by the whole process, and one small one for each thread.
//!
//! An allocator returns large memory to the system as soon as it is free, and the system hands it out again zeroed,
//! page by page. For a payload of 64 KiB that costs more than the call.

use std::cell::Cell;
use std::collections::{TryReserveError, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use crate::payload::Encoder;

/// The largest small buffer that is kept, in bytes. The next message may be a few bytes and live long.
const MOST_SMALL: usize = 8192;

thread_local! {
    /// The buffer of the thread's last short message, if nothing uses it any more.
    static SMALL: Cell<Option<Box<BytesMut>>> = const { Cell::new(None) };
}

/// Returns an empty encoder. It reuses the memory of the thread's last short message if that was [recycled](recycle).
#[inline]
pub fn encoder() -> Encoder {
    SMALL.take().map_or_else(Encoder::new, Encoder::reusing)
}

/// Keeps the [buffer](crate::payload::Payload::into_buffer) of a short message, if there is one, for the thread's next
/// message.
#[inline]
pub fn recycle(buffer: Option<Box<BytesMut>>) {
    if let Some(buffer) = buffer
        && buffer.capacity() <= MOST_SMALL
    {
        // A thread that is being torn down keeps nothing.
        let _ = SMALL.try_with(|small| small.set(Some(buffer)));
    }
}

/// The unit of buffer sizes in bytes. Every size is a multiple of it, so that a buffer suits many uses.
const STEP: usize = 16 << 10;

/// The largest buffer that is kept, in bytes.
const LONGEST: usize = 512 << 10;

/// The most memory that is kept for the whole process, in bytes.
const MOST: usize = 16 << 20;

/// How many buffers are checked for one of the right size.
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

/// Returns an empty buffer with room for this many bytes, rounded up to a multiple of 16 KiB. Callers of [`give`] and
/// [`share`] pass the room on: a buffer does not know it once a part has been split off.
///
/// # Errors
///
/// The process has no memory for it.
pub fn take(least: usize) -> Result<BytesMut, TryReserveError> {
    let size = least.next_multiple_of(STEP);
    let found = if size <= LONGEST { spare().take(size) } else { None };
    found.map_or_else(|| allocate(size), Ok)
}

fn allocate(size: usize) -> Result<BytesMut, TryReserveError> {
    // A `BytesMut` can't be asked for memory without a panic, but a `Vec` can, and it is the same memory.
    let mut memory = Vec::new();
    memory.try_reserve_exact(size)?;
    Ok(Bytes::from(memory).into())
}

/// Keeps a buffer with room for `size` bytes for reuse, unless others have views of it.
pub fn give(mut buffer: BytesMut, size: usize) {
    buffer.clear();
    // Kept only if all of the memory is reclaimed, which means that nothing else uses it.
    if (STEP..=LONGEST).contains(&size) && buffer.try_reclaim(size) && buffer.capacity() == size {
        let too_many = spare().give(buffer);
        // Freed after the lock is released.
        drop(too_many);
    }
}

/// Returns the contents of a buffer with room for `size` bytes. The buffer is kept for reuse when the last view of it
/// is dropped.
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
    /// Takes the most recent buffer of this size, which may still be in the processor's cache.
    fn take(&mut self, size: usize) -> Option<BytesMut> {
        let from_end =
            self.buffers.iter().rev().take(LOOKED_AT).position(|buffer| buffer.capacity() == size)?;
        self.bytes -= size;
        self.buffers.remove(self.buffers.len() - 1 - from_end)
    }

    /// Keeps a buffer. Returns the oldest ones that now exceed the limit: sizes that are no longer asked for.
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
    fn a_buffer_that_memory_has_no_room_for_is_an_error() {
        assert!(take(isize::MAX as usize - STEP).is_err());
        let buffer = take(STEP - 1).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, STEP));
    }

    #[test]
    fn memory_of_a_burst_is_let_go() {
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
