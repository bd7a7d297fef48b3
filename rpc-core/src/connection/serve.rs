//! The handlers that run on this side for the peer's calls.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Connection;
use super::batch::{Action, Batch, ENOUGH};
use super::calls::too_large;
use super::handler::{Handler, panicked, ran};
use super::registry::{Announced, Found, Registry, refusal};
use super::streams::{self, Ended};
use crate::config::Policy;
use crate::context::{Context, Current};
use crate::payload::Payload;
use crate::proto::message::{Head, Message};
use crate::proto::shorts::Shorts;
use crate::proto::wire::{
    Content, EndHead, EndReason, FrameType, PLAIN_RESPONSE, RequestHead, ResponseHead, TooLong, Verdict,
    WireError, encode_status,
};
use crate::service::{HandlerFuture, Kind, Reply, Request};
use crate::status::{Blame, Code, Executed, Status};
use crate::stream::Streams;

/// A request that has been understood.
pub(super) struct Job {
    call: u64,
    /// What it calls, or why it is refused.
    found: Result<Found, Status>,
    payload: Payload,
    deadline: Option<Instant>,
    attempt: u8,
}

/// The call whose handler is made and polled the first time: what a panic leaves of it is found here.
#[derive(Default)]
struct AtWork {
    call: Option<u64>,
    future: Option<HandlerFuture>,
}

/// How many refusals may be on their way beyond the answers that a client can wait for.
const MAX_CROSSING: usize = 1024;

impl Connection {
    /// Puts to a batch what a request asks for. `Err`: it is none.
    pub(super) fn push_job(
        &self,
        announced: &Announced,
        batch: &mut Batch,
        call: u64,
        message: Bytes,
    ) -> Result<(), WireError> {
        let Some(registry) = &self.registry else {
            return Err(WireError::new("request", "goes to a side that serves nothing"));
        };
        let (head, metadata, payload) = RequestHead::decode_apart(message)?;
        let deadline = match head.remaining_us {
            0 => None,
            us => batch.now.get_or_insert_with(Instant::now).checked_add(Duration::from_micros(us)),
        };
        let mut found = self.find(registry, announced, &head);
        if let Some(block) = metadata {
            self.read_metadata(*block, &mut found)?;
        }
        if let Ok(found) = &found
            && found.kind() != Kind::Unary
        {
            // Before anything else of the call is taken in.
            self.begin_streams(call, found.kind());
        }
        batch.jobs.push(Job { call, found, payload, deadline, attempt: head.attempt });
        Ok(())
    }

    #[inline]
    fn find(
        &self,
        registry: &Registry,
        announced: &Announced,
        head: &RequestHead,
    ) -> Result<Found, Status> {
        let Some(bound) = announced.get(head.service) else {
            return Err(refusal(Code::Unimplemented, "the call's service was not announced"));
        };
        let found = registry.find(bound, head.method)?;
        if found.kind() != Kind::Unary && !self.peer_hello.get().is_some_and(streams::agreed) {
            return Err(refusal(Code::Unimplemented, "the caller's farcall is too old for streams"));
        }
        Ok(found)
    }

