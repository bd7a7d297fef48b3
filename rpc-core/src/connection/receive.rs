//! The way in: from a link, through the inbox, to who it is for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

use super::serve::Announced;
use super::{Connection, Phase, Role, lock};
use crate::proto::inbox::{Arrived, Inbox, Limits, Order};
use crate::proto::outbox::Route;
use crate::proto::switch::Switch;
use crate::proto::wire::{
    Answer, Cancel, Close, CloseCode, Down, FrameType, Goaway, Header, Hello, Offer, Ping, Up, VERSION,
    WireError,
};
use crate::status::{Blame, Executed};
use crate::transport::{LinkEnd, LinkHandler, Unavailable};

/// What receiving needs; under one lock, which no user code runs under.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) inbox: Inbox,
    pub(super) switch: Switch,
    /// Who waits for the ANSWER to our OFFER.
    pub(super) answer: Option<oneshot::Sender<Result<Bytes, Unavailable>>>,
    /// Who waits for a PONG, and its token.
    pub(super) ping: Option<(u64, oneshot::Sender<()>)>,
    announced: Announced,
    last_call: u64,
}

impl Receiving {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            inbox: Inbox::new(limits),
            switch: Switch::default(),
            answer: None,
            ping: None,
            announced: Announced::default(),
            last_call: 0,
        }
    }

    /// The last call of the peer's that was taken.
    pub(super) fn last_call(&self) -> u64 {
        self.last_call
    }
}

/// How many link frames may wait for a peer that does not read.
const MAX_CONTROL: usize = 64;

/// What a link of a connection delivers to.
pub(super) struct Handler {
    connection: Arc<Connection>,
    route: Route,
}

impl Handler {
    pub(super) fn stream(connection: Arc<Connection>) -> Self {
        Self { connection, route: Route::Stream }
    }

    pub(super) fn upgraded(connection: Arc<Connection>, epoch: u32) -> Self {
        Self { connection, route: Route::Upgraded(epoch) }
    }

    fn check(&self, result: Result<(), WireError>) -> Result<(), WireError> {
        if let Err(error) = &result {
            self.connection.protocol_error(error);
        }
        result
    }
}

impl LinkHandler for Handler {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.connection.heard.fetch_add(1, Ordering::Relaxed);
        self.check(self.connection.on_frame(self.route, header, payload))
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        if !header.is_bulk() {
            return Ok(None);
        }
        let mut receiving = lock(&self.connection.receiving);
        let result = match receiving.inbox.order(self.route, header) {
            Ok(Order::Next) => receiving.inbox.buffer(header).map(Some),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        drop(receiving);
        if let Err(error) = &result {
            self.connection.protocol_error(error);
        }
        result
    }

    fn filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        self.connection.heard.fetch_add(1, Ordering::Relaxed);
        self.check(self.connection.on_filled(self.route, header, buffer))
    }

    fn batch_end(&self) {
        self.connection.flush();
        if self.route != Route::Stream {
            self.connection.acknowledge_soon();
        }
    }

    fn writable(&self) {
        self.connection.flush_anyway();
    }

    fn closed(&self, end: LinkEnd) {
        match self.route {
            Route::Stream => self.connection.on_stream_closed(&end),
            Route::Upgraded(epoch) => self.connection.on_upgraded_closed(epoch, &end),
        }
    }
}

/// What a message asks for, decided under the lock and done outside of it.
enum Action {
    Nothing,
    Serve(super::serve::Job),
    Respond(u64, Bytes),
    Cancel(u64),
    Goaway(Goaway),
}

impl Connection {
    fn on_frame(&self, route: Route, header: Header, payload: Bytes) -> Result<(), WireError> {
        if header.kind.is_link() {
            return self.on_link_frame(route, &header, payload);
        }
        let mut receiving = lock(&self.receiving);
        if self.peer_hello.get().is_none() {
            return Err(WireError::new("hello", "is not the first frame"));
        }
        match receiving.inbox.order(route, &header)? {
            Order::Next => {}
            Order::Hold => {
                receiving.inbox.hold(header, payload);
                return Ok(());
            }
            Order::Discard => return Ok(()),
        }
        let action = self.take(&mut receiving, &header, payload)?;
        drop(receiving);
        self.act(action)
    }

    fn take(&self, receiving: &mut Receiving, header: &Header, payload: Bytes) -> Result<Action, WireError> {
        self.note_acknowledged(header)?;
        let arrived = receiving.inbox.take(header, payload)?;
        self.rx_seq.store(header.seq, Ordering::Release);
        self.interpret(receiving, arrived)
    }

