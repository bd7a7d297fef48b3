//! Randomized exponential pauses between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns the pause after the `failures`-th failed attempt in a row, counted from 0. It is `first`, then twice as long
/// each time, up to `longest`. Each pause is up to a quarter shorter or longer at random, so that many clients of a
/// lost peer do not come back at once.
pub(crate) fn pause(failures: u32, first: Duration, longest: Duration) -> Duration {
    let pause = first.saturating_mul(1 << failures.min(20)).min(longest);
    // Each `RandomState` has its own keys.
    let part = RandomState::new().hash_one(failures) % 512;
    pause.mul_f64(0.75 + part as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(2));
        for (failures, middle) in [(0, 50), (1, 100), (2, 200), (5, 1600), (6, 2000), (1000, 2000)] {
            let middle = Duration::from_millis(middle);
            let pauses: Vec<_> = (0..100).map(|_| pause(failures, first, longest)).collect();
            assert!(pauses.iter().all(|pause| (middle.mul_f64(0.75)..middle.mul_f64(1.25)).contains(pause)));
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "all are {:?}", pauses[0]);
        }
    }
}
