//! Memory of the peer that this side reads, writes and counts in: long messages, and regions. Chunks leave room for short messages
//! between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::{Buf, Bytes};
use farcall_core::proto::inbox::Described;
use farcall_core::transport::{Atomic, Direction, LinkEnd};
use tokio::sync::oneshot;

use super::LinkCore;
use super::descriptor::GrantedPart;
use super::handover::ENOUGH;
use super::seal::{Seal, chunks, sealed_len};
use super::send::Sending;
use crate::device::{Extent, NUMBER, ReadTarget, RemoteRange, Source, Work};
use crate::resources::SHORT;

/// Bytes of one READ or WRITE.
const CHUNK: usize = 64 << 10;

/// How many chunks are opened before other tasks have their turn: some tens of microseconds.
const CHUNKS_IN_A_ROW: usize = 4;

/// The tag of READs and WRITEs of granted memory. Those of messages have the number of their frame.
const GRANTED: u64 = 1 << 32;

/// The READs and WRITEs of one link.
#[derive(Default)]
pub(super) struct Transfers {
    /// READs and WRITEs that may be outstanding: what both devices can do of READs.
    most: usize,
    /// Bytes of them, or one of them.
    window: usize,
    /// Those that are outstanding, in the order in which they complete, and the sum of their lengths.
    outstanding: VecDeque<Outstanding>,
    moving: usize,
    /// Those that have no memory yet.
    asked: VecDeque<Asked>,
    /// More memory is being registered.
    growing: bool,
    /// Those of which a part is still to be posted.
    waiting: VecDeque<Transfer>,
    /// To be delivered: the number of the frame, and the message unless there is no memory for it.
    done: VecDeque<(u32, Option<Bytes>)>,
}

/// A READ or WRITE that has not completed.
struct Outstanding {
    tag: u64,
    len: usize,
    /// The transfer of which it is the last.
    last_of: Option<Transfer>,
    /// Transfers that nobody waits for any more. None of their requests is behind this one.
    given_up: Vec<Transfer>,
}

struct Asked {
    direction: Direction,
    described: Described,
    from: RemoteRange,
    /// The number of the first chunk, if they are sealed.
    number: Option<u64>,
}

struct Transfer {
    purpose: Purpose,
    local: Local,
    /// The rest of the peer's memory.
    remote: GrantedPart,
    /// Where in this side's memory the peer's stands.
    begin: usize,
    /// The end of the part that has been posted.
    next: usize,
    /// The length of what is to be in memory, tags included.
    end: usize,
    /// The length of the message.
    total: usize,
}

/// This side's memory, and what moves.
pub(super) enum Local {
    Into(Arc<ReadTarget>),
    From(Source),
    /// A number that is changed goes here.
    Changed(Arc<ReadTarget>, Atomic),
}

/// The purpose of the bytes that a READ or WRITE moves.
pub(super) enum Purpose {
    /// The message of the frame of this number. If it is sealed, `number` is that of its first chunk.
    Message { seq: u32, number: Option<u64> },
    /// A part of a region or loan, for the caller that waits for it.
    Read { reader: oneshot::Sender<Bytes> },
    /// The number of a region before it was changed, for the caller that waits for it.
    Change { changer: oneshot::Sender<u64> },
    /// Bytes that go to the peer's memory, or come from there to words of this side. The caller waits until they are there.
    Move { mover: oneshot::Sender<()> },
}

impl Purpose {
    /// Returns the tag that comes back with completions.
    fn tag(&self) -> u64 {
        match self {
            Self::Message { seq, .. } => (*seq).into(),
            Self::Read { .. } | Self::Change { .. } | Self::Move { .. } => GRANTED,
        }
    }
}

/// The work that is left when the last READ or WRITE has completed. It is done without the lock.
enum Whole {
    Sealed(SealedMessage),
    Read(oneshot::Sender<Bytes>, Arc<ReadTarget>, usize),
    Changed(oneshot::Sender<u64>, Arc<ReadTarget>),
    /// With how many bytes have come.
    Moved(oneshot::Sender<()>, usize),
}

/// A message that was read, and is sealed.
pub(super) struct SealedMessage {
    seq: u32,
    extent: Extent,
    begin: usize,
    total: usize,
    number: u64,
}

