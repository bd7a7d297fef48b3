//! The way out: from whoever has frames, through credits and the send queue, to the device.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::{
    Close, CloseCode, Credit, CreditOp, FrameType, HEADER_LEN, Header, Ping, flags,
};
use farcall_core::transport::{FrameSource, LinkEnd, RoundTrip, TAG_LEN};

use super::LinkCore;
use super::credit::{CreditUpdate, Received, SendCredits};
use super::expose::{Exposer, Exposures};
use super::grant::Grants;
use super::transfers::Transfers;
use crate::device::{MAX_BATCH, PostError, QueuePair, Slot, Work};
use crate::resources::DropOnControlThread;
use crate::resources::Shares;

/// The longest payload of CREDIT, PING, PONG and CLOSE, as this side sends them.
const MAX_CONTROL: usize = 8;

/// The state of sending, under one lock, which is held while frames are taken and posted.
pub(super) struct Sending {
    /// None when the link has been released.
    pub(super) qp: Option<DropOnControlThread<dyn QueuePair>>,
    /// Bytes that fit into a work request.
    pub(super) inline: usize,
    pub(super) shares: Shares,
    state: State,
    credits: SendCredits,
    pub(super) reports: CreditUpdate,
    /// Encoded and not with the device yet.
    pub(super) requests: VecDeque<Work>,
    /// Frames were left with their source for lack of room.
    pub(super) blocked: bool,
    pub(super) exposures: Exposures,
    pub(super) grants: Grants,
    pub(super) transfers: Transfers,
    /// The last that blocked them were credits, and they are not known to be gone.
    starved: bool,
    /// Control frames to be sent.
    pong: Option<u64>,
    forfeit: Option<u32>,
    reclaim: Option<u32>,
    /// A PING to be sent, to measure how long it takes.
    measures: bool,
    round_trip: RoundTrip,
    /// The last that a frame has said; what the link says itself repeats it.
    rx_seq: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The peer's end is not known.
    Unconnected,
    Open,
    /// CLOSE was posted.
    Closing,
    /// Nothing is sent any more.
    Ended,
}

impl Sending {
    pub(super) fn new(qp: DropOnControlThread<dyn QueuePair>, window: u32, shares: Shares) -> Self {
        Self {
            shares,
            inline: qp.inline() as usize,
            qp: Some(qp),
            state: State::Unconnected,
            credits: SendCredits::new(0),
            reports: CreditUpdate::new(window),
            requests: VecDeque::with_capacity(MAX_BATCH),
            blocked: false,
            exposures: Exposures::default(),
            grants: Grants::default(),
            transfers: Transfers::default(),
            starved: false,
            pong: None,
            forfeit: None,
            reclaim: None,
            measures: false,
            round_trip: RoundTrip::default(),
            rx_seq: 0,
        }
    }

    /// The peer is known: it has granted so much, READs `reads` messages of this side at most, and serves as many READs
    /// as are allowed.
    pub(super) fn open(&mut self, grant: u32, cannot_expose: Option<&str>, reads: u8) {
        if let Some(why) = cannot_expose {
            self.exposures.forbid(why.to_owned());
        }
        self.transfers.allow(usize::from(reads).min(self.shares.reads), self.shares.bulk_window);
        self.credits = SendCredits::new(grant);
        if self.state == State::Unconnected {
            self.state = State::Open;
        }
    }

    pub(super) fn qp(&self) -> Option<Arc<dyn QueuePair>> {
        self.qp.as_deref().cloned()
    }

    pub(super) fn end(&mut self) {
        self.state = State::Ended;
        self.requests.clear();
        self.transfers.clear();
    }

