//! A queue in which hosts take turns.

use std::collections::{HashMap, VecDeque};

use super::Origin;

/// Things that wait, by their origins: first one of each, then another of each. So what a host with few of them waits for does not grow with
/// those of a host that has thousands.
#[derive(Debug)]
pub struct OriginQueue<T> {
    /// The oldest of each origin come first.
    by_origin: HashMap<Origin, VecDeque<T>>,
    /// The origins that have any, each once.
    turns: VecDeque<Origin>,
    len: usize,
}

impl<T> Default for OriginQueue<T> {
    fn default() -> Self {
        Self { by_origin: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<T> OriginQueue<T> {
    /// Returns how many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one.
    pub fn push(&mut self, origin: Origin, item: T) {
        let of_origin = self.by_origin.entry(origin).or_default();
        if of_origin.is_empty() {
            self.turns.push_back(origin);
        }
        of_origin.push_back(item);
        self.len += 1;
    }

    /// Takes the one whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let origin = self.turns.pop_front()?;
        let of_origin = self.by_origin.get_mut(&origin)?;
        let next = of_origin.pop_front();
        self.len -= usize::from(next.is_some());
        if of_origin.is_empty() {
            self.by_origin.remove(&origin);
        } else {
            self.turns.push_back(origin);
        }
        next
    }

    /// Takes the newest of the origin that has most, if that has at least two more than `origin` has.
    pub fn make_room_for(&mut self, origin: Origin) -> Option<T> {
        let from_there = self.by_origin.get(&origin).map_or(0, VecDeque::len);
        let most = self.by_origin.values_mut().max_by_key(|of_origin| of_origin.len())?;
        if most.len() <= from_there + 1 {
            return None;
        }
        self.len -= 1;
        // It keeps another one, and so its turn.
        most.pop_back()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn origin(n: u32) -> Origin {
        Origin::of(Some(Ipv4Addr::from_bits(n).into()))
    }

    #[test]
    fn origins_take_turns() {
        let mut queue = OriginQueue::default();
        for (of, item) in [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e"), (2, "f")] {
            queue.push(origin(of), item);
        }
        let mut served: Vec<_> = (0..3).filter_map(|_| queue.pop()).collect();
        queue.push(origin(4), "g");
        served.extend(std::iter::from_fn(|| queue.pop()));
        assert_eq!(served, ["a", "d", "e", "b", "f", "g", "c"]);
        assert!(queue.by_origin.is_empty() && queue.turns.is_empty() && queue.is_empty());
    }

    #[test]
    fn the_origin_with_most_makes_room() {
        let mut queue = OriginQueue::default();
        for n in 0..10 {
            queue.push(origin(1), n);
        }
        assert_eq!(queue.make_room_for(origin(1)), None);
        assert_eq!(queue.make_room_for(origin(2)), Some(9));
        queue.push(origin(2), 100);
        assert_eq!(queue.len(), 10);
        let served: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(served, [0, 100, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(queue.is_empty());
    }

    #[test]
    fn each_origin_has_one_turn_however_many_there_are() {
        const MOST: usize = 1000;
        let mut queue = OriginQueue::default();
        let mut random = fastrand::Rng::with_seed(1);
        for n in 0..20_000 {
            let from = origin(random.u32(..2 * MOST as u32));
            if queue.len() < MOST || queue.make_room_for(from).is_some() {
                queue.push(from, n);
            }
            if random.usize(..3) == 0 {
                assert!(queue.pop().is_some());
            }
            assert_eq!(queue.turns.len(), queue.by_origin.len());
        }
        assert_eq!(queue.len(), MOST);
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), MOST);
    }
}
