//! Slots in which the calls of this side wait, and find how they ended.

mod place;
mod table;

use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;
use tokio::time::Instant;

pub(crate) use self::place::Place;
use self::table::{Slot, SlotState, Table};
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard, rank};

/// The slots of a connection's calls. Each ends with a RESPONSE, or with a status in its place.
pub(crate) type CallSlots = Slots<Result<Bytes, Status>, Status>;

/// The slots of calls, which end with an `E`. Calls are numbered from 1. There are as many places as the peer accepts
/// concurrent calls, and none before it has said so. Once a reason `R` is set, no more slots are opened.
#[derive(Debug)]
pub(crate) struct Slots<E, R>(Mutex<rank::CallTable, Table<E, R>>);

/// A slot that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) call: u64,
    /// Whether no other call has a slot.
    pub(crate) alone: bool,
    /// Whether its deadline is before any alarm, so that one must be set.
    pub(crate) first_alarm: bool,
}

/// The reason why no slot was opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpenError<R> {
    Full,
    For(R),
}

/// The outcome that a waiting call finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotOutcome<E> {
    /// The call has ended, and its slot is free.
    End(E),
    /// The deadline has passed. The call keeps its slot until it is [forgotten](Slots::forget).
    Late,
}

/// The error for an answer to a call of a number that was never used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NeverMade;

/// The waker of the waiter that has got a place. It must be woken when no lock is held.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct FreedPlace(Option<Waker>);

impl FreedPlace {
    pub(crate) fn into_waker(self) -> Option<Waker> {
        self.0
    }

    pub(crate) fn wake(self) {
        if let Some(waker) = self.0 {
            waker.wake();
        }
    }
}

/// Replaces the registered waker. Returns the old one, which must be dropped without holding a lock: it may hold the
/// last reference to its task, whose future and calls are dropped with it.
pub(crate) fn exchange(waker: &mut Waker, cx: &TaskContext<'_>) -> Option<Waker> {
    (!waker.will_wake(cx.waker())).then(|| std::mem::replace(waker, cx.waker().clone()))
}