    pub(super) fn release(&mut self) {
        self.end();
        self.qp = None;
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether everything that was taken has completed, if that is waited for.
    pub(super) fn has_sent(&self) -> bool {
        self.state != State::Closing || self.qp.as_ref().is_none_or(|qp| qp.sends_outstanding() == 0)
    }

    /// Whether something waits for room in the send queue.
    pub(super) fn waits_for_room(&self) -> bool {
        self.blocked || !self.requests.is_empty()
    }

    /// A grant from a header.
    pub(super) fn on_grant(&mut self, grant: u32) {
        self.credits.update(grant);
    }

    pub(super) fn want_pong(&mut self, token: u64) {
        self.pong = Some(token);
    }

    /// Notes a PONG. False if no PING was sent.
    #[must_use]
    pub(super) fn note_pong(&mut self) -> bool {
        self.round_trip.end();
        self.reports.note_pong()
    }

    pub(super) fn want_forfeit(&mut self, count: u32) {
        self.forfeit = Some(count);
    }

    pub(super) fn want_reclaim(&mut self, count: u32) {
        self.reclaim = Some(count);
    }

    /// Whether the peer can't have read the RECLAIM yet.
    pub(super) fn is_reclaim_unsent(&self) -> bool {
        self.reclaim.is_some()
    }

    /// Whether the send queue takes another message that is none of the link's own.
    fn has_queue_room(&self) -> bool {
        let outstanding = self.qp.as_ref().map_or(usize::MAX, |qp| qp.sends_outstanding());
        outstanding.saturating_add(self.requests.len()) < self.shares.data
    }

    /// Whether another message may be sent. Its buffer comes later.
    fn has_room(&self) -> bool {
        self.credits.available() > 0 && self.has_queue_room()
    }

    /// The flag that asks the peer for a larger window.
    fn hunger(&self) -> u8 {
        if self.starved && self.credits.available() == 0 { flags::STARVED } else { 0 }
    }

    /// Whether the link's own short frames fit into a work request, as they do on most devices.
    fn has_inline_controls(&self) -> bool {
        self.inline >= HEADER_LEN + MAX_CONTROL + TAG_LEN
    }
}

fn send(message: Bytes) -> Work {
    Work::Send { parts: [message, Bytes::new()], signaled: false, solicited: false }
}

/// Frames of the session that leave together, one behind the other: a SEND costs much more than a short frame does.
struct SendBuffer {
    slot: Slot,
    len: usize,
    /// How much of it is payload.
    copied: u64,
}

impl SendBuffer {
    fn new(slot: Slot) -> Self {
        Self { slot, len: 0, copied: 0 }
    }

    /// Whether a frame with a payload of `len` bytes fits, here and at a peer that takes `max_frame` bytes behind a header.
    fn has_room(&self, len: usize, max_frame: usize) -> bool {
        self.len + HEADER_LEN + len <= self.slot.len().min(HEADER_LEN + max_frame)
    }

    fn add<'a>(&mut self, header: &Header, pieces: impl Iterator<Item = &'a [u8]>) {
        let mut rest = &mut self.slot[self.len..];
        rest.put_slice(&header.encode());
        pieces.for_each(|piece| rest.put_slice(piece));
        self.len += HEADER_LEN + header.len as usize;
        self.copied += u64::from(header.len);
    }
}

impl LinkCore {
    /// See [`farcall_core::transport::Link::send`].
    ///
    /// True: somebody must begin to [watch](super::expose::watch) over what is exposed.
    pub(crate) fn send(self: &Arc<Self>, source: &mut dyn FrameSource) -> bool {
        let mut sending = self.sending();
        if !sending.is_open() {
            return false;
        }
        let max_frame = self.max_frame.load(Ordering::Acquire) as usize;
        let (mut slot, mut message) = (None, None::<SendBuffer>);
        loop {
            if !sending.is_open() {
                // Posting has failed. The rest goes by another link, in order: nothing may be sent from behind it.
                return false;
            }
            if source.is_empty() {
                sending.starved = false;
                break;
            }
            // Until the next frame is known, it may be too long for the message.
            if !sending.has_room() || !self.has_slot(&mut slot) {
                sending.starved = sending.credits.available() == 0;
                if sending.starved && !sending.blocked {
                    self.resources.counts.lacked_credits();
                }
                sending.blocked = true;
                break;
            }
            let mut exposer = Exposer { core: self, sending: &mut sending };
            let Some(frame) = source.next_exposing(max_frame, &mut exposer) else {
                sending.starved = false;
                break;
            };
            if let Some(full) = message.take_if(|m| !m.has_room(frame.header.len as usize, max_frame)) {
                self.finish(&mut sending, full);
            }
            if message.is_none() {
                sending.credits.take();
                message = slot.take().map(SendBuffer::new);
            }
            if let Some(message) = &mut message {
                self.add(&mut sending, message, &frame);
            }
            if sending.requests.len() >= MAX_BATCH {
                self.post(&mut sending);
            }
        }
        if let Some(message) = message {
            self.finish(&mut sending, message);
        }
        self.post(&mut sending);
        sending.exposures.needs_watch()
    }

    /// Sends this side's PROBE, unless the link has ended. False if there is no room.
    pub(crate) fn send_probe(&self, payload: &[u8]) -> bool {
        let mut sending = self.sending();
        let mut slot = None;
        if !sending.is_open() {
            return true;
        }
        if !sending.has_room() || !self.has_slot(&mut slot) {
            return false;
        }
        sending.credits.take();
        self.say(&mut sending, FrameType::PROBE, payload, slot);
        true
    }

    /// There may be room again: sends what waits, and has the handler send more.
    pub(crate) fn on_room(&self) {
        let received = self.receiving().count();
        if self.has_room_again(received) {
            self.tell_of_room();
        }
    }

