//! The calls that wait on this side for an answer.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::metadata::block_of_call;
use super::pending::Place;
use super::slots::{Refused, Slots};
use super::streams::{self, CallStreams, Ended, Source};
use super::{Connection, Role};
use crate::compress::Compression;
use crate::context::Parent;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::Payload;
use crate::proto::message::{Head, Message};
use crate::proto::wire::{
    Bind, BindMethod, CloseCode, Content, FrameType, Goaway, MAX_BIND_BYTES, PLAIN_REQUEST, RequestHead,
    ResponseHead, Verdict, decode_status,
};
use crate::service::{Kind, ServiceInfo};
use crate::status::{Blame, Code, Executed, Status};
use crate::sync::lock;

/// An answer, or why there is none.
pub(crate) type Answered = Result<(Verdict, Payload), Status>;

/// The services that were announced to the peer; the index is the one on the wire.
#[derive(Debug, Default)]
struct Announced {
    services: Vec<Arc<ServiceInfo>>,
    /// The BINDs of all of them, in bytes.
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Calls {
    /// Where they wait for a RESPONSE, or for what came instead.
    pub(super) slots: Slots<Result<Bytes, Status>, Status>,
    announced: Mutex<Announced>,
    /// The first of them, which on many connections is the only one.
    first: OnceLock<Arc<ServiceInfo>>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self { slots: Slots::new(), announced: Mutex::default(), first: OnceLock::new() }
    }

    pub(super) fn admit(&self, max_calls: u32) {
        self.slots.admit(max_calls as usize);
    }
}

/// What a call asks for.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) service: &'a Arc<ServiceInfo>,
    pub(crate) method: usize,
    pub(crate) arguments: &'a Payload,
    pub(crate) deadline: Option<Instant>,
    /// How long that is from now.
    pub(crate) left: Option<Duration>,
    pub(crate) attempt: u8,
    pub(crate) rare: Option<&'a Rare>,
}

/// What most calls lack: in a box, so that it costs these no more than to look for it.
pub(crate) struct Rare {
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
    /// The stream of arguments, until it is sent.
    pub(crate) items: Option<Box<dyn Source>>,
    /// `None`: as its caller does.
    pub(crate) waits_for_ready: Option<bool>,
    /// Why there is no connection that the call waits for.
    pub(crate) not_connected: Option<Status>,
    /// What it is made for, unless that is the handler that polls it.
    pub(crate) parent: Option<Parent>,
    /// `None`: as its channel is set.
    pub(crate) compression: Option<Compression>,
}

/// What came with an answer.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) metadata: AnswerMetadata,
    pub(crate) compression: Compression,
}

impl Rare {
    /// Of a call that is unary and has no more.
    pub(crate) const fn none() -> Self {
        Self {
            kind: Kind::Unary,
            metadata: Metadata::new(),
            items: None,
            waits_for_ready: None,
            not_connected: None,
            parent: None,
            compression: None,
        }
    }

    /// What a call has of it, or is to have.
    pub(crate) fn of(rare: &mut Option<Box<Self>>) -> &mut Self {
        rare.get_or_insert_with(|| Box::new(Self::none()))
    }

    /// Whether the request says something of it.
    pub(crate) fn is_sent(&self) -> bool {
        self.kind != Kind::Unary || !self.metadata.is_empty() || self.compression.is_some()
    }

    /// The same for the same call again, without the stream.
    pub(crate) fn without_items(&self) -> Self {
        let Self { kind, waits_for_ready, compression, .. } = *self;
        Self { kind, waits_for_ready, compression, metadata: self.metadata.clone(), ..Self::none() }
    }
}

impl fmt::Debug for Rare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rare").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// What is to be sent.
enum Request {
    /// What goes before the body, which is short.
    Short([u8; PLAIN_REQUEST]),
    Long(Box<Message>),
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(super) call: u64,
    /// Its caller looks for the answer at once, and is told of nothing before.
    pub(super) looks: bool,
    pub(super) streams: Option<Arc<CallStreams>>,
}

/// Why a request was not sent. Nothing was executed.
#[derive(Debug)]
pub(crate) enum NotSent {
    /// The peer takes no more calls at once: one must [wait](super::Line) for a place.
    Full,
    For(Status),
}

impl From<Status> for NotSent {
    fn from(status: Status) -> Self {
        Self::For(status)
    }
}

