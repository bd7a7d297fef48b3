//! The path of outgoing messages: from a task, through the outbox, to a link.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use tokio::runtime::Handle;

use super::combining::CombiningQueue;
use super::flusher::{self, Flusher};
use super::meter::Meter;
use super::progress::Progress;
use super::sending::{Queue, Sending, UpgradedLink};
use super::sent::SentCalls;
use super::sources::{StreamSource, UpgradedSource};
use super::terms::Terms;
use crate::memory::Account;
use crate::proto::message::{Frame, Message};
use crate::proto::outbox::{Abandoned, NotSent, Outbox, Route};
use crate::proto::small_frames::SmallFrames;
use crate::proto::wire::{Cancel, FrameType, WireError};
use crate::sync::{Mutex, rank};
use crate::transport::{Counters, Link};

/// The bytes that a connection has moved, by link, and the time in which it could not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// By the stream link: TCP.
    pub stream: Counters,
    /// By the upgraded link: RDMA. All zero if there never was one.
    pub upgraded: Counters,
    /// The time in which messages waited to be sent: the peer, the socket's buffer or the device's queue had no room.
    pub waited: Duration,
}

/// The owner of a session, as the session's parts see it: the connection.
pub(crate) trait Owner: Send + Sync {
    /// Called when the tracked messages of these calls have been sent, and read if they were described. No lock is
    /// held.
    fn on_sent(&self, calls: Vec<u64>);

    /// Ends the session because the peer broke the protocol.
    fn on_protocol_error(&self, error: &WireError);

    /// Called when a call has ended. It may have been the last call of a session that is draining.
    fn on_call_ended(&self);
}

