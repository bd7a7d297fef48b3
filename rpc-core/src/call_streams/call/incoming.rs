//! The stream of a call that this side receives.

use std::collections::VecDeque;
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::{Bytes, BytesMut};

use super::CallStreams;
use crate::memory::Gauge;
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::message::Message;
use crate::proto::stream::RecvHalf;
use crate::proto::wire::{EndReason, FrameType, Stop, Window};
use crate::slots::exchange;
use crate::status::{Blame, Code, Executed, Status};

/// The stream that this side receives.
pub(super) struct Incoming {
    pub(super) half: RecvHalf,
    pub(super) first: Window,
    /// ITEMs as they arrived.
    pub(super) queue: VecDeque<Bytes>,
    /// The sum of their lengths.
    pub(super) queued: usize,
    pub(super) gauge: Gauge,
    pub(super) end: Option<Ended>,
    pub(super) waker: Option<Waker>,
}

impl Incoming {
    pub(super) fn new(first: Window, gauge: Gauge) -> Self {
        let (half, queue) = (RecvHalf::new(first), VecDeque::new());
        Self { half, first, queue, queued: 0, gauge, end: None, waker: None }
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
    /// Returns the next ITEM, or how the stream has ended.
    pub(in crate::call_streams) fn next(&self, cx: &TaskContext<'_>) -> Poll<Result<Bytes, Ended>> {
        let _before;
        let mut state = self.state();
        let Some(incoming) = &mut state.incoming else { return Poll::Ready(Err(Ended::gave_up())) };
        if let Some(item) = incoming.queue.pop_front() {
            incoming.queued -= item.len();
            incoming.gauge.set(incoming.queued);
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
        incoming.queued = 0;
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