impl Connection {
    /// Sends a request, in a place that was waited for or in one that is free, and has the caller woken when there is
    /// something to poll for. What it gives must become a [`Pending`](super::Pending).
    pub(crate) fn call(
        &self,
        asked: &Asked<'_>,
        place: Option<Place>,
        cx: &mut TaskContext<'_>,
    ) -> Result<Sent, NotSent> {
        let request = self.request(asked)?;
        let (mut queued, mut streams) = (0, None);
        let queue = |id| {
            if let Some(Rare { kind, .. }) = asked.rare {
                streams = self.begin_streams(id, *kind);
            }
            queued = match request {
                Request::Short(head) => {
                    self.sender.enqueue_short(FrameType::REQUEST, id, &head, asked.arguments.body())
                }
                Request::Long(mut message) => {
                    message.call = id;
                    self.sender.enqueue(*message)
                }
            };
        };
        let looks = self.looks();
        let opened = match self.calls.slots.open(place.is_some(), asked.deadline, looks, cx, queue) {
            Ok(opened) => opened,
            Err(Refused::Full) => return Err(NotSent::Full),
            Err(Refused::For(why)) => return Err(why.with_executed(Executed::No).into()),
        };
        if let Some(place) = place {
            place.pass_on();
        }
        if opened.first_alarm {
            self.deadlines.notify_one();
        }
        if opened.alone {
            self.keeper.notify_one();
            self.sender.flush();
        } else if queued == 1 {
            // Where there were others, the first of them has seen to it.
            self.sender.flush_soon();
        }
        Ok(Sent { call: opened.call, looks: looks && opened.alone, streams })
    }

