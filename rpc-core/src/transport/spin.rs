//! How long to spin for something to arrive before sleeping.

use std::time::Duration;

/// The longest window that pays where sleeping and waking cost what they do on most machines.
const MAX: Duration = Duration::from_micros(50);

/// The first window after spinning has paid for the first time.
const START: Duration = Duration::from_micros(5);

/// The longest window of all, for virtual machines, where waking takes long.
const LIMIT: Duration = Duration::from_millis(3);

/// Sleeps before the first trial of spinning. The number doubles after each trial in vain, up to `LAST_TRIAL`.
const FIRST_TRIAL: u32 = 32;
const LAST_TRIAL: u32 = 8192;

/// How many times more waits a wide window has before a trial of sleeping.
const RARER: u32 = 16;

/// Waits in a trial of spinning. The first half does not count. The system puts threads that wake each other on the
/// same CPU. It needs some milliseconds to notice that they spin and to give each its own.
const LOOKS: u32 = 32;

/// Waits in a trial of sleeping.
const SLEEPS: u32 = 4;

/// Waits in a row that outlast the window and so close it.
const MISSES: u32 = 4;

/// A spin window that grows while sleeps are short and closes when they are long.
///
/// A sleep may be long only because waking takes long, which does not show how soon something arrived. So from time to
/// time a closed window is opened on trial. It stays open if waits take at most three quarters of the time. Then waking
/// is at least a third of a wait, and spinning costs at most three times as much. A wide window is closed on trial, and
/// stays closed if that was no slower.
#[derive(Debug, Clone, Copy)]
pub struct SpinWindow {
    now: Duration,
    is_adaptive: bool,
    /// Whether the window opens only on trial.
    is_conservative: bool,
    /// The average time of a wait with sleeping, and of one with spinning.
    sleep: Duration,
    look: Duration,
    /// Waits since the last trial, and the number of waits before the next.
    waits: u32,
    next_trial: u32,
    misses: u32,
    trial: Option<Trial>,
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    waits: u32,
    /// The sum over the second half of the waits.
    sum: Duration,
}

impl SpinWindow {
    /// Returns a window that spins where that pays.
    pub fn adaptive() -> Self {
        Self { is_adaptive: true, ..Self::none() }
    }

    /// Returns a window for sockets, where a sleep is sometimes as short as spinning. The kernel wakes a reader on the
    /// CPU of the writer if that is about to sleep.
    pub fn conservative() -> Self {
        Self { is_conservative: true, ..Self::adaptive() }
    }

    /// Returns a window that never spins.
    pub fn none() -> Self {
        Self {
            now: Duration::ZERO,
            is_adaptive: false,
            is_conservative: false,
            sleep: Duration::ZERO,
            look: Duration::ZERO,
            waits: 0,
            next_trial: FIRST_TRIAL,
            misses: 0,
            trial: None,
        }
    }

    /// Returns a window that never sleeps.
    pub fn always() -> Self {
        Self { now: Duration::MAX, ..Self::none() }
    }

    /// Whether the window never spins.
    pub fn is_off(&self) -> bool {
        !self.is_adaptive && self.now.is_zero()
    }

    /// Whether the window needs to know how long waits take.
    pub fn is_adaptive(&self) -> bool {
        self.is_adaptive
    }

    /// Returns how long to spin.
    pub fn get(&self) -> Duration {
        match (self.trial, self.is_open()) {
            (None, _) => self.now,
            (Some(_), false) => LIMIT.min(2 * self.sleep),
            (Some(_), true) => Duration::ZERO,
        }
    }

    /// Records a wait that spinning has covered.
    pub fn found(&mut self, wait: Duration) {
        if !self.is_adaptive {
            return;
        }
        self.misses = 0;
        if self.trial.is_some() {
            self.on_trial(wait);
        } else if self.now > MAX || self.is_conservative && self.is_open() {
            self.look = average(self.look, wait);
            self.now = (3 * self.look).clamp(if self.is_conservative { START } else { MAX }, LIMIT);
            self.count();
        }
    }

