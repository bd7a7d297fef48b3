//! A call in progress: it gets a connection and a place, is sent, perhaps sent again, and may time out at each step.

mod again;
mod ending;
mod hedge;
mod progress;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use self::ending::polled_again;
use self::hedge::Hedge;
use super::balance::{Chosen, Picked};
use super::policies::Policies;
use super::request_memory::Room;
use super::{Parts, Stub};
use crate::buffer_pool;
use crate::call_streams::{CallStreams, Source};
use crate::calls::{Answered, CallOptions, CallRequest, NotSent, Received};
use crate::compress::Compression;
use crate::connection::{Connection, Line, Pending};
use crate::context::{Context, Parent, earlier};
use crate::metadata::{AnswerMetadata, Metadata};
use crate::middleware::{Next, OutgoingCall, Passed, Request, Response};
use crate::payload::Payload;
use crate::progress_watch::ProgressWatch;
use crate::proto::wire::ResponseKind;
use crate::refusal::refusal;
use crate::slots::Place;
use crate::status::{Code, Status};
use crate::stream::{Begun, OnEnd};
use crate::transport::BoxFuture;

/// A call, from its making to its answer. Nothing is sent before it is polled.
pub(crate) struct InFlightCall {
    pub(super) stub: Stub,
    pub(super) method: usize,
    arguments: Payload,
    pub(super) options: Option<Box<CallOptions>>,
    /// The call's own timeout, which starts with its first poll.
    pub(super) timeout: Option<Duration>,
    /// The inherited deadline. From the first poll on, the earlier of the two.
    pub(super) deadline: Option<Instant>,
    /// The time of the first poll, if the call has a deadline.
    began: Option<Instant>,
    attempt: u8,
    /// Whether the call can't be sent again, because part of its stream of arguments is gone.
    is_last: bool,
    /// Whether the call is one of several attempts beside each other.
    is_hedge: bool,
    /// Whether an earlier attempt may have been executed.
    may_have_run: bool,
    /// Whether the call takes the deadline of the handler that first polls it. If that is in a
    /// [`Scope`](crate::context::Scope), the call also ends with the scope's call.
    pub(super) inherits: bool,
    pub(super) state: State,
    /// The room for the arguments.
    room: Option<Room>,
    /// The server that the call has gone to, if its channel has several.
    picked: Option<Picked>,
    /// The watch over what moves of the call, if that has a limit.
    watch: Option<Box<ProgressWatch>>,
    /// The timer until the call is sent. From then on the connection watches its deadline.
    alarm: Option<Pin<Box<Sleep>>>,
}

pub(super) enum State {
    Refused(Status),
    /// Not polled yet.
    New,
    Unsent,
    Connecting(BoxFuture<Result<Chosen, Status>>),
    /// The calls in progress have as many arguments as the channel's limit allows.
    MakingRoom(BoxFuture<Room>),
    /// The peer's limit of concurrent calls is reached.
    Placing(Line),
    /// Sent, and possibly answered.
    Sent(Pending),
    /// Failed with this status, to be made again after a pause.
    Pausing(Pin<Box<Sleep>>, Status),
    /// Made by several attempts beside each other.
    Hedged(Box<Hedge>),
    /// In the caller's middleware.
    Layered(BoxFuture<Result<Response, Status>>, Passed),
    /// Answered through the middleware.
    Answered(Box<(Parts, Option<Begun>)>),
    Failed,
}

impl Drop for InFlightCall {
    #[inline]
    fn drop(&mut self) {
        if let State::Sent(pending) = &self.state
            && !pending.is_done()
        {
            self.given_up(pending);
        }
        buffer_pool::recycle(self.arguments.take_buffer());
    }
}

impl InFlightCall {
    /// Returns a call that inherits from the handler that polls it first, if one does.
    #[inline]
    pub(super) fn new(stub: Stub, method: usize, arguments: Result<Payload, Status>) -> Self {
        let (arguments, state) = match arguments {
            Ok(arguments) => (arguments, State::New),
            Err(status) => (Payload::default(), State::Refused(status)),
        };
        Self {
            stub,
            method,
            arguments,
            options: None,
            timeout: None,
            deadline: None,
            began: None,
            attempt: 1,
            is_last: false,
            is_hedge: false,
            may_have_run: false,
            inherits: true,
            state,
            room: None,
            picked: None,
            watch: None,
            alarm: None,
        }
    }

