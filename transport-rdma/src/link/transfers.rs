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
use super::grant::GrantedRange;
use super::handover::ENOUGH;
use super::seal::{Seal, chunks, sealed_len};
use super::send::Sending;
use crate::device::{Extent, NUMBER, ReadTarget, RemoteRange, Work};

/// Bytes of one READ or WRITE.
const CHUNK: usize = 64 << 10;

/// How many chunks are opened before other tasks have their turn: some tens of microseconds.
const CHUNKS_IN_A_ROW: usize = 4;

/// A short part of a region is copied, so that whoever keeps it keeps no registered memory.
const LONG: usize = 8 << 10;

/// The tags of READs and WRITEs of regions begin here. Those of messages are the numbers of their frames.
const REGIONS: u64 = 1 << 32;

/// The READs and WRITEs of one link.
#[derive(Default)]
pub(super) struct Transfers {
    /// READs and WRITEs that may be outstanding: what both devices can do of READs.
    most: usize,
    /// Bytes of them, or one of them.
    window: usize,
    /// The lengths of those that are outstanding, in the order in which they complete, and their sum.
    outstanding: VecDeque<usize>,
    moving: usize,
    /// Those that have no memory yet.
    asked: VecDeque<Asked>,
    /// More memory is being registered.
    growing: bool,
    active: VecDeque<Transfer>,
    /// To be delivered: the number of the frame, and the message unless there is no memory for it.
    done: VecDeque<(u32, Option<Bytes>)>,
    /// How often a part of a region was asked for, or written.
    regions: u64,
}

struct Asked {
    direction: Direction,
    described: Described,
    from: RemoteRange,
    /// The number of the first chunk, if they are sealed.
    number: Option<u64>,
}

struct Transfer {
    /// Names it in completions.
    tag: u64,
    purpose: Purpose,
    local: Local,
    /// Where the peer's memory begins, and where in the message that stands.
    remote: RemoteRange,
    begin: usize,
    /// The end of the part that has been posted.
    next: usize,
    /// READs or WRITEs that have not completed.
    outstanding: usize,
    /// The length of what is to be in memory, tags included.
    end: usize,
    /// The length of the message.
    total: usize,
}

/// This side's memory, and what moves.
enum Local {
    Into(Arc<ReadTarget>),
    From(Bytes),
    /// A number that is changed goes here.
    Changed(Arc<ReadTarget>, Atomic),
}

/// The purpose of the bytes that a READ or WRITE moves.
enum Purpose {
    /// They are the message of the frame of this number. If it is sealed, `number` is that of its first chunk.
    Message { seq: u32, number: Option<u64> },
    /// They are a part of a region, or a number of it, for whoever waits for it. The descriptor is kept until no request needs it.
    Read { reader: oneshot::Sender<Bytes>, _descriptor: Bytes },
    /// They are written to a region, for whoever waits for that.
    Write { writer: oneshot::Sender<()>, _descriptor: Bytes },
}

