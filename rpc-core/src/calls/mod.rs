//! The calls of this side that wait for an answer.

mod announced;
mod request;

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::announced::AnnouncedServices;
pub(crate) use self::request::{Answered, CallOptions, CallRequest, PushBack, Received};
use crate::access::{Accesses, Lending};
use crate::call_streams::{CallStreams, Ended, StreamTable};
use crate::compress::{self, CantUnpack, Unpacking};
use crate::decoding;
use crate::freeing::free_in_steps;
use crate::interface::Kind;
use crate::payload::{Loan, Payload};
use crate::proto::leftovers::Leftovers;
use crate::proto::message::{Head, Message};
use crate::proto::wire::{
    Content, FrameType, PLAIN_REQUEST, RequestHead, ResponseHead, ResponseKind, WireError, decode_status,
};
use crate::refusal::{refusal, too_large};
use crate::session::{Role, Sender, polls_at_once};
use crate::slots::{CallSlots, NeverMade, OpenError, Place, SlotOutcome, Slots, Ticket};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::BoxFuture;

/// The calls of this side, from their requests to their answers.
#[derive(Debug)]
pub(crate) struct Calls {
    sender: Arc<Sender>,
    streams: Arc<StreamTable>,
    unpacking: Arc<Unpacking>,
    accesses: Arc<Accesses>,
    slots: Arc<CallSlots>,
    announced: AnnouncedServices,
    /// Notified when a call begins while there is no other.
    pub(crate) begun: Notify,
    /// Notified when a call begins whose deadline is before all others.
    pub(crate) first_deadline: Notify,
}

/// A request, encoded.
enum Request {
    /// The head of a short request; the body follows it.
    Short([u8; PLAIN_REQUEST]),
    Long(Box<Message>),
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct SentRequest {
    pub(crate) call: u64,
    /// Whether the caller polls the link at once, before it is woken by anything.
    pub(crate) polls_at_once: bool,
    pub(crate) streams: Option<Arc<CallStreams>>,
    /// The memory that the call lends. The loan ends when this is dropped.
    pub(crate) lending: Option<Lending>,
}

/// The reason why a request was not sent. Nothing was executed.
#[derive(Debug)]
pub(crate) enum NotSent {
    /// The peer's limit of concurrent calls is reached, so the caller must [wait](Calls::wait_in_line) for a place.
    Full,
    For(Status),
}

impl From<Status> for NotSent {
    fn from(status: Status) -> Self {
        Self::For(status)
    }
}

impl Calls {
    pub(crate) fn new(
        sender: Arc<Sender>,
        streams: Arc<StreamTable>,
        unpacking: Arc<Unpacking>,
        accesses: Arc<Accesses>,
    ) -> Self {
        Self {
            sender,
            streams,
            unpacking,
            accesses,
            slots: Arc::new(Slots::new()),
            announced: AnnouncedServices::default(),
            begun: Notify::new(),
            first_deadline: Notify::new(),
        }
    }

    /// Sets how many concurrent calls the peer accepts.
    pub(crate) fn admit(&self, max_calls: u32) {
        self.slots.admit(max_calls as usize);
    }

