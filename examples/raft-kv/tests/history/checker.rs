//! A check of whether a recorded history of one key is linearizable: the algorithm of Wing and Gong, with Lowe's memory of configurations
//! that were seen.
//!
//! It looks for an order of the calls in which each takes effect at one moment between its begin and its end, and each result is
//! the one that the key's value then gives. A call whose result is not known has no end: it may have taken effect at any time
//! after its begin, or never.

use std::collections::HashSet;

pub(crate) type Value = u64;

/// A call and its result, where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Get(Option<Value>),
    Put(Value),
    Delete { found: Option<bool> },
    CompareAndSet { expected: Option<Value>, value: Option<Value>, equal: Option<bool> },
}

/// A call in a history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) action: Action,
    pub(crate) begin: u64,
    /// `None`: its result is not known.
    pub(crate) end: Option<u64>,
}

impl Action {
    /// Returns the value after the call, or `None` if its result does not fit the value before it.
    pub(crate) fn apply(self, before: Option<Value>) -> Option<Option<Value>> {
        let fits = |told: Option<bool>, is: bool| told.is_none_or(|told| told == is);
        match self {
            Self::Get(got) => (got == before).then_some(before),
            Self::Put(value) => Some(Some(value)),
            Self::Delete { found } => fits(found, before.is_some()).then_some(None),
            Self::CompareAndSet { expected, value, equal } => {
                let is_equal = before == expected;
                fits(equal, is_equal).then_some(if is_equal { value } else { before })
            }
        }
    }
}

/// The begin or the end of a call.
#[derive(Clone, Copy)]
struct Event {
    call: usize,
    is_end: bool,
}

/// The events that are not behind us, as a list from which calls are taken and put back.
struct Events {
    events: Vec<Event>,
    /// The place of each call's begin and end.
    places: Vec<(usize, usize)>,
    /// The event before and after each; place 0 is the list's head, and 0 as an event after means the end.
    before: Vec<usize>,
    after: Vec<usize>,
}

impl Events {
    fn new(calls: &[Call]) -> Self {
        let mut times: Vec<_> = calls
            .iter()
            .enumerate()
            .flat_map(|(call, of)| {
                // At one moment begins come first: such calls overlap.
                let end = of.end.unwrap_or(u64::MAX);
                [((of.begin, false), call), ((end, true), call)]
            })
            .collect();
        times.sort_unstable();
        let mut places = vec![(0, 0); calls.len()];
        let mut events = vec![Event { call: usize::MAX, is_end: true }];
        for ((_, is_end), call) in times {
            let place = events.len();
            if is_end {
                places[call].1 = place;
            } else {
                places[call].0 = place;
            }
            events.push(Event { call, is_end });
        }
        let len = events.len();
        let before = (0..len).map(|place| place.saturating_sub(1)).collect();
        let after = (0..len).map(|place| (place + 1) % len).collect();
        Self { events, places, before, after }
    }

    fn first(&self) -> usize {
        self.after[0]
    }

    fn take(&mut self, call: usize) {
        let (begin, end) = self.places[call];
        for place in [begin, end] {
            let (before, after) = (self.before[place], self.after[place]);
            self.after[before] = after;
            self.before[after] = before;
        }
    }

    /// Puts back the call that was taken last.
    fn put_back(&mut self, call: usize) {
        let (begin, end) = self.places[call];
        for place in [end, begin] {
            let (before, after) = (self.before[place], self.after[place]);
            self.after[before] = place;
            self.before[after] = place;
        }
    }
}

/// Returns whether a history of one key, which is absent at first, is linearizable.
pub(crate) fn is_linearizable(calls: &[Call]) -> bool {
    let mut events = Events::new(calls);
    let mut done = vec![0u64; calls.len().div_ceil(64)];
    let mut seen = HashSet::new();
    let mut path: Vec<(usize, Option<Value>)> = Vec::new();
    let mut value = None;
    let mut place = events.first();
    while events.first() != 0 {
        let Event { call, is_end } = events.events[place];
        if !is_end {
            if let Some(next) = calls[call].action.apply(value) {
                done[call / 64] |= 1 << (call % 64);
                // From a configuration that was seen there is nothing new to find.
                if seen.insert((done.clone(), next)) {
                    path.push((call, value));
                    value = next;
                    events.take(call);
                    place = events.first();
                    continue;
                }
                done[call / 64] &= !(1 << (call % 64));
            }
            place = events.after[place];
            continue;
        }
        // A call has ended before it took effect: another choice has to be made earlier.
        let Some((call, earlier)) = path.pop() else { return false };
        value = earlier;
        done[call / 64] &= !(1 << (call % 64));
        events.put_back(call);
        place = events.after[events.places[call].0];
    }
    true
}
