//! A queue in which hosts have equal shares of time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::origin::Origin;

/// A turn counts as at least this long, from its beginning on. So a host with many tasks does not get all turns before the first one has
/// ended.
const LEAST: Duration = Duration::from_micros(20);

/// The time that a host may be ahead of the others when it comes back. The others may all have taken equal times. Without this it would
/// wait for each of them after every turn of its own.
const CREDIT: Duration = Duration::from_millis(5);

/// Hosts that are remembered, though none of their tasks waits. When there are more, what they have taken is forgotten.
const REMEMBERED: usize = 1024;

/// Tasks that wait, by their hosts. A task comes first whose host's earlier turns have taken least time. So a host with little to do waits
/// for the turns that are under way, and not for a long turn of every other host. Hosts that have much to do have equal times.
///
/// This is start-time fair queuing (Goyal, Vin and Cheng, IEEE/ACM Transactions on Networking 5(5), 1997), with some [`CREDIT`].
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    hosts: HashMap<Origin, Host<T>>,
    /// The hosts that wait: what they have taken, and which of them came first.
    order: BTreeSet<(Duration, u64, Origin)>,
    /// The time that hosts have taken whose turns begin now. A host that comes back counts as one that has taken as much, less the
    /// [`CREDIT`]. So it does not save up turns.
    now: Duration,
    /// How many hosts have begun to wait.
    arrivals: u64,
    /// Hosts of which no task waits are forgotten when there are so many hosts.
    forget_at: usize,
}

#[derive(Debug)]
struct Host<T> {
    /// The time that its turns have taken.
    taken: Duration,
    /// Tells hosts that have taken equal times apart.
    arrival: u64,
    waiting: VecDeque<T>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        let (hosts, order) = Default::default();
        Self { hosts, order, now: CREDIT, arrivals: 0, forget_at: REMEMBERED }
    }
}

impl<T> FairQueue<T> {
    /// Adds a task.
    pub(super) fn push(&mut self, origin: Origin, task: T) {
        let arrival = self.arrivals;
        let host = self.host(origin);
        host.waiting.push_back(task);
        if host.waiting.len() == 1 {
            host.arrival = arrival;
            self.arrivals += 1;
            self.line_up(origin);
        }
    }

    /// Begins the turn of the task that is first among those that are wanted. Drops those before it that are not; they cost their
    /// hosts nothing.
    pub(super) fn pop_wanted(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        loop {
            let (_, _, origin) = self.order.pop_first()?;
            let host = self.hosts.get_mut(&origin)?;
            let next = std::iter::from_fn(|| host.waiting.pop_front()).find(&is_wanted);
            if next.is_some() {
                self.begin(origin);
                return next;
            }
        }
    }

    /// Begins a turn of a host that is not in the order.
    pub(super) fn begin(&mut self, origin: Origin) {
        let host = self.host(origin);
        let taken = host.taken;
        host.taken += LEAST;
        self.now = self.now.max(taken);
        self.line_up(origin);
    }

    /// Notes how long a turn has taken that has ended.
    pub(super) fn end(&mut self, origin: Origin, took: Duration) {
        let rank = self.host(origin).rank(origin);
        self.order.remove(&rank);
        let host = self.host(origin);
        host.taken += took.saturating_sub(LEAST);
        self.line_up(origin);
    }

    /// Puts a host in its place in the order, if any of its tasks waits.
    fn line_up(&mut self, origin: Origin) {
        let host = self.host(origin);
        if !host.waiting.is_empty() {
            let rank = host.rank(origin);
            self.order.insert(rank);
        }
    }

    /// Returns what is known of a host.
    fn host(&mut self, origin: Origin) -> &mut Host<T> {
        if self.hosts.len() >= self.forget_at && !self.hosts.contains_key(&origin) {
            self.hosts.retain(|_, host| !host.waiting.is_empty());
            self.forget_at = REMEMBERED.max(2 * self.hosts.len());
        }
        let least = self.now - CREDIT;
        let new = || Host { taken: least, arrival: 0, waiting: VecDeque::new() };
        let host = self.hosts.entry(origin).or_insert_with(new);
        // Changes no host that waits: turns begin in order, so none that waits has taken less.
        host.taken = host.taken.max(least);
        host
    }
}