    /// Sends a request, in a place that was waited for or in a free one, and registers the caller to be woken. The
    /// result must become a [`Pending`](crate::connection::Pending).
    pub(crate) fn send(
        &self,
        asked: &CallRequest<'_>,
        place: Option<Place>,
        cx: &mut TaskContext<'_>,
    ) -> Result<SentRequest, NotSent> {
        let request = self.request(asked)?;
        // Before the request is sent, because the server may use it at once.
        let mut lending = match asked.arguments.loans() {
            [] => None,
            loans => Some(self.lend(loans)?),
        };
        let (mut queued, mut streams) = (0, None);
        let queue = |id| {
            if let Some(CallOptions { kind, .. }) = asked.options {
                streams = self.streams.begin(id, *kind);
            }
            if let Some(lending) = &mut lending {
                lending.begin(id);
            }
            queued = match request {
                Request::Short(head) => {
                    self.sender.enqueue_small(FrameType::REQUEST, id, &head, asked.arguments.body())
                }
                Request::Long(mut message) => {
                    message.call = id;
                    self.sender.enqueue(*message)
                }
            };
        };
        let polls = polls_at_once(&self.sender);
        let opened = match self.slots.open(place.is_some(), asked.alarm, polls, cx, queue) {
            Ok(opened) => opened,
            Err(OpenError::Full) => return Err(NotSent::Full),
            Err(OpenError::For(why)) => return Err(why.with_executed(Executed::No).into()),
        };
        if let Some(place) = place {
            place.pass_on();
        }
        if opened.first_alarm {
            self.first_deadline.notify_one();
        }
        if opened.alone {
            self.begun.notify_one();
            self.sender.flush();
        } else if queued == 1 {
            // If others were queued, the first of them has asked for a flush already.
            self.sender.flush_soon();
        }
        Ok(SentRequest { call: opened.call, polls_at_once: polls && opened.alone, streams, lending })
    }

    /// Lends what the arguments of a call say.
    #[cold]
    fn lend(&self, loans: &[Loan]) -> Result<Lending, Status> {
        if !self.accesses.agreed() {
            return Err(refusal(Code::Unimplemented, "the server's farcall is too old for loans of memory"));
        }
        let taken_back =
            || refusal(Code::FailedPrecondition, "memory that the call lends was reclaimed before");
        self.accesses.lend(loans).ok_or_else(taken_back)
    }

    /// Returns the request of a call that has no number yet.
    fn request(&self, asked: &CallRequest<'_>) -> Result<Request, Status> {
        let terms = self.sender.terms();
        let Some(peer) = terms.peer() else {
            return Err(terms.status("no HELLO yet", Executed::No, Blame::Bug));
        };
        // Zero would mean "no deadline". The caller's own timer ends a call this late.
        let timeout_us =
            asked.left.map_or(0, |left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1));
        let service = self.announced.index(asked.service, &self.sender)?;
        let head = RequestHead { service, method: asked.method as u16, attempt: asked.attempt, timeout_us };
        let check = |len: usize| match len as u64 <= peer.max_message {
            true => Ok(()),
            false => Err(too_large("the arguments", len, peer.max_message, "the server's")),
        };
        if let (Some(len), None) = (asked.arguments.short_len(), asked.options)
            && !terms.compresses_by_default(len)
        {
            let head = head.encode_plain(len);
            check(head.len() + len as usize)?;
            return Ok(Request::Short(head));
        }
        let &CallOptions { kind, ref metadata, compression, .. } =
            asked.options.unwrap_or(const { &CallOptions::none() });
        if kind != Kind::Unary && !self.streams.agreed() {
            return Err(refusal(Code::Unimplemented, "the server's farcall is too old for streams"));
        }
        let metadata = terms.block_of_call(metadata)?;
        let payload = terms.compress(compression, asked.arguments.clone());
        let content = Content { metadata, payload };
        let head =
            Head::request(&head, &content).map_err(|why| refusal(Code::InvalidArgument, why.to_string()))?;
        let mut message = Message::with_payload(FrameType::REQUEST, 0, head, content.payload);
        if kind.streams_requests() {
            message.hold_back();
        }
        check(message.len())?;
        self.sender.stage(&mut message);
        Ok(Request::Long(Box::new(message)))
    }

    /// Ends a call without an answer, if it has not ended before.
    fn end_call(&self, call: u64, why: Status) {
        self.slots.end(call, Err(why)).into_iter().for_each(Waker::wake);
    }

    /// Returns why no more calls begin.
    pub(crate) fn refusing(&self) -> Option<Status> {
        self.slots.refusing()
    }

    /// Makes no more calls, for this reason. Waiters for a place are told.
    pub(crate) fn refuse(&self, status: Status) {
        self.slots.refuse(status).into_iter().for_each(Waker::wake);
    }