    /// Records a wait that ended in a sleep.
    pub fn slept(&mut self, wait: Duration) {
        if !self.is_adaptive {
            return;
        }
        if self.trial.is_some() {
            self.misses += u32::from(!self.is_open());
            if self.misses == MISSES {
                return self.conclude(false);
            }
            return self.on_trial(wait);
        }
        if wait <= MAX && !self.is_conservative {
            self.misses = 0;
            self.now = (self.now * 2).clamp(START, MAX);
        } else if self.is_open() {
            self.misses += 1;
            if self.misses == MISSES {
                self.close();
            }
        } else if wait <= LIMIT {
            self.sleep = average(self.sleep, wait);
            self.count();
        }
    }

    fn is_open(&self) -> bool {
        !self.now.is_zero()
    }

    fn close(&mut self) {
        (self.now, self.sleep) = (Duration::ZERO, Duration::ZERO);
        self.conclude(true);
    }

    fn count(&mut self) {
        self.waits += 1;
        let rarer = if self.is_open() { RARER } else { 1 };
        if self.waits >= rarer * self.next_trial {
            self.trial = Some(Trial { waits: 0, sum: Duration::ZERO });
        }
    }

    fn on_trial(&mut self, wait: Duration) {
        let length = if self.is_open() { SLEEPS } else { LOOKS };
        let Some(trial) = &mut self.trial else { return };
        trial.waits += 1;
        if trial.waits > length / 2 {
            trial.sum += wait;
        }
        if trial.waits < length {
            return;
        }
        let average = trial.sum / (length / 2);
        match self.is_open() {
            false if self.pays(average, self.sleep) => {
                self.look = average;
                self.now = (3 * average).clamp(START, LIMIT);
                self.conclude(true);
            }
            true if !self.pays(self.look, average) => self.close(),
            _ => self.conclude(false),
        }
    }

    /// Whether spinning for `look` is better than sleeping for `sleep`.
    fn pays(&self, look: Duration, sleep: Duration) -> bool {
        if self.is_conservative { 10 * look <= 9 * sleep } else { 4 * look <= 3 * sleep }
    }

    /// Ends a trial. The next one comes soon after a change, and later each time there is none.
    fn conclude(&mut self, has_changed: bool) {
        (self.trial, self.waits, self.misses) = (None, 0, 0);
        self.next_trial = if has_changed { FIRST_TRIAL } else { (2 * self.next_trial).min(LAST_TRIAL) };
    }
}

