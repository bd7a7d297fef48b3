//! Where the calls of this side wait: each has a slot, in which it finds how it ended.

mod place;

use std::collections::VecDeque;
use std::task::{Context as TaskContext, Poll, Waker};

use bytes::Bytes;
use tokio::time::Instant;

pub(crate) use self::place::Place;
use crate::status::Status;
use crate::sync::{Mutex, MutexGuard, rank};

/// The slots of a connection's calls: each ends with a RESPONSE, or with what came instead.
pub(crate) type CallSlots = Slots<Result<Bytes, Status>, Status>;

/// The slots of calls, which end with an `E`; calls are numbered from 1. There are as many places as the peer takes calls
/// at once, none before it has said so. After a reason `R` was given no more slots are opened.
#[derive(Debug)]
pub(crate) struct Slots<E, R>(Mutex<rank::CallTable, Table<E, R>>);

#[derive(Debug)]
struct Table<E, R> {
    /// A call's slot is at its number modulo the length, which is a power of two; numbers whose slot is taken are left
    /// out. So a call is found without a search, and one that lasts costs the others nothing.
    ring: Vec<Slot<E>>,
    /// How many calls have a slot.
    open: usize,
    /// How many places are taken: by these, or by who was in line and is about to open a slot.
    taken: usize,
    places: usize,
    /// Who waits for a place, in order of their tickets.
    line: VecDeque<(Ticket, Waker)>,
    last_ticket: u64,
    last: u64,
    answered: bool,
    refusing: Option<R>,
    /// When somebody looks for calls that are late.
    alarm: Option<Instant>,
}

#[derive(Debug)]
struct Slot<E> {
    /// 0: free.
    call: u64,
    state: SlotState<E>,
}

#[derive(Debug)]
enum SlotState<E> {
    Waiting { waker: Option<Waker>, deadline: Option<Instant>, late: bool },
    Ended(E),
}

/// A ring that is longer is given up when no call is left in it.
const KEPT: usize = 1024;

impl<E> Slot<E> {
    fn free() -> Self {
        Self { call: 0, state: SlotState::Waiting { waker: None, deadline: None, late: false } }
    }
}

/// A slot that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) call: u64,
    /// No other call has a slot.
    pub(crate) alone: bool,
    /// Its deadline is before any alarm: one must be set.
    pub(crate) first_alarm: bool,
}

/// Why no slot was opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpenError<R> {
    Full,
    For(R),
}

/// What a waiting call finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotOutcome<E> {
    /// How it ended. It has no slot any more.
    End(E),
    /// Its deadline has passed. It has its slot until it is [forgotten](Slots::forget).
    Late,
}

/// A call of this number was never made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NeverMade;

/// The next in line has a place now; to be woken when no lock is held.
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

/// Has another be woken. Gives whom it is instead of, to be dropped when no lock is held: a waker may be the last that has
/// its task, and with that go its future and the calls in it.
pub(crate) fn exchange(waker: &mut Waker, cx: &TaskContext<'_>) -> Option<Waker> {
    (!waker.will_wake(cx.waker())).then(|| std::mem::replace(waker, cx.waker().clone()))
}

