//! Attempts of one call beside each other.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::ending::polled_again;
use super::{InFlightCall, State};
use crate::calls::{Answered, CallOptions, PushBack};
use crate::client::Parts;
use crate::client::balance::Picked;
use crate::client::meter::{Further, count_attempt};
use crate::client::policies::Policies;
use crate::service::Kind;
use crate::status::{Executed, Status};

/// The attempts of one call, made beside each other. The first answer ends them all.
pub(in crate::client) struct Hedge {
    attempts: Vec<InFlightCall>,
    delay: Duration,
    /// The time of the next attempt.
    next: Pin<Box<Sleep>>,
    made: u8,
    /// The status of the attempt that failed last.
    failure: Option<Status>,
}

impl InFlightCall {
    /// Begins to make the call by several attempts beside each other, if the channel's policy says so.
    #[cold]
    pub(super) fn hedge(&mut self) {
        let Some(delay) = self.stub.policy(self.method, Policies::hedging_delay) else { return };
        let is_unary = self.options.as_ref().is_none_or(|options| options.kind == Kind::Unary);
        if self.is_hedge || !is_unary || !self.is_idempotent() || !self.arguments.loans().is_empty() {
            return;
        }
        let next = Box::pin(tokio::time::sleep(delay));
        let mut hedge = Hedge { attempts: Vec::new(), delay, next, made: 0, failure: None };
        hedge.attempt(self);
        self.state = State::Hedged(Box::new(hedge));
    }

    /// Proceeds with the attempts until one is answered.
    pub(super) fn step_hedged(&mut self, cx: &mut TaskContext<'_>) -> Poll<Answered> {
        let State::Hedged(mut hedge) = std::mem::replace(&mut self.state, State::Failed) else {
            return Poll::Ready(Err(polled_again()));
        };
        match hedge.poll(self, cx) {
            Poll::Pending => {
                self.state = State::Hedged(hedge);
                Poll::Pending
            }
            Poll::Ready(Ok((answer, parts))) => {
                self.state = State::Answered(Box::new((parts, None)));
                Poll::Ready(answer)
            }
            Poll::Ready(Err(status)) => Poll::Ready(Err(status)),
        }
    }
}

impl Hedge {
    /// Adds an attempt of a call.
    fn attempt(&mut self, of: &InFlightCall) {
        let options = of.options.as_ref().map_or_else(CallOptions::none, |options| options.without_items());
        let arguments = of.arguments.clone();
        let mut attempt = InFlightCall::behind_middleware(
            of.stub.clone(),
            of.method,
            arguments,
            Box::new(options),
            of.deadline,
        );
        attempt.is_hedge = true;
        // Elsewhere, if there is another server.
        attempt.picked = self.attempts.last().and_then(|last| last.picked.as_ref()).map(Picked::again);
        self.made += 1;
        attempt.attempt = self.made;
        self.attempts.push(attempt);
    }

    /// Returns the first answer, with its parts, or the status of the last attempt.
    pub(super) fn poll(
        &mut self,
        of: &mut InFlightCall,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<(Answered, Parts), Status>> {
        loop {
            if let Some((index, answer)) = self.first_done(cx) {
                let mut attempt = self.attempts.swap_remove(index);
                let status = match answer {
                    Ok(answer) => return Poll::Ready(Ok((Ok(answer), attempt.parts()))),
                    Err(status) => status,
                };
                of.may_have_run |= status.executed() != Executed::No;
                let said = attempt.options.as_ref().and_then(|options| options.push_back);
                if !of.is_retryable(&status) || (!self.goes_on_after(said, of) && self.attempts.is_empty()) {
                    // The attempts that are given up here may have been executed.
                    of.may_have_run |= !self.attempts.is_empty();
                    return Poll::Ready(Err(status));
                }
                self.failure = Some(status);
            } else if self.has_more(of) && self.next.as_mut().poll(cx).is_ready() {
                self.next = Box::pin(tokio::time::sleep(self.delay));
                if !self.goes_on(of)
                    && self.attempts.is_empty()
                    && let Some(status) = self.failure.take()
                {
                    return Poll::Ready(Err(status));
                }
            } else if self.attempts.is_empty()
                && !self.has_more(of)
                && let Some(status) = self.failure.take()
            {
                // The channel allows fewer attempts than when this one's pause began.
                return Poll::Ready(Err(status));
            } else {
                return Poll::Pending;
            }
        }
    }

    /// Returns an attempt that is done.
    fn first_done(&mut self, cx: &mut TaskContext<'_>) -> Option<(usize, Answered)> {
        self.attempts.iter_mut().enumerate().find_map(|(index, attempt)| match attempt.poll(cx) {
            Poll::Ready(answer) => Some((index, answer)),
            Poll::Pending => None,
        })
    }

    fn has_more(&self, of: &InFlightCall) -> bool {
        u32::from(self.made) < of.stub.policy(of.method, Policies::max_attempts)
    }

    /// Adds an attempt after one that has failed, when the server's word says. Returns whether there will be one.
    fn goes_on_after(&mut self, said: Option<PushBack>, of: &InFlightCall) -> bool {
        match said {
            None => self.goes_on(of),
            Some(PushBack::After(pause)) => {
                let goes_on = self.has_more(of) && of.left().is_none_or(|left| left > pause);
                if goes_on {
                    self.next = Box::pin(tokio::time::sleep(pause));
                }
                goes_on
            }
            Some(PushBack::Never) => {
                self.made = u8::MAX;
                false
            }
        }
    }

    /// Adds an attempt, if there may be another. Returns whether it did.
    fn goes_on(&mut self, of: &InFlightCall) -> bool {
        let goes_on = self.has_more(of) && of.stub.channel().retry_budget().spend();
        if goes_on {
            count_attempt(Further::Hedge);
            self.attempt(of);
        }
        goes_on
    }
}
