//! The ring on which keys have their servers (consistent hashing).

use std::sync::Arc;

use super::mix;
use crate::interface::stable_hash;

/// Points of a member of weight 1, as long as all have room. The share of each differs by a tenth then.
const POINTS: u64 = 100;

/// About as many points as a ring has at most: a mebibyte.
const MOST: u64 = 1 << 16;

/// An index of no member.
pub(super) const NONE: u32 = u32::MAX;

/// Points of members, whether they are ready or not. A key belongs to the first point after it whose member is ready. So a key moves
/// only when its own server goes or a nearer one comes, and the ring is made anew for other members only.
#[derive(Debug)]
pub(in crate::client::balance) struct Ring {
    /// The names and weights of the members.
    of: Vec<(Arc<str>, u32)>,
    /// Points with the indexes of their members, ascending.
    points: Vec<(u64, u32)>,
}

impl Ring {
    /// Returns the ring of members with these names and weights: `before`, if that is it.
    pub(super) fn of(of: Vec<(Arc<str>, u32)>, before: Option<Arc<Self>>) -> Arc<Self> {
        match before.filter(|before| before.of == of) {
            Some(before) => before,
            None => Arc::new(Self { points: points(&of), of }),
        }
    }

    /// Returns the indexes of members around the ring from a key on, each as often as it has points.
    pub(super) fn from(&self, key: u64) -> impl Iterator<Item = usize> {
        let key = mix(key);
        let at = self.points.partition_point(|(point, _)| *point < key);
        let (before, after) = self.points.split_at(at);
        after.iter().chain(before).map(|(_, index)| *index as usize)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.points.len()
    }
}

fn points(of: &[(Arc<str>, u32)]) -> Vec<(u64, u32)> {
    let all: u64 = of.iter().map(|(_, weight)| u64::from(*weight)).sum();
    // A multiple of the weight without rounding, as long as there is room. Otherwise a change of `all` moves a point of some members.
    let count = |weight: u32| match u64::from(weight) * POINTS {
        wanted if all * POINTS <= MOST => wanted,
        _ => (u64::from(weight) * MOST / all).max(1),
    };
    let mut points = Vec::new();
    for (index, (name, weight)) in (0..).zip(of) {
        let name = stable_hash(name.as_bytes());
        points.extend((0..count(*weight)).map(|point| (mix(name ^ mix(point)), index)));
    }
    points.sort_unstable();
    points
}
