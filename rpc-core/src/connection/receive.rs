//! The path of incoming messages: from a link, through the inbox, to the component that handles them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::batch::{Action, ReceiveBatch};
use super::pings::Pings;
use super::{Connection, Role};
use crate::dispatch::{Dispatch, ENOUGH, RemoteServices};
use crate::memory::{Account, Gauge, Use};
use crate::proto::inbox::{Arrived, Inbox, Limits, Lost, Order, Taken};
use crate::proto::outbox::{NotSent, Route};
use crate::proto::upgrade_state::UpgradeState;
use crate::proto::wire::{
    Access, Accessed, Cancel, CloseCode, Done, FrameType, Goaway, Header, Up, WireError,
};
use crate::session::InOrder;
use crate::status::{Blame, Executed};
use crate::transport::LinkEnd;

/// The state of receiving, under one lock under which no user code runs.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) inbox: Inbox,
    pub(super) upgrade_state: UpgradeState,
    /// The waiter for the ANSWER to our OFFER.
    pub(super) answer: Option<oneshot::Sender<Bytes>>,
    /// The task that prepares the link of the current attempt.
    pub(super) attempt: Option<AbortHandle>,
    pub(super) pings: Pings,
    pub(super) in_order: InOrder,
    announced: RemoteServices,
    last_call: u64,
    /// The memory of the inbox.
    gauge: Gauge,
    /// The memory of the stream link's buffers.
    buffers: Gauge,
}

impl Receiving {
    pub(super) fn new(limits: Limits, account: &Arc<Account>) -> Self {
        Self {
            inbox: Inbox::new(limits),
            upgrade_state: UpgradeState::default(),
            answer: None,
            attempt: None,
            pings: Pings::default(),
            in_order: InOrder::new(),
            announced: RemoteServices::new(account),
            last_call: 0,
            gauge: Gauge::new(account, Use::Partial),
            buffers: Gauge::new(account, Use::Partial),
        }
    }

    /// Counts the memory of the stream link's buffers, in bytes.
    #[cold]
    pub(super) fn set_buffers(&mut self, bytes: usize) {
        self.buffers.set(bytes);
    }

    /// Counts the memory of the inbox. Returns whether there is any: a message has arrived in part.
    #[inline]
    pub(super) fn measure(&mut self) -> bool {
        let memory = self.inbox.memory();
        self.gauge.set(memory);
        memory > 0
    }

    /// Takes out the messages that have arrived in part, and the gauge that counts them.
    pub(super) fn clear(&mut self, account: &Arc<Account>) -> (Inbox, Gauge) {
        (self.inbox.clear(), std::mem::replace(&mut self.gauge, Gauge::new(account, Use::Partial)))
    }

    /// Records the number of a REQUEST's call.
    #[inline(always)]
    fn note_call(&mut self, call: u64) -> Result<(), WireError> {
        // Not "not above the last one", because calls of several threads may overtake each other.
        if call == 0 || call >> 63 != 0 {
            return Err(WireError::new("request.call", "is not a client's"));
        }
        self.last_call = self.last_call.max(call);
        Ok(())
    }

    /// Returns the highest call of the peer that was received.
    pub(super) fn last_call(&self) -> u64 {
        self.last_call
    }
}

impl Connection {
    pub(super) fn on_frames(
        &self,
        route: Route,
        frames: &mut impl Iterator<Item = (Header, Bytes)>,
    ) -> Result<(), WireError> {
        let mut next = frames.next();
        while let Some((header, payload)) = next {
            if header.kind.is_link() {
                self.on_link_frame(route, &header, payload)?;
                next = frames.next();
                continue;
            }
            // Requests and responses are many, and independent of what earlier ones ask for, so they are batched.
            let mut left = if is_call(header.kind) { ENOUGH } else { 1 };
            next = self.take_in(|receiving, batch| {
                let mut frame = (header, payload);
                loop {
                    self.on_session_frame(route, receiving, batch, frame.0, frame.1)?;
                    left -= 1;
                    frame = match frames.next() {
                        Some(next) if left > 0 && is_call(next.0.kind) => next,
                        // The next frame does not belong to this batch.
                        next => return Ok(next),
                    };
                }
            })?;
        }
        Ok(())
    }

    // This function and its callees are inlined into one, and take headers by value. Otherwise each frame would be
    // passed through memory at every step.
    #[inline(always)]
    fn on_session_frame(
        &self,
        route: Route,
        receiving: &mut Receiving,
        batch: &mut ReceiveBatch,
        header: Header,
        payload: Bytes,
    ) -> Result<(), WireError> {
        if self.sender.terms().peer().is_none() {
            return Err(WireError::new("hello", "is not the first frame"));
        }
        match receiving.inbox.order(route, &header)? {
            Order::Next => self.take(receiving, batch, header, payload),
            Order::Hold => {
                let fits = receiving.inbox.hold(header, payload);
                if let (false, Route::Upgraded(epoch)) = (fits, route) {
                    batch.actions.push(Action::Fall(epoch));
                }
                Ok(())
            }
            Order::Discard => Ok(()),
        }
    }