/// Returns a moving average over about the last eight values.
fn average(before: Duration, now: Duration) -> Duration {
    if before.is_zero() { now } else { (7 * before + now) / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn after(sleeps: &[u64]) -> u128 {
        let mut window = SpinWindow::adaptive();
        sleeps.iter().for_each(|&sleep| window.slept(us(sleep)));
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
    fn long_sleeps_in_a_row_close_it() {
        assert_eq!(after(&[45, 45, 45, 45, 45, 1000, 1000, 1000]), 50);
        assert_eq!(after(&[45, 45, 45, 45, 45, 1000, 1000, 1000, 1000]), 0);
        assert_eq!(after(&[45, 45, 45, 45, 45, 1000, 1000, 45, 1000, 1000, 1000]), 50);
    }

    #[test]
    fn long_sleep_between_waits_that_it_covers_changes_nothing() {
        let mut window = SpinWindow::adaptive();
        (0..5).for_each(|_| window.slept(us(45)));
        for _ in 0..100 {
            window.slept(us(1000));
            window.found(us(10));
        }
        assert_eq!(window.get(), MAX);
    }

    fn closed_for(window: &mut SpinWindow, waits: u32, sleep: u64) {
        for _ in 0..waits {
            assert_eq!(window.get(), Duration::ZERO);
            window.slept(us(sleep));
        }
    }

    /// Returns a window on trial, after sleeps of 300 us.
    fn on_trial() -> SpinWindow {
        let mut window = SpinWindow::adaptive();
        closed_for(&mut window, FIRST_TRIAL, 300);
        assert_eq!(window.get(), us(600));
        window
    }

    /// Returns the window after a trial in which each wait takes `wait` us.
    fn tried(mut window: SpinWindow, wait: u64) -> SpinWindow {
        (0..LOOKS).for_each(|_| window.found(us(wait)));
        window
    }

    #[test]
    fn trial_that_saves_a_quarter_opens_the_window() {
        for (found, then) in [(80, 240), (1, 5), (225, 675), (226, 0)] {
            assert_eq!(tried(on_trial(), found).get(), us(then), "found after {found} us");
        }
    }

    #[test]
    fn first_half_of_a_trial_does_not_count() {
        let mut window = on_trial();
        (0..LOOKS / 2).for_each(|_| window.found(us(500)));
        (0..LOOKS / 2).for_each(|_| window.found(us(100)));
        assert_eq!(window.get(), us(300));
    }

    #[test]
    fn trial_that_finds_nothing_is_soon_over() {
        let mut window = on_trial();
        (0..MISSES).for_each(|_| window.slept(us(10_000)));
        assert_eq!(window.get(), Duration::ZERO);
        window.found(us(1));
        assert_eq!(window.get(), Duration::ZERO);
    }

    #[test]
    fn trials_in_vain_become_rare() {
        let mut window = on_trial();
        for between in [2 * FIRST_TRIAL, 4 * FIRST_TRIAL, 8 * FIRST_TRIAL] {
            window = tried(window, 290);
            closed_for(&mut window, between, 300);
            assert_eq!(window.get(), us(600));
        }
    }

    #[test]
    fn nothing_is_tried_where_calls_are_rare() {
        closed_for(&mut SpinWindow::adaptive(), 2 * LAST_TRIAL, 10_000);
    }

    #[test]
    fn wide_window_stays_open_while_it_pays() {
        for (slept, then) in [(134, 300), (133, 0)] {
            let mut window = tried(on_trial(), 100);
            for _ in 0..RARER * FIRST_TRIAL {
                assert_eq!(window.get(), us(300));
                window.found(us(100));
            }
            closed_for(&mut window, SLEEPS, slept);
            assert_eq!(window.get(), us(then), "slept for {slept} us");
        }
    }

    #[test]
    fn wide_window_follows_what_is_usual() {
        let mut window = tried(on_trial(), 200);
        assert_eq!(window.get(), us(600));
        (0..100).for_each(|_| window.found(us(20)));
        assert!(window.get() < us(62), "{:?}", window.get());
    }

    #[test]
    fn conservative_window_opens_on_trial_alone_where_a_tenth_is_saved_and_follows_what_is_usual() {
        let mut window = SpinWindow::conservative();
        closed_for(&mut window, FIRST_TRIAL, 20);
        for (found, then) in [(18, 54), (19, 0)] {
            assert_eq!(tried(window, found).get(), us(then), "found after {found} us");
        }
        let mut window = tried(window, 10);
        (0..100).for_each(|_| window.found(us(4)));
        assert!((us(12)..us(16)).contains(&window.get()), "{:?}", window.get());
        (0..MISSES).for_each(|_| window.slept(us(1000)));
        assert_eq!(window.get(), Duration::ZERO);
    }

    #[test]
    fn event_mode_never_spins() {
        let mut window = SpinWindow::none();
        for _ in 0..2 * FIRST_TRIAL {
            window.slept(us(1));
            assert_eq!(window.get(), Duration::ZERO);
        }
    }

    /// One end of a connection with one call in progress.
    struct End {
        window: SpinWindow,
        idle_since: Duration,
    }

    impl End {
        /// Returns when a message that arrives at `arrival` is taken: at once, or after waking.
        fn take(&mut self, arrival: Duration, waking: Duration) -> Duration {
            let wait = arrival - self.idle_since;
            if wait < self.window.get() {
                self.window.found(wait);
                return arrival;
            }
            self.window.slept(wait + waking);
            arrival + waking
        }
    }

    /// Returns how long the last of many consecutive calls takes.
    fn round_trip(way: Duration, work: Duration, waking: Duration) -> Duration {
        let [mut client, mut server] =
            [(); 2].map(|()| End { window: SpinWindow::adaptive(), idle_since: Duration::ZERO });
        let (mut now, mut took) = (us(1), Duration::ZERO);
        for _ in 0..1000 {
            let began = now;
            client.idle_since = began;
            server.idle_since = server.take(began + way, waking) + work;
            now = client.take(server.idle_since + way, waking) + work;
            took = now - began;
        }
        took
    }

    #[test]
    fn both_ends_look_where_waking_takes_long() {
        for waking in [100, 200, 350] {
            assert_eq!(round_trip(us(40), us(30), us(waking)), us(140), "waking takes {waking} us");
        }
    }
}
