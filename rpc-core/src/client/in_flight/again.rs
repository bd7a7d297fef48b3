//! Further attempts of a call that has failed.

use std::time::Duration;

use super::{InFlightCall, State};
use crate::access::may_write;
use crate::backoff;
use crate::calls::{CallOptions, PushBack};
use crate::client::meter::{Further, count_attempt};
use crate::client::policies::Policies;
use crate::status::{Blame, Code, Executed, RETRY_AFTER, Status};

/// How often a call that was certainly not executed is sent, until its caller is told.
const TRANSPARENT_ATTEMPTS: u8 = 4;

impl InFlightCall {
    /// Makes the call again, if it may and that may help. Otherwise returns the status for the caller.
    pub(super) fn again(&mut self, status: Status) -> Result<(), Status> {
        let elsewhere = status.code() == Code::Unavailable
            && status.executed() == Executed::No
            && status.blame() != Blame::Application;
        let is_open = matches!(&self.state, State::Sent(pending) if pending.connection().is_open());
        if let Some(picked) = &mut self.picked
            && elsewhere
            && !is_open
        {
            picked.was_not_made();
        }
        if self.is_last {
            return Err(self.named(status));
        }
        if elsewhere && self.attempt < TRANSPARENT_ATTEMPTS {
            self.failed_there(&status);
            count_attempt(Further::Elsewhere);
            self.state = State::Unsent;
        } else if let Some(pause) = self.pause_before(&status) {
            self.failed_there(&status);
            count_attempt(Further::Retry);
            self.state = State::Pausing(Box::pin(tokio::time::sleep(pause)), status);
        } else if elsewhere {
            self.failed_there(&status);
            self.wait_for_ready(status)?;
        } else {
            return Err(self.named(status));
        }
        self.attempt = self.attempt.saturating_add(1);
        Ok(())
    }

    /// Notes for the server of this attempt that it has failed.
    fn failed_there(&mut self, status: &Status) {
        if let Some(picked) = &mut self.picked {
            picked.failed(status);
        }
    }

    /// Returns how long to wait before the call is made again, if the channel's policy allows it.
    #[cold]
    fn pause_before(&mut self, status: &Status) -> Option<Duration> {
        let retry = self.stub.policy(self.method, Policies::retry);
        let push_back = self.push_back();
        if self.is_hedge {
            // The next one is not this attempt's to make.
            CallOptions::of(&mut self.options).push_back = push_back;
            return None;
        }
        if u32::from(self.attempt) >= retry.max_attempts || !self.is_retryable(status) {
            return None;
        }
        let failures = u32::from(self.attempt).saturating_sub(1);
        let pause = match push_back {
            Some(PushBack::After(pause)) => pause,
            Some(PushBack::Never) => return None,
            None => backoff::pause(failures, retry.initial_backoff(), retry.max_backoff()),
        };
        let is_in_time = self.left().is_none_or(|left| left > pause);
        if !is_in_time || !self.stub.channel().retry_budget().spend() {
            return None;
        }
        self.may_have_run |= status.executed() != Executed::No;
        Some(pause)
    }

    /// Returns the server's word on when to try again, from the answer's metadata.
    fn push_back(&self) -> Option<PushBack> {
        let State::Sent(pending) = &self.state else { return None };
        let metadata = &pending.received()?.metadata;
        let said = metadata.trailing.get(RETRY_AFTER).or_else(|| metadata.initial.get(RETRY_AFTER))?;
        let pause = said.parse().map(Duration::from_millis);
        Some(pause.map_or(PushBack::Never, PushBack::After))
    }

    /// Whether the channel's policy allows another attempt after this status.
    pub(super) fn is_retryable(&self, status: &Status) -> bool {
        let is_harmless = status.executed() == Executed::No || self.is_idempotent();
        is_harmless
            && self.stub.policy(self.method, Policies::retry).retryable_status_codes.contains(&status.code())
    }

    /// Whether the call does no harm if it is executed more than once.
    pub(super) fn is_idempotent(&self) -> bool {
        let by_call = self.options.as_ref().and_then(|options| options.idempotent);
        let method = self.stub.service().methods.get(self.method);
        by_call.unwrap_or_else(|| method.is_some_and(|method| method.idempotent))
            // The first server's device may still write there when the second server has answered.
            && !may_write(self.arguments.loans())
    }

    /// Waits for a connection, or fails if the call or its channel says so.
    #[cold]
    pub(super) fn wait_for_ready(&mut self, status: Status) -> Result<(), Status> {
        let channel = self.stub.channel();
        let waits = self.options.as_ref().and_then(|options| options.waits_for_ready);
        let passes = status.code() == Code::Unavailable && status.blame() != Blame::Caller;
        if !passes || !waits.unwrap_or_else(|| self.stub.policy(self.method, Policies::waits_for_ready)) {
            return Err(self.named(status));
        }
        let (channel, key) = (channel.clone(), self.key());
        let before = CallOptions::of(&mut self.options).not_connected.replace(status);
        self.state = State::Connecting(Box::pin(channel.connect_after_pause(before.is_none(), key)));
        Ok(())
    }
}
