//! The memory that a queue pair's send queue holds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::windows::Windows;
use super::{RawCompletion, RingKey, WrId, lock};
use crate::device::{Completion, Exposure, QpSize, WcError, WcStatus};
use crate::dma::{ReadTarget, Source};

/// The requests of one queue pair's send queue, in the order in which they were posted, which is that of their completions.
#[derive(Debug)]
pub(crate) struct SendRing {
    key: RingKey,
    size: QpSize,
    sends: Mutex<Sends>,
    windows: Windows,
    /// Signalled requests of all rings.
    awaited: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Sends {
    queue: VecDeque<Sent>,
    /// The sequence number of the first in the queue.
    first: u16,
    /// How many at the queue's end were posted without asking for a completion.
    silent: u16,
    marked: bool,
}

#[derive(Debug)]
struct Sent {
    kept: Kept,
    signaled: bool,
}

/// The buffers that the table keeps for a request.
pub(crate) enum Kept {
    /// A message; empty if the device copied it when it was posted.
    Message([Bytes; 2]),
    /// Nothing: the window keeps its bytes.
    Bind(Exposure),
    Invalidate(Exposure),
    /// Where a READ writes.
    ReadTarget(Arc<ReadTarget>, u64),
    /// The memory that a WRITE takes to the peer; empty if the device copied it when it was posted.
    Source(Source, u64),
    Marker,
}

/// Lengths only: a message may hold a secret, and this is printed with the device.
impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(pieces) => {
                f.debug_tuple("Message").field(&pieces.each_ref().map(Bytes::len)).finish()
            }
            Self::Bind(exposure) => f.debug_tuple("Bind").field(exposure).finish(),
            Self::Invalidate(exposure) => f.debug_tuple("Invalidate").field(exposure).finish(),
            Self::ReadTarget(read_target, offset) => {
                f.debug_tuple("ReadTarget").field(read_target).field(offset).finish()
            }
            Self::Source(source, tag) => f.debug_tuple("Source").field(source).field(tag).finish(),
            Self::Marker => f.write_str("Marker"),
        }
    }
}

impl Kept {
    /// Whether a completion is asked for in any case: somebody waits for just this request.
    fn is_awaited(&self) -> bool {
        matches!(self, Self::Invalidate(_) | Self::ReadTarget(..) | Self::Source(..) | Self::Marker)
    }
}

/// The ring's answer about a request that is about to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) wr_id: u64,
    /// Whether a completion is to be asked for.
    pub(crate) signaled: bool,
}

impl SendRing {
    pub(super) fn new(key: RingKey, size: QpSize, awaited: Arc<AtomicUsize>) -> Self {
        Self { key, size, sends: Mutex::default(), windows: Windows::default(), awaited }
    }

    pub(super) fn key(&self) -> RingKey {
        self.key
    }

    /// The queue pair's windows.
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// How many more requests can be pushed: none after the marker, for which there is always room.
    pub(crate) fn room(&self) -> usize {
        self.room_in(&lock(&self.sends))
    }

