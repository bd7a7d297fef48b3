//! The arithmetic of a limit of calls in progress that adapts to how long they take.
//!
//! The limit follows the gradient: how much longer calls take now than they do when few are in progress. A window of calls decides one
//! step. Calls are compared with others of their method, because a method that takes long is no sign of load.
//!
//! Under lasting overload no call would show how long it takes alone. So the limit is lowered for a few calls from time to time, while
//! others are refused anyway.

use std::time::Duration;

use tokio::time::Instant;

/// How much longer calls may take than alone, before the limit sinks. It covers what differs from call to call.
const TOLERANCE: f64 = 1.25;

/// The most that one window lowers the limit, as a part of it: a window of bad luck does not stop the server.
const STEEPEST: f64 = 0.5;

/// The shortest window.
const WINDOW: Duration = Duration::from_millis(100);

/// How many calls a window has at least.
const CALLS: u32 = 20;

/// The limit at first, unless the configuration excludes it.
const FIRST: f64 = 20.0;

/// Calls that begin when at most this part of the limit is in progress count as alone.
const ALONE: f64 = 0.25;

/// How many calls alone make the known times fresh.
const FRESH: u32 = 20;

/// How long the times of the first calls are used. They may be few, and from before anything was warm.
const FIRST_FRESH: Duration = Duration::from_secs(1);

/// How long the known times stay fresh.
const STAYS_FRESH: Duration = Duration::from_secs(10);

/// How many times longer they stay fresh than it took to make them so. This bounds what that costs where calls are slow.
const STAYS_FRESH_TIMES: u32 = 20;

/// An average counts about so many of the latest calls.
const AVERAGED: u32 = 32;

/// The average time of calls.
#[derive(Debug, Default)]
pub(super) struct Average {
    /// The number of calls that were seen, up to [`AVERAGED`].
    calls: u32,
    seconds: f64,
}

impl Average {
    pub(super) fn note(&mut self, took: Duration) {
        self.calls = (self.calls + 1).min(AVERAGED);
        self.seconds += (took.as_secs_f64() - self.seconds) / f64::from(self.calls);
    }

    /// Returns the average. Zero: there was no call.
    pub(super) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Returns how many times longer another call took. `None`: there was none to compare it with.
    fn slower(&self, took: Duration) -> Option<f64> {
        (self.seconds > 0.0).then(|| took.as_secs_f64() / self.seconds)
    }
}

/// A limit of calls in progress.
#[derive(Debug)]
pub(super) struct Limit {
    calls: f64,
    least: f64,
    most: f64,
    window: Window,
    freshness: Freshness,
}

/// The calls since the last step.
#[derive(Debug)]
struct Window {
    began: Instant,
    calls: u32,
    /// The sum of how many times longer they took than alone.
    slower: f64,
    /// The most calls that were in progress at once.
    busiest: usize,
    /// Whether a call was refused.
    refused: bool,
}

/// How recently it was seen how long calls take alone.
#[derive(Debug)]
struct Freshness {
    /// Calls alone since then.
    calls: u32,
    until: Instant,
    /// When the server began to take few calls, to see that. `None`: it does not.
    probing_since: Option<Instant>,
}

impl Window {
    fn new(began: Instant) -> Self {
        Self { began, calls: 0, slower: 0.0, busiest: 0, refused: false }
    }
}

impl Limit {
    pub(super) fn new(least: u32, most: u32, now: Instant) -> Self {
        let (least, most) = (f64::from(least), f64::from(most));
        let freshness = Freshness { calls: 0, until: now + FIRST_FRESH, probing_since: None };
        Self { calls: FIRST.clamp(least, most), least, most, window: Window::new(now), freshness }
    }

    /// Returns how many calls may be in progress now.
    pub(super) fn calls(&self) -> f64 {
        if self.is_probing() { self.alone() } else { self.calls }
    }

    /// Returns how many calls in progress leave each of them as fast as alone.
    fn alone(&self) -> f64 {
        (self.calls * ALONE).ceil()
    }

    fn is_probing(&self) -> bool {
        self.freshness.probing_since.is_some()
    }

    /// Notes a call that begins: it is one of `running`. Returns whether it counts as alone.
    pub(super) fn began(&mut self, running: usize) -> bool {
        self.window.busiest = self.window.busiest.max(running);
        running as f64 <= self.alone()
    }

    /// Notes a call that was refused.
    pub(super) fn refused(&mut self) {
        self.window.refused = true;
    }

    /// Notes a call that was answered after this time, and takes a step when the window is full. `alone` is how long calls of its
    /// method take alone.
    pub(super) fn answered(&mut self, took: Duration, was_alone: bool, alone: &mut Average, now: Instant) {
        if was_alone {
            alone.note(took);
            self.freshen(now);
        }
        self.note(alone.slower(took), now);
    }

    /// Notes a call that was given up after this time: it would have taken longer.
    pub(super) fn given_up(&mut self, after: Duration, alone: &Average, now: Instant) {
        self.note(alone.slower(after).filter(|slower| *slower > 1.0), now);
    }

    fn note(&mut self, slower: Option<f64>, now: Instant) {
        if let Some(slower) = slower {
            self.window.calls += 1;
            self.window.slower += slower;
        }
        if self.window.refused && now >= self.freshness.until && !self.is_probing() {
            (self.freshness.calls, self.freshness.probing_since) = (0, Some(now));
        }
        if self.window.calls >= CALLS && now - self.window.began >= WINDOW {
            let window = std::mem::replace(&mut self.window, Window::new(now));
            self.step(&window);
        }
    }

    fn step(&mut self, window: &Window) {
        // The times of a limit that is not reached say nothing of a higher one.
        if self.is_probing() || (window.busiest as f64) < self.calls / 2.0 {
            return;
        }
        let slower = window.slower / f64::from(window.calls);
        let gradient = (TOLERANCE / slower).clamp(STEEPEST, 1.0);
        // The root lets a queue grow that keeps the server busy, and finds out whether more calls are as fast.
        self.calls = (self.calls * gradient + self.calls.sqrt() / 2.0).clamp(self.least, self.most);
    }

    /// Notes a call alone.
    fn freshen(&mut self, now: Instant) {
        self.freshness.calls += 1;
        if self.freshness.calls < FRESH {
            return;
        }
        let took = self.freshness.probing_since.map_or(Duration::ZERO, |since| now - since);
        let until = now + STAYS_FRESH.max(STAYS_FRESH_TIMES * took);
        self.freshness = Freshness { calls: 0, until, probing_since: None };
        self.window = Window::new(now);
    }
}