    /// Begins the calls of a batch that have not begun: they count as running from now on. `Err`: one is of a number that is
    /// in use, or one of too many.
    pub(super) fn begin(&self, batch: &mut Batch) -> Result<(), WireError> {
        let Batch { jobs, begun, .. } = batch;
        if jobs.len() == *begun {
            return Ok(());
        }
        let max = self.settings.limits.concurrent_calls as usize;
        let refusing = self.takes_calls();
        // How many calls are in progress beside these: their answers have not left, or not been read. Against the order in
        // which calls move on, so that none is counted twice; and what the peer may have seen the answer of is not counted
        // any more.
        let waiting = || self.backlog.load(Ordering::Acquire);
        let most = waiting() + self.queued();
        let mut running = self.running.lock();
        let result = jobs[*begun..].iter_mut().try_for_each(|job| {
            let mut unanswered = most + running.count();
            if !running.begin(job.call) {
                return Err(WireError::new("request.call", "is in use"));
            }
            *begun += 1;
            if unanswered >= max {
                // As long as there is room nobody asks whether the session's own messages are among those queued.
                let others = waiting() + self.queued_of_calls() + running.count();
                unanswered = others.saturating_sub(1);
            }
            // A client that sends requests and reads no answers must not fill our memory with refusals, either.
            if unanswered > 2 * max + MAX_CROSSING {
                return Err(WireError::new("request", "is far beyond HELLO's max_calls"));
            }
            if job.found.is_ok() {
                if let Err(status) = &refusing {
                    job.found = Err(status.clone());
                } else if unanswered >= max {
                    job.found = Err(full(unanswered, max));
                }
            }
            Ok(())
        });
        // Of the rest none is served.
        jobs.truncate(*begun);
        result
    }

    /// Whether this side takes calls now.
    fn takes_calls(&self) -> Result<(), Status> {
        if self.settings.policy == Policy::Rdma && !self.retaining.load(Ordering::Relaxed) {
            // It is about to be closed for that; until then nothing is executed.
            let message = "the server requires RDMA, which this connection does not have";
            return Err(refusal(Code::Unavailable, message).with_blame(Blame::Environment));
        }
        if self.refuses.load(Ordering::Relaxed) {
            let message = "the server is draining and takes no new calls";
            return Err(refusal(Code::Unavailable, message).with_blame(Blame::Environment));
        }
        Ok(())
    }

    /// Runs the handlers of a batch, and queues the answers of those that are done at once.
    pub(super) fn serve_all(&self, jobs: &mut Vec<Job>, results: &mut Shorts) {
        let alone = jobs.len() == 1;
        let (mut jobs, mut at_work) = (jobs.drain(..), AtWork::default());
        // For all of them: a panic ends the call that was at work, and then the others go on.
        while let Err(panic) =
            catch_unwind(AssertUnwindSafe(|| self.serve_each(&mut jobs, alone, results, &mut at_work)))
        {
            let AtWork { call, future } = std::mem::take(&mut at_work);
            match call {
                Some(call) => self.complete(call, panicked(&*panic, future)),
                None => resume_unwind(panic),
            }
        }
        if !results.is_empty() {
            self.complete_all(results);
        }
    }

    fn serve_each(
        &self,
        jobs: &mut impl Iterator<Item = Job>,
        alone: bool,
        results: &mut Shorts,
        at_work: &mut AtWork,
    ) {
        let (current, peer) = (Current::begin(), self.peer());
        for job in jobs {
            let call = job.call;
            let Some(reply) = self.serve(job, peer, &current, at_work) else { continue };
            match self.short_result(&reply) {
                // One by itself has nothing to share a lock with.
                Some((head, body)) if !alone => results.push(FrameType::RESPONSE, call, &head, body),
                _ => self.complete(call, reply),
            }
            if results.len() >= ENOUGH {
                self.complete_all(results);
            }
        }
    }

