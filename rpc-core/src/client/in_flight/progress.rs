//! The limit of time in which nothing of a call moves.

use std::time::Duration;

use tokio::time::Instant;

use super::{InFlightCall, State};
use crate::client::policies::Policies;
use crate::connection::Moved;
use crate::context::earlier;
use crate::progress_watch::{ProgressAlarm, ProgressWatch};

impl InFlightCall {
    /// Starts to watch what moves of the call, if it or its channel sets a limit.
    #[inline]
    pub(super) fn watch_progress(&mut self) {
        let own = self.options.as_ref().and_then(|options| options.progress);
        if let Some(limit) = own.or_else(|| self.stub.policy(self.method, Policies::progress_timeout)) {
            self.watch_for(limit);
        }
    }

    #[cold]
    fn watch_for(&mut self, limit: Duration) {
        // The attempts of a hedged call have watches of their own.
        if limit < Duration::MAX && !matches!(self.state, State::Hedged(_)) {
            self.watch = Some(Box::new(ProgressWatch::new(limit)));
        }
    }

    /// Returns when the call must be looked at, if it has not ended before.
    #[inline]
    pub(super) fn next_alarm(&self) -> Option<Instant> {
        match &self.watch {
            None => self.deadline,
            Some(watch) => earlier(self.deadline, Some(watch.next())),
        }
    }

    /// Looks at the call, because its alarm has gone off. Returns the time of the next alarm. `None`: its deadline has passed,
    /// or nothing has moved for too long.
    #[cold]
    pub(super) fn look(&mut self) -> Option<Instant> {
        if self.left() == Some(Duration::ZERO) {
            return None;
        }
        let moved = match &self.state {
            State::Sent(pending) => pending.moved(),
            _ => Moved::default(),
        };
        if !self.watch.as_mut()?.look(moved) {
            return None;
        }
        self.next_alarm()
    }

    /// Has a call that was sent wait until another alarm.
    pub(super) fn wait_until(&mut self, next: Instant) {
        if let State::Sent(pending) = &mut self.state {
            pending.wait_until(next);
        }
    }

    /// Returns why the call ends now although its deadline has not passed, if that is so.
    pub(super) fn no_progress(&self) -> Option<String> {
        let watch = self.watch.as_ref()?;
        (self.left() != Some(Duration::ZERO)).then(|| watch.message())
    }

    /// Returns the alarm of the call's streams, once its answer has begun.
    pub(in crate::client) fn progress_alarm(&self) -> Option<ProgressAlarm> {
        self.watch.as_ref().map(|watch| ProgressAlarm::new((**watch).clone()))
    }
}
