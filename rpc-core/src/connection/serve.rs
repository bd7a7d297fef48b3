//! The handlers that run on this side for the peer's calls.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Connection;
use super::alive::{Alive, Reserved};
use super::answers;
use super::batch::{Action, Batch, ENOUGH};
use super::handler::{Handler, panicked, ran};
use super::registry::{Announced, Found, Registry, refusal};
use super::streams::{self, Ended};
use crate::config::Policy;
use crate::context::{Context, Current, Shared};
use crate::metadata::Metadata;
use crate::payload::Payload;
use crate::proto::shorts::Shorts;
use crate::proto::wire::{FrameType, RequestHead, WireError};
use crate::service::{HandlerFuture, Kind, Reply, Request};
use crate::status::{Blame, Code, Status};
use crate::stream::Streams;

/// A request that has been understood.
pub(super) struct Job {
    call: u64,
    /// What it calls, or why it is refused.
    found: Result<Found, Status>,
    payload: Payload,
    deadline: Option<Instant>,
    attempt: u8,
    /// The state that its contexts share, if it has metadata or streams, or is compressed.
    shared: Option<Arc<Shared>>,
    streams: Option<Streams>,
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
        let found = find(registry, announced, &head);
        let has_more = metadata.is_some() || !found.as_ref().is_ok_and(|found| found.kind() == Kind::Unary);
        batch.jobs.push(Job {
            call,
            found,
            payload,
            deadline,
            attempt: head.attempt,
            shared: None,
            streams: None,
        });
        if has_more { self.share(batch, metadata) } else { Ok(()) }
    }

    /// Puts a call to a batch that is refused although its request can't be read.
    #[cold]
    pub(super) fn push_refused(&self, batch: &mut Batch, call: u64, status: Status) -> Result<(), WireError> {
        if self.registry.is_none() {
            return Err(WireError::new("request", "goes to a side that serves nothing"));
        }
        let (found, payload) = (Err(status), Payload::default());
        batch.jobs.push(Job {
            call,
            found,
            payload,
            deadline: None,
            attempt: 1,
            shared: None,
            streams: None,
        });
        Ok(())
    }

    /// Sees to the last call of a batch, which has metadata or streams, or is compressed: what its contexts share. `Err`: it is
    /// none.
    #[cold]
    fn share(&self, batch: &mut Batch, metadata: Option<Box<Bytes>>) -> Result<(), WireError> {
        let Some(mut job) = batch.jobs.pop() else { return Ok(()) };
        let Job { call, found, payload, .. } = &mut job;
        let metadata = match metadata {
            Some(block) => self.read_metadata(*block, found)?,
            None => Metadata::new(),
        };
        if let Some(packed) = payload.as_packed()
            && let Err(too_long) = self.unpacking.admit(packed)?
            && found.is_ok()
        {
            *found = Err(too_long.status("the arguments", "the server's"));
        }
        if let Ok(called) = found
            && called.kind() != Kind::Unary
        {
            if self.sender.peer().is_some_and(streams::agreed) {
                // Before anything else of the call is taken in.
                job.streams = self.begin_streams(*call, called.kind()).map(Streams::new);
            } else {
                *found = Err(refusal(Code::Unimplemented, "the caller's farcall is too old for streams"));
            }
        }
        job.shared = Some(Shared::new(metadata, job.payload.compression()));
        batch.jobs.push(job);
        Ok(())
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
        let waiting = || self.sender.backlog();
        let most = waiting() + self.sender.queued();
        let mut running = self.running.lock();
        let result = jobs[*begun..].iter_mut().try_for_each(|job| {
            let mut unanswered = most + running.count();
            if !running.begin(job.call) {
                return Err(WireError::new("request.call", "is in use"));
            }
            *begun += 1;
            if unanswered >= max {
                // As long as there is room nobody asks whether the session's own messages are among those queued.
                let others = waiting() + self.sender.queued_of_calls() + running.count();
                unanswered = others.saturating_sub(1 + self.sender.given_up());
            }
            // A client that sends requests and reads no answers must not fill our memory with refusals, either.
            if unanswered > 2 * max + MAX_CROSSING {
                return Err(WireError::new("request", "is far beyond HELLO's max_calls"));
            }
            if job.found.is_ok() {
                if let Err(status) = &refusing {
                    job.found = Err(status.clone());
                } else if unanswered >= max {
                    job.found = Err(full(max));
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
        if self.settings.policy == Policy::Rdma && !self.sender.was_upgraded() {
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
        let (current, peer, place) = (Current::begin(), self.peer(), self.living.reserve());
        for job in jobs {
            let call = job.call;
            let Some(reply) = self.serve(job, peer, &current, &place, at_work) else { continue };
            match self.short_result(&reply) {
                // One by itself has nothing to share a lock with.
                Some((head, body)) if !alone => {
                    results.push(FrameType::RESPONSE, call, &head, body);
                    answers::recycle(reply);
                }
                None if self.packs_long(&reply) => self.complete_in_task(call, reply),
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
        place: &Reserved<'_>,
        at_work: &mut AtWork,
    ) -> Option<Reply> {
        let Job { call, found, payload, deadline, attempt, shared, streams } = job;
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
        let context = Context::new(deadline, attempt, peer, registry.drain().number(), shared);
        if !place.has_room() {
            self.serve_later(call, found, Request { context, payload, streams });
            return None;
        }
        current.set(&context);
        at_work.call = Some(call);
        let request = Request { context, payload, streams };
        let future = at_work.future.insert(self.handler(registry, found, request));
        // The task that it becomes if it is not done polls it again, with a waker that wakes something.
        match future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(mut reply) => {
                // It may panic as well: until then it is at work.
                at_work.future = None;
                at_work.call = None;
                ran(&mut reply);
                reply.add(current.answered());
                Some(reply)
            }
            Poll::Pending => {
                let AtWork { future, .. } = std::mem::take(at_work);
                self.spawn(call, Handler::new(current.end(), future, Some(Alive::new(&self.living))));
                None
            }
        }
    }

    #[inline(always)]
    fn handler(&self, registry: &Arc<Registry>, found: Found, request: Request) -> HandlerFuture {
        match request.payload.is_one_piece() {
            true => registry.call(found, request),
            false => self.handler_of_any(registry, found, request),
        }
    }

    /// There are as many handlers as there may be: some of them are cancelled, and will be dropped when the runtime comes to
    /// it. The call waits for that, as long as it has time.
    #[cold]
    fn serve_later(&self, call: u64, found: Found, request: Request) {
        let (Some(connection), Some(registry)) = (self.me(), self.registry.clone()) else { return };
        let (room, context) = (self.living.clone().room(), request.context.clone());
        let future = Box::pin(async move {
            let _alive = room.await;
            connection.handler(&registry, found, request).await
        });
        self.spawn(call, Handler::new(context, Some(future), None));
    }

    /// Completes a call whose answer takes long to make, though its handler is done.
    #[cold]
    fn complete_in_task(&self, call: u64, reply: Reply) {
        let done = Box::pin(std::future::ready(reply));
        self.spawn(call, Handler::new(Context::background(), Some(done), Some(Alive::new(&self.living))));
    }

    fn spawn(&self, call: u64, handler: Handler) {
        let Some(connection) = self.me() else { return };
        // Not under the lock: on a runtime that is shutting down the handler is dropped here.
        let task = self.runtime.spawn(async move {
            let reply = handler.in_time().await;
            connection.complete(call, reply);
            if connection.running.is_idle() {
                connection.sender.flush();
            } else {
                // With the answers of others that are about to be done.
                connection.sender.flush_soon();
            }
        });
        if !self.running.has_task(call, &task) {
            task.abort();
        } else if self.is_closed() {
            self.running.take(call).flatten().inspect(AbortHandle::abort);
        }
    }

    /// The peer no longer waits for a call: its handler is to be dropped, or what is left of its answer. Under the lock of
    /// `receiving`: the REQUEST that comes next may have its place.
    pub(super) fn cancel_running(&self, call: u64, wakers: &mut Vec<Waker>) -> Option<Action> {
        let running = self.running.take(call);
        let streams = self.streams.remove(call);
        if let Some(streams) = &streams {
            wakers.extend(streams.end(Ended::gave_up()));
        }
        // Of what runs and has no streams nothing is queued.
        if running.is_none() || streams.is_some() {
            self.sender.abandon_answer(call);
        }
        running.map(Action::Abort)
    }
}

#[inline]
fn find(registry: &Registry, announced: &Announced, head: &RequestHead) -> Result<Found, Status> {
    let Some(bound) = announced.get(head.service) else {
        return Err(refusal(Code::Unimplemented, "the call's service was not announced"));
    };
    registry.find(bound, head.method)
}

/// The refusal of a call that is one more than this side takes at once.
#[cold]
fn full(max: usize) -> Status {
    let message = format!(
        "{max} calls are in progress on this connection, which is all that the server's limits.concurrent_calls allows"
    );
    refusal(Code::ResourceExhausted, message)
}