/// The work that is left when the last READ or WRITE has completed. It is done without the lock.
enum Whole {
    Sealed(SealedMessage),
    Read(oneshot::Sender<Bytes>, Bytes),
    Written(oneshot::Sender<()>),
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
        self.active.clear();
        self.done.clear();
    }

    /// The next READ or WRITE. Messages take turns, so that a short one does not wait for a long one.
    fn next(&mut self) -> Option<Work> {
        if self.outstanding.len() >= self.most || self.moving >= self.window {
            return None;
        }
        let i = self.active.iter().position(|transfer| transfer.next < transfer.end)?;
        let mut transfer = self.active.remove(i)?;
        let (at, len) = (transfer.next, CHUNK.min(transfer.end - transfer.next));
        let addr = transfer.remote.addr.wrapping_add((at - transfer.begin) as u64);
        let (remote, tag) = (RemoteRange { addr, ..transfer.remote }, transfer.tag);
        let work = match &transfer.local {
            Local::Into(read_target) => {
                Work::Read { into: Arc::clone(read_target), at, len, from: remote, tag }
            }
            Local::From(bytes) => Work::Write { bytes: bytes.slice(at..at + len), to: remote, tag },
            Local::Changed(into, atomic) => {
                Work::Atomic { atomic: *atomic, on: remote, into: Arc::clone(into), tag }
            }
        };
        transfer.next += len;
        transfer.outstanding += 1;
        self.outstanding.push_back(len);
        self.moving += len;
        self.active.push_back(transfer);
        Some(work)
    }

    /// A READ or WRITE of this tag has completed. `Some`: it was the last.
    fn completed(&mut self, tag: u64) -> Option<Whole> {
        self.moving -= self.outstanding.pop_front().unwrap_or(0);
        let i = self.active.iter().position(|transfer| transfer.tag == tag)?;
        let transfer = &mut self.active[i];
        transfer.outstanding -= 1;
        if transfer.outstanding > 0 || transfer.next < transfer.end {
            return None;
        }
        let Transfer { local, begin, total, purpose, .. } = self.active.remove(i)?;
        // All its READs have completed, so the queue pair holds it no more; and if it did, the message could be sent.
        let extent = match local {
            Local::Into(read_target) | Local::Changed(read_target, _) => {
                ReadTarget::into_extent(read_target).ok()
            }
            Local::From(_) => None,
        };
        match (purpose, extent) {
            (Purpose::Message { seq, number: Some(number) }, Some(extent)) => {
                return Some(Whole::Sealed(SealedMessage { seq, extent, begin, total, number }));
            }
            (Purpose::Message { seq, .. }, extent) => {
                self.done.push_back((seq, extent.map(|extent| extent.freeze(0..total))));
            }
            (Purpose::Read { reader, .. }, Some(extent)) => {
                let is_long = total > LONG;
                let bytes =
                    if is_long { extent.freeze(0..total) } else { Bytes::copy_from_slice(&extent[..total]) };
                return Some(Whole::Read(reader, bytes));
            }
            (Purpose::Write { writer, .. }, _) => return Some(Whole::Written(writer)),
            (Purpose::Read { .. }, None) => {}
        }
        None
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
        let is_of = |purpose: &Purpose| matches!(purpose, Purpose::Message { seq: of, .. } if *of == seq);
        let transfer = sending.transfers.active.iter().find(|transfer| is_of(&transfer.purpose));
        // Never falls: posting a READ adds its length less one, and its completion adds one.
        transfer.map_or(0, |transfer| transfer.next - transfer.outstanding)
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
                transfers.active.push_back(Transfer {
                    tag: seq.into(),
                    purpose: Purpose::Message { seq, number: asked.number },
                    local: Local::Into(ReadTarget::new(extent)),
                    remote: asked.from,
                    begin: begin.len(),
                    next: begin.len(),
                    outstanding: 0,
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

    /// A READ or WRITE has completed.
    pub(crate) fn on_moved(self: &Arc<Self>, tag: u64) {
        let mut sending = self.sending();
        let whole = sending.transfers.completed(tag);
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
            Some(Whole::Read(reader, bytes)) => {
                self.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.resources.counts.used_directly();
                // Its future may have been dropped.
                let _ = reader.send(bytes);
            }
            Some(Whole::Written(writer)) => {
                self.resources.counts.used_directly();
                // Its future may have been dropped.
                let _ = writer.send(());
            }
            None => {}
        }
    }

    /// See [`farcall_core::transport::Link::read_granted`].
    pub(crate) fn read_granted(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        len: usize,
    ) -> Option<oneshot::Receiver<Bytes>> {
        self.ask_region(descriptor, offset, len, Local::Into)
    }

    /// See [`farcall_core::transport::Link::change_granted`]. The answer is the number before.
    pub(crate) fn change_granted(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        atomic: Atomic,
    ) -> Option<oneshot::Receiver<Bytes>> {
        if !offset.is_multiple_of(NUMBER) || self.resources.own_atomics.device().is_none() {
            return None;
        }
        self.ask_region(descriptor, offset, NUMBER, |target| Local::Changed(target, atomic))
    }

    fn ask_region(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        len: usize,
        local: impl FnOnce(Arc<ReadTarget>) -> Local,
    ) -> Option<oneshot::Receiver<Bytes>> {
        let remote = GrantedRange::decode(&descriptor)?.part(offset, len).filter(|_| len > 0)?;
        let pool = &self.resources.rendezvous_pool;
        let Some(extent) = pool.take(Direction::Response, len) else {
            pool.grow(Direction::Response, len, None);
            return None;
        };
        let (reader, read) = oneshot::channel();
        let purpose = Purpose::Read { reader, _descriptor: descriptor };
        self.use_region(purpose, local(ReadTarget::new(extent)), remote, len).then_some(read)
    }

    /// See [`farcall_core::transport::Link::write_granted`].
    pub(crate) fn write_granted(
        self: &Arc<Self>,
        descriptor: Bytes,
        offset: usize,
        bytes: Bytes,
    ) -> Option<oneshot::Receiver<()>> {
        let len = bytes.len();
        let remote = GrantedRange::decode(&descriptor)?.part(offset, len).filter(|_| len > 0)?;
        let pool = &self.resources.rendezvous_pool;
        let is_inline = self.qp().is_some_and(|qp| len <= qp.inline() as usize);
        let bytes = if is_inline || pool.contains(&bytes) {
            bytes
        } else if let Some(mut extent) = pool.take(Direction::Request, len) {
            extent[..len].copy_from_slice(&bytes);
            self.copied.fetch_add(len as u64, Ordering::Relaxed);
            extent.freeze(0..len)
        } else {
            pool.grow(Direction::Request, len, None);
            return None;
        };
        let (writer, written) = oneshot::channel();
        self.sent.fetch_add(len as u64, Ordering::Relaxed);
        let purpose = Purpose::Write { writer, _descriptor: descriptor };
        self.use_region(purpose, Local::From(bytes), remote, len).then_some(written)
    }

    /// Reads or writes a part of a region. False if the link can't.
    fn use_region(self: &Arc<Self>, purpose: Purpose, local: Local, remote: RemoteRange, len: usize) -> bool {
        let mut sending = self.sending();
        if !sending.is_open() || sending.transfers.most == 0 {
            return false;
        }
        let transfers = &mut sending.transfers;
        transfers.regions += 1;
        let tag = REGIONS + transfers.regions;
        let transfer =
            Transfer { tag, purpose, local, remote, begin: 0, next: 0, outstanding: 0, end: len, total: len };
        transfers.active.push_back(transfer);
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
