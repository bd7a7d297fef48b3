//! A caller's hold on its connection: its turn, its place, its call.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use tokio::time::Instant;

use super::{Connection, Moved};
use crate::access::Lending;
use crate::call_streams::{CallStreams, Ended};
use crate::calls::{Answered, Received, SentRequest, unpack_apart};
use crate::proto::wire::ResponseKind;
use crate::session::{BusyPolling, poll_at_once};
use crate::slots::{Place, SlotOutcome, Ticket};
use crate::status::Status;
use crate::transport::BoxFuture;

/// A wait for one of the peer's places for concurrent calls. Dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Line {
    connection: Arc<Connection>,
    ticket: Option<Ticket>,
}

impl Line {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, ticket: None }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Waits for a place. Fails once the connection takes no more calls.
    pub(crate) fn poll(&mut self, cx: &TaskContext<'_>) -> Poll<Result<Place, Status>> {
        self.connection.calls.wait_in_line(&mut self.ticket, cx)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.connection.calls.leave_line(ticket);
        }
    }
}

/// A call that was sent. Dropping it cancels the call, whose handler is dropped then.
#[derive(Debug)]
pub(crate) struct Pending {
    connection: Arc<Connection>,
    id: u64,
    /// The count of what the connection had [heard](Connection::heard) when the call was sent.
    heard: u64,
    /// Whether the answer has come, or the call was given up.
    done: bool,
    late: bool,
    /// Whether it must poll the link before it is woken by anything.
    polls_at_once: bool,
    polling: BusyPolling,
    extras: Option<Box<Extras>>,
}

/// State that most calls lack.
#[derive(Default)]
struct Extras {
    streams: Option<Arc<CallStreams>>,
    /// The memory that the call lends, until the call ends.
    lending: Option<Lending>,
    /// Metadata and compression of the answer.
    received: Received,
    /// The answer, while it is decompressed apart.
    unpacking: Option<BoxFuture<Answered>>,
}

impl fmt::Debug for Extras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { streams, lending, received, .. } = self;
        f.debug_struct("Extras")
            .field("streams", streams)
            .field("lending", lending)
            .field("received", received)
            .finish_non_exhaustive()
    }
}

impl Extras {
    /// Whether the answer is a stream, unless it is a refusal.
    fn is_stream(&self) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.is_answer())
    }
}

impl Pending {
    /// Returns the handle of a call that was just sent by this connection.
    pub(crate) fn new(connection: Arc<Connection>, sent: SentRequest, cx: &mut TaskContext<'_>) -> Self {
        let SentRequest { call, polls_at_once, streams, lending } = sent;
        let polling = BusyPolling::begin(&connection.sender, cx);
        let has_extras = streams.is_some() || lending.is_some();
        let extras = has_extras.then(|| Box::new(Extras { streams, lending, ..Extras::default() }));
        let heard = connection.heard();
        Self { connection, id: call, heard, done: false, late: false, polls_at_once, polling, extras }
    }

    pub(crate) fn streams(&self) -> Option<&Arc<CallStreams>> {
        self.extras.as_ref()?.streams.as_ref()
    }

    /// Whether the call must be polled now.
    pub(crate) fn polls_at_once(&self) -> bool {
        self.polls_at_once
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns the metadata and compression of the answer, if there are any.
    pub(crate) fn received(&self) -> Option<&Received> {
        self.extras.as_ref().map(|extras| &extras.received)
    }

    /// Takes the metadata and compression of the answer.
    pub(crate) fn take_received(&mut self) -> Received {
        self.extras.as_mut().map(|extras| std::mem::take(&mut extras.received)).unwrap_or_default()
    }

    /// Whether the answer has come, although [`poll`](Self::poll) may not have returned it, or the call was given up.
    pub(crate) fn has_answer(&self) -> bool {
        self.done
    }

    /// Whether [`poll`](Self::poll) has returned the answer, or the call was given up.
    pub(crate) fn is_done(&self) -> bool {
        self.done && self.extras.as_ref().is_none_or(|extras| extras.unpacking.is_none())
    }

    /// Whether the peer has sent nothing at all since the call was sent. A part of a frame counts.
    pub(crate) fn is_peer_silent(&self) -> bool {
        self.connection.heard() == self.heard && !self.connection.sender.stream().is_amid_frame()
    }

    /// Abandons the call and tells the peer the reason.
    pub(crate) fn give_up(&mut self, reason: u8) {
        self.done = true;
        if let Some(extras) = &mut self.extras {
            extras.unpacking = None;
        }
        self.end_loans();
        self.connection.calls.forget(self.id, reason);
        self.connection.close_if_drained();
    }

    /// Ends the loans of the call, before anybody can know that it has ended.
    fn end_loans(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.lending = None;
        }
    }