    /// Returns a call that has come through middleware.
    pub(super) fn behind_middleware(
        stub: Stub,
        method: usize,
        arguments: Payload,
        options: Box<CallOptions>,
        deadline: Option<Instant>,
    ) -> Self {
        let mut call = Self::new(stub, method, Ok(arguments));
        (call.options, call.deadline, call.inherits) = (Some(options), deadline, false);
        // The channel's timeout applies to the call in front of the middleware.
        call.timeout = Some(Duration::MAX);
        call
    }

    /// Returns the method's name for messages.
    pub(super) fn name(&self) -> String {
        self.stub.name_of(self.method)
    }

    /// Forbids sending the call again.
    pub(super) fn is_last(&mut self) {
        self.is_last = true;
    }

    /// Returns the deadline of the call.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Takes the parent of the call, on which a stream of answers depends, too.
    pub(super) fn take_parent(&mut self) -> Option<Parent> {
        self.options.as_mut()?.parent.take()
    }

    /// Returns the initial metadata of an answer that is a stream.
    pub(super) fn initial_metadata(&self) -> Metadata {
        match &self.state {
            State::Sent(pending) => {
                pending.received().map_or_else(Metadata::new, |all| all.metadata.initial.clone())
            }
            _ => Metadata::new(),
        }
    }

    /// Returns the connection that the call was sent by.
    pub(super) fn connection(&self) -> Weak<Connection> {
        match &self.state {
            State::Sent(pending) => Arc::downgrade(pending.connection()),
            _ => Weak::new(),
        }
    }

    /// Takes the metadata and other parts of the answer. Can be called once.
    pub(super) fn parts(&mut self) -> Parts {
        let (connection, Received { metadata, compression }) = match &mut self.state {
            State::Sent(pending) => (Some(pending.connection().clone()), pending.take_received()),
            State::Answered(through) => return std::mem::take(&mut through.0),
            _ => (None, Received::default()),
        };
        let AnswerMetadata { initial, trailing, .. } = metadata;
        Parts { connection, attempts: self.attempt, metadata: initial, trailers: trailing, compression }
    }

    /// Takes the stream that the call was answered with, if it came through middleware.
    pub(super) fn take_begun(&mut self) -> Option<Begun> {
        match &mut self.state {
            State::Answered(through) => through.1.take(),
            _ => None,
        }
    }

    /// Takes the stream of arguments. Can be called once.
    pub(super) fn take_items(&mut self) -> Option<Box<dyn Source>> {
        self.options.as_mut()?.items.take()
    }

    /// Returns the compression that was chosen for the call, if any.
    pub(super) fn compression(&self) -> Option<Compression> {
        self.options.as_ref()?.compression
    }

    /// Returns the streams of the call, once it has been sent.
    pub(super) fn streams(&self) -> Option<&Arc<CallStreams>> {
        match &self.state {
            State::Sent(pending) => pending.streams(),
            _ => None,
        }
    }

    /// Returns the streams of the call, if this answer begins one.
    pub(super) fn begun_streams(&self, answer: &Answered) -> Option<&Arc<CallStreams>> {
        let is_ok = matches!(answer, Ok((ResponseKind::Ok, _)));
        self.streams().filter(|streams| is_ok && streams.is_answer())
    }

    /// Returns the callback that reports the end of the answer's stream to the balancer, if there is one.
    pub(super) fn take_on_end(&mut self) -> Vec<OnEnd> {
        let note = |picked: Picked| -> OnEnd {
            let picked = picked.begun();
            Box::new(move |end| picked.ended(end))
        };
        self.picked.take().map(note).into_iter().collect()
    }

    pub(super) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Answered> {
        let is_new = matches!(self.state, State::New);
        if is_new && self.inherits && Context::is_scoped() {
            self.adopt();
        }
        let mut polled = if self.options.is_some() && self.is_in_vain(cx) {
            Poll::Ready(Err(self.cut_short()))
        } else {
            let left = if is_new { self.start() } else { None };
            self.step(left, cx)
        };
        if polled.is_pending() && self.is_late(cx) {
            polled = Poll::Ready(Err(self.expire()));
        }
        if let Poll::Ready(answer) = &mut polled {
            self.room = None;
            if self.picked.is_some() || self.may_have_run || self.stub.policy(self.method, Policies::retries)
            {
                self.note_end(answer);
            }
        }
        if let Poll::Ready(Err(_)) = polled
            && !matches!(self.state, State::Sent(_) | State::Answered(_))
        {
            self.state = State::Failed;
        }
        polled
    }

