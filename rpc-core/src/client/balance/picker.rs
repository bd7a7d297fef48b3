//! The choice of a server for a call.

mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use self::ring::{NONE, Ring};
use super::member::Member;
use crate::config::BalancePolicy;

/// Chooses among the members that are ready.
#[derive(Debug, Default)]
pub(super) struct Picker {
    ready: Vec<Arc<Member>>,
    order: Order,
    /// Counts calls, from a number of the channel's own. So channels do not all begin with the same server.
    next: AtomicU64,
}

#[derive(Debug, Default)]
enum Order {
    #[default]
    InTurn,
    /// By the weights of `ready`, and the largest of them.
    Weighted(Vec<u32>, u32),
    LeastLoaded,
    /// By the ring of all members, and the index into `ready` of each, or [`NONE`].
    ByKey(Arc<Ring>, Vec<u32>),
}

/// The largest weight in an [`Order`]. Larger ones are scaled down.
const HEAVIEST: u32 = 100;

impl Picker {
    /// Returns a picker of no members, whose turns begin with this number.
    pub(super) fn beginning_with(turns: u64) -> Self {
        Self { next: AtomicU64::new(turns), ..Self::default() }
    }

    /// Returns a picker of the members that are ready, among `all`, in the same order. `before`: the ring of an earlier picker. `turns`: the
    /// [turns](Self::turns) of that.
    pub(super) fn new(
        policy: BalancePolicy,
        ready: Vec<Arc<Member>>,
        all: &[Arc<Member>],
        before: Option<Arc<Ring>>,
        turns: u64,
    ) -> Self {
        let order = match policy {
            BalancePolicy::LeastLoaded => Order::LeastLoaded,
            BalancePolicy::ByKey => {
                let of = all.iter().map(|member| Arc::clone(&member.name)).zip(weights(all)).collect();
                Order::ByKey(Ring::of(of, before), places(&ready, all))
            }
            _ => {
                let weights = weights(&ready);
                match weights.iter().copied().max() {
                    Some(heaviest) if heaviest > 1 => Order::Weighted(weights, heaviest),
                    _ => Order::InTurn,
                }
            }
        };
        Self { ready, order, next: AtomicU64::new(turns) }
    }

    /// Returns the ring of its keys, which the next picker may use.
    pub(super) fn ring(&self) -> Option<Arc<Ring>> {
        match &self.order {
            Order::ByKey(ring, _) => Some(Arc::clone(ring)),
            _ => None,
        }
    }

