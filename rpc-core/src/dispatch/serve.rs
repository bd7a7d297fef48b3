//! The handlers that run on this side for the peer's calls.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};

use tokio::task::AbortHandle;

use super::Dispatch;
use super::admission::{no_memory, too_late};
use super::answers;
use super::handler::{HandlerTask, panicked};
use super::handler_limit::{HandlerPermit, Reserved};
use super::jobs::{ENOUGH, Job, Jobs};
use super::registry::FoundMethod;
use crate::admission::{Admitted, Refusal, count_refusal};
use crate::compress::LONG;
use crate::context::{Context, Current};
use crate::decoding::in_task;
use crate::memory::{Gauge, Use, kept_by};
use crate::payload::Payload;
use crate::proto::small_frames::SmallFrames;
use crate::proto::wire::FrameType;
use crate::reply::Reply;
use crate::service::{self, HandlerFuture, IncomingCall};
use crate::status::Executed;

/// The memory of a task beside the arguments, in bytes.
const TASK: usize = 2048;

/// The call whose handler is being made or first polled, kept here so that it is found after a panic.
#[derive(Default)]
struct AtWork {
    call: Option<u64>,
    future: Option<HandlerFuture>,
}

impl Dispatch {
    /// Runs the handlers of a batch, and queues the answers of those that are done at once.
    pub(crate) fn run(&self, batch: &mut Jobs) {
        let Jobs { jobs, results, .. } = batch;
        let alone = jobs.len() == 1;
        let (mut jobs, mut at_work) = (jobs.drain(..), AtWork::default());
        // One guard for all of them. A panic ends the call that was at work, and the loop goes on with the others.
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
        results: &mut SmallFrames,
        at_work: &mut AtWork,
    ) {
        let (current, peer, place) =
            (Current::begin(Some(self.context.clone())), self.sender.terms().address(), self.limit.reserve());
        for mut job in jobs {
            let call = job.call;
            // The handlers before it in the batch may have taken long.
            if !alone && job.found.is_ok() && job.is_late() {
                job.found = Err(too_late().into());
            }
            let Some(reply) = self.serve(job, peer, &current, &place, at_work) else { continue };
            match self.short_result(&reply) {
                // A lone answer has no others to share a lock with.
                Some((head, body)) if !alone => {
                    results.push(FrameType::RESPONSE, call, &head, body);
                    answers::recycle(reply);
                }
                None if self.compresses_long(&reply) => self.complete_in_task(call, reply),
                _ => self.complete(call, reply),
            }
            if results.len() >= ENOUGH {
                self.complete_all(results);
            }
        }
    }