    /// Starts the timeout. Returns the time left, if the call has a deadline.
    fn start(&mut self) -> Option<Duration> {
        let left = self.start_time();
        match self.stub.channel().stack().cloned() {
            Some(stack) => self.enter(&stack),
            None => {
                if self.stub.policy(self.method, Policies::retries) {
                    self.hedge();
                }
                self.watch_progress();
            }
        }
        left
    }

    #[cold]
    fn adopt(&mut self) {
        if let Some(parent) = Context::current_parent() {
            CallOptions::of(&mut self.options).parent = Some(parent);
        }
    }

    /// Passes the call to the caller's middleware. At the end of the middleware another call is made from its request.
    #[cold]
    fn enter(&mut self, stack: &Next) {
        let mut options = self.options.take().unwrap_or_else(|| Box::new(CallOptions::none()));
        if let Some(parent) = options.parent.take() {
            // The parent stays with this call, so that its end also cuts short the middleware.
            CallOptions::of(&mut self.options).parent = Some(parent);
        }
        let request = Request::outgoing(OutgoingCall {
            service: self.stub.service().clone(),
            method: self.method,
            arguments: std::mem::take(&mut self.arguments),
            class: self.stub.channel().traffic_class(),
            options,
            deadline: self.deadline,
            passed: Passed::default(),
        });
        let passed = request.passed();
        self.state = State::Layered(Box::pin(stack.run(request)), passed);
    }

    fn start_time(&mut self) -> Option<Duration> {
        if self.inherits {
            self.deadline = Context::current_deadline();
        }
        let own = self.options.as_ref().and_then(|options| options.deadline);
        self.deadline = earlier(self.deadline, own);
        let timeout = match self.timeout {
            Some(timeout) => Some(timeout).filter(|&timeout| timeout < Duration::MAX),
            None if own.is_some() => None,
            None => self.stub.policy(self.method, Policies::timeout),
        };
        if timeout.is_none() && self.deadline.is_none() {
            return None;
        }
        let now = Instant::now();
        self.began = Some(now);
        let inherited = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let left = earlier(timeout, inherited);
        self.deadline = earlier(timeout.and_then(|timeout| now.checked_add(timeout)), self.deadline);
        left
    }

    /// Proceeds until the call waits for something, or is done. `left` is the time left, if known.
    fn step(&mut self, mut left: Option<Duration>, cx: &mut TaskContext<'_>) -> Poll<Answered> {
        loop {
            match &mut self.state {
                State::Refused(_) => {
                    let State::Refused(status) = std::mem::replace(&mut self.state, State::Failed) else {
                        continue;
                    };
                    return Poll::Ready(Err(status));
                }
                State::Sent(pending) if pending.is_done() => return Poll::Ready(Err(polled_again())),
                State::Failed | State::Answered(_) => return Poll::Ready(Err(polled_again())),
                State::Layered(response, passed) => {
                    let response = ready!(response.as_mut().poll(cx)).map_err(|status| passed.judge(status));
                    self.state = State::Failed;
                    let (answer, begun, parts) = response?.into_received();
                    self.state = State::Answered(Box::new((parts, begun)));
                    return Poll::Ready(answer);
                }
                State::New | State::Unsent => {
                    left = left.or_else(|| self.left());
                    if left.is_some_and(|left| left.is_zero()) {
                        // Too late to send. The alarm ends the call.
                        self.state = State::Unsent;
                        return Poll::Pending;
                    }
                    if self.needs_room() && !self.take_room()? {
                        continue;
                    }
                    let key = self.key();
                    match self.stub.channel().choose(key, &mut self.picked) {
                        Some(connection) => self.send(connection, left, None, cx)?,
                        None => self.connect(key)?,
                    }
                }
                State::Hedged(_) => return self.step_hedged(cx),
                State::Pausing(pause, _) => {
                    ready!(pause.as_mut().poll(cx));
                    self.state = State::Unsent;
                }
                State::MakingRoom(room) => {
                    self.room = Some(ready!(room.as_mut().poll(cx)));
                    self.state = State::Unsent;
                }
                State::Connecting(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok(chosen) => {
                        self.picked = chosen.picked;
                        let left = self.left();
                        self.send(chosen.connection, left, None, cx)?;
                    }
                    Err(status) => self.wait_for_ready(status)?,
                },
                State::Placing(line) => match ready!(line.poll(cx)) {
                    Ok(place) => {
                        let connection = line.connection().clone();
                        match self.left() {
                            Some(Duration::ZERO) => self.state = State::Unsent,
                            left => self.send(connection, left, Some(place), cx)?,
                        }
                    }
                    Err(status) => self.again(status)?,
                },
                State::Sent(pending) => match pending.poll(cx) {
                    Poll::Ready(Err(status)) => self.again(status)?,
                    Poll::Pending if pending.is_late() => match self.look() {
                        Some(next) => {
                            self.wait_until(next);
                            continue;
                        }
                        None => return Poll::Ready(Err(self.expire())),
                    },
                    polled => return polled,
                },
            }
            if let State::Sent(pending) = &self.state
                && !pending.polls_at_once()
            {
                // The call was just sent, and is woken when there is an answer.
                return Poll::Pending;
            }
            left = None;
        }
    }