    #[inline(always)]
    fn take(
        &self,
        receiving: &mut Receiving,
        batch: &mut ReceiveBatch,
        header: Header,
        payload: Bytes,
    ) -> Result<(), WireError> {
        self.note_acknowledged(header.rx_seq)?;
        if header.flags != 0 || !is_call(header.kind) {
            return self.take_any(receiving, batch, header, payload);
        }
        // The common case.
        receiving.inbox.take_whole(&header, payload.len())?;
        self.sender.note_received(header.seq);
        let arrived = Arrived { kind: header.kind, call: header.call, bytes: payload };
        self.interpret(receiving, batch, arrived)
    }

    #[cold]
    fn take_any(
        &self,
        receiving: &mut Receiving,
        batch: &mut ReceiveBatch,
        header: Header,
        payload: Bytes,
    ) -> Result<(), WireError> {
        receiving.inbox.set_room(self.sender.account().room());
        let taken = receiving.inbox.take(&header, payload)?;
        self.sender.note_received(header.seq);
        self.on_taken(receiving, batch, taken)
    }

    fn on_taken(
        &self,
        receiving: &mut Receiving,
        batch: &mut ReceiveBatch,
        taken: Taken,
    ) -> Result<(), WireError> {
        match taken {
            Taken::Part => {}
            Taken::Message(arrived) => self.interpret(receiving, batch, arrived)?,
            Taken::Lost(lost) => self.on_lost(receiving, batch, lost)?,
            // The upgraded link can't have been replaced yet, because that takes this lock, too.
            Taken::Described(described) => {
                let Some(link) = self.sender.upgraded() else { return Ok(()) };
                let described = Box::new(described);
                batch.actions.push(if self.sender.account().judge().is_some() {
                    receiving.inbox.defer(described.seq);
                    Action::PullLater(link, described)
                } else {
                    Action::Pull(link, described)
                });
            }
        }
        Ok(())
    }

    /// Handles the peer's UP: its frames come by the new link from now on, and some may have arrived already.
    pub(super) fn on_up(&self, up: Up) -> Result<(), WireError> {
        // All under one lock, so that later frames of the link come after these.
        self.take_in(|receiving, batch| {
            if up.epoch > receiving.upgrade_state.epoch() {
                return Err(WireError::new("up.epoch", "was never offered"));
            }
            if !receiving.upgrade_state.is_usable(up.epoch) {
                return Ok(());
            }
            let route = Route::Upgraded(up.epoch);
            for (header, payload) in receiving.inbox.up(up)? {
                receiving.inbox.order(route, &header)?;
                self.take(receiving, batch, header, payload)?;
            }
            Ok(())
        })
    }