/// Names one who stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl<E, R: Clone> Slots<E, R> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Table {
            ring: Vec::new(),
            open: 0,
            taken: 0,
            places: 0,
            line: VecDeque::new(),
            last_ticket: 0,
            last: 0,
            answered: false,
            refusing: None,
            alarm: None,
        }))
    }

    /// The peer takes so many calls at once.
    pub(crate) fn admit(&self, places: usize) {
        self.lock().places = places;
    }

    /// Gives a call its number and a slot, and has `queue` queue its message: under the lock, so that whoever finds the
    /// call here finds its message, too, unless it has left. The call is told when it has ended, or is late; not before it
    /// is [polled](Self::poll) if it `looks` and is alone. `has_place`: it has stood in line.
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

    /// How a call ended, if it has; else it is told when it has, or is late. If it `keeps` its place, that must be
    /// [given back](Self::give_back) later.
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

    /// The peer has answered calls; gives whom to wake, when no lock is held. Of those that have ended before, or that nobody
    /// waits for, this is not heeded.
    pub(crate) fn answer(
        &self,
        answers: impl Iterator<Item = (u64, E)>,
        wake: &mut Vec<Waker>,
    ) -> Result<(), NeverMade> {
        let mut table = self.lock();
        for (call, end) in answers {
            if call == 0 || call > table.last {
                return Err(NeverMade);
            }
            table.answered = true;
            wake.extend(table.end(call, end));
        }
        Ok(())
    }

    /// A call ends without an answer; gives whom to wake, likewise.
    pub(crate) fn end(&self, call: u64, end: E) -> Option<Waker> {
        self.lock().end(call, end)
    }

    /// A caller waits no longer; its place is to be [given back](Self::give_back) when the peer has been told, or will be
    /// before it is told of the call that gets it. `Some(false)`: nobody need be told, the call has been answered. `None`: it
    /// has ended, and has no place.
    pub(crate) fn forget(&self, call: u64) -> Option<bool> {
        let left;
        let mut table = self.lock();
        left = std::mem::replace(table.slot(call)?, Slot::free());
        table.close_slot();
        Some(matches!(left.state, SlotState::Waiting { .. }))
    }

    /// Opens no more slots, for this reason unless there is one already. Gives whom to wake: who stands in line.
    pub(crate) fn refuse(&self, reason: R) -> Vec<Waker> {
        let mut table = self.lock();
        table.refusing.get_or_insert(reason);
        table.who_is_in_line()
    }

    /// Opens no more slots, for this reason. Gives whom to wake: who stands in line.
    pub(crate) fn close(&self, reason: R) -> Vec<Waker> {
        let mut table = self.lock();
        table.refusing = Some(reason);
        table.who_is_in_line()
    }

    /// The calls that wait and have a number above this.
    pub(crate) fn waiting_after(&self, last: u64) -> Vec<u64> {
        let table = self.lock();
        let waits = |slot: &&Slot<E>| slot.call > last && matches!(slot.state, SlotState::Waiting { .. });
        table.ring.iter().filter(waits).map(|slot| slot.call).collect()
    }

    /// Finds the calls that are late and gives whom to wake, and when to look again.
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

    /// Waits for a place, with a ticket that must be [handed in](Self::leave_line) if it is still there at the end.
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

    /// Leaves the line, or the place that has come free meanwhile.
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

    /// Gives back a place for which no slot was opened.
    pub(crate) fn give_back(&self) -> FreedPlace {
        self.lock().leave()
    }

    /// The highest number that a call was given.
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

impl<E, R> Table<E, R> {
    /// A number whose slot is free.
    fn next(&mut self) -> u64 {
        // At least half of them are free.
        if 2 * self.open >= self.ring.len() {
            self.grow();
        }
        loop {
            self.last += 1;
            let call = self.last;
            if self.at(call).call == 0 {
                return call;
            }
        }
    }

    fn grow(&mut self) {
        let len = (4 * self.open).next_power_of_two().max(8);
        let old = std::mem::replace(&mut self.ring, std::iter::repeat_with(Slot::free).take(len).collect());
        for slot in old {
            // Those that had different slots have.
            if slot.call != 0 {
                let call = slot.call;
                *self.at(call) = slot;
            }
        }
    }

    /// The slot of this number, whoever has it. There is one while a call is open.
    fn at(&mut self, call: u64) -> &mut Slot<E> {
        let mask = self.ring.len() - 1;
        &mut self.ring[call as usize & mask]
    }

    /// The slot of a call, if it has one.
    fn slot(&mut self, call: u64) -> Option<&mut Slot<E>> {
        if self.open == 0 {
            return None;
        }
        Some(self.at(call)).filter(|slot| slot.call == call)
    }

    fn end(&mut self, call: u64, end: E) -> Option<Waker> {
        let slot = self.slot(call)?;
        let SlotState::Waiting { waker, .. } = &mut slot.state else { return None };
        let waker = waker.take();
        slot.state = SlotState::Ended(end);
        waker
    }

    /// A slot has come free.
    fn close_slot(&mut self) {
        self.open -= 1;
        if self.open == 0 && self.ring.len() > KEPT {
            self.ring = Vec::new();
        }
    }

    fn take_place(&mut self) -> bool {
        let free = self.taken < self.places;
        self.taken += usize::from(free);
        free
    }

    /// A place is left, to the next in line.
    fn leave(&mut self) -> FreedPlace {
        let next = self.line.pop_front().map(|(_, waker)| waker);
        self.taken -= usize::from(next.is_none());
        FreedPlace(next)
    }

    /// Where in the line this one stands. `None`: it has a place.
    fn in_line(&self, ticket: Ticket) -> Option<usize> {
        self.line.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    fn who_is_in_line(&self) -> Vec<Waker> {
        self.line.iter().map(|(_, waker)| waker.clone()).collect()
    }

    fn set_alarm(&mut self, deadline: Option<Instant>) -> bool {
        let Some(deadline) = deadline else { return false };
        let first = self.alarm.is_none_or(|alarm| deadline < alarm);
        if first {
            self.alarm = Some(deadline);
        }
        first
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