    /// Ends the calls that the server will not execute, because it accepts none after `last_call`.
    pub(crate) fn take_back(&self, last_call: u64, status: &Status) {
        let unsent = self.sender.change(|sending| sending.outbox.take_back(FrameType::REQUEST));
        let later = self.slots.waiting_after(last_call);
        for call in unsent.into_iter().chain(later) {
            self.end_call(call, status.clone());
        }
    }

    /// Ends every waiting call, each with whether it may have been executed.
    pub(crate) fn fail(&self, status: &Status) {
        self.streams.end_all(status);
        self.slots.close(status.clone()).into_iter().for_each(Waker::wake);
        // A request that was not sent whole by now never will be, and no handler sees a part of one. So "not executed"
        // is true.
        let (calls, unsent, gauge) = self.sender.change(|sending| {
            let (calls, unsent) = sending.outbox.close(FrameType::REQUEST);
            let mut gauge = sending.take_gauge(self.sender.account());
            gauge.set(unsent.memory());
            (calls, unsent, gauge)
        });
        match self.sender.terms().role {
            Role::Server => free_in_steps(unsent, gauge),
            // The caller may want its memory back as soon as it has the status.
            Role::Client => drop(unsent),
        }
        let unsent: HashSet<u64> = calls.into_iter().collect();
        for call in self.slots.waiting_after(0) {
            let certain = unsent.contains(&call) || status.executed() == Executed::No;
            let executed = if certain { Executed::No } else { Executed::Maybe };
            self.end_call(call, status.clone().with_executed(executed));
        }
    }

    /// Abandons a call whose answer nobody waits for any more. The peer is told the reason.
    pub(crate) fn forget(&self, call: u64, reason: u8) {
        let forgotten = self.slots.forget(call);
        let streams = self.streams.get(call);
        self.streams.end(call, Ended::gave_up);
        // An answer that is a stream may have begun, and must be cancelled, too.
        if forgotten == Some(true) || streams.as_ref().is_some_and(|streams| streams.is_answer()) {
            self.sender.cancel(call, reason, streams.is_some());
        }
        if forgotten.is_some() {
            // Free the slot only after CANCEL is queued. Otherwise the peer may briefly see one call more than its
            // limit.
            self.slots.give_back().wake();
        }
    }

    /// Records answers, and adds the wakers to wake when no lock is held.
    pub(crate) fn answer(
        &self,
        answers: impl Iterator<Item = (u64, Result<Bytes, Status>)>,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), WireError> {
        let answered = self.slots.answer(answers, wakers);
        answered.map_err(|NeverMade| WireError::new("response.call", "was never made"))
    }

    /// Checks the call of a loan that the peer accesses. A call that has ended is no offence, but no honest peer knows of one that was never
    /// made.
    pub(crate) fn check_lender(&self, call: u64) -> Result<(), WireError> {
        if self.slots.was_made(call) {
            return Ok(());
        }
        Err(WireError::new("access.loan", "is of a call that was never made"))
    }

    /// Waits for one of the peer's places for calls. If there is a ticket at the end, it must be handed
    /// [in](Self::leave_line).
    pub(crate) fn wait_in_line(
        &self,
        ticket: &mut Option<Ticket>,
        cx: &TaskContext<'_>,
    ) -> Poll<Result<Place, Status>> {
        self.slots.wait_in_line(ticket, cx).map(|waited| match waited {
            Ok(()) => Ok(Place::new(&self.slots)),
            Err(why) => Err(why.with_executed(Executed::No)),
        })
    }

    /// Leaves the line, or the place if one was granted meanwhile.
    pub(crate) fn leave_line(&self, ticket: Ticket) {
        self.slots.leave_line(ticket).wake();
    }

    /// Returns how a call has ended. If it has not, registers the caller to be woken when it has, or is late. With
    /// `keeps_place`, the call has its [place](Self::kept_place) after that, too.
    pub(crate) fn look(
        &self,
        call: u64,
        keeps_place: bool,
        cx: &TaskContext<'_>,
    ) -> Poll<SlotOutcome<Result<Bytes, Status>>> {
        let (found, next) = self.slots.poll(call, keeps_place, cx);
        next.wake();
        found
    }

