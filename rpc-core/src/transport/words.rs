//! Memory that several parties read and write at once, without a data race.

use std::collections::TryReserveError;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Memory that this process and its peers use at once: by copies, and by operations on numbers.
pub type Words = Arc<dyn Exportable>;

/// Memory that an application can [export](crate::region::Region::export): words, as each call of `as_ref` returns them, one and the
/// same slice each time.
///
/// ```
/// # mod farcall { pub use farcall_core::region; }
/// use std::sync::Arc;
/// use std::sync::atomic::AtomicU64;
///
/// use farcall::region::{Exportable, Region, Rights};
///
/// /// Counters that the application reads by their names.
/// struct Counters([AtomicU64; 2]);
///
/// impl AsRef<[AtomicU64]> for Counters {
///     fn as_ref(&self) -> &[AtomicU64] {
///         &self.0
///     }
/// }
///
/// impl Exportable for Counters {}
///
/// let region = Region::export(Arc::new(Counters(Default::default())), Rights::READ);
/// assert_eq!(region.len(), 16);
/// ```
pub trait Exportable: AsRef<[AtomicU64]> + Send + Sync + 'static {
    /// Returns the dma-buf that has the words at its beginning, for words in the memory of a device such as a GPU. The kernel can't give
    /// such memory to an RDMA device by its address.
    ///
    /// Code that maps the dma-buf as plain memory must expect that peers write to it.
    #[cfg(unix)]
    fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Exportable for Vec<AtomicU64> {}

impl Exportable for Box<[AtomicU64]> {}

impl<const N: usize> Exportable for [AtomicU64; N] {}

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();

/// Copies bytes out of memory. Others may change them meanwhile, word by word. A range that is not within the memory is cut.
///
/// # Errors
///
/// If there is no memory for the copy.
pub fn copy_out(words: &[AtomicU64], offset: usize, len: usize) -> Result<Vec<u8>, TryReserveError> {
    let len = len.min((words.len() * WORD).saturating_sub(offset));
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    let load = |word: usize| words[word].load(Ordering::Relaxed).to_ne_bytes();
    let (head, middle) = parts(offset, len);
    load_part(&load, offset, &mut bytes[..head]);
    let begin = (offset + head) / WORD;
    for (i, word) in bytes[head..head + middle].chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&load(begin + i));
    }
    load_part(&load, offset + head + middle, &mut bytes[head + middle..]);
    // Later reads are at least as new as these.
    fence(Ordering::Acquire);
    Ok(bytes)
}

/// Copies bytes to memory. Others may see some of them before others, word by word. Bytes that do not fit are left out.
pub fn copy_in(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    // A reader that sees a part of these bytes sees everything that was written before them.
    fence(Ordering::Release);
    let bytes = &bytes[..bytes.len().min((words.len() * WORD).saturating_sub(offset))];
    let (head, middle) = parts(offset, bytes.len());
    store_part(words, offset, &bytes[..head]);
    let begin = (offset + head) / WORD;
    for (i, word) in bytes[head..head + middle].chunks_exact(WORD).enumerate() {
        if let Some(word) = word.first_chunk() {
            words[begin + i].store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }
    store_part(words, offset + head + middle, &bytes[head + middle..]);
    fence(Ordering::SeqCst);
}

/// Returns how many bytes of a range lie before its first whole word, and how many in whole words.
fn parts(offset: usize, len: usize) -> (usize, usize) {
    let head = len.min(offset.wrapping_neg() % WORD);
    (head, (len - head) / WORD * WORD)
}

/// Copies bytes of one word.
fn load_part(load: &impl Fn(usize) -> [u8; WORD], offset: usize, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let len = bytes.len();
        bytes.copy_from_slice(&load(offset / WORD)[offset % WORD..][..len]);
    }
}

/// Replaces bytes of one word, and leaves the others to whoever changes those.
fn store_part(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let replaced = |old: u64| {
        let mut word = old.to_ne_bytes();
        word[offset % WORD..][..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(word))
    };
    // Never refuses.
    let _ = words[offset / WORD].fetch_update(Ordering::Relaxed, Ordering::Relaxed, replaced);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_all_offsets_and_lengths() {
        for (offset, len) in (0..24).flat_map(|offset| (0..=40 - offset).map(move |len| (offset, len))) {
            let words: Vec<_> = (0..5).map(|_| AtomicU64::new(u64::MAX)).collect();
            let bytes: Vec<u8> = (1..).take(len).collect();
            copy_in(&words, offset, &bytes);
            let mut expected = [0xff; 40];
            expected[offset..offset + len].copy_from_slice(&bytes);
            assert_eq!(copy_out(&words, 0, 40).unwrap(), expected, "{offset} {len}");
            assert_eq!(copy_out(&words, offset, len).unwrap(), bytes, "{offset} {len}");
        }
    }

    #[test]
    fn ranges_outside_the_memory_are_left_out() {
        let words = [AtomicU64::new(0)];
        copy_in(&words, 6, &[1, 2, 3]);
        copy_in(&words, 9, &[4]);
        assert_eq!(copy_out(&words, 6, 10).unwrap(), [1, 2]);
        assert_eq!(copy_out(&words, usize::MAX, 1).unwrap(), []);
    }
}