    /// The peer's UP: its frames come by the new link from now on, and some may have come already.
    pub(super) fn on_up(&self, up: Up) -> Result<(), WireError> {
        let mut actions = Vec::new();
        {
            let mut receiving = lock(&self.receiving);
            if up.epoch > receiving.switch.epoch() {
                return Err(WireError::new("up.epoch", "was never offered"));
            }
            if !receiving.switch.is_usable(up.epoch) {
                return Ok(());
            }
            // All under one lock: what the link delivers meanwhile comes after these.
            let route = Route::Upgraded(up.epoch);
            for (header, payload) in receiving.inbox.up(up)? {
                receiving.inbox.order(route, &header)?;
                actions.push(self.take(&mut receiving, &header, payload)?);
            }
        }
        actions.into_iter().try_for_each(|action| self.act(action))
    }

    fn on_filled(&self, route: Route, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        let mut receiving = lock(&self.receiving);
        if receiving.inbox.order(route, &header)? != Order::Next {
            receiving.inbox.unfilled(&header, buffer);
            return Ok(());
        }
        self.note_acknowledged(&header)?;
        let arrived = receiving.inbox.filled(&header, buffer)?;
        self.rx_seq.store(header.seq, Ordering::Release);
        let action = self.interpret(&mut receiving, arrived)?;
        drop(receiving);
        self.act(action)
    }

    /// Every header, on whichever link, says what the peer has taken in. It matters where an upgraded link keeps what
    /// was sent.
    fn note_acknowledged(&self, header: &Header) -> Result<(), WireError> {
        if !self.retaining.load(Ordering::Relaxed) {
            return Ok(());
        }
        let acknowledged = lock(&self.sending).outbox.acknowledged(header.rx_seq);
        if self.draining.load(Ordering::Relaxed) {
            self.left.notify_waiters();
        }
        acknowledged.map_err(|_| WireError::new("header.rx_seq", "acknowledges what was never sent"))
    }

    fn interpret(&self, receiving: &mut Receiving, arrived: Option<Arrived>) -> Result<Action, WireError> {
        let Some(Arrived { kind, call, bytes }) = arrived else { return Ok(Action::Nothing) };
        match kind {
            FrameType::REQUEST => {
                if self.registry.is_none() {
                    return Err(WireError::new("request", "goes to a side that serves nothing"));
                }
                // Not "not above the last one": calls of several threads may overtake each other.
                if call == 0 || call >> 63 != 0 || self.running.contains(call) {
                    return Err(WireError::new("request.call", "is in use, or not a client's"));
                }
                receiving.last_call = receiving.last_call.max(call);
                self.job(&receiving.announced, call, bytes).map(Action::Serve)
            }
            FrameType::RESPONSE => Ok(Action::Respond(call, bytes)),
            FrameType::BIND => {
                let Some(registry) = &self.registry else {
                    return Err(WireError::new("bind", "goes to a side that serves nothing"));
                };
                receiving.announced.add(registry, bytes)?;
                Ok(Action::Nothing)
            }
            FrameType::CANCEL => {
                Cancel::decode(bytes)?;
                Ok(Action::Cancel(call))
            }
            FrameType::GOAWAY if self.role == Role::Server => {
                Err(WireError::new("goaway", "comes from a client"))
            }
            FrameType::GOAWAY => Goaway::decode(bytes).map(Action::Goaway),
            kind if kind.is_ignorable() => Ok(Action::Nothing),
            _ => Err(WireError::new("header.type", "is not one that was agreed on")),
        }
    }

    fn act(&self, action: Action) -> Result<(), WireError> {
        match action {
            Action::Nothing => Ok(()),
            Action::Serve(job) => {
                self.serve(job);
                Ok(())
            }
            Action::Respond(call, bytes) => self.on_response(call, bytes),
            Action::Cancel(call) => {
                self.cancel_running(call);
                Ok(())
            }
            Action::Goaway(goaway) => {
                self.on_goaway(&goaway);
                self.close_if_drained();
                Ok(())
            }
        }
    }