impl<T> Host<T> {
    /// Returns its place in the order.
    fn rank(&self, origin: Origin) -> (Duration, u64, Origin) {
        (self.taken, self.arrival, origin)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn host(n: u32) -> Origin {
        Origin::of(Some(Ipv4Addr::from_bits(n).into()))
    }

    /// Takes the next task, whose turn takes so long. Returns its number.
    fn turn(queue: &mut FairQueue<u32>, took: impl Fn(u32) -> Duration) -> u32 {
        let task = queue.pop_wanted(|_| true).unwrap();
        queue.end(host(task), took(task));
        task
    }

    #[test]
    fn a_host_with_little_to_do_does_not_wait_for_long_turns_of_all_others() {
        let mut queue = FairQueue::default();
        (1..=200).for_each(|n| queue.push(host(n), n));
        for turns in 0..2000 {
            // When each has had a turn, so that the queue knows who takes long.
            if turns >= 200 && turns % 10 == 0 {
                queue.push(host(1000), 1000);
                assert_eq!(turn(&mut queue, |_| MS / 20), 1000, "after {turns} turns");
            }
            let greedy = turn(&mut queue, |_| 5 * MS);
            queue.push(host(greedy), greedy);
        }
    }

    #[test]
    fn hosts_with_much_to_do_have_equal_times() {
        let mut queue = FairQueue::default();
        // The first host has many tasks, and the others have one each. A turn takes as many milliseconds as its host's number.
        (0..10).for_each(|_| queue.push(host(1), 1));
        (2..=5).for_each(|n| queue.push(host(n), n));
        let mut times = [Duration::ZERO; 6];
        for _ in 0..1000 {
            let n = turn(&mut queue, |n| n * MS);
            times[n as usize] += n * MS;
            queue.push(host(n), n);
        }
        let (least, most) = (times[1..].iter().min().unwrap(), times[1..].iter().max().unwrap());
        assert!(*most <= *least + 10 * MS, "{times:?}");
    }

    #[test]
    fn a_host_does_not_save_up_turns() {
        let mut queue = FairQueue::default();
        for _ in 0..100 {
            queue.push(host(1), 1);
            turn(&mut queue, |_| MS);
        }
        // The second host comes late.
        let (mut turns, rounds) = (0, 100);
        queue.push(host(1), 1);
        queue.push(host(2), 2);
        for _ in 0..rounds {
            let n = turn(&mut queue, |_| MS);
            turns += u32::from(n == 2);
            queue.push(host(n), n);
        }
        let credit = CREDIT.div_duration_f64(MS) as u32;
        assert!((rounds / 2..=rounds / 2 + credit).contains(&turns), "{turns} of {rounds}");
    }

    #[test]
    fn turns_that_have_not_ended_count() {
        let mut queue = FairQueue::default();
        (0..10).for_each(|_| queue.push(host(1), 1));
        queue.push(host(2), 2);
        let first: Vec<_> = (0..3).filter_map(|_| queue.pop_wanted(|_| true)).collect();
        assert_eq!(first, [1, 2, 1]);
    }

    #[test]
    fn one_that_is_not_wanted_costs_its_host_nothing() {
        let mut queue = FairQueue::default();
        for (of, task) in [(1, 1), (1, 2), (1, 3), (2, 11), (2, 4), (3, 13)] {
            queue.push(host(of), task);
        }
        let even = |queue: &mut FairQueue<i32>| queue.pop_wanted(|task| task % 2 == 0);
        assert_eq!((even(&mut queue), even(&mut queue), even(&mut queue)), (Some(2), Some(4), None));
        assert!(queue.order.is_empty() && queue.hosts.values().all(|host| host.waiting.is_empty()));
    }

    #[test]
    fn hosts_that_have_gone_are_forgotten() {
        let mut queue = FairQueue::default();
        for n in 0..10_000 {
            queue.push(host(n), n);
            turn(&mut queue, |_| MS);
        }
        assert!(queue.hosts.len() <= REMEMBERED, "{}", queue.hosts.len());
    }
}
