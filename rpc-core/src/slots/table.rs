//! The slots themselves, and the line of calls that wait for a place.

use std::collections::VecDeque;
use std::task::Waker;

use tokio::time::Instant;

use super::{FreedPlace, Ticket};

#[derive(Debug)]
pub(super) struct Table<E, R> {
    /// The slots. A call's slot is at its number modulo the length, which is a power of two. Numbers whose slot is
    /// taken are skipped. So a call is found without a search, and a long call costs the others nothing.
    pub(super) ring: Vec<Slot<E>>,
    /// How many calls have a slot.
    pub(super) open: usize,
    /// How many places are taken: by those calls, or by waiters that got one and are about to open a slot.
    pub(super) taken: usize,
    pub(super) places: usize,
    /// Waiters for a place, in the order of their tickets.
    pub(super) line: VecDeque<(Ticket, Waker)>,
    pub(super) last_ticket: u64,
    pub(super) last: u64,
    pub(super) answered: bool,
    pub(super) refusing: Option<R>,
    /// The time at which late calls are looked for next.
    pub(super) alarm: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Slot<E> {
    /// 0 if the slot is free.
    pub(super) call: u64,
    pub(super) state: SlotState<E>,
}

#[derive(Debug)]
pub(super) enum SlotState<E> {
    Waiting { waker: Option<Waker>, deadline: Option<Instant>, late: bool },
    Ended(E),
}

/// The length above which a ring is freed when no call is left in it.
pub(super) const KEPT: usize = 1024;

impl<E> Slot<E> {
    pub(super) fn free() -> Self {
        Self { call: 0, state: SlotState::Waiting { waker: None, deadline: None, late: false } }
    }
}

impl<E, R> Table<E, R> {
    pub(super) fn new() -> Self {
        Self {
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
        }
    }

    /// Whether there was ever a call of this number.
    #[inline]
    pub(super) fn was_made(&self, call: u64) -> bool {
        (1..=self.last).contains(&call)
    }

    /// Returns a number whose slot is free.
    pub(super) fn next(&mut self) -> u64 {
        // Keeps at least half of the slots free.
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

    pub(super) fn grow(&mut self) {
        let len = (4 * self.open).next_power_of_two().max(8);
        let old = std::mem::replace(&mut self.ring, std::iter::repeat_with(Slot::free).take(len).collect());
        for slot in old {
            // Calls with different slots in the old ring have different slots in the new one.
            if slot.call != 0 {
                let call = slot.call;
                *self.at(call) = slot;
            }
        }
    }

    /// Returns the slot for this number, whichever call has it. A ring exists while a call is open.
    pub(super) fn at(&mut self, call: u64) -> &mut Slot<E> {
        let mask = self.ring.len() - 1;
        &mut self.ring[call as usize & mask]
    }

    /// Returns the slot of a call, if it has one.
    pub(super) fn slot(&mut self, call: u64) -> Option<&mut Slot<E>> {
        if self.open == 0 {
            return None;
        }
        Some(self.at(call)).filter(|slot| slot.call == call)
    }

    pub(super) fn end(&mut self, call: u64, end: E) -> Option<Waker> {
        let slot = self.slot(call)?;
        let SlotState::Waiting { waker, .. } = &mut slot.state else { return None };
        let waker = waker.take();
        slot.state = SlotState::Ended(end);
        waker
    }

    /// Counts a slot as free.
    pub(super) fn close_slot(&mut self) {
        self.open -= 1;
        if self.open == 0 && self.ring.len() > KEPT {
            self.ring = Vec::new();
        }
    }

    pub(super) fn take_place(&mut self) -> bool {
        let free = self.taken < self.places;
        self.taken += usize::from(free);
        free
    }

    /// Passes a place to the next in line, or frees it.
    pub(super) fn leave(&mut self) -> FreedPlace {
        let next = self.line.pop_front().map(|(_, waker)| waker);
        self.taken -= usize::from(next.is_none());
        FreedPlace(next)
    }

    /// Returns the position in the line. `None` if the waiter has got a place.
    pub(super) fn in_line(&self, ticket: Ticket) -> Option<usize> {
        self.line.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    pub(super) fn wakers_in_line(&self) -> Vec<Waker> {
        self.line.iter().map(|(_, waker)| waker.clone()).collect()
    }

    pub(super) fn set_alarm(&mut self, deadline: Option<Instant>) -> bool {
        let Some(deadline) = deadline else { return false };
        let first = self.alarm.is_none_or(|alarm| deadline < alarm);
        if first {
            self.alarm = Some(deadline);
        }
        first
    }
}