    fn on_link_frame(&self, route: Route, header: &Header, payload: Bytes) -> Result<(), WireError> {
        let kind = header.kind;
        if (self.peer_hello.get().is_none()) != (kind == FrameType::HELLO) && kind != FrameType::CLOSE {
            return Err(WireError::new("hello", "is not the first frame, or comes again"));
        }
        if route != Route::Stream {
            // An upgraded link sees to its own frames; what reaches us is of a later version.
            return if kind.is_ignorable() {
                Ok(())
            } else {
                Err(WireError::new("header.type", "does not belong on this link"))
            };
        }
        self.note_acknowledged(header)?;
        match kind {
            FrameType::HELLO => self.on_hello(Hello::decode(payload)?),
            FrameType::PING => {
                let ping = Ping::decode(payload)?;
                if lock(&self.sending).control.len() >= MAX_CONTROL {
                    return Err(WireError::new("ping", "comes faster than its answers are read"));
                }
                self.send_link(FrameType::PONG, |out| ping.encode(out));
                Ok(())
            }
            FrameType::PONG => {
                let pong = Ping::decode(payload)?;
                let mut receiving = lock(&self.receiving);
                if let Some((_, waiter)) = receiving.ping.take_if(|(token, _)| *token == pong.token) {
                    let _ = waiter.send(());
                }
                Ok(())
            }
            FrameType::ACK => Ok(()),
            FrameType::OFFER if self.role == Role::Client => {
                Err(WireError::new("offer", "comes from a server"))
            }
            FrameType::ANSWER if self.role == Role::Server => {
                Err(WireError::new("answer", "comes from a client"))
            }
            FrameType::OFFER => self.on_offer(Offer::decode(payload)?),
            FrameType::ANSWER => self.on_answer(Answer::decode(payload)?),
            FrameType::UP => self.on_up(Up::decode(payload)?),
            FrameType::DOWN => self.on_down(&Down::decode(payload)?),
            FrameType::CLOSE => {
                let close = Close::decode(payload)?;
                let blame = match close.code {
                    CloseCode::Protocol => Blame::Bug,
                    CloseCode::Done | CloseCode::Overloaded | CloseCode::Required => Blame::Environment,
                    _ => Blame::Peer,
                };
                let detail = format!("closed by the peer: {}", close.reason);
                self.end(self.status(detail, Executed::Maybe, blame));
                self.stream.close();
                Ok(())
            }
            kind if kind.is_ignorable() => Ok(()),
            _ => Err(WireError::new("header.type", "is not one that was agreed on")),
        }
    }

    fn on_hello(&self, hello: Hello) -> Result<(), WireError> {
        if hello.version_min > VERSION || hello.version_max < VERSION {
            let detail = format!(
                "no common version: this side speaks wire version {VERSION}, the peer {} to {}; \
                 upgrade the older side",
                hello.version_min, hello.version_max
            );
            let status = self.status(detail, Executed::No, Blame::Environment);
            self.close(CloseCode::Version, status);
            return Ok(());
        }
        {
            let mut sending = lock(&self.sending);
            sending.outbox.set_max_assembly(hello.max_assembly);
            sending.peer_max_frame = hello.max_frame as usize;
        }
        self.calls.admit(hello.max_calls);
        let upgrades = hello.upgrades.clone();
        if self.peer_hello.set(hello).is_err() {
            return Err(WireError::new("hello", "comes again"));
        }
        self.phase.send_if_modified(|phase| {
            let greeting = matches!(phase, Phase::Greeting);
            if greeting {
                *phase = Phase::Open;
            }
            greeting
        });
        match self.role {
            Role::Client => self.decide(&upgrades),
            Role::Server => self.expect_offer(&upgrades),
        }
        Ok(())
    }

    fn on_stream_closed(&self, end: &LinkEnd) {
        if end.malformed {
            let status = self.status(end, Executed::Maybe, Blame::Peer);
            return self.close(CloseCode::Protocol, status);
        }
        let blame = if end.failed { Blame::Environment } else { Blame::Peer };
        self.end(self.status(end, Executed::Maybe, blame));
        self.stream.close();
    }

    /// The peer broke the protocol: nothing more that it says can be trusted.
    fn protocol_error(&self, error: &WireError) {
        tracing::warn!(peer = ?self.peer(), %error, "the peer broke the protocol; closing the connection");
        let detail = format!("the peer broke the protocol ({error}); is it of the same version?");
        self.close(CloseCode::Protocol, self.status(detail, Executed::Maybe, Blame::Peer));
    }
}

impl Header {
    /// Whether it is worth reading the payload straight to where it belongs.
    fn is_bulk(&self) -> bool {
        self.kind == FrameType::FRAGMENT && self.len > 4096
    }
}