impl Transfers {
    /// So many READs and WRITEs may be outstanding, of so many bytes.
    pub(super) fn allow(&mut self, most: usize, window: usize) {
        (self.most, self.window) = (most, window);
    }

    pub(super) fn clear(&mut self) {
        self.asked.clear();
        self.waiting.clear();
        self.outstanding.clear();
        self.moving = 0;
        self.done.clear();
    }

    /// The next READ or WRITE. Messages take turns, so that a short one does not wait for a long one.
    fn next(&mut self) -> Option<Work> {
        if self.outstanding.len() >= self.most || self.moving >= self.window {
            return None;
        }
        let mut transfer = self.waiting.pop_front()?;
        while transfer.is_given_up() {
            self.end_early(transfer);
            transfer = self.waiting.pop_front()?;
        }
        let at = transfer.next;
        let (remote, len) = transfer.remote.take(CHUNK.min(transfer.end - at));
        let tag = transfer.purpose.tag();
        let work = match &transfer.local {
            Local::Into(read_target) => {
                Work::Read { into: Arc::clone(read_target), at, len, from: remote, tag }
            }
            Local::From(source) => Work::Write { from: source.slice(at..at + len), to: remote, tag },
            Local::Changed(into, atomic) => {
                Work::Atomic { atomic: *atomic, on: remote, into: Arc::clone(into), tag }
            }
        };
        transfer.next += len;
        self.moving += len;
        let mut last_of = None;
        if transfer.next < transfer.end {
            self.waiting.push_back(transfer);
        } else {
            last_of = Some(transfer);
        }
        self.outstanding.push_back(Outstanding { tag, len, last_of, given_up: Vec::new() });
        Some(work)
    }

    /// Posts no more of a transfer. It is kept until all has completed that is outstanding now, of which it may have a part.
    fn end_early(&mut self, transfer: Transfer) {
        if let Some(newest) = self.outstanding.back_mut() {
            newest.given_up.push(transfer);
        }
    }

    /// The first of those that are outstanding has completed. `Some`: it was the last of its transfer.
    fn completed(&mut self) -> Option<Whole> {
        let Outstanding { len, last_of, .. } = self.outstanding.pop_front()?;
        self.moving -= len;
        let Transfer { local, begin, total, purpose, .. } = last_of?;
        let target = match local {
            Local::Into(read_target) | Local::Changed(read_target, _) => Some(read_target),
            Local::From(_) => None,
        };
        match (purpose, target) {
            (Purpose::Message { seq, number }, target) => {
                // All its READs have completed, so the queue pair holds it no more; and if it did, the message could be sent.
                let extent = target.and_then(|target| ReadTarget::into_extent(target).ok());
                match (number, extent) {
                    (Some(number), Some(extent)) => {
                        Some(Whole::Sealed(SealedMessage { seq, extent, begin, total, number }))
                    }
                    (_, extent) => {
                        self.done.push_back((seq, extent.map(|extent| extent.freeze(0..total))));
                        None
                    }
                }
            }
            (Purpose::Read { reader }, Some(target)) => Some(Whole::Read(reader, target, total)),
            (Purpose::Change { changer }, Some(target)) => Some(Whole::Changed(changer, target)),
            (Purpose::Move { mover }, Some(_)) => Some(Whole::Moved(mover, total)),
            (Purpose::Move { mover }, None) => Some(Whole::Moved(mover, 0)),
            (Purpose::Read { .. } | Purpose::Change { .. }, None) => None,
        }
    }
}

impl Transfer {
    /// Whether nobody waits for it any more.
    fn is_given_up(&self) -> bool {
        matches!(&self.purpose, Purpose::Move { mover } if mover.is_closed())
    }
}

impl Asked {
    fn new(direction: Direction, described: Described, is_sealed: bool) -> Result<Self, String> {
        let mut descriptor = described.descriptor.clone();
        let expected = if is_sealed { 24 } else { 16 };
        if descriptor.len() != expected {
            return Err(format!("a descriptor has {} bytes, not {expected}", descriptor.len()));
        }
        let from = RemoteRange { addr: descriptor.get_u64_le(), rkey: descriptor.get_u32_le() };
        let len = descriptor.get_u32_le() as usize;
        if described.begin.len().checked_add(len) != Some(described.total) {
            return Err(format!("a descriptor of {len} bytes is not what a message lacks"));
        }
        let number = is_sealed.then(|| descriptor.get_u64_le());
        Ok(Self { direction, described, from, number })
    }
}

