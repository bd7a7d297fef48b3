//! Connections that have come and wait to be served, by their origins: one of a host that opens few does not wait for those of a host
//! that opens thousands.

use std::collections::{HashMap, VecDeque};

use farcall_core::origin::Origin;

/// How many wait at most.
const MOST: usize = 1024;

/// Connections in the order in which they are served: one of each origin, then another of each.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    /// The oldest of each origin come first.
    by_origin: HashMap<Origin, VecDeque<T>>,
    /// The origins that have any, each once.
    turns: VecDeque<Origin>,
    count: usize,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { by_origin: HashMap::new(), turns: VecDeque::new(), count: 0 }
    }
}

impl<T> Waiting<T> {
    /// Adds a connection. If there are too many, drops the newest of the origin that has most. Returns whether one was dropped.
    pub(crate) fn push(&mut self, origin: Origin, connection: T) -> bool {
        let is_full = self.count == MOST;
        if is_full {
            let from_here = self.by_origin.get(&origin).map_or(0, VecDeque::len);
            let most = self.by_origin.values_mut().max_by_key(|of_origin| of_origin.len());
            let Some(most) = most.filter(|most| most.len() > from_here + 1) else { return true };
            // It keeps another one, and so its turn.
            most.pop_back();
            self.count -= 1;
        }
        let of_origin = self.by_origin.entry(origin).or_default();
        if of_origin.is_empty() {
            self.turns.push_back(origin);
        }
        of_origin.push_back(connection);
        self.count += 1;
        is_full
    }

    /// Takes the connection whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let origin = self.turns.pop_front()?;
        let of_origin = self.by_origin.get_mut(&origin)?;
        let next = of_origin.pop_front()?;
        self.count -= 1;
        if of_origin.is_empty() {
            self.by_origin.remove(&origin);
        } else {
            self.turns.push_back(origin);
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn origin(last: u8) -> Origin {
        Origin::of(Some(Ipv4Addr::new(10, 0, 0, last).into()))
    }

    #[test]
    fn origins_take_turns() {
        let mut waiting = Waiting::default();
        for (of, connection) in [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e"), (2, "f")] {
            waiting.push(origin(of), connection);
        }
        let mut served: Vec<_> = (0..3).filter_map(|_| waiting.pop()).collect();
        waiting.push(origin(4), "g");
        served.extend(std::iter::from_fn(|| waiting.pop()));
        assert_eq!(served, ["a", "d", "e", "b", "f", "g", "c"]);
        assert!(waiting.by_origin.is_empty() && waiting.turns.is_empty() && waiting.count == 0);
    }

    #[test]
    fn the_origin_with_most_makes_room() {
        let mut waiting = Waiting::default();
        for n in 0..3 * MOST {
            waiting.push(origin(1), n);
        }
        waiting.push(origin(2), usize::MAX);
        assert_eq!(waiting.count, MOST);
        let served: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        let expected: Vec<_> = [0, usize::MAX].into_iter().chain(1..MOST - 1).collect();
        assert!(served == expected, "{served:?}");
        assert_eq!(waiting.count, 0);
    }

    #[test]
    fn each_origin_has_one_turn_however_many_there_are() {
        let origin = |n: u32| Origin::of(Some(Ipv4Addr::from_bits(n).into()));
        let mut waiting = Waiting::default();
        let mut random = fastrand::Rng::with_seed(1);
        for n in 0..20_000 {
            waiting.push(origin(random.u32(..2 * MOST as u32)), n);
            if random.usize(..3) == 0 {
                assert!(waiting.pop().is_some());
            }
            assert_eq!(waiting.turns.len(), waiting.by_origin.len());
        }
        assert_eq!(waiting.count, MOST);
        assert_eq!(std::iter::from_fn(|| waiting.pop()).count(), MOST);
    }
}