    pub(super) fn tell_of_room(&self) {
        // In a statement of its own, which ends with the lock.
        let handler = self.receiving().handler();
        if let Some(handler) = handler {
            handler.writable();
        }
    }

    /// Sends what waits. True: there is room for what the session has left, which is to be told.
    pub(super) fn has_room_again(&self, received: Received) -> bool {
        let mut sending = self.sending();
        self.say_controls(&mut sending, received);
        self.post(&mut sending);
        let wake = sending.blocked && sending.is_open() && sending.has_room();
        sending.blocked &= !wake;
        wake
    }

    /// Whether there is something to encode a long frame into.
    fn has_slot(&self, slot: &mut Option<Slot>) -> bool {
        if slot.is_none() {
            *slot = self.resources.memory.sends().take();
        }
        if slot.is_none() {
            self.resources.mailbox.wait_for_slot(self.number);
            // One may have become free just before.
            *slot = self.resources.memory.sends().take();
        }
        slot.is_some()
    }

    /// Adds a frame of the session's to a message that has room for it.
    fn add(&self, sending: &mut Sending, message: &mut SendBuffer, frame: &Frame) {
        sending.rx_seq = frame.header.rx_seq;
        let mut header = frame.header;
        header.flags |= sending.hunger();
        header.grant = self.stamp(sending);
        message.add(&header, frame.pieces.slices());
    }

    fn finish(&self, sending: &mut Sending, message: SendBuffer) {
        let SendBuffer { mut slot, len, copied } = message;
        let Some(len) = self.seal_message(sending, &mut slot, len) else { return };
        self.sent.fetch_add(len as u64, Ordering::Release);
        if len > sending.inline {
            self.copied.fetch_add(copied, Ordering::Relaxed);
        } else if self.send_copy(sending, &slot[..len]) {
            return;
        }
        sending.requests.push_back(send(slot.freeze(0..len)));
    }

    /// Sends a short message, unless others are to go before it. False if it has not.
    fn send_copy(&self, sending: &mut Sending, message: &[u8]) -> bool {
        let Sending { qp: Some(qp), requests, .. } = sending else { return false };
        if !requests.is_empty() {
            return false;
        }
        qp.send_copy(message).unwrap_or_else(|error| {
            self.fail_to_post(sending, &error);
            true
        })
    }

    /// Seals the first `len` bytes of a buffer, if the link is sealed. Returns how many are to be sent.
    fn seal_message(&self, sending: &mut Sending, buffer: &mut [u8], len: usize) -> Option<usize> {
        let Some(seal) = self.seal() else { return Some(len) };
        let sealed = buffer.split_at_mut_checked(len).and_then(|(message, behind)| {
            behind.get_mut(..TAG_LEN)?.copy_from_slice(&seal.seal(message).ok()?);
            Some(len + TAG_LEN)
        });
        if sealed.is_none() {
            self.fail_to_send(sending, "a message could not be sealed; report this as a bug");
        }
        sealed
    }

    fn fail_to_post(&self, sending: &mut Sending, error: &PostError) {
        self.fail_to_send(sending, &describe(error));
    }

    fn fail_to_send(&self, sending: &mut Sending, why: &str) {
        sending.end();
        self.resources.mailbox.failed(self.number, LinkEnd::failed(format!("{}: {why}", self.name)));
    }

    /// Returns the grant for a header that leaves now.
    fn stamp(&self, sending: &mut Sending) -> u32 {
        let granted = self.granted.load(Ordering::Acquire);
        self.told.store(granted, Ordering::Release);
        sending.reports.stamp(granted)
    }

    /// Sends the control frames that are due. They have room in the send queue and receives at the peer of their own.
    fn say_controls(&self, sending: &mut Sending, received: Received) {
        let mut payload = BytesMut::new();
        // A frame that does not fit now is sent later, once: a peer that asks too often gets fewer answers.
        while sending.requests.is_empty() {
            let is_due = sending.reports.is_due(self.granted.load(Ordering::Acquire), received);
            let reclaims = sending.reclaim.is_some() && sending.reports.is_read(received);
            let pings = sending.reports.may_ping()
                && (sending.measures || sending.reclaim.is_some() && !sending.reports.is_read(received));
            let asked = sending.pong.is_some() || sending.forfeit.is_some();
            if !sending.is_open() || !(is_due || reclaims || pings || asked) {
                return;
            }
            let mut slot = None;
            if !sending.has_inline_controls() && !self.has_slot(&mut slot) {
                // Waits for one, as frames do.
                return;
            }
            let kind = if let Some(token) = sending.pong.take() {
                Ping { token }.encode(&mut payload);
                FrameType::PONG
            } else if let Some(count) = sending.forfeit.take() {
                let count = sending.credits.forfeit(count);
                Credit { op: CreditOp::Forfeit, count }.encode(&mut payload);
                FrameType::CREDIT
            } else if let Some(count) = sending.reclaim.take_if(|_| reclaims) {
                sending.reports.note_reclaim();
                Credit { op: CreditOp::Reclaim, count }.encode(&mut payload);
                FrameType::CREDIT
            } else if pings {
                sending.reports.note_ping();
                sending.measures = false;
                sending.round_trip.begin();
                Ping { token: 0 }.encode(&mut payload);
                FrameType::PING
            } else {
                sending.reports.note_grant();
                Credit { op: CreditOp::Grant, count: 0 }.encode(&mut payload);
                FrameType::CREDIT
            };
            self.say(sending, kind, &payload.split(), slot);
        }
    }