impl LinkCore {
    /// See [`farcall_core::transport::Link::pull`].
    pub(crate) fn pull(self: &Arc<Self>, direction: Direction, described: Described) {
        match Asked::new(direction, described, self.seal().is_some()) {
            Ok(asked) => {
                let mut sending = self.sending();
                if !sending.is_open() {
                    return;
                }
                if sending.transfers.most == 0 {
                    // The peer lets nothing be read, and describes all the same: nothing is kept for that.
                    sending.transfers.done.push_back((asked.described.seq, None));
                } else {
                    sending.transfers.asked.push_back(asked);
                }
                self.pump(&mut sending);
                self.post(&mut sending);
                if !sending.transfers.done.is_empty() {
                    self.resources.mailbox.changed(self.number);
                }
            }
            Err(why) => {
                let end = LinkEnd::malformed(format!("{}: the peer broke the protocol: {why}", self.name));
                self.resources.mailbox.failed(self.number, end);
            }
        }
    }

    /// See [`farcall_core::transport::Link::pulled_so_far`].
    pub(crate) fn pulled_so_far(&self, seq: u32) -> usize {
        let sending = self.sending();
        let Transfers { waiting, outstanding, .. } = &sending.transfers;
        let tag = u64::from(seq);
        let transfers = outstanding.iter().filter_map(|posted| posted.last_of.as_ref()).chain(waiting);
        let posted =
            transfers.filter(|transfer| transfer.purpose.tag() == tag).map(|transfer| transfer.next).sum();
        // Never falls: posting a READ adds its length less one, and its completion adds one.
        outstanding.iter().filter(|posted| posted.tag == tag).fold(posted, |sum: usize, _| sum - 1)
    }

    /// There may be memory for what is to be read.
    pub(crate) fn read_on(self: &Arc<Self>) {
        let mut sending = self.sending();
        self.pump(&mut sending);
        self.post(&mut sending);
    }

    /// Gets memory for what is to be read, and reads.
    fn pump(self: &Arc<Self>, sending: &mut Sending) {
        let Sending { transfers, requests, .. } = sending;
        while !transfers.growing
            && let Some(asked) = transfers.asked.pop_front()
        {
            let (direction, total) = (asked.direction, asked.described.total);
            let begins_with = asked.described.begin.len();
            let end = asked.number.map_or(total, |_| begins_with + sealed_len(total - begins_with));
            if let Some(mut extent) = self.resources.rendezvous_pool.take(direction, end) {
                let begin = &asked.described.begin;
                extent[..begin.len()].copy_from_slice(begin);
                let seq = asked.described.seq;
                transfers.waiting.push_back(Transfer {
                    purpose: Purpose::Message { seq, number: asked.number },
                    local: Local::Into(ReadTarget::new(extent)),
                    remote: GrantedPart::one(asked.from, end - begin.len()),
                    begin: begin.len(),
                    next: begin.len(),
                    end,
                    total,
                });
                continue;
            }
            let link = Arc::downgrade(self);
            let grown = move || {
                if let Some(link) = link.upgrade() {
                    link.sending().transfers.growing = false;
                    link.resources.mailbox.changed(link.number);
                }
            };
            if self.resources.rendezvous_pool.grow(direction, end, Some(Box::new(grown))) {
                transfers.growing = true;
                transfers.asked.push_front(asked);
            } else {
                transfers.done.push_back((asked.described.seq, None));
            }
        }
        while let Some(read) = transfers.next() {
            requests.push_back(read);
        }
    }

    /// Whether a READ or WRITE of this tag is of granted memory.
    pub(crate) fn is_granted(tag: u64) -> bool {
        tag == GRANTED
    }

