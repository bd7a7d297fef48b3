//! The client's side of a loan.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::access::{LentMemory, Memory, check_range};
use crate::proto::wire::{Granted, Outcome};
use crate::sync::{Mutex, rank};
use crate::transport::{self, Exportable, Link};

/// Memory that a server may write to during a call. Implemented for byte vectors and buffers, and for vectors of these, which are
/// written to as if they were one behind the other.
pub trait Lend: Send + 'static {
    /// Returns the parts of the memory, in order. Each call must return parts of the same lengths, and must not block: it is made
    /// while a lock is held.
    fn parts(&mut self) -> Vec<&mut [u8]>;

    /// Returns the length of all parts, in bytes.
    fn size(&mut self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    /// Returns the number of parts that are not empty.
    fn pieces(&mut self) -> usize {
        self.parts().iter().filter(|part| !part.is_empty()).count()
    }

    /// Returns the parts that are not empty as words, for a device to write to, if all are such that one can. Else none. With the words
    /// of a part comes its length in bytes; they begin with its first byte. Each call returns one and the same words. From now on the
    /// memory is reached by them only, until [`unshare`](Self::unshare). Like [`parts`](Self::parts) it must not block.
    fn share(&mut self) -> Vec<(Arc<dyn Exportable>, usize)> {
        Vec::new()
    }

    /// Ends the sharing. Nobody has the words any more.
    fn unshare(&mut self) {}

    /// Writes bytes from an offset on, as far as they fit. Returns those that do not.
    fn fill(&mut self, mut offset: usize, mut bytes: Bytes) -> Bytes {
        for part in self.parts() {
            let from = offset.min(part.len());
            let now = bytes.split_to(bytes.len().min(part.len() - from));
            part[from..from + now.len()].copy_from_slice(&now);
            offset -= from;
        }
        bytes
    }
}

impl Lend for Vec<u8> {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        vec![self]
    }
}

impl Lend for Box<[u8]> {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        vec![self]
    }
}

impl Lend for BytesMut {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        vec![self]
    }
}

impl<T: Lend> Lend for Vec<T> {
    fn parts(&mut self) -> Vec<&mut [u8]> {
        self.iter_mut().flat_map(Lend::parts).collect()
    }

    fn size(&mut self) -> usize {
        self.iter_mut().map(Lend::size).sum()
    }

    fn pieces(&mut self) -> usize {
        self.iter_mut().map(Lend::pieces).sum()
    }

    fn share(&mut self) -> Vec<(Arc<dyn Exportable>, usize)> {
        let mut shared = Vec::with_capacity(self.len());
        for lent in self {
            if lent.size() == 0 {
                continue;
            }
            let parts = lent.share();
            if parts.is_empty() {
                return parts;
            }
            shared.extend(parts);
        }
        shared
    }

    fn unshare(&mut self) {
        self.iter_mut().for_each(Lend::unshare);
    }

    fn fill(&mut self, mut offset: usize, mut bytes: Bytes) -> Bytes {
        for lent in self {
            let from = offset.min(lent.size());
            bytes = lent.fill(from, bytes);
            offset -= from;
            if bytes.is_empty() {
                break;
            }
        }
        bytes
    }
}

/// Memory that a server may read from during a call. Implemented for `Bytes`, and for vectors of these, which are read as if they
/// were one behind the other.
pub trait LendParts: Send + 'static {
    /// Returns the parts of the memory, in order.
    fn parts(&self) -> Vec<Bytes>;
}

impl LendParts for Bytes {
    fn parts(&self) -> Vec<Bytes> {
        vec![self.clone()]
    }
}

impl LendParts for Vec<Bytes> {
    fn parts(&self) -> Vec<Bytes> {
        self.clone()
    }
}

/// The memory that a [`BulkRead`](super::BulkRead) or [`BulkWrite`](super::BulkWrite) lends, for its owner to take back.
///
/// Dropping it gives the memory up. It is freed when no call lends it and no handle of it is left.
#[must_use = "the memory comes back by `reclaim`"]
pub struct Loan<M> {
    memory: Arc<Lent<M>>,
}

impl<M> Loan<M> {
    pub(super) fn new(
        memory: M,
        len: usize,
        pieces: usize,
        parts: Vec<Bytes>,
        unshare: fn(&mut M),
    ) -> (Arc<Lent<M>>, Self) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let memory = Arc::new(Lent {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            len,
            pieces,
            parts: Mutex::new(parts),
            memory: Mutex::new(Some(memory)),
            unshare,
            state: watch::Sender::new(State::default()),
        });
        (memory.clone(), Self { memory })
    }

    /// Takes the memory back as soon as no call lends it. Calls that are made afterwards with the same handle fail
    /// FAILED_PRECONDITION, not executed.
    ///
    /// It returns at once if there is no such call, and otherwise when the last one has ended. By RDMA the server may use the memory for a
    /// while after a call that was given up. It returns when the server has ended that, or this side's device has after ten seconds. Do not
    /// use it to wait for a call that has not been sent yet.
    ///
    /// Nothing writes to the memory any more then. Of [`Bytes`] that were lent to be read, an answer on its way to the server may keep a clone
    /// for a while, so `Bytes::try_into_mut` may fail.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the memory up, like dropping the loan.
    pub async fn reclaim(self) -> M {
        let mut state = self.memory.state.subscribe();
        loop {
            let taken = self.memory.take();
            if let Some(memory) = taken {
                return memory;
            }
            // Can't fail, because `self` holds the sender.
            let _ = state.changed().await;
        }
    }
}