    /// Has a call that is late wait until another time.
    pub(crate) fn extend(&self, call: u64, until: Instant) {
        if self.slots.extend(call, until) {
            self.first_deadline.notify_one();
        }
    }

    /// Returns the place of a call that keeps it.
    pub(crate) fn kept_place(&self) -> Place {
        Place::new(&self.slots)
    }

    /// Returns the highest number that a call was given.
    pub(crate) fn last(&self) -> u64 {
        self.slots.last()
    }

    /// Wakes the callers whose deadlines have passed. Returns when to do that again.
    pub(crate) fn wake_late(&self) -> Option<Instant> {
        let (late, next) = self.slots.find_late(Instant::now());
        late.into_iter().for_each(Waker::wake);
        next
    }

    /// Decodes a RESPONSE. A malformed one ends the connection; one that this side has no memory for fails its call. A long
    /// compressed one stays compressed, and must be [unpacked](unpack_apart) before it is used.
    pub(crate) fn understand(&self, message: Bytes, received: &mut Option<Box<Received>>) -> Answered {
        let understood = ResponseHead::decode_apart(message).and_then(|(head, metadata, mut payload)| {
            if let Some(block) = metadata {
                let compression = payload.compression();
                match self.sender.terms().read_answer_metadata(*block)? {
                    Ok(metadata) => *received = Some(Box::new(Received { metadata, compression })),
                    Err(status) => return Ok(Err(status)),
                }
                match self.unpack(payload)? {
                    Ok(packed) if packed.as_packed().is_some() => return Ok(Ok((head.kind, packed))),
                    Ok(plain) => payload = plain,
                    Err(status) => return Ok(Err(status)),
                }
            }
            Ok(match head.kind {
                ResponseKind::Status => {
                    let status = decode_status(payload.into_body())?;
                    Err(match received {
                        Some(received) => status.received_with(&received.metadata),
                        None => status,
                    })
                }
                kind => Ok((kind, payload)),
            })
        });
        understood.unwrap_or_else(|error| {
            if error.is_no_memory() {
                return Err(self.sender.terms().no_memory(error.what, Executed::Maybe));
            }
            self.sender.protocol_error(&error);
            Err(self.sender.terms().status(&error, Executed::Maybe, Blame::Peer))
        })
    }

    /// Whether any call has been answered.
    pub(crate) fn was_of_use(&self) -> bool {
        self.slots.has_answered()
    }

    /// Whether no call waits for its answer.
    pub(crate) fn is_idle(&self) -> bool {
        // A client waits for what a server streams.
        self.slots.is_empty() && (self.sender.terms().role == Role::Server || self.streams.is_empty())
    }

    /// Decompresses an answer, if necessary and unless it is long, in the task that waits for it.
    #[cold]
    fn unpack(&self, payload: Payload) -> Result<Result<Payload, Status>, WireError> {
        let Some(packed) = payload.as_packed() else { return Ok(Ok(payload)) };
        if let Err(too_long) = self.unpacking.admit(packed)? {
            return Ok(Err(too_long.status("the result", "the client's").with_executed(Executed::Maybe)));
        }
        if packed.unpacked_len() > decoding::VERY_LONG as u64 {
            return Ok(Ok(payload));
        }
        Ok(compress::unpack(payload).map_err(cant_unpack))
    }
}

/// Decompresses a long answer on another thread.
#[cold]
pub(crate) fn unpack_apart(kind: ResponseKind, payload: Payload) -> BoxFuture<Answered> {
    Box::pin(async move {
        let unpacked = decoding::apart(None, move || compress::unpack(payload)).await;
        Ok((kind, unpacked.map_err(cant_unpack)?))
    })
}

#[cold]
fn cant_unpack(why: CantUnpack) -> Status {
    why.status("the result")
}