    pub(super) fn on_filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        self.take_in(|receiving, batch| {
            receiving.inbox.order(Route::Stream, &header)?;
            self.note_acknowledged(header.rx_seq)?;
            let taken = receiving.inbox.filled(&header, buffer)?;
            self.sender.note_received(header.seq);
            self.on_taken(receiving, batch, taken)
        })
    }

    /// Handles a message for which there was no memory. If it is a REQUEST or a RESPONSE, its call ends. Without any
    /// other message the session can't continue.
    #[cold]
    fn on_lost(
        &self,
        receiving: &mut Receiving,
        batch: &mut ReceiveBatch,
        lost: Lost,
    ) -> Result<(), WireError> {
        let Lost { kind, call, total } = lost;
        let status =
            |executed| self.sender.terms().no_memory(format_args!("a message of {total} bytes"), executed);
        match kind {
            FrameType::REQUEST => {
                receiving.note_call(call)?;
                self.serving("request")?.push_refused(&mut batch.jobs, call, status(Executed::No));
            }
            FrameType::RESPONSE => batch.answers.push((call, Err(status(Executed::Maybe)))),
            FrameType::ACCESS => batch.actions.push(Action::Refuse(call)),
            FrameType::ACCESSED => {
                batch.actions.push(Action::Accessed(call, Box::new(Err(status(Executed::Maybe)))));
            }
            _ => batch.actions.push(Action::Fail(Box::new(status(Executed::Maybe)))),
        }
        Ok(())
    }

    /// Handles the acknowledgement that every header carries, on whichever link.
    #[inline(always)]
    pub(super) fn note_acknowledged(&self, rx_seq: u32) -> Result<(), WireError> {
        let acknowledged = self.sender.on_acknowledged(rx_seq);
        acknowledged.map_err(|NotSent| WireError::new("header.rx_seq", "acknowledges what was never sent"))
    }

    #[inline(always)]
    pub(super) fn interpret(
        &self,
        receiving: &mut Receiving,
        batch: &mut ReceiveBatch,
        Arrived { kind, call, bytes }: Arrived,
    ) -> Result<(), WireError> {
        match kind {
            FrameType::REQUEST => {
                receiving.note_call(call)?;
                self.serving("request")?.push(&receiving.announced, &mut batch.jobs, call, bytes)?;
            }
            FrameType::RESPONSE => batch.answers.push((call, Ok(bytes))),
            _ => self.interpret_other(receiving, batch, Arrived { kind, call, bytes })?,
        }
        Ok(())
    }

    #[cold]
    fn interpret_other(
        &self,
        receiving: &mut Receiving,
        batch: &mut ReceiveBatch,
        Arrived { kind, call, bytes }: Arrived,
    ) -> Result<(), WireError> {
        match kind {
            FrameType::BIND => {
                self.serving("bind")?.bind(&mut receiving.announced, bytes)?;
            }
            FrameType::CANCEL if self.role() == Role::Client => {
                return Err(WireError::new("cancel", "comes from a server"));
            }
            FrameType::CANCEL => {
                Cancel::decode(bytes)?;
                receiving.inbox.cancel(call);
                // The calls that came before it must be in the table.
                self.begin(receiving, batch)?;
                let running =
                    self.serving("cancel")?.cancel(&mut receiving.in_order, call, &mut batch.wakers);
                batch.actions.extend(running.map(Action::Abort));
            }
            FrameType::DONE => self.on_done(receiving, Done::decode(bytes)?)?,
            FrameType::GOAWAY if self.role() == Role::Server => {
                return Err(WireError::new("goaway", "comes from a client"));
            }
            FrameType::GOAWAY => batch.actions.push(Action::Goaway(Goaway::decode(bytes)?)),
            kind if kind.is_of_stream() => {
                let last_of_peer = receiving.last_call;
                let last = || match self.role() {
                    Role::Server => last_of_peer,
                    Role::Client => self.calls.last(),
                };
                if self.streams.take_in(
                    &mut receiving.in_order,
                    kind,
                    call,
                    bytes,
                    last,
                    &mut batch.wakers,
                )? {
                    batch.actions.push(Action::StreamOver);
                }
            }
            kind if kind.is_of_access() && self.accesses.agreed() => {
                self.on_access(&mut batch.actions, kind, call, bytes)?;
            }
            kind if kind.is_ignorable() => {}
            _ => return Err(WireError::new("header.type", "is not one that was agreed on")),
        }
        Ok(())
    }

    #[cold]
    fn on_access(
        &self,
        actions: &mut Vec<Action>,
        kind: FrameType,
        number: u64,
        bytes: Bytes,
    ) -> Result<(), WireError> {
        actions.push(match kind {
            FrameType::ACCESSED => Action::Accessed(number, Box::new(Ok(Accessed::decode(bytes)?))),
            _ => {
                self.accesses.check_number(number)?;
                match self.accesses.noted(Access::decode(bytes)?)? {
                    Some(access) => Action::Serve(number, Box::new(access)),
                    None => return Ok(()),
                }
            }
        });
        Ok(())
    }

    /// Returns the component that serves calls. Fails on a side that serves none, which must not get frames of this
    /// kind.
    #[inline]
    fn serving(&self, what: &'static str) -> Result<&Dispatch, WireError> {
        self.dispatch.as_deref().ok_or_else(|| WireError::new(what, "goes to a side that serves nothing"))
    }

    pub(super) fn on_stream_closed(&self, end: &LinkEnd) {
        if end.malformed {
            self.close_as(CloseCode::Protocol, self.status(end, Executed::Maybe, Blame::Peer));
        } else {
            self.end(self.status(end, Executed::Maybe, Blame::Peer));
            self.sender.stream().close();
        }
        self.sender.meter().tell_now(&self.sender);
    }

    /// Closes the connection because the peer broke the protocol, or because this side has no memory for a frame. None of the
    /// later frames can be trusted, or read in order.
    pub(super) fn protocol_error(&self, error: &WireError) {
        if error.is_no_memory() {
            let status = self.sender.terms().no_memory(error.what, Executed::Maybe);
            tracing::warn!(peer = ?self.peer(), %error, "no memory for a frame; closing the connection");
            return self.close_as(CloseCode::Internal, status);
        }
        tracing::warn!(peer = ?self.peer(), %error, "the peer broke the protocol; closing the connection");
        let detail = format!("the peer broke the protocol ({error}); is it of the same version?");
        self.close_as(CloseCode::Protocol, self.status(detail, Executed::Maybe, Blame::Peer));
    }
}

/// Whether a call begins or ends with messages of this type.
fn is_call(kind: FrameType) -> bool {
    matches!(kind, FrameType::REQUEST | FrameType::RESPONSE)
}
