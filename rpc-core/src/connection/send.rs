//! The way out: from whoever has something to say, through the outbox, to a link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;

use super::Connection;
use super::handover::{Absorb, Queued};
use crate::proto::message::{Expose, ExposeNothing, Frame, Message};
use crate::proto::outbox::{Abandoned, Outbox, Route};
use crate::proto::shorts::Shorts;
use crate::proto::wire::{Cancel, FrameType};
use crate::transport::{Counters, FrameSource, Link};

/// What an upgraded link may hold unacknowledged, in bytes.
const MAX_RETAINED: usize = 16 << 20;

/// What sending needs; under one lock, which is held while a link is fed.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) outbox: Outbox,
    /// Link frames for the stream link. They go before session frames: UP and DOWN take effect where they stand.
    pub(super) control: VecDeque<Frame>,
    pub(super) upgraded: Option<(u32, Arc<dyn Link>)>,
    /// What upgraded links moved that are no more.
    pub(super) retired: Counters,
    /// The most that the peer takes in one frame on the stream link.
    pub(super) peer_max_frame: usize,
    /// Whether both sides have agreed on described messages.
    pub(super) describes: bool,
}

impl Sending {
    pub(super) fn new() -> Self {
        Self {
            outbox: Outbox::new(0, MAX_RETAINED),
            control: VecDeque::new(),
            upgraded: None,
            retired: Counters::default(),
            peer_max_frame: usize::MAX,
            describes: false,
        }
    }

    /// The upgraded link is used no more; gives it, to be closed.
    pub(super) fn retire(&mut self) -> Option<(u32, Arc<dyn Link>)> {
        let (epoch, link) = self.upgraded.take()?;
        self.retired += link.counters();
        Some((epoch, link))
    }
}

/// What was queued and is not in the outbox yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    shorts: Shorts,
    others: VecDeque<Message>,
}

impl Queue {
    fn push(&mut self, message: Message) {
        match message.as_short() {
            Some((head, body)) => self.shorts.push(message.kind, message.call, head, body),
            None => self.others.push_back(message),
        }
    }

    /// How many begin or end calls.
    fn of_calls(&self) -> usize {
        let begins_or_ends = |message: &&Message| message.call != 0 && !message.is_amid_call();
        self.shorts.len() + self.others.iter().filter(begins_or_ends).count()
    }
}

impl Queued for Queue {
    fn len(&self) -> usize {
        self.shorts.len() + self.others.len()
    }
}

impl Absorb<Queue> for Sending {
    fn absorb(&mut self, queue: &mut Queue) {
        self.outbox.push_shorts(&mut queue.shorts);
        while let Some(message) = queue.others.pop_front() {
            self.outbox.push(message);
        }
    }
}

/// What the stream link sends: link frames, and session frames unless they go by another link.
struct StreamSource<'a> {
    sending: &'a mut Sending,
    connection: &'a Connection,
}

impl FrameSource for StreamSource<'_> {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        let Sending { outbox, control, peer_max_frame, .. } = &mut *self.sending;
        let frame = match control.pop_front() {
            Some(frame) => frame,
            None if outbox.route() == Route::Stream => {
                outbox.next(max_payload.min(*peer_max_frame), &mut ExposeNothing)?
            }
            None => return None,
        };
        Some(self.connection.stamp(frame, outbox))
    }

    fn next_shorts(&mut self, empty: &mut BytesMut, max_payload: usize) -> bool {
        let Sending { outbox, control, peer_max_frame, .. } = &mut *self.sending;
        if !control.is_empty() {
            return true;
        }
        if outbox.is_empty() || outbox.route() != Route::Stream {
            return false;
        }
        let rx_seq = self.connection.stamp_header();
        if outbox.next_shorts(empty, max_payload.min(*peer_max_frame), rx_seq) > 0 {
            self.connection.note_sent(outbox);
        }
        !outbox.is_empty()
    }
}

/// What the upgraded link sends: session frames.
struct UpgradedSource<'a> {
    outbox: &'a mut Outbox,
    epoch: u32,
    /// They may have to go again by the stream link.
    most: usize,
    describes: bool,
    connection: &'a Connection,
}

impl FrameSource for UpgradedSource<'_> {
    fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        self.next_exposing(max_payload, &mut ExposeNothing)
    }

    fn next_exposing(&mut self, max_payload: usize, expose: &mut dyn Expose) -> Option<Frame> {
        if self.outbox.route() != Route::Upgraded(self.epoch) {
            return None;
        }
        let max_payload = max_payload.min(self.most);
        let frame = if self.describes {
            self.outbox.next(max_payload, expose)?
        } else {
            self.outbox.next(max_payload, &mut ExposeNothing)?
        };
        Some(self.connection.stamp(frame, self.outbox))
    }
}

impl Connection {
    /// Puts what has been taken in into the header of a frame that leaves now, and notes that it leaves.
    fn stamp(&self, mut frame: Frame, outbox: &Outbox) -> Frame {
        frame.header.rx_seq = self.stamp_header();
        self.note_sent(outbox);
        frame
    }

    /// What the header of a frame that leaves now says of what has been taken in.
    fn stamp_header(&self) -> u32 {
        let rx_seq = self.rx_seq.load(Ordering::Acquire);
        self.stamped.store(rx_seq, Ordering::Release);
        rx_seq
    }