    /// Returns the count of its turns, with which the next picker goes on. Otherwise each change would begin with the first member again.
    pub(super) fn turns(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the time, if the members' loads decide.
    pub(super) fn now(&self) -> Option<Instant> {
        matches!(self.order, Order::LeastLoaded).then(Instant::now)
    }

    /// Returns the member that a call should go to, and what it `takes` the call by. One that `is_full` is better than none, and so is
    /// `avoid`, the member where the call has failed, if there is no other. `now`: as [`now`](Self::now) says.
    #[inline]
    pub(super) fn pick<T>(
        &self,
        key: Option<u64>,
        now: Option<Instant>,
        avoid: Option<&Arc<Member>>,
        is_full: impl Fn(&Member) -> bool,
        takes: impl Fn(&Member) -> Option<T>,
    ) -> Option<(&Arc<Member>, T)> {
        let len = self.ready.len();
        if len == 0 {
            return None;
        }
        let first = match (&self.order, key) {
            (Order::Weighted(weights, heaviest), _) => self.by_weight(weights, u64::from(*heaviest)),
            (Order::LeastLoaded, _) => now.map_or(0, |now| self.less_loaded(now, avoid)),
            (Order::ByKey(ring, places), Some(key)) => {
                ring.from(key).map(|index| places[index] as usize).find(|place| *place < len).unwrap_or(0)
            }
            _ => (self.turn() % len as u64) as usize,
        };
        let member = &self.ready[first];
        if avoid.is_none()
            && !is_full(member)
            && let Some(taken) = takes(member)
        {
            return Some((member, taken));
        }
        let rank = |member: &Arc<Member>| match avoid {
            Some(avoid) if Arc::ptr_eq(avoid, member) => Rank::Avoided,
            _ if is_full(member) => Rank::Full,
            _ => Rank::Good,
        };
        match (&self.order, key) {
            (Order::ByKey(ring, places), Some(key)) => {
                let around = ring.from(key).filter_map(|index| self.ready.get(places[index] as usize));
                best(around, rank, takes)
            }
            _ => best((0..len).map(|step| &self.ready[(first + step) % len]), rank, takes),
        }
    }

    fn turn(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the next member by weight. Turns go around, and a member passes on some of its own, so that in as many rounds as the heaviest
    /// weighs, it takes as many as it weighs, spread evenly (gRPC calls this static stride scheduling).
    fn by_weight(&self, weights: &[u32], heaviest: u64) -> usize {
        let len = weights.len() as u64;
        loop {
            let turn = self.turn();
            let (round, index) = (turn / len % heaviest, turn % len);
            let weight = u64::from(weights[index as usize]);
            // Begins elsewhere for each, so that light ones do not all take the turns of one round.
            let at = (weight * round + index * (heaviest / 2)) % heaviest;
            if at + weight >= heaviest {
                return index as usize;
            }
        }
    }

    /// Returns the one of two members at random that has less to do.
    fn less_loaded(&self, now: Instant, avoid: Option<&Arc<Member>>) -> usize {
        let len = self.ready.len() as u64;
        let random = mix(self.turn());
        let one = random % len;
        // Another one, if there is another.
        let other = (one + 1 + (random >> 32) % (len - 1).max(1)) % len;
        let cost = |index: u64| {
            let member = &self.ready[index as usize];
            if avoid.is_some_and(|avoid| Arc::ptr_eq(avoid, member)) {
                f64::INFINITY
            } else {
                member.cost(now)
            }
        };
        let less = if one != other && cost(other) < cost(one) { other } else { one };
        less as usize
    }
}

/// Returns the index of each member in `ready`, which has some of them in their order.
fn places(ready: &[Arc<Member>], all: &[Arc<Member>]) -> Vec<u32> {
    let mut next = 0;
    let place = |member: &Arc<Member>| match ready.get(next as usize) {
        Some(ready) if Arc::ptr_eq(ready, member) => {
            next += 1;
            next - 1
        }
        _ => NONE,
    };
    all.iter().map(place).collect()
}

/// How good a member is for a call.
enum Rank {
    Good,
    /// Its calls hold its share of the room for arguments.
    Full,
    /// The call has failed there.
    Avoided,
}

/// Returns the first of the best members that take the call.
fn best<'a, T>(
    members: impl Iterator<Item = &'a Arc<Member>>,
    rank: impl Fn(&Arc<Member>) -> Rank,
    takes: impl Fn(&Member) -> Option<T>,
) -> Option<(&'a Arc<Member>, T)> {
    let (mut full, mut avoided) = (None, None);
    for member in members {
        let taken = |member: &'a Arc<Member>| Some((member, takes(member)?));
        match rank(member) {
            Rank::Good => {
                if let Some(good) = taken(member) {
                    return Some(good);
                }
            }
            Rank::Full => full = full.or_else(|| taken(member)),
            Rank::Avoided => avoided = avoided.or_else(|| taken(member)),
        }
    }
    full.or(avoided)
}

/// Returns weights from 1 to [`HEAVIEST`], in proportion.
fn weights(members: &[Arc<Member>]) -> Vec<u32> {
    let weights = || members.iter().map(|member| member.weight());
    let (heaviest, lightest) = (weights().max().unwrap_or(1), weights().min().unwrap_or(1));
    let scaled = |weight: u32| {
        if lightest == heaviest {
            return 1;
        }
        let most = u64::from(heaviest.min(HEAVIEST));
        (u64::from(weight) * most / u64::from(heaviest)).max(1) as u32
    };
    weights().map(scaled).collect()
}

/// Spreads a number over all of 64 bits: the output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014).
pub(super) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
