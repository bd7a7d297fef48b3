//! The ends of a call that are not its answer.

use std::future::Future;
use std::task::Context as TaskContext;
use std::time::Duration;

use tokio::time::Instant;

use super::{InFlightCall, State};
use crate::calls::Answered;
use crate::client::Stub;
use crate::client::balance::Picked;
use crate::connection::Pending;
use crate::context::parent_ended;
use crate::status::{Blame, Code, Executed, Status};

/// The state of a call at its deadline, if a long answer has come.
const UNREAD: &str = "its answer was still being decoded";

impl InFlightCall {
    /// Whether the parent call has ended early. If not, registers to be polled when it does.
    #[cold]
    pub(super) fn is_in_vain(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let parent = self.options.as_mut().and_then(|options| options.parent.as_mut());
        parent.is_some_and(|parent| parent.poll_ended(cx).is_ready())
    }

    /// Ends a call whose parent has ended.
    #[cold]
    pub(super) fn cut_short(&mut self) -> Status {
        if self.left() == Some(Duration::ZERO) {
            return self.expire();
        }
        let executed = match &mut self.state {
            State::Sent(pending) => {
                pending.give_up(0);
                Executed::Maybe
            }
            State::Layered(_, passed) => passed.executed(),
            State::Hedged(_) | State::Answered(_) => Executed::Maybe,
            _ => Executed::No,
        };
        self.state = State::Failed;
        self.named(parent_ended().with_executed(executed))
    }

    /// Whether a call that is not sent, or whose answer is still being decoded, must [expire](Self::expire). If not, registers to be
    /// polled when that may be so.
    pub(super) fn is_late(&mut self, cx: &mut TaskContext<'_>) -> bool {
        if let State::Sent(pending) = &self.state
            && !pending.has_answer()
        {
            return false;
        }
        let Some(at) = self.next_alarm() else { return false };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if alarm.as_mut().poll(cx).is_pending() {
            return false;
        }
        let Some(next) = self.look() else { return true };
        self.alarm = Some(Box::pin(tokio::time::sleep_until(next)));
        cx.waker().wake_by_ref();
        false
    }

    /// Returns the status of a call that must end although its answer has come, because that is still being read. If there is none,
    /// registers to be polled when that may be so.
    #[cold]
    pub(in crate::client) fn ended_unread(&mut self, cx: &mut TaskContext<'_>) -> Option<Status> {
        if self.is_in_vain(cx) {
            return Some(self.cut_short());
        }
        self.is_late(cx).then(|| self.expire())
    }

    /// Ends the call at its deadline, or because nothing has moved for too long, with a status that names what it was waiting
    /// for.
    pub(super) fn expire(&mut self) -> Status {
        let mut source = None;
        let no_progress = self.no_progress();
        let (when, executed) = match &mut self.state {
            State::Sent(pending) => {
                suspect_if_silent(&self.stub, self.picked.as_ref(), pending);
                let when = if pending.has_answer() { UNREAD } else { "no answer" };
                pending.give_up(1);
                (when.to_owned(), Executed::Maybe)
            }
            State::Answered(_) => (UNREAD.to_owned(), Executed::Maybe),
            State::Layered(_, passed) => {
                ("no answer through the client's middleware".to_owned(), passed.executed())
            }
            State::Connecting(_) => {
                source = self.options.as_mut().and_then(|options| options.not_connected.take());
                (format!("not connected to {}", self.stub.channel().target()), Executed::No)
            }
            State::Hedged(_) => ("no answer to any attempt".to_owned(), Executed::Maybe),
            State::Pausing(_, status) => {
                let when = format!("about to be made again after {}", status.code());
                source = Some(status.clone());
                (when, Executed::No)
            }
            State::MakingRoom(_) => {
                let when = "waiting for room within the channel's limits.request_memory";
                (when.to_owned(), Executed::No)
            }
            State::Placing(_) => {
                let when = "waiting for a place among the server's limits.concurrent_calls";
                (when.to_owned(), Executed::No)
            }
            _ => ("not sent".to_owned(), Executed::No),
        };
        let (message, blame) = match no_progress {
            Some(why) if executed == Executed::No => (format!("{self}: {when}: {why}"), Blame::Caller),
            Some(why) => (format!("{self}: {when}: {why}"), Blame::Peer),
            None => {
                let after = self.began.map_or(Duration::ZERO, |began| began.elapsed());
                (format!("{self}: {when} after {after:.1?}"), Blame::Caller)
            }
        };
        let late = Status::new(Code::DeadlineExceeded, message).with_executed(executed).with_blame(blame);
        match source {
            Some(source) => late.with_source(source),
            None => late,
        }
    }

    /// Suspects a silent server when an unanswered call is dropped at its deadline. A handler's own deadline drops its calls before they
    /// expire.
    #[cold]
    pub(super) fn given_up(&self, pending: &Pending) {
        if self.left() == Some(Duration::ZERO) {
            suspect_if_silent(&self.stub, self.picked.as_ref(), pending);
        }
    }

    /// Returns the time left, if the call has a deadline.
    pub(super) fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Notes the end of a call: for its server, for the budget of further attempts, and in its status, if an earlier attempt may have been
    /// executed.
    #[inline(never)]
    pub(super) fn note_end(&mut self, answer: &mut Answered) {
        // A stream that has begun is noted when it has ended. Only calls with options have one.
        let begins_stream = self.options.is_some() && self.begun_streams(answer).is_some();
        if let Some(picked) = self.picked.take_if(|_| !begins_stream) {
            picked.ended(answer.as_ref().err());
        }
        match answer {
            // A call in front of middleware, or of attempts beside each other, earns nothing beside those.
            Ok(_) if matches!(self.state, State::Sent(_)) => self.stub.channel().retry_budget().earn(),
            Err(status) if self.may_have_run && status.executed() == Executed::No => {
                *status = status.clone().with_executed(Executed::Maybe);
            }
            _ => {}
        }
    }

    /// Prefixes farcall's own statuses with the call's name. If the message names the fingerprint of this side's
    /// signature, appends the signature.
    pub(super) fn named(&self, status: Status) -> Status {
        if status.blame() == Blame::Application {
            return status;
        }
        let refused = status.code() == Code::FailedPrecondition && status.executed() == Executed::No;
        let method = self
            .stub
            .service()
            .methods
            .get(self.method)
            .filter(|m| refused && status.message().contains(&format!("{:016x}", m.fingerprint)));
        let ours =
            method.map_or_else(String::new, |m| format!("; the caller's signature is `{}`", m.signature));
        status.map_message(|m| format!("{self}: {m}{ours}"))
    }
}

/// Suspects the server of a call whose time is over, if it has sent nothing since the call was sent.
fn suspect_if_silent(stub: &Stub, picked: Option<&Picked>, pending: &Pending) {
    if pending.is_peer_silent() {
        stub.channel().suspect(picked, pending.connection());
    }
}

pub(super) fn polled_again() -> Status {
    Status::new(Code::Internal, "a call was polled after it was done").with_blame(Blame::Caller)
}