    /// Has a call that [is late](Self::is_late) wait until another time. It must be [polled](Self::poll) again.
    pub(crate) fn wait_until(&mut self, until: Instant) {
        self.late = false;
        self.connection.calls.extend(self.id, until);
    }

    /// Returns what has moved of the call so far.
    pub(crate) fn moved(&self) -> Moved {
        let extras = self.extras.as_ref();
        let mut moved = self.connection.moved(self.id, self.streams().map(|streams| &**streams));
        if let Some(lending) = extras.and_then(|extras| extras.lending.as_ref()) {
            moved.streams.lent = Some(lending.used());
        }
        moved
    }

    /// Whether the alarm of the call has gone off, so that the call must be [given up](Self::give_up), or
    /// [wait](Self::wait_until) longer.
    pub(crate) fn is_late(&self) -> bool {
        self.late
    }

    /// Returns the answer. Also pending if the call [is late](Self::is_late). Must not be called once it [is done](Self::is_done).
    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Answered> {
        if self.done {
            return self.poll_unpacked(cx);
        }
        if std::mem::take(&mut self.polls_at_once) {
            poll_at_once(&self.connection.sender, cx);
        }
        let mut polled = self.look(cx);
        if polled.is_pending() && !self.done && self.polling.poll() {
            polled = self.look(cx);
        }
        if polled.is_pending() {
            if self.done {
                return self.poll_unpacked(cx);
            }
            self.polling.again(cx);
        }
        polled
    }

    /// Waits until the answer is decompressed.
    #[cold]
    fn poll_unpacked(&mut self, cx: &mut TaskContext<'_>) -> Poll<Answered> {
        let Some(extras) = &mut self.extras else { return Poll::Pending };
        let Some(unpacking) = &mut extras.unpacking else { return Poll::Pending };
        let answered = ready!(unpacking.as_mut().poll(cx));
        extras.unpacking = None;
        if answered.is_err() && extras.is_stream() {
            // Nobody will read the stream that the answer began.
            self.connection.calls.forget(self.id, 0);
        }
        Poll::Ready(answered)
    }

    /// Looks whether there is an answer. Pending, but [has one](Self::has_answer): it is [unpacked](Self::poll_unpacked) apart.
    fn look(&mut self, cx: &TaskContext<'_>) -> Poll<Answered> {
        let Self { connection, id, extras, .. } = self;
        let keeps_place = extras.as_ref().is_some_and(|extras| extras.is_stream());
        let message = match connection.calls.look(*id, keeps_place, cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(SlotOutcome::Late) => {
                self.late = true;
                return Poll::Pending;
            }
            Poll::Ready(SlotOutcome::End(message)) => message,
        };
        self.done = true;
        let mut received = None;
        let answered = message.and_then(|message| connection.calls.understand(message, &mut received));
        let polled = match extras.is_some() || received.is_some() {
            true => self.answered(answered, received),
            false => Poll::Ready(answered),
        };
        self.connection.close_if_drained();
        polled
    }

    /// Stores the metadata of the answer. Returns the answer, unless it must be unpacked apart.
    #[cold]
    fn answered(&mut self, answered: Answered, received: Option<Box<Received>>) -> Poll<Answered> {
        self.store(&answered, received);
        match answered {
            Ok((kind, payload)) if payload.as_packed().is_some() => {
                let extras = self.extras.get_or_insert_default();
                extras.unpacking = Some(unpack_apart(kind, payload));
                Poll::Pending
            }
            answered => Poll::Ready(answered),
        }
    }

    /// Stores the metadata of the answer. A call keeps its place while its answer is a stream.
    fn store(&mut self, answered: &Answered, received: Option<Box<Received>>) {
        let Self { connection, id, extras, .. } = self;
        let extras = extras.get_or_insert_default();
        extras.received = received.map_or_else(Received::default, |received| *received);
        let lending = extras.lending.take();
        let Some(streams) = &extras.streams else { return };
        let place = streams.is_answer().then(|| connection.calls.kept_place());
        match (answered, place) {
            (Ok((ResponseKind::Ok, _)), Some(place)) => streams.keep(place, lending),
            (_, place) => {
                drop(place);
                connection.streams.end(*id, Ended::gave_up);
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_done() {
            self.connection.calls.forget(self.id, 0);
            self.connection.close_if_drained();
        }
    }
}
