//! How long to ask the device again and again before sleeping.

use std::time::Duration;

/// The longest that is worth it: sleeping and waking costs less than this on every machine.
const MAX: Duration = Duration::from_micros(50);

/// Where it begins when it has been worth it for the first time.
const START: Duration = Duration::from_micros(5);

/// A window that grows while sleeps turn out short and shrinks when they turn out long, as Linux's halt-polling governor
/// does.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpinWindow {
    now: Duration,
    max: Duration,
}

impl SpinWindow {
    pub(super) fn adaptive() -> Self {
        Self { now: Duration::ZERO, max: MAX }
    }

    /// Never spins.
    pub(super) fn none() -> Self {
        Self { now: Duration::ZERO, max: Duration::ZERO }
    }

    pub(super) fn get(&self) -> Duration {
        self.now
    }

    /// Something came after a sleep of this length.
    pub(super) fn slept(&mut self, sleep: Duration) {
        if sleep > self.max {
            let half = self.now / 2;
            self.now = if half < START { Duration::ZERO } else { half };
        } else if sleep > self.now {
            self.now = (self.now * 2).clamp(START, MAX).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(sleeps: &[u64]) -> u128 {
        let mut window = SpinWindow::adaptive();
        sleeps.iter().for_each(|&us| window.slept(Duration::from_micros(us)));
        window.get().as_micros()
    }

    #[test]
    fn short_sleeps_open_the_window_up_to_its_limit() {
        assert_eq!(after(&[]), 0);
        assert_eq!(after(&[20]), 5);
        assert_eq!(after(&[20, 20]), 10);
        assert_eq!(after(&[20, 20, 20]), 20);
        assert_eq!(after(&[45; 9]), 50);
    }

    #[test]
    fn sleep_that_the_window_would_have_covered_changes_nothing() {
        assert_eq!(after(&[20, 20, 20, 15]), 20);
    }

    #[test]
    fn long_sleeps_close_it() {
        assert_eq!(after(&[45, 45, 45, 45, 45, 1000]), 25);
        assert_eq!(after(&[45, 45, 45, 45, 45, 1000, 1000, 1000, 1000]), 0);
    }

    #[test]
    fn event_mode_never_spins() {
        let mut window = SpinWindow::none();
        window.slept(Duration::from_micros(1));
        window.slept(Duration::ZERO);
        assert_eq!(window.get(), Duration::ZERO);
    }
}
