//! How long to ask the device again and again before sleeping.

use std::time::Duration;

/// The longest that is worth it where sleeping and waking cost what they do on most machines.
const MAX: Duration = Duration::from_micros(50);

/// Where it begins when it has been worth it for the first time.
const START: Duration = Duration::from_micros(5);

/// The longest of all, where waking costs as much: in virtual machines.
const LIMIT: Duration = Duration::from_micros(200);

/// After so many sleeps without looking before, one is put off for `LIMIT`, to see what would be there by then.
const TRIAL_EVERY: u32 = 64;

/// A window that grows while sleeps turn out short and shrinks when they turn out long, as Linux's halt-polling governor
/// does.
///
/// A sleep that is long because waking takes long says nothing of how soon something came. So from time to time a closed
/// window is opened on trial; it stays open if that found something in at most half the time of the sleep before, so that
/// looking costs no more than the waking that it saves.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpinWindow {
    now: Duration,
    is_adaptive: bool,
    last_sleep: Duration,
    /// Sleeps with a closed window since the last trial.
    sleeps: u32,
    is_trial: bool,
}

impl SpinWindow {
    pub(super) fn adaptive() -> Self {
        let now = Duration::ZERO;
        Self { now, is_adaptive: true, last_sleep: Duration::ZERO, sleeps: 0, is_trial: false }
    }

    /// Never spins.
    pub(super) fn none() -> Self {
        Self { is_adaptive: false, ..Self::adaptive() }
    }

    pub(super) fn get(&self) -> Duration {
        if self.is_trial { LIMIT } else { self.now }
    }

    /// Something came after so long, while it was looked for.
    pub(super) fn found(&mut self, wait: Duration) {
        if std::mem::take(&mut self.is_trial) && 2 * wait <= self.last_sleep {
            self.now = (2 * wait).clamp(START, LIMIT);
        }
    }

    /// Something came after so long, and ended a sleep.
    pub(super) fn slept(&mut self, wait: Duration) {
        self.last_sleep = wait;
        if !self.is_adaptive || std::mem::take(&mut self.is_trial) {
            return;
        }
        if wait > self.now.max(MAX) {
            let half = self.now / 2;
            self.now = if half < START { Duration::ZERO } else { half };
        } else if wait > self.now {
            self.now = (self.now * 2).clamp(START, MAX);
        }
        self.sleeps = if self.now.is_zero() { self.sleeps + 1 } else { 0 };
        if self.sleeps == TRIAL_EVERY {
            (self.sleeps, self.is_trial) = (0, true);
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

    /// A window on trial, after sleeps of 300 us.
    fn on_trial() -> SpinWindow {
        let mut window = SpinWindow::adaptive();
        for _ in 0..TRIAL_EVERY {
            assert_eq!(window.get(), Duration::ZERO);
            window.slept(Duration::from_micros(300));
        }
        assert_eq!(window.get(), LIMIT);
        window
    }

    #[test]
    fn trial_that_saves_as_much_as_it_costs_opens_the_window() {
        for (found, then) in [(80, 160), (1, 5), (150, 200), (160, 0)] {
            let mut window = on_trial();
            window.found(Duration::from_micros(found));
            assert_eq!(window.get(), Duration::from_micros(then), "found after {found} us");
        }
    }

    #[test]
    fn trial_in_vain_is_over() {
        let mut window = on_trial();
        window.slept(Duration::from_micros(10_000));
        assert_eq!(window.get(), Duration::ZERO);
        window.found(Duration::from_micros(1));
        assert_eq!(window.get(), Duration::ZERO);
    }

    #[test]
    fn window_that_a_trial_has_opened_closes_like_others() {
        let mut window = on_trial();
        window.found(Duration::from_micros(80));
        window.slept(Duration::from_micros(100));
        assert_eq!(window.get(), Duration::from_micros(160));
        window.slept(Duration::from_micros(1000));
        assert_eq!(window.get(), Duration::from_micros(80));
    }

    #[test]
    fn event_mode_never_spins() {
        let mut window = SpinWindow::none();
        for _ in 0..2 * TRIAL_EVERY {
            window.slept(Duration::from_micros(1));
            assert_eq!(window.get(), Duration::ZERO);
        }
    }
}