    fn send(
        &mut self,
        connection: Arc<Connection>,
        left: Option<Duration>,
        place: Option<Place>,
        cx: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        if let Some(watch) = &mut self.watch {
            watch.begin();
        }
        if let (Some(room), Some(picked)) = (&self.room, &mut self.picked) {
            picked.hold(room.units());
        }
        let asked = CallRequest {
            service: self.stub.service(),
            method: self.method,
            arguments: &self.arguments,
            alarm: self.next_alarm(),
            left,
            attempt: self.attempt,
            options: self.options.as_deref().filter(|options| options.is_sent()),
        };
        match connection.call(&asked, place, cx) {
            Ok(sent) => {
                self.state = State::Sent(Pending::new(connection, sent, cx));
                self.alarm = None;
                Ok(())
            }
            Err(NotSent::Full) if !self.waits_for_room() => {
                Err(self.no_room("the server's limits.concurrent_calls is reached"))
            }
            Err(NotSent::Full) => {
                self.state = State::Placing(Line::new(connection));
                Ok(())
            }
            Err(NotSent::For(status)) => self.again(status),
        }
    }

    /// Begins to wait for a connection, or first for room. However short its arguments, a call that waits for a connection takes
    /// room: without a bound, any number of calls would wait for a server that is not there.
    fn connect(&mut self, key: Option<u64>) -> Result<(), Status> {
        if self.room.is_some() || self.take_room()? {
            let (channel, at) = (self.stub.channel().clone(), self.picked.take());
            self.state = State::Connecting(Box::pin(async move { channel.connect(key, at).await }));
        }
        Ok(())
    }

    /// Returns the key by which its server is chosen.
    #[inline]
    fn key(&self) -> Option<u64> {
        self.options.as_ref().and_then(|options| options.key)
    }

    /// Whether the call has long arguments, and no room for them yet.
    #[inline]
    fn needs_room(&self) -> bool {
        self.room.is_none() && self.arguments.short_len().is_none()
    }

    /// Takes room for the arguments. `false`: the call now waits for it.
    #[cold]
    fn take_room(&mut self) -> Result<bool, Status> {
        let (memory, len) = (self.stub.channel().memory(), self.arguments.len().max(1));
        match memory.try_take(len) {
            Some(room) => self.room = Some(room),
            None if self.waits_for_room() => self.state = State::MakingRoom(memory.take(len)),
            None => return Err(self.no_room("the channel's limits.request_memory is reached")),
        }
        Ok(self.room.is_some())
    }

    fn waits_for_room(&self) -> bool {
        let waits = self.options.as_ref().and_then(|options| options.waits_for_room);
        waits.unwrap_or_else(|| self.stub.policy(self.method, Policies::waits_for_room))
    }

    fn no_room(&self, why: &str) -> Status {
        let target = self.stub.channel().target();
        let message =
            format!("too many calls to {target} are in progress: {why}, and the call does not wait");
        self.named(refusal(Code::ResourceExhausted, message))
    }
}

/// Displays the method's name.
impl fmt::Display for InFlightCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stub.name_of(self.method))
    }
}
