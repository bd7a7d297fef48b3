//! The calls that wait on this side for an answer.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::help::Help;
use super::slots::{NeverMade, Slots};
use super::{Connection, Phase, lock};
use crate::payload::Payload;
use crate::proto::message::Message;
use crate::proto::wire::{
    Bind, BindMethod, CloseCode, Content, FrameType, Goaway, MAX_BIND_BYTES, RequestHead, ResponseHead,
    Verdict, WireError, decode_status,
};
use crate::service::ServiceInfo;
use crate::status::{Blame, Code, Executed, Status};

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
    waiting: Slots<oneshot::Sender<Answered>, Status>,
    announced: Mutex<Announced>,
    /// As many permits as calls the peer takes at once; none before its HELLO.
    permits: Arc<Semaphore>,
}

impl Calls {
    pub(super) fn new() -> Self {
        let permits = Arc::new(Semaphore::new(0));
        Self { waiting: Slots::new(), announced: Mutex::default(), permits }
    }

    pub(super) fn admit(&self, max_calls: u32) {
        self.permits.add_permits((max_calls as usize).min(Semaphore::MAX_PERMITS));
    }
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) service: Arc<ServiceInfo>,
    pub(crate) method: usize,
    pub(crate) payload: Payload,
    pub(crate) deadline: Option<Instant>,
    pub(crate) attempt: u8,
}

impl Connection {
    /// Takes one of the places for concurrent calls that the peer has, if one is free.
    pub(crate) fn try_place(&self) -> Option<OwnedSemaphorePermit> {
        self.calls.permits.clone().try_acquire_owned().ok()
    }

    /// Waits for a place, until the connection takes no more calls. Cancel safe: a dropped wait leaves the line.
    pub(crate) async fn place(self: Arc<Self>) -> Result<OwnedSemaphorePermit, Status> {
        let permits = self.calls.permits.clone();
        tokio::select! {
            biased;
            status = self.shut() => Err(status),
            permit = permits.acquire_owned() => permit.map_err(|_| self.why_not_open()),
        }
    }

    /// Sends a request. `Err`: nothing was sent, nothing was executed.
    pub(crate) fn call(
        self: &Arc<Self>,
        asked: Asked,
        place: OwnedSemaphorePermit,
    ) -> Result<Pending, Status> {
        let mut message = self.request(asked)?;
        let (sender, receiver) = oneshot::channel();
        let queue = |id| {
            message.call = id;
            self.enqueue(message);
        };
        let id = self.calls.waiting.open(sender, queue).map_err(|why| why.with_executed(Executed::No))?;
        let pending = Pending {
            connection: self.clone(),
            id,
            receiver,
            done: false,
            help: Help::default(),
            _place: place,
        };
        self.keeper.notify_one();
        self.flush();
        Ok(pending)
    }