    /// Runs a handler: here and now until it first waits, then in a task of its own. If it is done at once, gives its reply,
    /// with which the call is to be completed.
    #[inline(always)]
    fn serve(
        &self,
        job: Job,
        peer: Option<SocketAddr>,
        current: &Current,
        at_work: &mut AtWork,
    ) -> Option<Reply> {
        let Job { call, found, payload, deadline, attempt } = job;
        // There is no job where nothing is served; and the connection may have ended since it was made.
        let registry = self.registry.as_ref().filter(|_| !self.is_closed());
        let Some(registry) = registry else {
            self.running.take(call);
            return None;
        };
        let found = match found {
            Ok(found) => found,
            Err(status) => return Some(Reply::Status(status)),
        };
        let context = Context::new(deadline, attempt, peer);
        current.set(&context);
        at_work.call = Some(call);
        let streams =
            if found.kind() == Kind::Unary { None } else { self.streams.get(call).map(Streams::new) };
        let request = Request { context: context.clone(), payload, streams };
        let future = at_work.future.insert(registry.call(found, request));
        // The task that it becomes if it is not done polls it again, with a waker that wakes something.
        match future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(reply) => {
                // It may panic as well: until then it is at work.
                at_work.future = None;
                at_work.call = None;
                Some(ran(reply))
            }
            Poll::Pending => {
                let AtWork { future, .. } = std::mem::take(at_work);
                self.spawn(call, Handler::new(context, future));
                None
            }
        }
    }

    fn spawn(&self, call: u64, handler: Handler) {
        let Some(connection) = self.me() else { return };
        // Not under the lock: on a runtime that is shutting down the handler is dropped here.
        let task = self.runtime.spawn(async move {
            let reply = handler.in_time().await;
            connection.complete(call, reply);
            if connection.running.is_idle() {
                connection.flush();
            } else {
                // With the answers of others that are about to be done.
                connection.flush_soon();
            }
        });
        if !self.running.has_task(call, &task) {
            task.abort();
        } else if self.is_closed() {
            self.running.take(call).flatten().inspect(AbortHandle::abort);
        }
    }

    /// The handler of a call is done: queues its answer. Of one that was cancelled nobody waits for it.
    pub(super) fn complete(&self, call: u64, reply: Reply) {
        if !self.streams.is_empty() {
            return self.complete_streaming(call, reply);
        }
        self.complete_plain(call, reply);
    }

    /// The same where some calls have streams, perhaps this one.
    #[cold]
    fn complete_streaming(&self, call: u64, reply: Reply) {
        let Some(streams) = self.streams.get(call).filter(|streams| streams.has_begun()) else {
            self.end_streams(call, || Ended::Lost(streams::gave_up()));
            return self.complete_plain(call, reply);
        };
        // What has left in part of its last items must come before the END.
        let Err(reply) = streams.keep_reply(reply) else { return };
        if let Some(items) = streams.end_sending() {
            let end = self.end_of_answer(call, items, reply);
            self.running.end_with(call, || self.enqueue(end));
        }
        self.end_streams(call, || Ended::Lost(streams::gave_up()));
        self.progressed();
    }

    fn complete_plain(&self, call: u64, reply: Reply) {
        match self.short_result(&reply) {
            Some((head, body)) => {
                self.running.end_with(call, || self.enqueue_short(FrameType::RESPONSE, call, &head, body));
            }
            None => {
                let reply = self.reply(call, reply);
                self.running.end_with(call, || self.enqueue(reply));
            }
        }
        self.progressed();
    }

    /// The same for several, whose answers are short.
    pub(super) fn complete_all(&self, results: &mut Shorts) {
        let mut ended = Vec::new();
        if !self.streams.is_empty() {
            results.take_out(|answer| {
                ended.push(answer.call);
                false
            });
        }
        let mut running = self.running.lock();
        results.take_out(|answer| !running.end(answer.call));
        let queued = self.enqueue_all(results);
        drop(running);
        ended.into_iter().for_each(|call| self.end_streams(call, || Ended::Lost(streams::gave_up())));
        self.progressed();
        if queued >= ENOUGH {
            self.flush();
        }
    }

    /// A result that is short, with what goes before it, unless the peer can't take it.
    #[inline]
    pub(super) fn short_result<'r>(&self, reply: &'r Reply) -> Option<([u8; PLAIN_RESPONSE], &'r [u8])> {
        let Reply::Ok(payload) = reply else { return None };
        let len = payload.short_len()?;
        let max = self.peer_hello.get()?.max_message;
        let fits = PLAIN_RESPONSE as u64 + u64::from(len) <= max;
        fits.then(|| (ResponseHead { verdict: Verdict::Ok }.encode_plain(len), payload.body()))
    }

    /// The peer no longer waits for a call: its handler is to be dropped, or what is left of its answer. Under the lock of
    /// `receiving`: the REQUEST that comes next may have its place.
    pub(super) fn cancel_running(&self, call: u64, wakers: &mut Vec<Waker>) -> Option<Action> {
        let running = self.running.take(call);
        if let Some(streams) = self.streams.remove(call) {
            wakers.extend(streams.end(Ended::Lost(streams::gave_up())));
            self.abandon_streams(call);
        }
        if running.is_none() {
            self.abandon_response(call);
        }
        running.map(Action::Abort)
    }

    fn reply(&self, call: u64, reply: Reply) -> Message {
        let max = self.peer_hello.get().map_or(0, |hello| hello.max_message);
        let (verdict, payload) = match reply {
            Reply::Ok(payload) => (Verdict::Ok, payload),
            Reply::Err(payload) => (Verdict::Err, payload),
            Reply::Status(status) => return status_reply(call, status, max),
            // Of a stream that had not begun.
            Reply::End(_) => (Verdict::Ok, Payload::default()),
        };
        match response(call, verdict, payload) {
            Ok(mut message) if message.len() as u64 <= max => {
                self.stage(&mut message);
                message
            }
            Ok(message) => {
                let status = too_large("the result", message.len(), max, "the client's");
                status_reply(call, status.with_executed(Executed::Yes).with_blame(Blame::Peer), max)
            }
            Err(why) => status_reply(call, Status::new(Code::Internal, format!("the result: {why}")), max),
        }
    }
}

