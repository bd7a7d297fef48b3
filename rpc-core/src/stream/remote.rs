//! A stream that comes by a connection.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context as TaskContext, Poll, ready};

use tokio::time::{Instant, Sleep};

use super::end::{End, deadline_passed, undecoded};
use super::read_item::{ReadApart, ReadItem};
use super::{EndReason, ReadError};
use crate::call_streams::{Ended, NextItem, Reader};
use crate::connection::Connection;
use crate::context::{Parent, parent_ended};
use crate::progress_watch::ProgressAlarm;
use crate::status::Status;
use crate::transport::BoxFuture;

/// A stream that comes by a connection.
pub(super) struct Remote<T, E> {
    pub(super) reader: Reader,
    /// Set for a client's call only.
    pub(super) connection: Weak<Connection>,
    pub(super) item: ReadItem<T>,
    /// The item that is decoded apart, if it is long. The reader has none meanwhile.
    pub(super) apart: Option<BoxFuture<ReadApart<T>>>,
    pub(super) error: ReadError<E>,
    /// Whether this is a client's answer, whose end ends the call.
    pub(super) is_answer: bool,
    pub(super) alarm: Option<Pin<Box<Sleep>>>,
    /// The limit of time in which nothing of the call moves.
    pub(super) progress: Option<ProgressAlarm>,
    /// The parent of its call, unless that is the handler that reads it.
    pub(super) parent: Option<Parent>,
}

impl<T, E: From<Status>> Remote<T, E> {
    /// Returns the next item of the current message.
    #[inline]
    pub(super) fn next(&mut self, cx: &mut TaskContext<'_>) -> NextItem<'_, Box<End<E>>> {
        if self.parent.as_ref().is_some_and(Parent::has_ended) {
            return Poll::Ready(Some(Err(self.cut_short())));
        }
        let (error, alarm) = (self.error, &self.alarm);
        let next = ready!(self.reader.next(cx));
        Poll::Ready(next.map(|next| next.map_err(|ended| End::of(ended, error, has_passed(alarm)))))
    }

    /// Starts to decode the [next](Self::next) item apart. [`poll`](Self::poll) returns it.
    #[cold]
    pub(super) fn read_apart(&mut self) {
        let table = self.reader.streams().table().filter(|_| !self.is_answer);
        let host = table.map(|table| table.sender().account().turn());
        self.apart = Some(self.item.apart(self.reader.take_items(), host));
    }

    /// Waits for the item that is decoded apart, or for more [items](Self::next). `Err`: how the stream has ended.
    pub(super) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<Option<T>, Box<End<E>>>> {
        let polled = match &mut self.apart {
            Some(apart) => apart.as_mut().poll(cx).map(|(items, item)| {
                self.reader.go_on_with(items);
                self.apart = None;
                item.map(Some).map_err(|error| undecoded(&error))
            }),
            None => self.reader.poll(cx).map(|polled| match polled {
                Ok(()) => Ok(None),
                Err(ended) => Err(End::of(ended, self.error, has_passed(&self.alarm))),
            }),
        };
        match polled {
            Poll::Ready(_) if self.parent.as_ref().is_some_and(Parent::has_ended) => {}
            Poll::Ready(polled) => return Poll::Ready(polled),
            Poll::Pending => {
                let late = self.alarm.as_mut().is_some_and(|alarm| alarm.as_mut().poll(cx).is_ready());
                let parent_cancelled =
                    self.parent.as_mut().is_some_and(|parent| parent.poll_ended(cx).is_ready());
                if !late && !parent_cancelled {
                    return self.poll_progress(cx).map(Err);
                }
            }
        }
        Poll::Ready(Err(self.cut_short()))
    }

    /// Ready once nothing of the call has moved for too long.
    fn poll_progress(&mut self, cx: &mut TaskContext<'_>) -> Poll<Box<End<E>>> {
        let Some(alarm) = &mut self.progress else { return Poll::Pending };
        let (streams, connection) = (self.reader.streams(), &self.connection);
        let moved = || Some(connection.upgrade()?.moved(streams.call(), Some(streams)));
        let status = ready!(alarm.poll(cx, moved));
        Poll::Ready(Box::new(End::failed(EndReason::Deadline, status)))
    }

    /// Returns the end of a stream whose deadline has passed, or whose parent call has ended early.
    #[cold]
    fn cut_short(&self) -> Box<End<E>> {
        Box::new(match has_passed(&self.alarm) {
            true => End::failed(EndReason::Deadline, deadline_passed()),
            false => End::failed(EndReason::Cancelled, parent_ended()),
        })
    }
}

impl<T, E> Remote<T, E> {
    /// Tells the peer that this side reads no more.
    pub(super) fn give_up(&self, reason: u8) {
        let streams = self.reader.streams();
        let Some(table) = streams.table() else { return };
        if self.is_answer {
            table.give_up_answer(streams.call(), reason, Ended::gave_up());
        } else if streams.stop() {
            table.sender().flush_soon();
        }
    }
}

/// Whether the deadline that a call's alarm is set to has passed.
fn has_passed(alarm: &Option<Pin<Box<Sleep>>>) -> bool {
    alarm.as_ref().is_some_and(|alarm| alarm.deadline() <= Instant::now())
}