    /// Runs a handler here until it first waits, then in its own task. If it is done at once, returns its reply, with
    /// which the caller completes the call.
    #[inline(always)]
    fn serve(
        &self,
        job: Job,
        peer: Option<SocketAddr>,
        current: &Current,
        place: &Reserved<'_>,
        at_work: &mut AtWork,
    ) -> Option<Reply> {
        let Job { call, found, payload, deadline, attempt, shared, streams, admitted } = job;
        if self.has_ended() {
            self.running.take(call);
            return None;
        }
        let found = match found {
            Ok(found) => found,
            Err(refused) => return Some(Reply::Status(refused.count())),
        };
        let context = Context::new(call, deadline, attempt, peer, shared);
        if self.sender.account().judge().is_some() {
            // Calls that came together with others may take more than those have left.
            if self.sender.account().is_closing() {
                // Its link delivers on until it is closed. Those calls must not use up the room that closing it makes.
                count_refusal(Refusal::Memory);
                return Some(Reply::Status(no_memory()));
            }
            self.serve_when_modest(call, found, IncomingCall { context, payload, streams }, admitted);
            return None;
        }
        let size = payload.short_len().map_or_else(|| memory_of(&payload), |len| len as usize);
        if !place.has_room() {
            self.serve_later(call, found, IncomingCall { context, payload, streams }, admitted);
            return None;
        }
        current.set(&context);
        at_work.call = Some(call);
        let request = IncomingCall { context, payload, streams };
        let future = at_work.future.insert(self.handler(found, request, admitted));
        // If the handler is not done, its task polls it again, with a waker that works.
        match future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(mut reply) => {
                // The drop may panic as well, so the call counts as at work until then.
                at_work.future = None;
                at_work.call = None;
                reply.judge();
                reply.add(current.answered());
                Some(reply)
            }
            Poll::Pending => {
                let AtWork { future, .. } = std::mem::take(at_work);
                let context = current.end();
                let gauge = self.gauge(size, &context);
                let permit = Some(HandlerPermit::new(&self.limit));
                self.spawn(call, HandlerTask::new(context, future, permit, gauge));
                None
            }
        }
    }

    #[inline(always)]
    fn handler(
        &self,
        found: FoundMethod,
        request: IncomingCall,
        admitted: Option<Box<Admitted>>,
    ) -> HandlerFuture {
        let handler = match request.payload.short_len() {
            Some(_) => self.registry.call(found, request),
            None => self.handler_of_any(found, request),
        };
        match admitted {
            None => handler,
            Some(admitted) => admitted.during(handler),
        }
    }

    /// Runs the handler of a call that has waited, unless its deadline has passed meanwhile or is too near.
    async fn handle_late(
        &self,
        found: FoundMethod,
        request: IncomingCall,
        mut admitted: Option<Box<Admitted>>,
    ) -> Reply {
        if request.context.remaining().is_some_and(|left| left.is_zero()) {
            return Reply::Status(too_late());
        }
        if let Some(admitted) = &mut admitted
            && let Err(status) = admitted.after_waiting(request.context.deadline())
        {
            return Reply::Status(status);
        }
        self.handler(found, request, admitted).await
    }

    /// Returns the handler of a call whose arguments may be compressed, or take long to decode.
    #[cold]
    fn handler_of_any(&self, found: FoundMethod, request: IncomingCall) -> HandlerFuture {
        let is_packed = request.payload.as_packed().is_some();
        if !is_packed && request.payload.body_len() <= LONG {
            return self.registry.call(found, request);
        }
        let ((service, method), unpacking) = (self.registry.service(found), self.unpacking.clone());
        let gauge = Gauge::new(self.sender.account(), Use::Arguments);
        Box::pin(async move {
            if !is_packed {
                in_task().await;
                return service::call(service, method, request).await;
            }
            let IncomingCall { context, payload, streams } = request;
            match unpacking.unpack(payload, gauge).await {
                // The room is held until the handler is done with the arguments.
                Ok((payload, _room)) => {
                    service::call(service, method, IncomingCall { context, payload, streams }).await
                }
                Err(why) => {
                    if why.is_no_room() {
                        count_refusal(Refusal::Memory);
                    }
                    Reply::Status(why.status("the arguments").with_executed(Executed::No))
                }
            }
        })
    }

    /// Whether compressing a reply takes long.
    #[cold]
    fn compresses_long(&self, reply: &Reply) -> bool {
        let (reply, by) = match reply {
            Reply::With(with) => (&with.reply, with.compression),
            reply => (reply, None),
        };
        let (Reply::Ok(payload) | Reply::Err(payload)) = reply else { return false };
        payload.len() > LONG && self.sender.terms().compresses(by)
    }

    /// Runs a handler later, because the limit of handlers is reached. Some of them are cancelled, and will be dropped
    /// when the runtime gets to it. The call waits for that, as long as its deadline allows.
    #[cold]
    fn serve_later(
        &self,
        call: u64,
        found: FoundMethod,
        request: IncomingCall,
        admitted: Option<Box<Admitted>>,
    ) {
        let Some(this) = self.me.upgrade() else { return };
        let (room, context) = (self.limit.clone().room(), request.context.clone());
        let gauge = self.gauge(request.payload.memory(), &context);
        let future = Box::pin(async move {
            let _alive = room.await;
            this.handle_late(found, request, admitted).await
        });
        self.spawn(call, HandlerTask::new(context, Some(future), None, gauge));
    }

    /// Runs a handler when its connection no longer holds more than its share of memory, or refuses the call.
    #[cold]
    fn serve_when_modest(
        &self,
        call: u64,
        found: FoundMethod,
        request: IncomingCall,
        admitted: Option<Box<Admitted>>,
    ) {
        let Some(this) = self.me.upgrade() else { return };
        let (limit, context) = (self.limit.clone(), request.context.clone());
        let gauge = self.gauge(request.payload.memory(), &context);
        let future = Box::pin(async move {
            let account = this.sender.account().clone();
            account.clone().until_modest().await;
            if account.refuses() {
                count_refusal(Refusal::Memory);
                return Reply::Status(no_memory());
            }
            let _alive = limit.room().await;
            this.handle_late(found, request, admitted).await
        });
        self.spawn(call, HandlerTask::new(context, Some(future), None, gauge));
    }

    /// Completes a call whose handler is done, but whose answer takes long to make.
    #[cold]
    fn complete_in_task(&self, call: u64, reply: Reply) {
        let (done, context) = (Box::pin(std::future::ready(reply)), Context::background());
        let gauge = self.gauge(0, &context);
        let permit = Some(HandlerPermit::new(&self.limit));
        self.spawn(call, HandlerTask::new(context, Some(done), permit, gauge));
    }

    /// Counts the memory of a handler that has become a task: its arguments, the metadata, and the task.
    fn gauge(&self, arguments: usize, context: &Context) -> Gauge {
        let memory = kept_by(arguments) + context.metadata().size() + TASK;
        Gauge::holding(self.sender.account(), Use::Arguments, memory)
    }

    fn spawn(&self, call: u64, handler: HandlerTask) {
        let Some(this) = self.me.upgrade() else { return };
        // Outside of the lock, because a runtime that is shutting down drops the handler here.
        let task = self.runtime.spawn(async move {
            let mut handler = pin!(handler.in_time());
            let reply = poll_fn(|cx| match this.has_ended() {
                // It is about to be dropped, and does nothing more.
                true => Poll::Pending,
                false => handler.as_mut().poll(cx),
            });
            let reply = reply.await;
            this.complete(call, reply);
            if this.running.is_idle() {
                this.sender.flush();
            } else {
                // Together with the answers of others that are about to be done.
                this.sender.flush_soon();
            }
        });
        if !self.running.has_task(call, &task) {
            task.abort();
        } else if self.has_ended() {
            self.running.take(call).flatten().inspect(AbortHandle::abort);
        }
    }
}

#[cold]
fn memory_of(payload: &Payload) -> usize {
    payload.memory()
}