    /// Sends the control frames that are due, for who is not about to send anything else.
    pub(super) fn flush_controls(&self) {
        let received = self.receiving().count();
        let mut sending = self.sending();
        self.say_controls(&mut sending, received);
    }

    /// See [`farcall_core::transport::Link::round_trip`].
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let mut sending = self.sending();
        let took = sending.round_trip.took();
        sending.measures |= sending.round_trip.is_due();
        drop(sending);
        self.flush_controls();
        took
    }

    /// How many more messages the peer has room for.
    pub(crate) fn credits(&self) -> u32 {
        self.sending().credits.available()
    }

    /// Tells the peer that this is the last frame. It goes behind everything that was taken.
    pub(super) fn say_close(&self) {
        let is_proven = self.receiving().is_proven();
        let mut sending = self.sending();
        if !sending.is_open() {
            return;
        }
        if is_proven {
            let mut payload = BytesMut::new();
            Close { code: CloseCode::Done, reason: String::new() }.encode(&mut payload);
            let slot =
                if sending.has_inline_controls() { None } else { self.resources.memory.sends().take() };
            self.say(&mut sending, FrameType::CLOSE, &payload, slot);
        }
        if sending.is_open() {
            sending.state = if is_proven { State::Closing } else { State::Ended };
        }
    }

    /// Sends a link frame.
    fn say(&self, sending: &mut Sending, kind: FrameType, payload: &[u8], slot: Option<Slot>) {
        let mut header = Header::new(kind, 0);
        header.len = payload.len() as u32;
        header.flags = sending.hunger();
        header.rx_seq = sending.rx_seq;
        header.grant = self.stamp(sending);
        let Some(message) = self.encode(sending, &header, payload, slot) else { return };
        self.sent.fetch_add(message.len() as u64, Ordering::Release);
        let mut request = send(message);
        if let Work::Send { signaled, .. } = &mut request {
            *signaled = kind == FrameType::CLOSE;
        }
        sending.requests.push_back(request);
        self.post(sending);
    }

    /// Encodes a link frame, into the slot if it is too long for a work request.
    fn encode(
        &self,
        sending: &mut Sending,
        header: &Header,
        payload: &[u8],
        slot: Option<Slot>,
    ) -> Option<Bytes> {
        let len = HEADER_LEN + payload.len();
        let needed = len + self.overhead();
        let put = |mut to: &mut [u8]| {
            to.put_slice(&header.encode());
            to.put_slice(payload);
        };
        if needed <= sending.inline {
            let mut whole = BytesMut::zeroed(needed);
            put(&mut whole);
            let len = self.seal_message(sending, &mut whole, len)?;
            whole.truncate(len);
            Some(whole.freeze())
        } else {
            let mut slot = slot?;
            if slot.len() < needed {
                self.fail_to_send(sending, "a link frame is longer than its buffer; report this as a bug");
                return None;
            }
            put(&mut slot);
            let len = self.seal_message(sending, &mut slot, len)?;
            Some(slot.freeze(0..len))
        }
    }

    /// Posts the encoded requests.
    pub(super) fn post(&self, sending: &mut Sending) {
        let Sending { qp: Some(qp), requests, inline, .. } = sending else { return };
        // Slots are few: the last that is used is asked after, so that they come back without waiting for more sends.
        let in_slot = requests.iter_mut().rev().find_map(|work| match work {
            Work::Send { parts, signaled, .. } if parts[0].len() > *inline => Some(signaled),
            _ => None,
        });
        if let Some(signaled) = in_slot {
            *signaled = true;
        }
        while !requests.is_empty() {
            match qp.post(requests) {
                // Not for long: what is outstanding completes, and then this is tried again.
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return self.fail_to_post(sending, &error),
            }
        }
    }
}

fn describe(error: &PostError) -> String {
    match error {
        PostError::Device(error) => error.to_string(),
        PostError::NotRegistered
        | PostError::TooLong
        | PostError::OutOfBounds
        | PostError::Misaligned
        | PostError::Misplaced => {
            format!("a send was refused ({error:?}); report this as a bug")
        }
    }
}