impl Connection {
    /// The END of an answer that is a stream of so many items.
    fn end_of_answer(&self, call: u64, items: u64, reply: Reply) -> Message {
        let max = self.peer_hello.get().map_or(0, |hello| hello.max_message);
        let (reason, payload) = match reply {
            Reply::End(sent) => (sent.reason(), Payload::default()),
            Reply::Ok(_) => (EndReason::Completed, Payload::default()),
            Reply::Err(payload) => (EndReason::Error, payload),
            Reply::Status(status) => (EndReason::Status, Payload::from_body(encode_status(&status))),
        };
        let whole =
            streams::end(call, EndHead { reason, items }, Content { metadata: Bytes::new(), payload });
        if whole.len() as u64 <= max {
            return whole;
        }
        let status = too_large("the error of a stream", whole.len(), max, "the client's");
        let payload = Payload::from_body(encode_status(&status.with_executed(Executed::Yes)));
        let head = EndHead { reason: EndReason::Status, items };
        streams::end(call, head, Content { metadata: Bytes::new(), payload })
    }
}

/// A call more than this side takes at once.
#[cold]
fn full(unanswered: usize, max: usize) -> Status {
    let message = format!(
        "{unanswered} calls are in progress on this connection; the server's limits.concurrent_calls is {max}"
    );
    refusal(Code::ResourceExhausted, message)
}

fn response(call: u64, verdict: Verdict, payload: Payload) -> Result<Message, TooLong> {
    let content = Content { metadata: Bytes::new(), payload };
    let head = Head::response(&ResponseHead { verdict }, &content)?;
    Ok(Message::with_payload(FrameType::RESPONSE, call, head, content.payload))
}

/// A status as an answer; without its details, and with few of its words, where all of it is too long for the peer.
fn status_reply(call: u64, status: Status, max: u64) -> Message {
    let whole = response(call, Verdict::Status, Payload::from_body(encode_status(&status)));
    match whole {
        Ok(message) if message.len() as u64 <= max => message,
        _ => {
            let words: String = status.message().chars().take(200).collect();
            let short =
                Status::new(status.code(), words).with_blame(status.blame()).with_executed(status.executed());
            let body = Payload::from_body(encode_status(&short));
            let fits = "no peer's limit is below 1 KiB, and 200 characters take less";
            response(call, Verdict::Status, body).expect(fits)
        }
    }
}