    /// The first of the READs and WRITEs that are outstanding has completed. Returns whether others wait for the room that this leaves.
    pub(crate) fn on_moved(self: &Arc<Self>) -> bool {
        let mut sending = self.sending();
        let others_wait = sending.waits_for_room();
        let whole = sending.transfers.completed();
        self.pump(&mut sending);
        self.post(&mut sending);
        drop(sending);
        match whole {
            Some(Whole::Sealed(message)) => {
                if let Some(seal) = self.seal() {
                    // Takes as long as copying: the driver has other links to serve.
                    seal.runtime().spawn(Arc::clone(self).open_message(message, Arc::clone(seal)));
                }
            }
            Some(Whole::Read(reader, target, len)) => {
                self.used_directly(len);
                if len > SHORT {
                    // Its future may have been dropped.
                    let _ = ReadTarget::into_extent(target).map(|extent| reader.send(extent.freeze(0..len)));
                } else if let Some(bytes) =
                    self.short_answer(target, |answer| answer.get(..len).map(Bytes::copy_from_slice))
                {
                    let _ = reader.send(bytes);
                }
            }
            Some(Whole::Changed(changer, target)) => {
                self.used_directly(NUMBER);
                let number = |answer: &[u8]| answer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                if let Some(before) = self.short_answer(target, number) {
                    let _ = changer.send(before);
                }
            }
            Some(Whole::Moved(mover, received)) => {
                self.used_directly(received);
                // Its future may have been dropped.
                let _ = mover.send(());
            }
            None => {}
        }
        others_wait
    }

    /// Notes that the peer's program had no part in this.
    fn used_directly(&self, len: usize) {
        self.received.fetch_add(len as u64, Ordering::Relaxed);
        self.resources.counts.used_directly();
    }

    /// Returns what a short answer says, and keeps its memory for the next one.
    fn short_answer<T>(
        &self,
        mut target: Arc<ReadTarget>,
        says: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        // The queue pair holds it no more, because its request has completed.
        let answer = ReadTarget::bytes(&mut target).and_then(says);
        self.resources.rendezvous_pool.keep(target);
        answer
    }

    /// Reads or writes granted memory, to or from this place of this side's memory on. False if the link can't.
    pub(super) fn use_granted(
        self: &Arc<Self>,
        purpose: Purpose,
        local: Local,
        begin: usize,
        remote: GrantedPart,
        len: usize,
    ) -> bool {
        let mut sending = self.sending();
        if !sending.is_open() || sending.transfers.most == 0 {
            return false;
        }
        let transfer = Transfer { purpose, local, remote, begin, next: begin, end: begin + len, total: len };
        sending.transfers.waiting.push_back(transfer);
        self.pump(&mut sending);
        self.post(&mut sending);
        true
    }

    /// Opens a message that was read, and has it delivered.
    async fn open_message(self: Arc<Self>, message: SealedMessage, seal: Arc<Seal>) {
        let SealedMessage { seq, mut extent, begin, total, number } = message;
        for index in 0..chunks(total - begin) {
            if seal.open_chunk(&mut extent[begin..], total - begin, number, index).is_err() {
                return self.resources.mailbox.failed(self.number, self.forged("a long message"));
            }
            if index % CHUNKS_IN_A_ROW == CHUNKS_IN_A_ROW - 1 {
                tokio::task::yield_now().await;
            }
        }
        let mut sending = self.sending();
        if sending.is_open() {
            sending.transfers.done.push_back((seq, Some(extent.freeze(0..total))));
            self.resources.mailbox.changed(self.number);
        }
    }

    /// Delivers the messages that are whole, as far as there is time; the driver hears of the rest. `Some`: the handler
    /// takes no more from the link.
    pub(crate) fn deliver_pulled(&self) -> Option<LinkEnd> {
        let begin = Instant::now();
        loop {
            let (seq, whole) = self.sending().transfers.done.pop_front()?;
            let handler = self.receiving().handler()?;
            if let Some(whole) = &whole {
                self.received.fetch_add(whole.len() as u64, Ordering::Relaxed);
            }
            if handler.pulled(seq, whole).is_err() {
                return Some(LinkEnd::failed("the peer broke the protocol"));
            }
            if begin.elapsed() > ENOUGH {
                self.resources.mailbox.changed(self.number);
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