/// The sending half of a session, for calls, streams and handlers.
///
/// It has no task that moves data. A task queues its message and calls [`flush`](Self::flush); the lock holder sends
/// for all that queue meanwhile. The lock order is: any lock of a component, then the state of sending, then the queue.
/// Both of these are leaves for all other code.
pub(crate) struct Sender {
    pub(super) me: Weak<Self>,
    terms: Terms,
    pub(super) runtime: Handle,
    stream: Arc<dyn Link>,
    account: Arc<Account>,
    queue: CombiningQueue<Queue, Sending>,
    /// The upgraded link, while it is in use. Written under the sending lock. Its own lock is a leaf.
    pub(super) upgraded: Mutex<rank::Leaf, Option<UpgradedLink>>,
    /// The number of the last frame received.
    pub(super) received: AtomicU32,
    /// The number that the last frame sent has acknowledged.
    pub(super) acknowledged: AtomicU32,
    /// Whether a task that will acknowledge is running.
    pub(super) acknowledging: AtomicBool,
    /// The number of the last session frame sent.
    sent_seq: AtomicU32,
    /// How many messages of calls wait in the outbox.
    backlog: AtomicUsize,
    /// How many of those may belong to calls that the peer has given up.
    given_up: AtomicUsize,
    /// Whether an upgraded link was ever used, so that frames may be kept until the peer acknowledges them.
    was_upgraded: AtomicBool,
    ended: AtomicBool,
    pub(super) flusher: Flusher,
    sent: SentCalls,
    owner: Weak<dyn Owner>,
    progress: Progress,
    pub(super) meter: Meter,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("role", &self.terms.role)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

impl Sender {
    /// Returns the sender of a session that begins on `stream`.
    pub(crate) fn new(
        terms: Terms,
        stream: Arc<dyn Link>,
        account: Arc<Account>,
        runtime: Handle,
        owner: Weak<dyn Owner>,
    ) -> Arc<Self> {
        let upgraded_transport = terms.settings.upgrade.as_ref().ok().map(|upgrade| upgrade.name());
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            terms,
            runtime,
            stream,
            queue: CombiningQueue::new(Sending::new(&account)),
            account,
            upgraded: Mutex::default(),
            received: AtomicU32::new(0),
            acknowledged: AtomicU32::new(0),
            acknowledging: AtomicBool::new(false),
            sent_seq: AtomicU32::new(0),
            backlog: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
            was_upgraded: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            flusher: Flusher::default(),
            sent: SentCalls::default(),
            owner,
            progress: Progress::default(),
            meter: Meter::new(upgraded_transport),
        })
    }

    /// Spawns the task that flushes after calls of [`flush_soon`](Self::flush_soon).
    pub(crate) fn start(&self) {
        if let Some(sender) = self.me.upgrade() {
            self.runtime.spawn(flusher::flush_when_told(sender));
        }
    }

    /// Ends the flushing task. Nothing is sent any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.flusher.end();
        self.inspect(|sending| sending.wait_time.note(false));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the link that the session began on.
    pub(crate) fn stream(&self) -> &Arc<dyn Link> {
        &self.stream
    }

    /// Returns the account of the memory that is held for the peer.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns the terms that both sides have agreed on.
    #[inline]
    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Ends the session because the peer broke the protocol.
    pub(crate) fn protocol_error(&self, error: &WireError) {
        if let Some(owner) = self.owner.upgrade() {
            owner.on_protocol_error(error);
        }
    }

    /// Tells the connection that a call has ended.
    pub(crate) fn call_ended(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.on_call_ended();
        }
    }

    /// Whether an upgraded link has ever been used.
    pub(crate) fn was_upgraded(&self) -> bool {
        self.was_upgraded.load(Ordering::Relaxed)
    }

    pub(crate) fn note_upgraded(&self) {
        self.was_upgraded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns what the links have moved so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let (upgraded, waited) = self.inspect(|sending| {
            let mut upgraded = sending.retired;
            if let Some((_, link)) = &sending.upgraded {
                upgraded += link.counters();
            }
            (upgraded, sending.wait_time.total())
        });
        Traffic { stream: self.stream.counters(), upgraded, waited }
    }

    /// Sets the acknowledgement in the header of a frame that is sent now, and records that it is sent.
    pub(super) fn stamp(&self, mut frame: Frame, outbox: &Outbox) -> Frame {
        frame.header.rx_seq = self.acknowledge_now();
        self.note_sent(outbox);
        frame
    }

    /// Records the last frame sent, before the peer can know of it. The peer's next acknowledgement is checked against
    /// this.
    pub(super) fn note_sent(&self, outbox: &Outbox) {
        self.sent_seq.store(outbox.last_seq(), Ordering::Release);
        self.note_backlog(outbox);
    }

    pub(crate) fn note_backlog(&self, outbox: &Outbox) {
        self.backlog.store(outbox.waiting(), Ordering::Release);
    }

    /// Returns how many messages of calls are in the outbox.
    pub(crate) fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Acquire)
    }

    /// Handles the peer's acknowledgement of frames up to this number.
    ///
    /// # Errors
    ///
    /// [`NotSent`] if no frame of this number was sent.
    #[inline(always)]
    pub(crate) fn on_acknowledged(&self, rx_seq: u32) -> Result<(), NotSent> {
        if (self.sent_seq.load(Ordering::Acquire).wrapping_sub(rx_seq) as i32) < 0 {
            return Err(NotSent);
        }
        // Frames that went only by the stream link are not kept.
        if self.was_upgraded() { self.release_acknowledged(rx_seq) } else { Ok(()) }
    }

    /// Drops the frames that were kept until the peer acknowledged them.
    fn release_acknowledged(&self, rx_seq: u32) -> Result<(), NotSent> {
        // Queued messages, such as answers to what arrived before, stay for the end of the batch.
        let acknowledged =
            |sending: &mut Sending| sending.outbox.acknowledged(rx_seq).map(|()| !sending.outbox.is_empty());
        if self.queue.inspect_only(acknowledged)? {
            // There may be room for them now.
            self.queue.request();
        }
        self.progress.note();
        Ok(())
    }

    /// Queues a message without sending it, and returns how many are queued. [`flush`](Self::flush) must follow if it
    /// is the only one.
    pub(crate) fn enqueue(&self, message: Message) -> usize {
        self.queue.push(|queue| queue.others.push_back(message))
    }

    /// Queues a short message of a call, like [`enqueue`](Self::enqueue).
    // Inlined where a call is made or answered, so that what is put in is not moved on its way.
    #[inline(always)]
    pub(crate) fn enqueue_small(&self, kind: FrameType, call: u64, head: &[u8], body: &[u8]) -> usize {
        self.queue.push(|queue| queue.small_frames.push(kind, call, head, body))
    }

    /// Moves several short messages into the queue, like [`enqueue`](Self::enqueue).
    pub(crate) fn enqueue_all(&self, small_frames: &mut SmallFrames) -> usize {
        self.queue.push(|queue| queue.small_frames.append(small_frames))
    }

    /// Returns how many messages are queued and not in the outbox yet.
    pub(crate) fn queued(&self) -> usize {
        self.queue.queued()
    }

    /// Returns how many of those begin or end calls.
    pub(crate) fn queued_of_calls(&self) -> usize {
        self.queue.inspect_queue(Queue::of_calls)
    }

    /// Whether everything has been sent, and frames on an upgraded link have arrived.
    pub(crate) fn is_done(&self) -> bool {
        let is_empty = |sending: &mut Sending| {
            let outbox = &sending.outbox;
            outbox.is_empty() && outbox.retained() == 0 && outbox.exposed() == 0
        };
        self.queued() == 0 && self.inspect(is_empty)
    }

    /// Queues a session message whose only payload is what `encode` writes.
    pub(crate) fn send_message(&self, kind: FrameType, call: u64, encode: impl FnOnce(&mut BytesMut)) {
        let mut head = BytesMut::new();
        encode(&mut head);
        self.enqueue(Message::new(kind, call, head.freeze()));
    }

    /// Sends a link frame by the stream link, before any waiting session frame.
    pub(crate) fn send_link(&self, kind: FrameType, encode: impl FnOnce(&mut BytesMut)) {
        let mut payload = BytesMut::new();
        encode(&mut payload);
        let frame = Frame::link(kind, payload.freeze());
        self.change(|sending| sending.control.push_back(frame));
    }

    /// Sends what is queued, on this thread unless another is sending. The caller holds no lock.
    pub(crate) fn flush(&self) {
        self.meter.tell_soon(self);
        self.queue.run(|sending| self.feed(sending));
        if self.sent.any()
            && let Some(owner) = self.owner.upgrade()
        {
            owner.on_sent(self.sent.take());
        }
    }

    /// Sends what is queued after the runtime's other tasks have had their turn. Whatever they queue goes with the same
    /// system call.
    pub(crate) fn flush_soon(&self) {
        self.flusher.tell();
    }

    /// Sends what waits although nothing new was queued, because an obstacle is gone. The caller holds no lock.
    pub(crate) fn flush_again(&self) {
        self.flush_at_end();
        self.flush();
    }

    /// Makes the flush at the end of the batch send what waits, even if nothing new is queued.
    pub(crate) fn flush_at_end(&self) {
        self.queue.request();
    }

    /// Inspects the state of sending, or changes it without allowing more to be sent.
    pub(crate) fn inspect<R>(&self, inspect: impl FnOnce(&mut Sending) -> R) -> R {
        self.queue.inspect(inspect, |sending| self.feed_under_lock(sending))
    }

    /// Absorbs the queue, changes what is to be sent, and sends.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Sending) -> R) -> R {
        self.queue.change(change, |sending| self.feed_under_lock(sending))
    }

    /// Feeds the links.
    fn feed(&self, sending: &mut Sending) {
        if sending.outbox.route() == Route::Stream || !sending.control.is_empty() {
            self.stream.send(&mut StreamSource { sending, sender: self });
        }
        if let Sending { outbox, upgraded: Some((epoch, link)), peer_max_frame, .. } = sending {
            let (epoch, max_frame) = (*epoch, *peer_max_frame);
            link.send(&mut UpgradedSource { outbox, epoch, max_frame, sender: self });
        }
        self.note_backlog(&sending.outbox);
        let unsent = self.stream.unsent();
        sending.gauge.set(sending.outbox.memory() + unsent);
        sending.wait_time.note(!self.has_ended() && (unsent > 0 || !sending.outbox.is_empty()));
        if sending.outbox.has_sent() {
            self.sent.note(sending.outbox.take_sent());
        }
        self.progress.note();
    }

    /// Feeds the links for a caller that may hold other locks. Tracked messages are reported later.
    fn feed_under_lock(&self, sending: &mut Sending) {
        self.meter.tell_soon(self);
        self.feed(sending);
        if self.sent.any() {
            self.flush_soon();
        }
    }

    /// Cancels a call that its caller has given up: removes its unsent messages, or tells the peer.
    pub(crate) fn cancel(&self, call: u64, reason: u8, has_streams: bool) {
        self.change(|sending| {
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

    /// Removes the unsent part of the answer to a call that its caller has given up.
    pub(crate) fn abandon_answer(&self, call: u64) {
        self.change(|sending| {
            sending.outbox.give_up(call);
            self.given_up.store(sending.outbox.given_up(), Ordering::Release);
        });
    }

    /// Returns how many messages of the backlog may belong to calls that the peer has given up.
    pub(crate) fn given_up(&self) -> usize {
        self.given_up.load(Ordering::Acquire)
    }
}
