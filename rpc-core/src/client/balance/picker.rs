//! The choice of a server for a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::member::Member;
use crate::config::BalancePolicy;
use crate::interface::stable_hash;

/// Chooses among the members that are ready.
#[derive(Debug, Default)]
pub(super) struct Picker {
    ready: Vec<Arc<Member>>,
    order: Order,
    /// Counts calls.
    next: AtomicU64,
}

#[derive(Debug, Default)]
enum Order {
    #[default]
    InTurn,
    /// By weight: indexes into `ready`, each as often as its weight says.
    Weighted(Vec<u32>),
    LeastLoaded,
    /// Points on a ring, each with the index of its member; ascending.
    Ring(Vec<(u64, u32)>),
}

/// Points of a member of weight 1. The share of each differs by a tenth then.
const POINTS: u32 = 100;

/// The largest weight in an [`Order`]. Larger ones are scaled down.
const HEAVIEST: u32 = 100;

impl Picker {
    /// Returns a picker of the members that are ready, among `all`.
    pub(super) fn new(policy: BalancePolicy, ready: Vec<Arc<Member>>, all: &[Arc<Member>]) -> Self {
        let weights = weights(&ready, all);
        let order = match policy {
            BalancePolicy::LeastLoaded => Order::LeastLoaded,
            BalancePolicy::ByKey => Order::Ring(ring(&ready, &weights)),
            _ if weights.iter().all(|weight| *weight == 1) => Order::InTurn,
            _ => Order::Weighted(in_turn(&weights)),
        };
        Self { ready, order, next: AtomicU64::new(0) }
    }

    /// Returns the time, if the members' loads decide.
    pub(super) fn now(&self) -> Option<Instant> {
        matches!(self.order, Order::LeastLoaded).then(Instant::now)
    }

    /// Returns the member that a call should go to, and what it `takes` the call by. `avoid`: the member where the call has failed, which is
    /// better than none. `now`: as [`now`](Self::now) says.
    #[inline]
    pub(super) fn pick<T>(
        &self,
        key: Option<u64>,
        now: Option<Instant>,
        avoid: Option<&Arc<Member>>,
        takes: impl Fn(&Member) -> Option<T>,
    ) -> Option<(&Arc<Member>, T)> {
        let len = self.ready.len();
        if len == 0 {
            return None;
        }
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let first = match &self.order {
            Order::InTurn => turn % len as u64,
            Order::Weighted(turns) => u64::from(turns[(turn % turns.len() as u64) as usize]),
            Order::LeastLoaded => now.map_or(0, |now| self.less_loaded(turn, now, avoid)),
            Order::Ring(points) => match key {
                Some(key) => u64::from(points[place(points, key)].1),
                None => turn % len as u64,
            },
        };
        let first = first as usize;
        let member = &self.ready[first];
        if avoid.is_none()
            && let Some(taken) = takes(member)
        {
            return Some((member, taken));
        }
        match (&self.order, key) {
            (Order::Ring(points), Some(key)) => {
                let at = place(points, key);
                let around = points[at..].iter().chain(&points[..at]);
                best(around.map(|(_, index)| &self.ready[*index as usize]), avoid, takes)
            }
            _ => best((0..len).map(|step| &self.ready[(first + step) % len]), avoid, takes),
        }
    }

    /// Returns the one of two members at random that has less to do.
    fn less_loaded(&self, turn: u64, now: Instant, avoid: Option<&Arc<Member>>) -> u64 {
        let len = self.ready.len() as u64;
        let random = mix(turn);
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
        if one != other && cost(other) < cost(one) { other } else { one }
    }
}

/// Returns the place of the first point from a key on, around the ring. There is a point.
fn place(points: &[(u64, u32)], key: u64) -> usize {
    let key = mix(key);
    match points.partition_point(|(point, _)| *point < key) {
        at if at < points.len() => at,
        _ => 0,
    }
}

/// Returns the first member that takes the call and is not to be avoided, or the one that is.
fn best<'a, T>(
    members: impl Iterator<Item = &'a Arc<Member>>,
    avoid: Option<&Arc<Member>>,
    takes: impl Fn(&Member) -> Option<T>,
) -> Option<(&'a Arc<Member>, T)> {
    let mut last = None;
    for member in members {
        if avoid.is_some_and(|avoid| Arc::ptr_eq(avoid, member)) {
            last = Some(member);
        } else if let Some(taken) = takes(member) {
            return Some((member, taken));
        }
    }
    last.and_then(|member| Some((member, takes(member)?)))
}

/// Returns weights from 1 to [`HEAVIEST`], in proportion. The scale follows from `all`, so a key's place on the ring does not depend on
/// which members are ready.
fn weights(ready: &[Arc<Member>], all: &[Arc<Member>]) -> Vec<u32> {
    let of_all = || all.iter().map(|member| member.weight());
    let (heaviest, lightest) = (of_all().max().unwrap_or(1), of_all().min().unwrap_or(1));
    let scaled = |weight: u32| {
        if lightest == heaviest {
            return 1;
        }
        let most = u64::from(heaviest.min(HEAVIEST));
        (u64::from(weight) * most / u64::from(heaviest)).max(1) as u32
    };
    ready.iter().map(|member| scaled(member.weight())).collect()
}

/// Returns each index as often as its weight says, spread evenly.
fn in_turn(weights: &[u32]) -> Vec<u32> {
    let places = |(index, weight): (usize, &u32)| {
        let weight = *weight;
        (0..weight).map(move |place| ((f64::from(place) + 0.5) / f64::from(weight), index as u32))
    };
    let mut turns: Vec<_> = weights.iter().enumerate().flat_map(places).collect();
    turns.sort_by(|a, b| a.0.total_cmp(&b.0));
    turns.into_iter().map(|(_, index)| index).collect()
}

fn ring(members: &[Arc<Member>], weights: &[u32]) -> Vec<(u64, u32)> {
    let mut points = Vec::new();
    for ((index, member), weight) in members.iter().enumerate().zip(weights) {
        let name = stable_hash(member.name().as_bytes());
        points.extend((0..weight * POINTS).map(|point| (mix(name ^ mix(u64::from(point))), index as u32)));
    }
    points.sort_unstable();
    points
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