/// The position of a waiter in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl<E, R: Clone> Slots<E, R> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Table::new()))
    }

    /// Sets how many concurrent calls the peer accepts.
    pub(crate) fn admit(&self, places: usize) {
        self.lock().places = places;
    }

    /// Assigns a call a number and a slot, and makes `queue` queue its message. This happens under the lock, so that
    /// whoever finds the call also finds its message, unless that was sent. The caller is woken when the call has ended
    /// or is late. If it `looks` and the call is alone, it is woken only once it has [polled](Self::poll). `has_place`
    /// means that it has waited in line.
    pub(crate) fn open(
        &self,
        has_place: bool,
        deadline: Option<Instant>,
        looks: bool,
        cx: &TaskContext<'_>,
        queue: impl FnOnce(u64),
    ) -> Result<Opened, OpenError<R>> {
        let mut table = self.lock();
        if let Some(reason) = &table.refusing {
            return Err(OpenError::For(reason.clone()));
        }
        if !has_place && !table.take_place() {
            return Err(OpenError::Full);
        }
        let call = table.next();
        let alone = table.open == 0;
        let waker = (!(alone && looks)).then(|| cx.waker().clone());
        *table.at(call) = Slot { call, state: SlotState::Waiting { waker, deadline, late: false } };
        table.open += 1;
        queue(call);
        let first_alarm = table.set_alarm(deadline);
        Ok(Opened { call, alone, first_alarm })
    }

    /// Returns how a call ended. If it has not, registers the caller to be woken when it has, or is late. If it `keeps`
    /// its place, the place must be [given back](Self::give_back) later.
    pub(crate) fn poll(
        &self,
        call: u64,
        keeps: bool,
        cx: &TaskContext<'_>,
    ) -> (Poll<SlotOutcome<E>>, FreedPlace) {
        let _before;
        let mut table = self.lock();
        let slot = table.slot(call);
        debug_assert!(slot.is_some(), "a call that waits has a slot");
        match slot {
            Some(Slot { state: SlotState::Waiting { late: true, .. }, .. }) => {
                (Poll::Ready(SlotOutcome::Late), FreedPlace::default())
            }
            Some(Slot { state: SlotState::Waiting { waker, .. }, .. }) => {
                _before = exchange(waker.get_or_insert_with(|| cx.waker().clone()), cx);
                (Poll::Pending, FreedPlace::default())
            }
            Some(slot) => match std::mem::replace(slot, Slot::free()).state {
                SlotState::Ended(end) => {
                    table.close_slot();
                    let next = if keeps { FreedPlace::default() } else { table.leave() };
                    (Poll::Ready(SlotOutcome::End(end)), next)
                }
                SlotState::Waiting { .. } => (Poll::Pending, FreedPlace::default()),
            },
            None => (Poll::Pending, FreedPlace::default()),
        }
    }

    /// Records the peer's answers, and adds the wakers to wake when no lock is held. Ignores answers to calls that have
    /// ended, or that nobody waits for.
    pub(crate) fn answer(
        &self,
        answers: impl Iterator<Item = (u64, E)>,
        wake: &mut Vec<Waker>,
    ) -> Result<(), NeverMade> {
        let mut table = self.lock();
        for (call, end) in answers {
            if !table.was_made(call) {
                return Err(NeverMade);
            }
            table.answered = true;
            wake.extend(table.end(call, end));
        }
        Ok(())
    }

    /// Whether there was ever a call of this number.
    pub(crate) fn was_made(&self, call: u64) -> bool {
        self.lock().was_made(call)
    }

    /// Ends a call without an answer. Returns the waker to wake when no lock is held.
    pub(crate) fn end(&self, call: u64, end: E) -> Option<Waker> {
        self.lock().end(call, end)
    }

    /// Frees the slot of a call that its caller has given up. Its place must be [given back](Self::give_back) once the
    /// CANCEL is queued before any call that may get the place. `Some(false)`: the call was answered, so the peer need
    /// not be told. `None`: the call has ended, and has no place.
    pub(crate) fn forget(&self, call: u64) -> Option<bool> {
        let left;
        let mut table = self.lock();
        left = std::mem::replace(table.slot(call)?, Slot::free());
        table.close_slot();
        Some(matches!(left.state, SlotState::Waiting { .. }))
    }

    /// Returns why it opens no more slots.
    pub(crate) fn refusing(&self) -> Option<R> {
        self.lock().refusing.clone()
    }

    /// Opens no more slots, for this reason unless one is set already. Returns the wakers of those in line.
    pub(crate) fn refuse(&self, reason: R) -> Vec<Waker> {
        let mut table = self.lock();
        table.refusing.get_or_insert(reason);
        table.wakers_in_line()
    }

    /// Opens no more slots, for this reason. Returns the wakers of those in line.
    pub(crate) fn close(&self, reason: R) -> Vec<Waker> {
        let mut table = self.lock();
        table.refusing = Some(reason);
        table.wakers_in_line()
    }

    /// Returns the waiting calls with a number above this.
    pub(crate) fn waiting_after(&self, last: u64) -> Vec<u64> {
        let table = self.lock();
        let waits = |slot: &&Slot<E>| slot.call > last && matches!(slot.state, SlotState::Waiting { .. });
        table.ring.iter().filter(waits).map(|slot| slot.call).collect()
    }

    /// Marks the calls that are late. Returns their wakers, and when to look again.
    pub(crate) fn find_late(&self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let mut table = self.lock();
        let (mut late_ones, mut next) = (Vec::new(), None::<Instant>);
        for slot in &mut table.ring {
            if let SlotState::Waiting { waker, deadline: Some(deadline), late } = &mut slot.state
                && !*late
            {
                if *deadline <= now {
                    *late = true;
                    late_ones.extend(waker.take());
                } else {
                    next = Some(next.map_or(*deadline, |next| next.min(*deadline)));
                }
            }
        }
        table.alarm = next;
        (late_ones, next)
    }

    /// Sets another deadline for a waiting call that is late. Returns whether it is before all others, so that an alarm must
    /// be set. The caller must [look](Self::poll) again.
    pub(crate) fn extend(&self, call: u64, until: Instant) -> bool {
        let mut table = self.lock();
        if let Some(Slot { state: SlotState::Waiting { deadline, late, .. }, .. }) = table.slot(call) {
            (*deadline, *late) = (Some(until), false);
            return table.set_alarm(Some(until));
        }
        false
    }

    /// Waits for a place. If there is a ticket at the end, it must be [handed in](Self::leave_line).
    pub(crate) fn wait_in_line(
        &self,
        ticket: &mut Option<Ticket>,
        cx: &TaskContext<'_>,
    ) -> Poll<Result<(), R>> {
        let _before;
        let mut table = self.lock();
        if let Some(reason) = &table.refusing {
            return Poll::Ready(Err(reason.clone()));
        }
        let Some(own) = *ticket else {
            if table.line.is_empty() && table.take_place() {
                return Poll::Ready(Ok(()));
            }
            table.last_ticket += 1;
            let own = Ticket(table.last_ticket);
            table.line.push_back((own, cx.waker().clone()));
            *ticket = Some(own);
            return Poll::Pending;
        };
        match table.in_line(own) {
            Some(at) => {
                _before = exchange(&mut table.line[at].1, cx);
                Poll::Pending
            }
            None => {
                *ticket = None;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Leaves the line, or the place if one was granted meanwhile.
    pub(crate) fn leave_line(&self, ticket: Ticket) -> FreedPlace {
        let _gone;
        let mut table = self.lock();
        match table.in_line(ticket) {
            Some(at) => {
                _gone = table.line.remove(at);
                FreedPlace::default()
            }
            None => table.leave(),
        }
    }

    /// Frees a place for which no slot was opened.
    pub(crate) fn give_back(&self) -> FreedPlace {
        self.lock().leave()
    }

    /// Returns the highest number that a call was given.
    pub(crate) fn last(&self) -> u64 {
        self.lock().last
    }

    /// Whether any call has been answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.lock().answered
    }

    /// Whether no call waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().open == 0
    }

    fn lock(&self) -> MutexGuard<'_, rank::CallTable, Table<E, R>> {
        self.0.lock()
    }
}

#[cfg(test)]
impl<E, R: Clone> Slots<E, R> {
    fn answer_one(&self, call: u64, end: E) -> Result<Option<Waker>, NeverMade> {
        let mut wake = Vec::new();
        self.answer(std::iter::once((call, end)), &mut wake)?;
        Ok(wake.pop())
    }
}

#[cfg(all(test, not(farcall_loom)))]
mod tests;

#[cfg(all(test, farcall_loom))]
mod loom_tests;
