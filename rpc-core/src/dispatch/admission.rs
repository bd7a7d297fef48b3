//! Admission of the peer's calls: which methods they call, and whether they are accepted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Dispatch;
use super::jobs::{Job, Jobs};
use super::registry::{FoundMethod, Registry, RemoteServices};
use crate::admission::{Refusal, Refused, count_refusal};
use crate::call_streams::Streams;
use crate::class::TrafficClass;
use crate::config::Policy;
use crate::context::Shared;
use crate::interface::Kind;
use crate::metadata::Metadata;
use crate::payload::Payload;
use crate::proto::wire::{RequestHead, WireError};
use crate::refusal::refusal;
use crate::session::InOrder;
use crate::status::{Blame, Code, Executed, Status};

/// How many refusals may be on their way beyond the answers that a client can wait for.
const MAX_CROSSING: usize = 1024;

impl Dispatch {
    /// Adds a request to a batch, or a refusal if there is no memory for it. Fails if it is malformed.
    pub(crate) fn push(
        &self,
        announced: &RemoteServices,
        batch: &mut Jobs,
        call: u64,
        message: Bytes,
    ) -> Result<(), WireError> {
        let (head, metadata, payload) = match RequestHead::decode_apart(message) {
            Ok(request) => request,
            Err(error) if error.is_no_memory() => {
                let status = self.sender.terms().no_memory(error.what, Executed::No);
                self.push_refused(batch, call, status);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let deadline = match head.timeout_us {
            0 => None,
            us => batch.now.get_or_insert_with(Instant::now).checked_add(Duration::from_micros(us)),
        };
        let found = find(&self.registry, announced, &head).map_err(Refused::from);
        let has_more = metadata.is_some() || !found.as_ref().is_ok_and(|found| found.kind() == Kind::Unary);
        batch.jobs.push(Job {
            call,
            found,
            payload,
            deadline,
            attempt: head.attempt,
            shared: None,
            streams: None,
            admitted: None,
        });
        if has_more { self.share(batch, metadata) } else { Ok(()) }
    }

    /// Adds a call to a batch that is refused, because its request can't be read.
    #[cold]
    pub(crate) fn push_refused(&self, batch: &mut Jobs, call: u64, status: Status) {
        let (found, payload) = (Err(status.into()), Payload::default());
        batch.jobs.push(Job {
            call,
            found,
            payload,
            deadline: None,
            attempt: 1,
            shared: None,
            streams: None,
            admitted: None,
        });
    }

    /// Adds the service that a BIND announces.
    pub(crate) fn bind(&self, announced: &mut RemoteServices, payload: Bytes) -> Result<(), WireError> {
        announced.add(&self.registry, payload)
    }

    /// Completes the last job of a batch, which has metadata or streams, or is compressed, with the state for its
    /// contexts. Fails if its request is malformed.
    #[cold]
    fn share(&self, batch: &mut Jobs, metadata: Option<Box<Bytes>>) -> Result<(), WireError> {
        let Some(mut job) = batch.jobs.pop() else { return Ok(()) };
        let Job { call, found, payload, .. } = &mut job;
        let terms = self.sender.terms();
        let metadata = metadata.map_or(Ok(Ok(Metadata::new())), |block| terms.read_metadata(*block))?;
        let metadata = metadata.unwrap_or_else(|too_much| {
            if found.is_ok() {
                *found = Err(too_much.into());
            }
            Metadata::new()
        });
        if let Some(packed) = payload.as_packed()
            && let Err(too_long) = self.unpacking.admit(packed)?
            && found.is_ok()
        {
            *found = Err(too_long.status("the arguments", "the server's").into());
        }
        if let Ok(called) = found
            && called.kind() != Kind::Unary
        {
            if self.streams.agreed() {
                // Before anything else of the call is received.
                job.streams = self.streams.begin(*call, called.kind()).map(Streams::new);
            } else {
                let too_old = refusal(Code::Unimplemented, "the caller's farcall is too old for streams");
                *found = Err(too_old.into());
            }
        }
        job.shared = Some(Shared::new(metadata, job.payload.compression()));
        batch.jobs.push(job);
        Ok(())
    }

    /// Begins the new calls of a batch, which count as running from now on. Fails if a number is in use, or if there
    /// are far too many calls.
    pub(crate) fn begin(&self, _: &mut InOrder, batch: &mut Jobs) -> Result<(), WireError> {
        let Jobs { jobs, begun, .. } = batch;
        if jobs.len() == *begun {
            return Ok(());
        }
        let max = self.sender.terms().settings.limits.concurrent_calls as usize;
        let refusing = self.takes_calls();
        let class = self.registry.is_limited().then(|| self.sender.terms().class());
        // How many calls are in progress beside these, because their answers are not sent or not read. The counts are
        // read against the order in which calls move on. So none is counted twice, and a call whose answer the peer may
        // have seen is not counted.
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
                // Messages of the session itself are excluded only when there is no room, because that takes the
                // queue's lock.
                let others = waiting() + self.sender.queued_of_calls() + running.count();
                unanswered = others.saturating_sub(1 + self.sender.given_up());
            }
            // A client that sends requests and reads no answers must not fill our memory with refusals either.
            if unanswered > 2 * max + MAX_CROSSING {
                return Err(WireError::new("request", "is far beyond HELLO's max_calls"));
            }
            if job.found.is_ok() {
                if let Err(refused) = &refusing {
                    job.found = Err(refused.clone());
                } else if unanswered >= max {
                    job.found = Err(Refused::new(Refusal::ConcurrentCalls, full(max)));
                } else if let Some(class) = class {
                    self.admit(class, job);
                }
            }
            Ok(())
        });
        // None of the rest is served.
        jobs.truncate(*begun);
        result
    }

    /// Admits a job, unless the server is overloaded or the job can't be done in time.
    #[cold]
    fn admit(&self, class: TrafficClass, job: &mut Job) {
        let Ok(found) = job.found else { return };
        match self.registry.admit(&self.share, class, found, job.deadline) {
            Ok(admitted) => job.admitted = admitted,
            Err(refused) => job.found = Err(refused),
        }
    }

    /// Checks that this side accepts calls now.
    fn takes_calls(&self) -> Result<(), Refused> {
        if self.sender.terms().settings.policy == Policy::Rdma && !self.sender.was_upgraded() {
            // The connection is about to be closed for that. Until then nothing is executed.
            let message = "the server requires RDMA, which this connection does not have";
            let status = refusal(Code::Unavailable, message).with_blame(Blame::Environment);
            return Err(Refused::new(Refusal::NoRdma, status));
        }
        if self.refuses.load(Ordering::Relaxed) {
            let message = "the server is draining and takes no new calls";
            let status = refusal(Code::Unavailable, message).with_blame(Blame::Environment);
            return Err(Refused::new(Refusal::Draining, status));
        }
        if self.sender.account().refuses() {
            return Err(Refused::new(Refusal::Memory, no_memory()));
        }
        Ok(())
    }
}

#[inline]
fn find(registry: &Registry, announced: &RemoteServices, head: &RequestHead) -> Result<FoundMethod, Status> {
    let Some(bound) = announced.get(head.service) else {
        return Err(refusal(Code::Unimplemented, "the call's service was not announced"));
    };
    registry.find(bound, head.method)
}

/// Returns the refusal of a call of a connection that holds too much memory.
#[cold]
pub(super) fn no_memory() -> Status {
    let message = "the server's memory for its clients (limits.memory) is nearly used up, and this client holds more than \
                   its share; wait for calls to end, or send less at a time";
    refusal(Code::ResourceExhausted, message)
}

/// Returns the answer to a call whose deadline passed before its handler began.
#[cold]
pub(super) fn too_late() -> Status {
    count_refusal(Refusal::Deadline);
    refusal(Code::DeadlineExceeded, "the deadline passed before the handler began")
}

/// Returns the refusal of a call above the limit of concurrent calls.
#[cold]
fn full(max: usize) -> Status {
    let message = format!(
        "{max} calls are in progress on this connection, which is all that the server's limits.concurrent_calls allows"
    );
    refusal(Code::ResourceExhausted, message)
}
