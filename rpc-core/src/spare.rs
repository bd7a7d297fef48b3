//! Large buffers that nobody uses now: all connections of the process share them.
//!
//! An allocator gives large memory back to the system as soon as it is free, and the system hands it out again page by page,
//! each zeroed. For a payload of 64 KiB that costs more than the call.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

/// Smaller ones are left to the allocator: bytes.
const SMALLEST: usize = 16 << 10;

/// Larger ones are too rare.
const LARGEST: usize = 4 << 20;

/// How many bytes are kept at most, whatever the process does.
const MOST: usize = 16 << 20;

/// How many buffers are looked at for one that fits.
const LOOKED_AT: usize = 8;

/// How many times the size that is asked for a buffer may have: an application may hold on to it.
const SLACK: usize = 2;

#[derive(Debug)]
struct Spare {
    buffers: VecDeque<BytesMut>,
    bytes: usize,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare { buffers: VecDeque::new(), bytes: 0 });

fn spare() -> MutexGuard<'static, Spare> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An empty buffer with room for this many bytes at least.
pub fn take(capacity: usize) -> BytesMut {
    let found = if (SMALLEST..=LARGEST).contains(&capacity) { spare().take(capacity) } else { None };
    found.unwrap_or_else(|| BytesMut::with_capacity(capacity))
}

/// Keeps a buffer for who needs one next, unless others have views of it or it is too small to be worth it.
pub fn give(mut buffer: BytesMut) {
    buffer.clear();
    if buffer.try_reclaim(SMALLEST) && buffer.capacity() <= LARGEST {
        let too_many = spare().give(buffer);
        // Freed without the lock.
        drop(too_many);
    }
}

/// What is in a buffer, which is kept for who needs one next when nobody has a view of it any more.
pub fn share(buffer: BytesMut) -> Bytes {
    if buffer.capacity() < SMALLEST { buffer.freeze() } else { Bytes::from_owner(Shared(buffer)) }
}

struct Shared(BytesMut);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.0));
    }
}

impl Spare {
    /// The last one that fits: what was used just now is still in the processor's cache.
    fn take(&mut self, capacity: usize) -> Option<BytesMut> {
        let fits = |buffer: &BytesMut| (capacity..=SLACK * capacity).contains(&buffer.capacity());
        let from_end = self.buffers.iter().rev().take(LOOKED_AT).position(fits)?;
        let found = self.buffers.remove(self.buffers.len() - 1 - from_end)?;
        self.bytes -= found.capacity();
        Some(found)
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

    #[test]
    fn what_a_burst_has_needed_is_let_go() {
        let mut spare = Spare { buffers: VecDeque::new(), bytes: 0 };
        let oldest = BytesMut::with_capacity(SMALLEST);
        let lies_at = oldest.as_ptr();
        assert!(spare.give(oldest).is_empty());
        let let_go = (0..1000).flat_map(|_| spare.give(BytesMut::with_capacity(64 << 10)));
        let let_go: Vec<BytesMut> = let_go.collect();
        assert_eq!(let_go[0].as_ptr(), lies_at, "what has not been asked for longest goes first");
        let kept: usize = spare.buffers.iter().map(BytesMut::capacity).sum();
        assert!(kept == spare.bytes && kept <= MOST, "{kept} bytes");
    }
}