    fn room_in(&self, sends: &Sends) -> usize {
        if sends.marked { 0 } else { usize::from(self.size.sends).saturating_sub(sends.queue.len()) }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.sends).queue.len()
    }

    /// Takes a request into the table; the caller has looked at [`room`](Self::room) and posts in the order of the pushes.
    ///
    /// Every `signal_every`-th is signalled, so that the ring cannot fill up without a completion under way.
    pub(crate) fn push(&self, kept: Kept, signaled: bool) -> Ticket {
        let mut sends = lock(&self.sends);
        let signaled = signaled || kept.is_awaited() || self.is_due(&sends);
        self.append(&mut sends, Sent { kept, signaled })
    }

    /// Enters a message that the device copies when it is posted. `None`: there is no room.
    pub(crate) fn push_copied(&self) -> Option<Ticket> {
        let mut sends = lock(&self.sends);
        let signaled = self.is_due(&sends);
        let kept = Kept::Message(Default::default());
        (self.room_in(&sends) > 0).then(|| self.append(&mut sends, Sent { kept, signaled }))
    }

    fn is_due(&self, sends: &Sends) -> bool {
        sends.silent + 1 >= self.size.signal_every.clamp(1, self.size.sends / 2 + 1)
    }

    /// Takes the marker into the table; `None` if it is there already.
    pub(crate) fn push_marker(&self) -> Option<Ticket> {
        let mut sends = lock(&self.sends);
        if std::mem::replace(&mut sends.marked, true) {
            return None;
        }
        Some(self.append(&mut sends, Sent { kept: Kept::Marker, signaled: true }))
    }

    fn append(&self, sends: &mut Sends, sent: Sent) -> Ticket {
        let seq = sends.first.wrapping_add(sends.queue.len() as u16);
        let signaled = sent.signaled;
        if signaled {
            sends.silent = 0;
            self.awaited.fetch_add(1, Ordering::Relaxed);
        } else {
            sends.silent += 1;
        }
        sends.queue.push_back(sent);
        Ticket { wr_id: WrId::Send { ring: self.key, seq }.encode(), signaled }
    }

    /// Takes back the last `count`, which were pushed and not posted.
    pub(crate) fn withdraw(&self, count: usize) {
        let mut sends = lock(&self.sends);
        for _ in 0..count {
            let sent = sends.queue.pop_back();
            self.forget(sent.as_slice());
            match sent.map(|sent| sent.kept) {
                Some(Kept::Marker) => sends.marked = false,
                Some(Kept::Bind(exposure)) => self.windows.withdraw_bind(&exposure),
                Some(Kept::Invalidate(exposure)) => self.windows.withdraw_invalidate(&exposure),
                Some(Kept::Message(_) | Kept::ReadTarget(..) | Kept::Source(..)) | None => {}
            }
        }
        let silent = sends.queue.iter().rev().take_while(|sent| !sent.signaled).count();
        sends.silent = silent as u16;
    }

    /// Leaks all buffers, because a device may still use them, or a peer through it.
    pub(crate) fn leak(&self) {
        let sends = std::mem::take(&mut lock(&self.sends).queue);
        self.forget(&sends);
        std::mem::forget(sends);
        self.windows.leak();
    }

    /// These are awaited no more.
    fn forget<'a>(&self, sent: impl IntoIterator<Item = &'a Sent>) {
        let signaled = sent.into_iter().filter(|sent| sent.signaled).count();
        self.awaited.fetch_sub(signaled, Ordering::Relaxed);
    }

    /// The request with this sequence number has completed, and so has every one before it.
    pub(super) fn complete(&self, seq: u16, raw: &RawCompletion) -> Option<Completion> {
        let mut sends = lock(&self.sends);
        let (qp_num, count) = (raw.qp_num, usize::from(seq.wrapping_sub(sends.first)) + 1);
        let completion = match &sends.queue.get(count - 1)?.kept {
            Kept::Marker => Completion::Drained { qp_num, count: count - 1 },
            _ if raw.status != WcStatus::SUCCESS => {
                let error = WcError { status: raw.status, vendor: raw.vendor };
                Completion::SendFailed { qp_num, count, error }
            }
            Kept::ReadTarget(_, tag) | Kept::Source(_, tag) => Completion::Moved { qp_num, count, tag: *tag },
            Kept::Invalidate(exposure) => {
                // Its own completion, and a successful one: anything less does not say that the peer is locked out.
                self.windows.release(exposure);
                Completion::Sent { qp_num, count }
            }
            Kept::Message(_) | Kept::Bind(_) => Completion::Sent { qp_num, count },
        };
        self.forget(sends.queue.range(..count));
        sends.queue.drain(..count);
        sends.first = seq.wrapping_add(1);
        sends.silent = sends.silent.min(sends.queue.len() as u16);
        Some(completion)
    }
}

impl Drop for SendRing {
    fn drop(&mut self) {
        self.forget(&lock(&self.sends).queue);
    }
}