    /// The message of a call that has no number yet.
    fn request(&self, asked: Asked) -> Result<Message, Status> {
        let Some(peer) = self.peer_hello.get() else {
            return Err(self.status("no HELLO yet", Executed::No, Blame::Bug));
        };
        let remaining_us = match asked.deadline {
            None => 0,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                // Zero would be "no deadline"; the caller's own timer ends a call this late.
                u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1)
            }
        };
        let service = self.bind(&asked.service, peer.max_message)?;
        let head = RequestHead { service, method: asked.method as u16, attempt: asked.attempt, remaining_us };
        let content = Content { metadata: Bytes::new(), payload: asked.payload };
        let mut bytes = BytesMut::with_capacity(64);
        head.encode(&content, &mut bytes).map_err(|why| refused(Code::InvalidArgument, why.to_string()))?;
        let mut message = Message::new(FrameType::REQUEST, 0, bytes.freeze());
        message.payload = content.payload;
        if message.len() as u64 > peer.max_message {
            return Err(too_large("the arguments", message.len(), peer.max_message, "the server's"));
        }
        self.stage(&mut message);
        Ok(message)
    }

    /// The index of a service on this connection; announces it if it was not yet.
    fn bind(&self, service: &Arc<ServiceInfo>, max_message: u64) -> Result<u16, Status> {
        let mut announced = lock(&self.calls.announced);
        let known = announced.services.iter().position(|s| Arc::ptr_eq(s, service) || **s == **service);
        if let Some(index) = known {
            return Ok(index as u16);
        }
        let Ok(index) = u16::try_from(announced.services.len()) else {
            return Err(refused(Code::ResourceExhausted, "more than 65536 services on one connection"));
        };
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
        self.enqueue(Message::new(FrameType::BIND, 0, head.freeze()));
        Ok(index)
    }

    pub(super) fn on_response(&self, call: u64, message: Bytes) -> Result<(), WireError> {
        let never_made = |NeverMade| WireError::new("response.call", "was never made");
        let waiting = self.calls.waiting.answer(call).map_err(never_made)?;
        let Some(waiting) = waiting else {
            return Ok(()); // It crossed our CANCEL.
        };
        let (answered, result) = match understand(message) {
            Ok(answered) => (answered, Ok(())),
            Err(error) => (Err(self.status(&error, Executed::Maybe, Blame::Peer)), Err(error)),
        };
        // A caller that is being dropped at this moment doesn't want it any more.
        let _ = waiting.send(answered);
        result
    }

    /// The server is going: begins no more calls, and takes back those that it will not, or need not, execute.
    pub(super) fn on_goaway(&self, goaway: &Goaway) {
        self.start_draining();
        let detail = format!("the server is draining: {}", goaway.reason);
        let status = self.status(detail, Executed::No, Blame::Environment);
        self.calls.waiting.refuse(status.clone());
        let unsent = self.change_sending(|sending| sending.outbox.take_back(FrameType::REQUEST));
        let refused = self.calls.waiting.take(unsent, goaway.last_call);
        for call in refused {
            let _ = call.send(Err(status.clone()));
        }
    }

    /// Ends every call that waits, saying of each whether it may have been executed.
    pub(super) fn fail_calls(&self, status: &Status) {
        let waiting = self.calls.waiting.close(status.clone());
        self.calls.permits.close();
        // What has not left whole by now never does, and no handler sees a part: that makes "not executed" true.
        let unsent = self.change_sending(|sending| sending.outbox.close(FrameType::REQUEST));
        let unsent: HashSet<u64> = unsent.into_iter().collect();
        for (id, call) in waiting {
            let certain = unsent.contains(&id) || status.executed() == Executed::No;
            let executed = if certain { Executed::No } else { Executed::Maybe };
            let _ = call.send(Err(status.clone().with_executed(executed)));
        }
    }

    fn forget(&self, call: u64, reason: u8) {
        if self.calls.waiting.forget(call) {
            self.send_cancel(call, reason);
        }
        self.close_if_drained();
    }

    /// Whether any call has been answered.
    pub(crate) fn was_of_use(&self) -> bool {
        self.calls.waiting.has_answered()
    }

    /// Whether no call waits for its answer.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.waiting.is_empty()
    }

    /// A client that was told to go away closes when its last call is done.
    pub(super) fn close_if_drained(&self) {
        if matches!(*self.phase.borrow(), Phase::Draining) && self.is_idle() && self.registry.is_none() {
            let status = self.status("the server drained", Executed::No, Blame::Environment);
            self.close(CloseCode::Done, status);
        }
    }
}

fn understand(message: Bytes) -> Result<Answered, WireError> {
    let (head, content) = ResponseHead::decode(message)?;
    Ok(match head.verdict {
        Verdict::Status => Err(decode_status(content.payload.body)?),
        verdict => Ok((verdict, content.payload)),
    })
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

/// A call that was sent. Dropping it cancels it: its handler is dropped too.
#[derive(Debug)]
pub(crate) struct Pending {
    connection: Arc<Connection>,
    id: u64,
    receiver: oneshot::Receiver<Answered>,
    done: bool,
    help: Help,
    _place: OwnedSemaphorePermit,
}

impl Pending {
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The deadline passed: tells the peer so, instead of that it was dropped.
    pub(crate) fn expire(mut self) {
        self.done = true;
        self.connection.forget(self.id, 1);
    }

    pub(crate) fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Answered> {
        let mut polled = Pin::new(&mut self.receiver).poll(cx);
        if polled.is_pending() && self.help.look(&self.connection) {
            polled = Pin::new(&mut self.receiver).poll(cx);
        }
        let Poll::Ready(answered) = polled else {
            self.help.again(cx);
            return Poll::Pending;
        };
        self.done = true;
        self.connection.close_if_drained();
        Poll::Ready(answered.unwrap_or_else(|_| {
            Err(Status::new(Code::Internal, "a call was forgotten")
                .with_blame(Blame::Bug)
                .with_executed(Executed::Maybe))
        }))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            self.connection.forget(self.id, 0);
        }
    }
}
