//! The stream of a call that this side receives.

use std::collections::VecDeque;
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::{Bytes, BytesMut};

use super::CallStreams;
use crate::memory::{Gauge, kept_by};
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::message::Message;
use crate::proto::stream::RecvHalf;
use crate::proto::wire::{EndReason, FrameType, Stop, Window};
use crate::slots::exchange;
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::SHARED_BUFFER;

/// The memory that ITEMs of one stream may keep as views of the link's buffers, in bytes. Short ITEMs beyond it are copied: an
/// unread stream then keeps no more than what was sent on it.
const VIEWS: usize = 4 * SHARED_BUFFER;

/// An ITEM from this length on is not copied. It has a buffer of its own, or a good part of one.
const LONG: usize = SHARED_BUFFER / 4;

/// The memory that an ITEM takes beside its bytes: its place in the queue, and what an allocator adds. Bytes.
const PLACE: usize = 96;

/// An ITEM as it arrived.
pub(super) struct Unread {
    bytes: Bytes,
    /// The memory that it keeps, in bytes.
    memory: usize,
}

/// The stream that this side receives.
pub(super) struct Incoming {
    pub(super) half: RecvHalf,
    pub(super) first: Window,
    queue: VecDeque<Unread>,
    /// The memory that these keep, and the one that is being read, in bytes.
    memory: usize,
    /// The part of it that the ITEM keeps that is being read.
    reading: usize,
    gauge: Gauge,
    pub(super) end: Option<Ended>,
    pub(super) waker: Option<Waker>,
}

impl Incoming {
    pub(super) fn new(first: Window, gauge: Gauge) -> Self {
        let (half, queue) = (RecvHalf::new(first), VecDeque::new());
        Self { half, first, queue, memory: 0, reading: 0, gauge, end: None, waker: None }
    }

    /// Queues an ITEM, and counts the memory that it keeps.
    pub(super) fn push(&mut self, mut bytes: Bytes) {
        let mut memory = kept_by(bytes.len());
        if self.memory + memory > VIEWS && bytes.len() < LONG {
            bytes = Bytes::copy_from_slice(&bytes);
            memory = bytes.len();
        }
        memory += PLACE;
        self.memory += memory;
        self.gauge.set(self.memory);
        self.queue.push_back(Unread { bytes, memory });
    }

    /// Takes the next ITEM. The one before it has been read.
    fn pop(&mut self) -> Option<Bytes> {
        self.memory -= std::mem::take(&mut self.reading);
        let next = self.queue.pop_front();
        self.gauge.set(self.memory);
        next.map(|Unread { bytes, memory }| {
            self.reading = memory;
            bytes
        })
    }
}

/// How a received stream has ended.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// As its sender reports.
    Said { reason: EndReason, payload: Payload, metadata: AnswerMetadata },
    /// It was cut short.
    Lost(Status),
    /// The receiving side has given it up.
    GivenUp(Status),
}

impl Ended {
    /// Returns the end of a stream whose receiving side has given up the call.
    pub(crate) fn gave_up() -> Self {
        let status = Status::new(Code::Cancelled, "the stream's call is over");
        Self::GivenUp(status.with_executed(Executed::Maybe).with_blame(Blame::Caller))
    }
}

impl CallStreams {
    /// Returns the next ITEM, or how the stream has ended. The last ITEM must have been read.
    pub(in crate::call_streams) fn next(&self, cx: &TaskContext<'_>) -> Poll<Result<Bytes, Ended>> {
        let _before;
        let mut state = self.state();
        let Some(incoming) = &mut state.incoming else { return Poll::Ready(Err(Ended::gave_up())) };
        if let Some(item) = incoming.pop() {
            return Poll::Ready(Ok(item));
        }
        if let Some(end) = &incoming.end {
            return Poll::Ready(Err(end.clone()));
        }
        _before = exchange(incoming.waker.get_or_insert_with(|| cx.waker().clone()), cx);
        Poll::Pending
    }

    /// Records that the application has taken items, and with them `bytes` of finished messages. Returns true if a
    /// frame was queued.
    pub(in crate::call_streams) fn consumed(&self, items: u64, bytes: u64) -> bool {
        let Some(table) = self.table() else { return false };
        let mut state = self.state();
        let over = state.over;
        let Some(incoming) = state.incoming.as_mut().filter(|_| !over) else { return false };
        let window = incoming.half.consumed(items, bytes, table.most(), |bytes| table.grow(bytes));
        let Some(window) = window else { return false };
        let mut payload = BytesMut::with_capacity(16);
        window.encode(&mut payload);
        table.sender.enqueue(Message::new(FrameType::WINDOW, self.call, payload.freeze()));
        true
    }

    /// Stops the stream because the application takes no more. Returns true if a frame was queued.
    pub(crate) fn stop(&self) -> bool {
        let Some(table) = self.table() else { return false };
        let mut guard = self.state();
        let over = guard.over;
        let Some(incoming) = &mut guard.incoming else { return false };
        let queue = std::mem::take(&mut incoming.queue);
        (incoming.memory, incoming.reading) = (0, 0);
        incoming.gauge.set(0);
        let tells = incoming.half.stop() && !over;
        if tells {
            let mut payload = BytesMut::with_capacity(1);
            Stop { reason: 0 }.encode(&mut payload);
            table.sender.enqueue(Message::new(FrameType::STOP, self.call, payload.freeze()));
        }
        drop(guard);
        drop(queue);
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Account, Use};

    const SHORT: usize = 2000;

    /// Returns the stream after `count` ITEMs of `len` bytes, and where these lie.
    fn unread(count: usize, len: usize) -> (Incoming, Vec<Bytes>) {
        let mut incoming =
            Incoming::new(Window { items: 0, bytes: 0 }, Gauge::new(&Account::unlimited(None), Use::Items));
        let items: Vec<_> = (0..count).map(|_| Bytes::from(vec![7; len])).collect();
        items.iter().for_each(|item| incoming.push(item.clone()));
        (incoming, items)
    }

    #[test]
    fn short_items_are_copied_once_their_views_may_keep_much() {
        let (mut incoming, items) = unread(100, SHORT);
        let all = incoming.memory;
        assert!((VIEWS - SHARED_BUFFER..VIEWS + 100 * (SHORT + PLACE)).contains(&all), "{all}");
        let is_view = |(item, read): (&Bytes, Bytes)| item.as_ptr() == read.as_ptr();
        let views =
            items.iter().map(|item| is_view((item, incoming.pop().unwrap()))).filter(|is| *is).count();
        assert!((1..=4).contains(&views), "{views} views of 64 KiB");
    }

    #[test]
    fn long_items_stay_where_they_are() {
        let (mut incoming, items) = unread(20, LONG);
        assert_eq!(incoming.memory, 20 * (SHARED_BUFFER + PLACE));
        assert!(items.iter().all(|item| incoming.pop().unwrap().as_ptr() == item.as_ptr()));
    }

    #[test]
    fn an_item_counts_until_the_next_one_is_asked_for() {
        let (mut incoming, _) = unread(2, SHORT);
        for left in [2, 1] {
            assert!(incoming.pop().is_some());
            assert_eq!(incoming.memory, left * (SHARED_BUFFER + PLACE));
        }
        assert!(incoming.pop().is_none());
        assert_eq!(incoming.memory, 0);
    }
}