    /// The request of a call that has no number yet.
    fn request(&self, asked: &Asked<'_>) -> Result<Request, Status> {
        let Some(peer) = self.sender.peer() else {
            return Err(self.status("no HELLO yet", Executed::No, Blame::Bug));
        };
        // Zero would be "no deadline"; the caller's own timer ends a call this late.
        let remaining_us =
            asked.left.map_or(0, |left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1));
        let service = self.bind(asked.service, peer.max_message)?;
        let head = RequestHead { service, method: asked.method as u16, attempt: asked.attempt, remaining_us };
        let check = |len: usize| match len as u64 <= peer.max_message {
            true => Ok(()),
            false => Err(too_large("the arguments", len, peer.max_message, "the server's")),
        };
        if let (Some(len), None) = (asked.arguments.short_len(), asked.rare)
            && !self.packs(len)
        {
            let head = head.encode_plain(len);
            check(head.len() + len as usize)?;
            return Ok(Request::Short(head));
        }
        let &Rare { kind, ref metadata, compression, .. } = asked.rare.unwrap_or(const { &Rare::none() });
        if kind != Kind::Unary && !streams::agreed(peer) {
            return Err(refused(Code::Unimplemented, "the server's farcall is too old for streams"));
        }
        let metadata = block_of_call(metadata, peer)?;
        let payload = self.packed(compression, asked.arguments.clone());
        let content = Content { metadata, payload };
        let head =
            Head::request(&head, &content).map_err(|why| refused(Code::InvalidArgument, why.to_string()))?;
        let mut message = Message::with_payload(FrameType::REQUEST, 0, head, content.payload);
        if kind.streams_requests() {
            message.hold_back();
        }
        check(message.len())?;
        self.sender.stage(&mut message);
        Ok(Request::Long(Box::new(message)))
    }

    /// The index of a service on this connection; announces it if it was not yet.
    fn bind(&self, service: &Arc<ServiceInfo>, max_message: u64) -> Result<u16, Status> {
        if self.calls.first.get().is_some_and(|first| Arc::ptr_eq(first, service)) {
            return Ok(0);
        }
        let mut announced = lock(&self.calls.announced);
        let known = announced.services.iter().position(|s| Arc::ptr_eq(s, service) || **s == **service);
        if let Some(index) = known {
            return Ok(index as u16);
        }
        let Ok(index) = u16::try_from(announced.services.len()) else {
            return Err(refused(Code::ResourceExhausted, "more than 65536 services on one connection"));
        };
        service.check().map_err(|why| refused(Code::InvalidArgument, why))?;
        let methods = service.methods.iter().map(|m| BindMethod {
            hash: m.hash(),
            kind: m.kind as u8,
            fingerprint: m.fingerprint,
        });
        let bind = Bind {
            service: index,
            name: service.name.to_string(),
            codec: service.codec.to_owned(),
            methods: methods.collect(),
        };
        let mut head = BytesMut::new();
        bind.encode(&mut head);
        if head.len() as u64 > max_message {
            let what = format!("the names and methods of service `{}`", service.name);
            return Err(too_large(&what, head.len(), max_message, "the server's"));
        }
        if announced.bytes + head.len() > MAX_BIND_BYTES {
            let message = "the services called on one connection have more than 1 MiB of names and methods";
            return Err(refused(Code::ResourceExhausted, message));
        }
        announced.bytes += head.len();
        announced.services.push(service.clone());
        // Queued under this lock: no call can name the index before its BIND is in the queue.
        if self.sender.enqueue(Message::new(FrameType::BIND, 0, head.freeze())) == 1 {
            self.sender.flush_soon();
        }
        self.calls.first.get_or_init(|| service.clone());
        Ok(index)
    }

    /// A call ends without an answer, if it has not ended before.
    fn end_call(&self, call: u64, why: Status) {
        self.calls.slots.end(call, Err(why)).into_iter().for_each(Waker::wake);
    }

    /// The server is going: begins no more calls, and takes back those that it will not, or need not, execute.
    pub(super) fn on_goaway(&self, goaway: &Goaway) {
        self.start_draining();
        let detail = format!("the server is draining: {}", goaway.reason);
        let status = self.status(detail, Executed::No, Blame::Environment);
        self.calls.slots.refuse(status.clone()).into_iter().for_each(Waker::wake);
        let unsent = self.sender.change(|sending| sending.outbox.take_back(FrameType::REQUEST));
        let later = self.calls.slots.waiting_after(goaway.last_call);
        for call in unsent.into_iter().chain(later) {
            self.end_call(call, status.clone());
        }
    }

    /// Ends every call that waits, saying of each whether it may have been executed.
    pub(super) fn fail_calls(&self, status: &Status) {
        self.fail_streams(status);
        self.calls.slots.close(status.clone()).into_iter().for_each(Waker::wake);
        // What has not left whole by now never does, and no handler sees a part: that makes "not executed" true.
        let unsent = self.sender.change(|sending| sending.outbox.close(FrameType::REQUEST));
        let unsent: HashSet<u64> = unsent.into_iter().collect();
        for call in self.calls.slots.waiting_after(0) {
            let certain = unsent.contains(&call) || status.executed() == Executed::No;
            let executed = if certain { Executed::No } else { Executed::Maybe };
            self.end_call(call, status.clone().with_executed(executed));
        }
    }

    pub(super) fn forget(&self, call: u64, reason: u8) {
        let forgotten = self.calls.slots.forget(call);
        let streams = self.streams.get(call);
        self.end_streams(call, Ended::gave_up);
        // An answer that is a stream may have begun, and goes on.
        if forgotten == Some(true) || streams.as_ref().is_some_and(|streams| streams.is_answer()) {
            self.sender.cancel(call, reason, streams.is_some());
        }
        if forgotten.is_some() {
            // Who has its place calls behind the CANCEL: before it, the peer would take one more than it does.
            self.calls.slots.give_back().wake();
        }
        self.close_if_drained();
    }

    /// Client: the answer of a call, a stream, is not wanted any more. Who reads it all the same is told why.
    pub(crate) fn forget_stream(&self, call: u64, reason: u8, why: Ended) {
        if let Some(streams) = self.streams.get(call) {
            let place = streams.take_place();
            self.end_streams(call, || why);
            self.sender.cancel(call, reason, true);
            // As above.
            drop(place);
            self.close_if_drained();
        }
    }

    /// Wakes the callers whose deadlines have passed; gives when to do that again.
    pub(super) fn wake_late(&self) -> Option<Instant> {
        let (late, next) = self.calls.slots.find_late(Instant::now());
        late.into_iter().for_each(Waker::wake);
        next
    }

    /// Reads a RESPONSE. One that is none ends the connection.
    pub(super) fn understand(&self, message: Bytes, received: &mut Option<Box<Received>>) -> Answered {
        let understood = ResponseHead::decode_apart(message).and_then(|(head, metadata, mut payload)| {
            if let Some(block) = metadata {
                let compression = payload.compression();
                match self.read_answer_metadata(*block)? {
                    Ok(metadata) => *received = Some(Box::new(Received { metadata, compression })),
                    Err(status) => return Ok(Err(status)),
                }
                match self.unpack_answer(payload)? {
                    Ok(plain) => payload = plain,
                    Err(status) => return Ok(Err(status)),
                }
            }
            Ok(match head.verdict {
                Verdict::Status => {
                    let status = decode_status(payload.into_body())?;
                    Err(match received {
                        Some(received) => status.received_with(&received.metadata),
                        None => status,
                    })
                }
                verdict => Ok((verdict, payload)),
            })
        });
        understood.unwrap_or_else(|error| {
            self.protocol_error(&error);
            Err(self.status(&error, Executed::Maybe, Blame::Peer))
        })
    }

    /// Whether any call has been answered.
    pub(crate) fn was_of_use(&self) -> bool {
        self.calls.slots.has_answered()
    }

    /// Whether no call waits for its answer.
    pub(super) fn is_idle(&self) -> bool {
        // What a server streams its client waits for.
        self.calls.slots.is_empty() && (self.role == Role::Server || self.streams.is_empty())
    }

    /// A client that was told to go away closes when its last call is done.
    #[inline]
    pub(super) fn close_if_drained(&self) {
        if self.is_draining() && self.is_idle() && self.registry.is_none() {
            let status = self.status("the server drained", Executed::No, Blame::Environment);
            self.close(CloseCode::Done, status);
        }
    }
}

/// A status for a call that can't be sent.
fn refused(code: Code, message: impl Into<String>) -> Status {
    Status::new(code, message).with_executed(Executed::No).with_blame(Blame::Caller)
}

/// The error of a message over a limit.
pub(super) fn too_large(what: &str, len: usize, max: u64, whose: &str) -> Status {
    let message =
        format!("{what}: {len} bytes, but {whose} limits.max_message is {max}; raise it there, or send less");
    refused(Code::ResourceExhausted, message)
}
