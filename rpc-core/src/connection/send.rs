//! The way out: from whoever has something to say, through the outbox, to a link.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, TryLockError};

use super::{Connection, lock};
use crate::proto::message::{Frame, Message};
use crate::proto::outbox::{Abandoned, Outbox, Route};
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
}

impl Sending {
    pub(super) fn new() -> Self {
        Self {
            outbox: Outbox::new(0, MAX_RETAINED),
            control: VecDeque::new(),
            upgraded: None,
            retired: Counters::default(),
            peer_max_frame: usize::MAX,
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
        let mut frame = match self.sending.control.pop_front() {
            Some(frame) => frame,
            None if self.sending.outbox.route() == Route::Stream => {
                self.sending.outbox.next(max_payload.min(self.sending.peer_max_frame))?
            }
            None => return None,
        };
        frame.header.rx_seq = self.connection.stamp();
        Some(frame)
    }
}

/// What the upgraded link sends: session frames.
struct UpgradedSource<'a> {
    outbox: &'a mut Outbox,
    epoch: u32,
    /// They may have to go again by the stream link.
    most: usize,
    connection: &'a Connection,
}

impl FrameSource for UpgradedSource<'_> {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        if self.outbox.route() != Route::Upgraded(self.epoch) {
            return None;
        }
        let mut frame = self.outbox.next(max_payload.min(self.most))?;
        frame.header.rx_seq = self.connection.stamp();
        Some(frame)
    }
}

impl Connection {
    /// What has been taken in, for a header that leaves now.
    fn stamp(&self) -> u32 {
        let rx_seq = self.rx_seq.load(Ordering::Acquire);
        self.stamped.store(rx_seq, Ordering::Release);
        rx_seq
    }

    /// Queues a message without sending it yet: [`flush`](Self::flush) must follow.
    pub(super) fn enqueue(&self, message: Message) {
        lock(&self.queue).push_back(message);
        self.queued.store(true, Ordering::Relaxed);
    }

    /// Sends a message, on this thread if no other is sending.
    pub(super) fn submit(&self, message: Message) {
        self.enqueue(message);
        self.flush();
    }

    /// Sends what is queued. If another thread is sending, it sees to ours too: it looks again after it has
    /// unlocked.
    pub(super) fn flush(&self) {
        loop {
            // Either the holder's look at `queued` after unlocking sees our message, or we see it unlocked: these
            // two fences forbid that both miss. Without them a message could wait for the next one to come.
            fence(Ordering::SeqCst);
            let mut sending = match self.sending.try_lock() {
                Ok(sending) => sending,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.feed(&mut sending);
            drop(sending);
            fence(Ordering::SeqCst);
            if !self.queued.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Sends what waits although nothing new was queued: something that was in its way is gone.
    pub(super) fn flush_anyway(&self) {
        self.queued.store(true, Ordering::Relaxed);
        self.flush();
    }

    /// Moves the queue into the outbox and feeds the links.
    pub(super) fn feed(&self, sending: &mut Sending) {
        self.absorb(sending);
        self.stream.send(&mut StreamSource { sending, connection: self });
        if let Sending { outbox, upgraded: Some((epoch, link)), peer_max_frame, .. } = sending {
            let (epoch, most) = (*epoch, *peer_max_frame);
            link.send(&mut UpgradedSource { outbox, epoch, most, connection: self });
        }
        self.backlog.store(sending.outbox.waiting(), Ordering::Relaxed);
        if self.draining.load(Ordering::Relaxed) {
            self.left.notify_waiters();
        }
    }

    /// Resolves when everything that was queued has left, and what went by an upgraded link has arrived.
    pub(super) async fn all_left(&self) {
        self.draining.store(true, Ordering::Relaxed);
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            self.flush_anyway();
            {
                let sending = lock(&self.sending);
                if sending.outbox.is_empty() && sending.outbox.retained() == 0 {
                    return;
                }
            }
            left.await;
        }
    }

    pub(super) fn absorb(&self, sending: &mut Sending) {
        if self.queued.swap(false, Ordering::AcqRel) {
            let mut queue = lock(&self.queue);
            for message in queue.drain(..) {
                sending.outbox.push(message);
            }
        }
    }

    /// The caller of a call no longer waits: takes back what has not left, or tells the peer.
    pub(super) fn send_cancel(&self, call: u64, reason: u8) {
        let mut sending = lock(&self.sending);
        self.absorb(&mut sending);
        if sending.outbox.abandon(FrameType::REQUEST, call) == Abandoned::Sent {
            let mut head = bytes::BytesMut::with_capacity(1);
            Cancel { reason }.encode(&mut head);
            sending.outbox.push(Message::new(FrameType::CANCEL, call, head.freeze()));
        }
        self.feed(&mut sending);
        drop(sending);
        self.flush();
    }

    /// The caller of `call` has given up: its answer need not go on.
    pub(super) fn abandon_response(&self, call: u64) {
        let mut sending = lock(&self.sending);
        self.absorb(&mut sending);
        sending.outbox.abandon(FrameType::RESPONSE, call);
        self.feed(&mut sending);
        drop(sending);
        self.flush();
    }
}