    /// Before the peer can know of the frames: what it says next is held against these.
    fn note_sent(&self, outbox: &Outbox) {
        self.sent_seq.store(outbox.last_seq(), Ordering::Release);
        self.backlog.store(outbox.waiting(), Ordering::Release);
    }

    /// Queues a message without sending it yet: [`flush`](Self::flush) must follow, if it is the only one. Gives how many
    /// are queued.
    pub(super) fn enqueue(&self, message: Message) -> usize {
        self.sending.queue(|queue| queue.push(message))
    }

    /// The same for a short message of a call.
    // Inlined where a call is made or answered, so that what is put in is not moved on its way.
    #[inline(always)]
    pub(super) fn enqueue_short(&self, kind: FrameType, call: u64, head: &[u8], body: &[u8]) -> usize {
        self.sending.queue(|queue| queue.shorts.push(kind, call, head, body))
    }

    /// The same for several, of which it leaves none.
    pub(super) fn enqueue_all(&self, shorts: &mut Shorts) -> usize {
        self.sending.queue(|queue| queue.shorts.append(shorts))
    }

    /// How many messages are queued that are not in the outbox yet.
    pub(super) fn queued(&self) -> usize {
        self.sending.queued()
    }

    /// How many of these are of calls.
    pub(super) fn queued_of_calls(&self) -> usize {
        self.sending.look_at_queue(Queue::of_calls)
    }

    /// Queues a session message that has no payload but what `encode` writes.
    pub(super) fn send_message(&self, kind: FrameType, call: u64, encode: impl FnOnce(&mut BytesMut)) {
        let mut head = BytesMut::new();
        encode(&mut head);
        self.enqueue(Message::new(kind, call, head.freeze()));
    }

    /// Sends a link frame by the stream link, before any session frame that waits.
    pub(super) fn send_link(&self, kind: FrameType, encode: impl FnOnce(&mut BytesMut)) {
        let mut payload = BytesMut::new();
        encode(&mut payload);
        let frame = Frame::link(kind, payload.freeze());
        self.change_sending(|sending| sending.control.push_back(frame));
    }

    /// Sends what is queued, on this thread if no other is sending.
    pub(super) fn flush(&self) {
        self.meter.tell_soon(self);
        self.sending.run(|sending| self.feed(sending));
        if self.streams.left().any() {
            self.tell_left();
        }
    }

    /// Sends what is queued when the runtime's other tasks have had their turn: with what they queue, and with one system
    /// call for all of it.
    pub(crate) fn flush_soon(&self) {
        self.flusher.tell();
    }

    /// Sends what waits although nothing new was queued: something that was in its way is gone.
    pub(super) fn flush_anyway(&self) {
        self.sending.want();
        self.flush();
    }

    /// Looks at what sending needs, or changes it in a way that makes nothing more leave.
    pub(super) fn sending<R>(&self, look: impl FnOnce(&mut Sending) -> R) -> R {
        self.sending.look(look, |sending| self.feed_under_lock(sending))
    }

    /// Changes what is to be sent, with all that was queued before, and sends.
    pub(super) fn change_sending<R>(&self, change: impl FnOnce(&mut Sending) -> R) -> R {
        self.sending.change(change, |sending| self.feed_under_lock(sending))
    }

    /// Feeds the links.
    fn feed(&self, sending: &mut Sending) {
        if sending.outbox.route() == Route::Stream || !sending.control.is_empty() {
            self.stream.send(&mut StreamSource { sending, connection: self });
        }
        if let Sending { outbox, upgraded: Some((epoch, link)), peer_max_frame, describes, .. } = sending {
            let (epoch, most, describes) = (*epoch, *peer_max_frame, *describes);
            link.send(&mut UpgradedSource { outbox, epoch, most, describes, connection: self });
        }
        self.backlog.store(sending.outbox.waiting(), Ordering::Release);
        if sending.outbox.has_left() {
            self.streams.left().note(sending.outbox.take_left());
        }
        self.progressed();
    }

    /// The same for who may hold other locks: streams that wait are told later.
    fn feed_under_lock(&self, sending: &mut Sending) {
        self.meter.tell_soon(self);
        self.feed(sending);
        if self.streams.left().any() {
            self.flush_soon();
        }
    }

    /// The caller of a call no longer waits: takes back what has not left, or tells the peer.
    pub(super) fn send_cancel(&self, call: u64, reason: u8, has_streams: bool) {
        self.change_sending(|sending| {
            if has_streams {
                sending.outbox.abandon_streams(call);
            }
            if sending.outbox.abandon(FrameType::REQUEST, call) == Abandoned::Sent {
                let mut head = BytesMut::with_capacity(1);
                Cancel { reason }.encode(&mut head);
                sending.outbox.push(Message::new(FrameType::CANCEL, call, head.freeze()));
            }
        });
    }

    /// The caller of `call` has given up: its answer need not go on, or the end of what it was.
    pub(super) fn abandon_response(&self, call: u64) {
        self.change_sending(|sending| {
            sending.outbox.abandon(FrameType::RESPONSE, call);
            sending.outbox.abandon_streams(call);
        });
    }

    /// The same of an answer that is a stream.
    pub(super) fn abandon_streams(&self, call: u64) {
        self.change_sending(|sending| sending.outbox.abandon_streams(call));
    }
}