impl<M> fmt::Debug for Loan<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&self.memory).finish()
    }
}

/// How memory is used.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// How many calls in progress lend it.
    lent: usize,
    is_reclaimed: bool,
}

/// Memory that can be lent.
pub(super) struct Lent<M> {
    number: u64,
    pub(super) len: usize,
    /// How many parts it has that are not empty.
    pieces: usize,
    /// The bytes that the peer may read.
    parts: Mutex<rank::Leaf, Vec<Bytes>>,
    /// `None` once it is reclaimed.
    memory: Mutex<rank::Leaf, Option<M>>,
    /// Ends what makes the memory reachable by a device, when none reaches it any more.
    unshare: fn(&mut M),
    state: watch::Sender<State>,
}

impl<M> Lent<M> {
    /// Returns the memory's number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Notes that a call lends the memory. Returns false if it was reclaimed.
    pub(super) fn begin(&self) -> bool {
        self.state.send_if_modified(|state| {
            state.lent += usize::from(!state.is_reclaimed);
            !state.is_reclaimed
        })
    }

    /// Notes that a call has ended that lent the memory.
    pub(super) fn end(&self) {
        self.state.send_modify(|state| state.lent -= 1);
    }

    /// Takes the memory, unless a call lends it.
    fn take(&self) -> Option<M> {
        let reclaimed = self.state.send_if_modified(|state| {
            let is_free = state.lent == 0;
            state.is_reclaimed |= is_free;
            is_free
        });
        if !reclaimed {
            return None;
        }
        self.parts.lock().clear();
        let mut memory = self.memory.lock().take()?;
        (self.unshare)(&mut memory);
        Some(memory)
    }

    /// Returns what the peer may read.
    fn readable(&self) -> Vec<transport::DirectMemory> {
        let parts = self.parts.lock();
        parts.iter().filter(|part| !part.is_empty()).cloned().map(transport::DirectMemory::Read).collect()
    }
}

impl<M: Lend> Lent<M> {
    /// Returns what the peer may write, if a device can.
    fn writable(&self) -> Vec<transport::DirectMemory> {
        let shared = self.memory.lock().as_mut().map(Lend::share).unwrap_or_default();
        shared.into_iter().map(|(words, len)| transport::DirectMemory::Write(words, len)).collect()
    }
}

impl<M> fmt::Debug for Lent<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("number", &self.number).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Memory that a server reads.
pub(super) struct Readable<M>(pub(super) Arc<Lent<M>>);

/// Memory that a server writes.
pub(super) struct Writable<M>(pub(super) Arc<Lent<M>>);

impl<M: LendParts> Memory for Readable<M> {
    fn read(&self, mut offset: usize, mut len: usize) -> Result<Vec<Bytes>, Outcome> {
        check_range(offset, len, self.0.len)?;
        let mut read = Vec::new();
        for part in &*self.0.parts.lock() {
            let from = offset.min(part.len());
            let piece = part.slice(from..part.len().min(from + len));
            (offset, len) = (offset - from, len - piece.len());
            if !piece.is_empty() {
                read.push(piece);
            }
        }
        if len > 0 { Err(Outcome::Gone) } else { Ok(read) }
    }

    fn write(&self, _: usize, _: Bytes) -> Result<(), Outcome> {
        Err(Outcome::Forbidden)
    }
}

impl<M: Lend> Memory for Writable<M> {
    fn read(&self, _: usize, _: usize) -> Result<Vec<Bytes>, Outcome> {
        Err(Outcome::Forbidden)
    }

    fn write(&self, offset: usize, bytes: Bytes) -> Result<(), Outcome> {
        check_range(offset, bytes.len(), self.0.len)?;
        let mut memory = self.0.memory.lock();
        let rest = memory.as_mut().ok_or(Outcome::Gone)?.fill(offset, bytes);
        // Unless the parts have become shorter.
        if rest.is_empty() { Ok(()) } else { Err(Outcome::OutOfRange) }
    }
}

macro_rules! lent {
    ($($of:ident: $bound:ident, $right:expr, $shared:expr;)*) => {$(
        impl<M> fmt::Debug for $of<M> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($of)).field(&self.0).finish()
            }
        }

        impl<M: $bound> LentMemory for $of<M> {
            fn number(&self) -> u64 {
                self.0.number()
            }

            fn len(&self) -> usize {
                self.0.len
            }

            fn begin(&self) -> bool {
                self.0.begin()
            }

            fn end(&self) {
                self.0.end();
            }

            fn right(&self) -> u8 {
                $right
            }

            fn pieces(&self) -> usize {
                self.0.pieces
            }

            fn shared(&self, _: &Arc<dyn Link>, _: &Handle) -> Vec<transport::DirectMemory> {
                $shared(&self.0)
            }
        }
    )*};
}

lent! {
    Readable: LendParts, Granted::READ, Lent::readable;
    Writable: Lend, Granted::WRITE, Lent::writable;
}
