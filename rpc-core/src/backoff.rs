//! Times that differ at random, so that many peers do not act at once.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns the pause after the `failures`-th failed attempt in a row, counted from 0. It is `first`, then twice as long
/// each time, up to `longest`. Each pause is up to a quarter shorter or longer at random, so that many clients of a
/// lost peer do not come back at once.
pub fn pause(failures: u32, first: Duration, longest: Duration) -> Duration {
    varied(first.saturating_mul(1 << failures.min(20)).min(longest), 0.25)
}

/// Returns a time that is shorter or longer than `time` at random, by at most a part `by` of it.
pub(crate) fn varied(time: Duration, by: f64) -> Duration {
    // Each `RandomState` has its own keys.
    let part = RandomState::new().hash_one(0) % 512;
    time.mul_f64(1.0 - by + by * part as f64 / 256.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varied_times_lie_around_the_middle() {
        let middle = Duration::from_secs(100);
        let times: Vec<_> = (0..1000).map(|_| varied(middle, 0.1).as_secs()).collect();
        assert!(times.iter().all(|time| (90..110).contains(time)));
        assert!(times.iter().any(|time| *time < 93) && times.iter().any(|time| *time > 107));
    }

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
